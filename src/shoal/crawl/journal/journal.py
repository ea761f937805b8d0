"""The journal of a crawl: a log for people, each entry written in the commit that causes it.

Other modules create the `JournalEntry`. The log lines of a process are made in `observe`.
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
class StoredEntry:
    """A stored journal entry. Numbers increase by one in commit order; the oldest entries of a long journal are
    dropped."""

    number: int
    at: int
    entry: JournalEntry

    def record(self, crawl_id: str) -> dict[str, Any]:
        """Return the entry as the API, files and the command line show it; the fields common to every log line come
        first."""
        return {
            "timestamp": moment(self.at),
            "level": self.entry.level.value,
            "event": self.entry.event,
            "msg": self.entry.message,
            "crawl_id": crawl_id,
            "number": self.number,
            **self.entry.facts,
        }


@dataclass(frozen=True, slots=True)
class UnfiledJournal:
    """A crawl whose journal has entries that are not in a file yet."""

    crawl: int
    crawl_id: str
    project: str
    filed: int  # number of the last entry that is in a file
    upto: int  # number of the last entry


class JournalStore(Protocol):
    async def append(self, tx: Tx, crawl: int, entries: Sequence[JournalEntry], most: int) -> None:
        """Append entries, and drop the oldest beyond `most`. This locks the end of the journal until the commit, so
        call it last; a reader that follows the numbers then misses none."""
        ...

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[StoredEntry]:
        """Return the entries after this number, in order. An empty result does not mean that no more will come."""
        ...

    async def last(self, tx: Tx, crawl: int, count: int) -> list[StoredEntry]:
        """Return the last entries, in order."""
        ...

    async def finish_depth(self, tx: Tx, crawl: int, depth: int) -> int | None:
        """Store that everything up to this depth is settled; return the depth stored before, or None if it was not
        lower."""
        ...

    async def unfiled(self, tx: Tx, limit: int) -> list[UnfiledJournal]:
        """Return crawls with entries that are not in a file yet."""
        ...

    async def claim(self, tx: Tx, crawl: int, filed: int, upto: int) -> bool:
        """Mark entries up to a number as filed; return False if another process was first."""
        ...


class Journal:
    """Reads and writes journals."""

    def __init__(self, database: Database, store: JournalStore, crawls: CrawlStore, most: int) -> None:
        self._database = database
        self.store = store
        self._crawls = crawls
        self._most = most

    async def write(self, tx: Tx, crawl: int, entries: Sequence[JournalEntry]) -> None:
        """Append entries to the commit that caused them. Call it last in the commit."""
        if entries:
            await self.store.append(tx, crawl, [_cleaned(entry) for entry in entries], self._most)

    async def finish_depth(self, tx: Tx, crawl: int, depth: int) -> list[JournalEntry]:
        """Return the entries for depths that are now settled, without those already reported."""
        before = await self.store.finish_depth(tx, crawl, depth)
        return [] if before is None else messages.depths_finished(before, depth)

    async def entries(self, crawl_id: str, after: int | None = None, limit: int = MOST_AT_ONCE) -> list[StoredEntry]:
        """Return the entries after a number, in order; without a number, the last ones."""

        async def look(tx: Tx) -> list[StoredEntry]:
            crawl = await self._crawls.get(tx, crawl_id)
            if crawl is None:
                raise NotFound("crawl", crawl_id)
            if after is None:
                return await self.store.last(tx, crawl.number, limit)
            return await self.store.after(tx, crawl.number, after, limit)

        return await self._database.read(look)


def _cleaned(entry: JournalEntry) -> JournalEntry:
    facts = {name: clean(value) if isinstance(value, str) else value for name, value in entry.facts.items()}
    return JournalEntry(entry.event, clean(entry.message), entry.level, facts)
