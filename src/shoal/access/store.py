"""The store of tokens."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from shoal.access.token import Token, TokenScope, in_order
from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import TokenId


class TokenStore:
    """All tokens that were ever created. Expiry is judged by the store's clock."""

    async def insert(
        self,
        tx: Tx,
        token_id: TokenId,
        name: str,
        hashed: str,
        scopes: frozenset[TokenScope],
        made_by: str,
        ttl: timedelta | None,
        node_id: str | None = None,
    ) -> Token | None:
        """Store a new token that expires after `ttl`. If `node_id` is given, only this node may use the token. Return
        `None` if the token id is taken."""
        values = {"id": token_id, "name": name, "hash": hashed, "scopes": " ".join(in_order(scopes))}
        micros = None if ttl is None else span(ttl)
        row = await tx.one("insert_token", **values, made_by=made_by, ttl=micros, node_id=node_id)
        return None if row is None else _token(row)

    async def get(self, tx: Tx, token_id: str) -> Token | None:
        row = await tx.one("token", id=token_id)
        return None if row is None else _token(row)

    async def valid(self, tx: Tx, token_id: TokenId) -> Token | None:
        """Return the token if it is neither revoked nor expired."""
        row = await tx.one("valid_token", id=token_id)
        return None if row is None else _token(row)

    async def ended(self, tx: Tx, token_ids: Sequence[TokenId]) -> set[TokenId]:
        """Return the tokens among `token_ids` that were revoked or have expired."""
        return {row["id"] for row in await tx.all("ended_tokens", ids=list(token_ids))}

    async def expired(self, tx: Tx, ago: timedelta) -> set[TokenId]:
        """Return the tokens that have expired within the last `ago` and were not revoked."""
        return {row["id"] for row in await tx.all("expired_tokens", ago=span(ago))}

    async def page_of(self, tx: Tx, before: int | None, limit: int) -> list[Token]:
        """Return tokens, including revoked and expired ones, newest first."""
        return [_token(row) for row in await tx.all("newest_tokens", before=before, limit=limit)]

    async def any_made(self, tx: Tx) -> bool:
        """Return whether a token was ever created: rows are kept after a token has ended."""
        return await tx.one("any_token") is not None

    async def lock_admins(self, tx: Tx) -> list[TokenId]:
        """Return the valid tokens with the scope admin, locked until the transaction ends: if two admins revoke each
        other's tokens at the same time, the second sees the first one's change."""
        return [TokenId(row["id"]) for row in await tx.all("lock_admin_tokens")]

    async def revoke(self, tx: Tx, token_id: str) -> bool:
        """Revoke a token; return `False` if the token is already revoked."""
        return await tx.execute("revoke_token", id=token_id) == 1

    async def mark_used(self, tx: Tx, token_id: TokenId, every: timedelta) -> None:
        """Record the time of use, unless it was recorded less than `every` ago."""
        await tx.execute("mark_token_used", id=token_id, every=span(every))


def _token(row: Any) -> Token:
    values = {name: row[name] for name in Token.__struct_fields__}
    values["scopes"] = frozenset(map(TokenScope, values["scopes"].split()))
    return Token(**values)
