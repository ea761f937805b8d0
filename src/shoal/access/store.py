"""The store contracts of tokens and of the audit log."""

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from shoal.base.database import Tx
from shoal.base.ids import TokenId

if TYPE_CHECKING:
    from shoal.access.audit_log import AuditEntry, StoredAuditEntry
    from shoal.access.caller import Caller
    from shoal.access.scopes import TokenScope
    from shoal.access.token import Token


class TokenStore(Protocol):
    async def insert(
        self,
        tx: Tx,
        token_id: TokenId,
        name: str,
        hashed: str,
        scopes: "frozenset[TokenScope]",
        made_by: str,
        ttl: timedelta | None,
        node_id: str | None = None,
    ) -> "Token | None":
        """Store a new token that expires after `ttl`, and that only `node_id` may use if it is given; return None if
        the id is taken."""
        ...

    async def get(self, tx: Tx, token_id: str) -> "Token | None": ...

    async def valid(self, tx: Tx, token_id: TokenId) -> "Token | None":
        """Return the token if it is neither revoked nor expired, by the store's clock."""
        ...

    async def page_of(self, tx: Tx, before: int | None, limit: int) -> "list[Token]":
        """Return tokens, including revoked and expired ones, newest first."""
        ...

    async def any_made(self, tx: Tx) -> bool:
        """Return whether a token was ever created: rows are kept after a token has ended."""
        ...

    async def lock_admins(self, tx: Tx) -> list[TokenId]:
        """Return the valid tokens with the scope admin, locked until the transaction ends: if two admins revoke each
        other's tokens at once, the second sees the first one's change."""
        ...

    async def revoke(self, tx: Tx, token_id: str) -> bool:
        """Revoke a token; return False if it is revoked already."""
        ...

    async def mark_used(self, tx: Tx, token_id: TokenId, every: timedelta) -> None:
        """Record the time of use, unless it was recorded less than `every` ago."""
        ...


class AuditLogStore(Protocol):
    async def append(self, tx: Tx, by: "Caller", entry: "AuditEntry") -> None: ...

    async def page_of(self, tx: Tx, before: int | None, limit: int, subject: str | None) -> "list[StoredAuditEntry]":
        """Return entries, newest first; only those of `subject` if it is given."""
        ...
