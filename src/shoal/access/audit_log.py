"""The audit log: who did what, to which subject, when and from where. Entries are written in the commit of the action
and never changed."""

from dataclasses import dataclass, field
from typing import Any

from shoal.access.caller import Caller
from shoal.access.store import AuditLogStore
from shoal.base.database import Database, Tx


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An administrative action, such as `token.created` or `crawl.removed`."""

    name: str
    subject: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAuditEntry:
    """An entry of the audit log as it is stored."""

    number: int
    at: int
    who: str
    action: AuditEntry
    address: str


class AuditLog:
    """Writes and lists audit log entries."""

    def __init__(self, database: Database, store: AuditLogStore) -> None:
        self._database = database
        self._store = store

    async def note_in(self, tx: Tx, by: Caller, entry: AuditEntry) -> None:
        """Write an entry in the commit of its action."""
        await self._store.append(tx, by, entry)

    async def note(self, by: Caller, entry: AuditEntry) -> None:
        """Write an entry for an action that changed nothing in the store."""
        await self._database.run(lambda tx: self._store.append(tx, by, entry))

    async def newest(
        self, *, before: int | None = None, limit: int = 50, subject: str | None = None
    ) -> list[StoredAuditEntry]:
        return await self._database.read(lambda tx: self._store.page_of(tx, before, limit, subject))
