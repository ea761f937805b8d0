"""The audit log records administrative actions and their callers. An entry is written in the commit of the action."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct, field

from shoal.base.database import Database, Tx

if TYPE_CHECKING:
    from shoal.access.token import Caller


class AuditEntry(Struct, frozen=True):
    """An administrative action, such as `token.created` or `crawl.removed`."""

    name: str
    subject: str
    facts: dict[str, Any] = field(default_factory=dict)


class StoredAuditEntry(Struct, frozen=True, kw_only=True):
    """An entry of the audit log as it is stored."""

    number: int
    at: int
    who: str
    action: AuditEntry
    address: str


class AuditLog:
    """Writes and lists audit log entries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note_in(self, tx: Tx, by: "Caller", entry: AuditEntry) -> None:
        """Write an entry in the commit of its action."""
        facts = orjson.dumps(entry.facts).decode()
        await tx.execute(
            "append_audit_entry", who=by.who, act=entry.name, subject=entry.subject, facts=facts, address=by.address
        )

    async def note(self, by: "Caller", entry: AuditEntry) -> None:
        """Write an entry for an action that changed nothing in the store."""
        await self._database.run(lambda tx: self.note_in(tx, by, entry))

    async def newest(
        self, *, before: int | None = None, limit: int = 50, subject: str | None = None
    ) -> list[StoredAuditEntry]:
        """Return entries, newest first; if `subject` is given, only entries about it."""
        about = {} if subject is None else {"subject": subject}
        query = "newest_audit_entries_on" if about else "newest_audit_entries"
        rows = await self._database.read(lambda tx: tx.all(query, before=before, limit=limit, **about))
        return [_stored(row) for row in rows]


def _stored(row: Any) -> StoredAuditEntry:
    entry = AuditEntry(row["act"], row["subject"], orjson.loads(row["facts"]))
    return StoredAuditEntry(number=row["number"], at=row["at"], who=row["who"], action=entry, address=row["address"])


AuditHook = Callable[[Tx, str, str], Awaitable[None]]
"""Writes an action, such as `gate.created`, and its subject to the audit log, in an open transaction."""


async def no_audit(tx: Tx, action: str, subject: str) -> None:
    """Write nothing. For operations that no caller requested, or whose entry has already been written."""
