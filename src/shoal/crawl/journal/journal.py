"""The journal of a crawl: what a person would want to read of its way, a line each, in the commits that cause them.

Whoever reports something makes a `JournalEntry`. The log lines of a process are made in `observe`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.base.clock import moment
from shoal.base.database import Database, Tx
from shoal.base.errors import NotFound
from shoal.base.text import clean
from shoal.crawl.journal import messages
from shoal.crawl.journal.entry import JournalEntry
from shoal.crawl.store import CrawlStore

MOST_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Written:
    """A line of a journal. Numbers rise by one in the order of the commits; the first lines of a long journal go."""

    number: int
    at: int
    line: JournalEntry

    def record(self, crawl_id: str) -> dict[str, Any]:
        """The line as API, files and command line show it: the promised fields of every log line come first."""
        return {
            "timestamp": moment(self.at),
            "level": self.line.level.value,
            "event": self.line.event,
            "msg": self.line.message,
            "crawl_id": crawl_id,
            "number": self.number,
            **self.line.facts,
        }


@dataclass(frozen=True, slots=True)
class Unfiled:
    """A crawl whose journal has lines that are in no file yet."""

    crawl: int
    crawl_id: str
    project: str
    filed: int  # the number of the last line that is in a file
    upto: int  # of the last line


class JournalStore(Protocol):
    async def append(self, tx: Tx, crawl: int, lines: Sequence[JournalEntry], most: int) -> None:
        """Add lines, and drop the first ones of more than `most`. Whoever adds holds the end of that journal until its
        commit is through, so call it last: then a reader that goes by numbers misses none."""
        ...

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[Written]:
        """Lines after the one with that number, in order. An empty answer does not mean that no more will come."""
        ...

    async def last(self, tx: Tx, crawl: int, count: int) -> list[Written]:
        """The last lines, in order."""
        ...

    async def finish_depth(self, tx: Tx, crawl: int, depth: int) -> int | None:
        """Remember that everything up to this depth is settled; the depth that was known before, None if it was this
        one or a deeper one."""
        ...

    async def unfiled(self, tx: Tx, limit: int) -> list[Unfiled]:
        """Crawls that have lines in no file."""
        ...

    async def claim(self, tx: Tx, crawl: int, filed: int, upto: int) -> bool:
        """Let lines up to a number count as filed; False if somebody else was first."""
        ...


class Journal:
    """Reads and writes journals."""

    def __init__(self, database: Database, store: JournalStore, crawls: CrawlStore, most: int) -> None:
        self._database = database
        self.store = store
        self._crawls = crawls
        self._most = most

    async def write(self, tx: Tx, crawl: int, lines: Sequence[JournalEntry]) -> None:
        """Add lines to the commit that caused them, as its last statements."""
        if lines:
            await self.store.append(tx, crawl, [_cleaned(line) for line in lines], self._most)

    async def finish_depth(self, tx: Tx, crawl: int, depth: int) -> list[JournalEntry]:
        """Everything up to a depth is settled: the lines that say so, unless somebody has said it."""
        before = await self.store.finish_depth(tx, crawl, depth)
        return [] if before is None else messages.depths_finished(before, depth)

    async def lines(self, crawl_id: str, after: int | None = None, limit: int = MOST_AT_ONCE) -> list[Written]:
        """Lines after a number, in order; without a number, the last ones."""

        async def look(tx: Tx) -> list[Written]:
            crawl = await self._crawls.get(tx, crawl_id)
            if crawl is None:
                raise NotFound("crawl", crawl_id)
            if after is None:
                return await self.store.last(tx, crawl.number, limit)
            return await self.store.after(tx, crawl.number, after, limit)

        return await self._database.read(look)


def _cleaned(line: JournalEntry) -> JournalEntry:
    facts = {name: clean(value) if isinstance(value, str) else value for name, value in line.facts.items()}
    return JournalEntry(line.event, clean(line.message), line.level, facts)
