"""Copy journal entries from the store to the log files of their projects."""

from collections.abc import Callable
from datetime import timedelta

import orjson

from shoal.base.database import Database, Tx
from shoal.base.service import PassResult
from shoal.crawl.journal.journal import JournalStore, StoredEntry, UnfiledJournal

CRAWLS_AT_ONCE = 100
ENTRIES_AT_ONCE = 500


class JournalFiles:
    """A chore that copies journal entries to files. Several may run, on one machine or many: each entry is written by
    one of them. If one dies between its claim and its write, those entries are missing in the file; the store has them.
    """

    name = "project logs"

    def __init__(self, database: Database, append: Callable[[str, list[bytes]], None]) -> None:
        self._database = database
        self._store = JournalStore()
        self._append = append
        self._stuck = 0  # journals that could not be written in the last pass

    async def run_once(self) -> PassResult:
        """Write the next entries of each journal. A project whose file cannot be written keeps no other waiting."""
        limit = CRAWLS_AT_ONCE + self._stuck  # those are read again, before all others
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
        """Claim and return the next entries; empty if another process was first. Entries that were already pruned are
        skipped."""
        entries = await self._store.after(tx, journal.crawl, journal.filed, ENTRIES_AT_ONCE)
        upto = entries[-1].number if entries else journal.upto
        return entries if await self._store.claim(tx, journal.crawl, journal.filed, upto) else []


_FORM = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
