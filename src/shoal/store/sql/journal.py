"""The journals of crawls on SQL."""

from collections.abc import Sequence
from typing import Any

import orjson

from shoal.base.database import Tx
from shoal.base.text import json_of, storable
from shoal.crawl.journal.entry import JournalEntry, JournalLevel
from shoal.crawl.journal.journal import StoredEntry, UnfiledJournal


class SqlJournalStore:
    """Implements `crawl.journal.journal.JournalStore`."""

    async def append(self, tx: Tx, crawl: int, entries: Sequence[JournalEntry], most: int) -> None:
        last = await tx.value("reserve_journal_entries", crawl=crawl, count=len(entries))
        first = last - len(entries) + 1
        await tx.many(
            "insert_journal_entries", [_row(crawl, number, entry) for number, entry in enumerate(entries, first)]
        )
        if last > most:
            await tx.execute("drop_first_journal_entries", crawl=crawl, number=last - most)

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[StoredEntry]:
        return [
            _stored_entry(row) for row in await tx.all("journal_entries_after", crawl=crawl, number=number, limit=limit)
        ]

    async def last(self, tx: Tx, crawl: int, count: int) -> list[StoredEntry]:
        return [_stored_entry(row) for row in reversed(await tx.all("last_journal_entries", crawl=crawl, limit=count))]

    async def finish_depth(self, tx: Tx, crawl: int, depth: int) -> int | None:
        before: int | None = await tx.value("finish_depth", crawl=crawl, depth=depth)
        return before

    async def unfiled(self, tx: Tx, limit: int) -> list[UnfiledJournal]:
        rows = await tx.all("unfiled_journals", limit=limit)
        return [
            UnfiledJournal(row["crawl"], row["crawl_id"], row["project"], row["filed"], row["lines"]) for row in rows
        ]

    async def claim(self, tx: Tx, crawl: int, filed: int, upto: int) -> bool:
        return await tx.execute("claim_journal_entries", crawl=crawl, filed=filed, upto=upto) == 1


def _row(crawl: int, number: int, entry: JournalEntry) -> tuple[Any, ...]:
    return crawl, number, entry.level.value, entry.event, storable(entry.message), json_of(entry.facts).decode()


def _stored_entry(row: Any) -> StoredEntry:
    entry = JournalEntry(row["event"], row["message"], JournalLevel(row["level"]), orjson.loads(row["facts"]))
    return StoredEntry(row["number"], row["at"], entry)
