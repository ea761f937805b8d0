"""The log of administrative acts: who did what, to what, when, from where. Written in the commit of the act, and never
changed."""

from dataclasses import dataclass, field
from typing import Any

from shoal.access.caller import Caller
from shoal.access.store import AuditLogStore
from shoal.base.database import Database, Tx


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that an administrator did: `token.created`, `crawl.removed`."""

    name: str
    subject: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAuditEntry:
    """An act as the log has it."""

    number: int
    at: int
    who: str
    act: AuditEntry
    address: str


class AuditLog:
    """Writes and lists acts."""

    def __init__(self, database: Database, store: AuditLogStore) -> None:
        self._database = database
        self._store = store

    async def note_in(self, tx: Tx, by: Caller, act: AuditEntry) -> None:
        """Write an act in its own commit."""
        await self._store.append(tx, by, act)

    async def note(self, by: Caller, act: AuditEntry) -> None:
        """Write an act that changed nothing in the store."""
        await self._database.run(lambda tx: self._store.append(tx, by, act))

    async def newest(
        self, *, before: int | None = None, limit: int = 50, subject: str | None = None
    ) -> list[StoredAuditEntry]:
        return await self._database.read(lambda tx: self._store.page_of(tx, before, limit, subject))
