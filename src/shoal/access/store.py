"""The store contracts of tokens and of the log of acts."""

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
        ttl: int | None,
    ) -> "Token | None":
        """Keep a new token that expires `ttl` micros from now; None if the id is taken."""
        ...

    async def get(self, tx: Tx, token_id: str) -> "Token | None": ...

    async def valid(self, tx: Tx, token_id: TokenId) -> "Token | None":
        """The token if it is neither revoked nor expired, by the store's clock."""
        ...

    async def page_of(self, tx: Tx, before: int | None, limit: int) -> "list[Token]":
        """Tokens, revoked and expired ones too, the newest first."""
        ...

    async def any_made(self, tx: Tx) -> bool:
        """Whether there ever was a token: rows stay when their token ends."""
        ...

    async def lock_admins(self, tx: Tx) -> list[TokenId]:
        """The valid tokens with the scope admin, locked until the transaction ends: of two who each revoke the other's,
        the second sees what the first did."""
        ...

    async def revoke(self, tx: Tx, token_id: str) -> bool:
        """End a token; False if it is revoked already."""
        ...

    async def mark_used(self, tx: Tx, token_id: TokenId, every: int) -> None:
        """Remember the time of use, unless it was remembered less than `every` micros ago."""
        ...


class AuditLogStore(Protocol):
    async def append(self, tx: Tx, by: "Caller", act: "AuditEntry") -> None: ...

    async def page_of(self, tx: Tx, before: int | None, limit: int, subject: str | None) -> "list[StoredAuditEntry]":
        """Acts, the newest first; of one subject, if it is named."""
        ...
