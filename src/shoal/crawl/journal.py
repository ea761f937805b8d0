"""The journal of a crawl: the entries in the store and in log files."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from shoal.base.clock import moment
from shoal.base.database import Database, Tx
from shoal.base.errors import NotFound
from shoal.base.service import PassResult
from shoal.base.text import clean, json_of
from shoal.crawl import journal_messages as messages
from shoal.crawl.journal_messages import JournalEntry, JournalLevel
from shoal.crawl.store import CrawlStore

MOST_AT_ONCE = 1000


class StoredEntry(Struct, frozen=True):
    """A stored journal entry. Entries are numbered in commit order, without gaps. The oldest entries of a long journal
    are dropped."""

    number: int
    at: int
    entry: JournalEntry

    def record(self, crawl_id: str) -> dict[str, Any]:
        """Return the entry as the API, the log files and the command line show it. First come the fields that every log
        line has."""
        return {
            "timestamp": moment(self.at),
            "level": self.entry.level.value,
            "event": self.entry.event,
            "msg": self.entry.message,
            "crawl_id": crawl_id,
            "number": self.number,
            **self.entry.facts,
        }


class UnfiledJournal(Struct, frozen=True):
    """A crawl whose journal has entries that are not in a file yet."""

    crawl: int
    crawl_id: str
    project: str
    filed: int  # number of the last entry that is in a file
    upto: int  # number of the last entry


class JournalStore:
    """The store of all journal entries, which are numbered per crawl."""

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[StoredEntry]:
        """Return the entries after this number, in order. If the result is empty, entries may still be added later."""
        return [
            _stored_entry(row) for row in await tx.all("journal_entries_after", crawl=crawl, number=number, limit=limit)
        ]

    async def last(self, tx: Tx, crawl: int, count: int) -> list[StoredEntry]:
        """Return the last entries, in order."""
        return [_stored_entry(row) for row in reversed(await tx.all("last_journal_entries", crawl=crawl, limit=count))]

    async def unfiled(self, tx: Tx, limit: int) -> list[UnfiledJournal]:
        """Return crawls with entries that are not in a file yet."""
        rows = await tx.all("unfiled_journals", limit=limit)
        return [
            UnfiledJournal(row["crawl"], row["crawl_id"], row["project"], row["filed"], row["lines"]) for row in rows
        ]

    async def claim(self, tx: Tx, crawl: int, filed: int, upto: int) -> bool:
        """Mark the entries up to a number as written to a file. Return False if another process has already claimed
        them."""
        return await tx.execute("claim_journal_entries", crawl=crawl, filed=filed, upto=upto) == 1


class Journal:
    """Reads and writes journals."""

    def __init__(self, database: Database, most: int) -> None:
        self._database = database
        self.store = JournalStore()
        self._crawls = CrawlStore()
        self._most = most

    async def write(self, tx: Tx, crawl: int, entries: Sequence[JournalEntry]) -> None:
        """Append entries in the transaction that caused them, and drop the oldest entries beyond the limit. The call
        locks the end of the journal until the commit, so that a reader who follows the numbers misses no entry.
        Therefore make it the last call of the transaction."""
        if not entries:
            return
        last = await tx.value("reserve_journal_entries", crawl=crawl, count=len(entries))
        first = last - len(entries) + 1
        rows = [_row(crawl, number, entry) for number, entry in enumerate(entries, first)]
        await tx.many("insert_journal_entries", rows)
        if last > self._most:
            await tx.execute("drop_first_journal_entries", crawl=crawl, number=last - self._most)

    async def finish_depth(self, tx: Tx, crawl: int, depth: int) -> list[JournalEntry]:
        """Store that all URLs up to this depth are settled; return the entries for the depths that were not reported
        before."""
        before = await tx.value("finish_depth", crawl=crawl, depth=depth)
        return [] if before is None else messages.depths_finished(before, depth)

    async def entries(self, crawl_id: str, after: int | None = None, limit: int = MOST_AT_ONCE) -> list[StoredEntry]:
        """Return the entries after a number, in order; without a number, return the last entries."""

        async def look(tx: Tx) -> list[StoredEntry]:
            crawl = await self._crawls.get(tx, crawl_id)
            if crawl is None:
                raise NotFound("crawl", crawl_id)
            found = (
                await self.store.last(tx, crawl.number, limit)
                if after is None
                else await self.store.after(tx, crawl.number, after, limit)
            )
            if not any(messages.claims_all_urls(one.entry) for one in found):
                return found
            counts = await self._crawls.counts(tx, crawl.number)
            return [replace(one, entry=messages.reworded(one.entry, crawl, counts)) for one in found]

        return await self._database.read(look)


def _row(crawl: int, number: int, entry: JournalEntry) -> tuple[Any, ...]:
    facts = {name: clean(value) if isinstance(value, str) else value for name, value in entry.facts.items()}
    return crawl, number, entry.level.value, entry.event, clean(entry.message), json_of(facts).decode()


def _stored_entry(row: Any) -> StoredEntry:
    entry = JournalEntry(row["event"], row["message"], JournalLevel(row["level"]), orjson.loads(row["facts"]))
    return StoredEntry(row["number"], row["at"], entry)


CRAWLS_AT_ONCE = 100
ENTRIES_AT_ONCE = 500


class JournalFiles:
    """A chore that copies journal entries to files. Several processes may run this chore, on one or several machines;
    each entry is written by exactly one process. If a process dies after it claimed entries and before it wrote them,
    these entries are missing in the file, but not in the store."""

    name = "project logs"

    def __init__(self, database: Database, append: Callable[[str, list[bytes]], None]) -> None:
        self._database = database
        self._store = JournalStore()
        self._append = append
        self._stuck = 0  # journals that could not be written in the last pass

    async def run_once(self) -> PassResult:
        """Write the next entries of each journal. If the file of one project cannot be written, the other projects do
        not wait."""
        limit = CRAWLS_AT_ONCE + self._stuck  # journals that could not be written are read again, before all others
        waiting = await self._database.read(lambda tx: self._store.unfiled(tx, limit))
        filed, errors = list[int](), dict[str, OSError]()
        for journal in waiting:
            try:
                if journal.project not in errors:
                    filed.append(await self._file(journal))
            except OSError as error:
                errors[journal.project] = error
        self._stuck = len(waiting) - len(filed)
        if errors:
            raise next(iter(errors.values()))
        more = len(waiting) == limit or ENTRIES_AT_ONCE in filed
        return PassResult(
            f"wrote {sum(filed)} lines" if any(filed) else "", timedelta(0) if more and any(filed) else None
        )

    async def _file(self, journal: UnfiledJournal) -> int:
        entries = await self._database.run(lambda tx: self._claimed(tx, journal))
        if not entries:
            return 0
        try:
            self._append(journal.project, [orjson.dumps(one.record(journal.crawl_id), option=_FORM) for one in entries])
        except OSError:
            last = entries[-1].number
            await self._database.run(lambda tx: self._store.claim(tx, journal.crawl, last, journal.filed))
            raise
        return len(entries)

    async def _claimed(self, tx: Tx, journal: UnfiledJournal) -> list[StoredEntry]:
        """Claim the next entries and return them; the result is empty if another process has claimed them. Entries that
        were already pruned are skipped."""
        entries = await self._store.after(tx, journal.crawl, journal.filed, ENTRIES_AT_ONCE)
        upto = entries[-1].number if entries else journal.upto
        return entries if await self._store.claim(tx, journal.crawl, journal.filed, upto) else []


_FORM = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
