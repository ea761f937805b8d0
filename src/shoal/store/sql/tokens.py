"""API tokens and the audit log on SQL."""

from datetime import timedelta
from typing import Any

import orjson

from shoal.access.audit_log import AuditEntry, StoredAuditEntry
from shoal.access.caller import Caller
from shoal.access.scopes import TokenScope, in_order
from shoal.access.token import Token
from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import TokenId


class SqlTokenStore:
    """Implements `access.store.TokenStore`."""

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
        values = {"id": token_id, "name": name, "hash": hashed, "scopes": " ".join(in_order(scopes))}
        micros = None if ttl is None else span(ttl)
        row = await tx.one("insert_token", **values, made_by=made_by, ttl=micros, node_id=node_id)
        return None if row is None else _token(row)

    async def get(self, tx: Tx, token_id: str) -> Token | None:
        row = await tx.one("token", id=token_id)
        return None if row is None else _token(row)

    async def valid(self, tx: Tx, token_id: TokenId) -> Token | None:
        row = await tx.one("valid_token", id=token_id)
        return None if row is None else _token(row)

    async def page_of(self, tx: Tx, before: int | None, limit: int) -> list[Token]:
        return [_token(row) for row in await tx.all("newest_tokens", before=before, limit=limit)]

    async def any_made(self, tx: Tx) -> bool:
        return await tx.one("any_token") is not None

    async def lock_admins(self, tx: Tx) -> list[TokenId]:
        return [TokenId(row["id"]) for row in await tx.all("lock_admin_tokens")]

    async def revoke(self, tx: Tx, token_id: str) -> bool:
        return await tx.execute("revoke_token", id=token_id) == 1

    async def mark_used(self, tx: Tx, token_id: TokenId, every: timedelta) -> None:
        await tx.execute("mark_token_used", id=token_id, every=span(every))


class SqlAuditLogStore:
    """Implements `access.store.AuditLogStore`."""

    async def append(self, tx: Tx, by: Caller, entry: AuditEntry) -> None:
        facts = orjson.dumps(entry.facts).decode()
        await tx.execute(
            "append_audit_entry", who=by.who, act=entry.name, subject=entry.subject, facts=facts, address=by.address
        )

    async def page_of(self, tx: Tx, before: int | None, limit: int, subject: str | None) -> list[StoredAuditEntry]:
        if subject is None:
            rows = await tx.all("newest_audit_entries", before=before, limit=limit)
        else:
            rows = await tx.all("newest_audit_entries_on", before=before, limit=limit, subject=subject)
        return [_entry(row) for row in rows]


def _token(row: Any) -> Token:
    values = {name: row[name] for name in Token.__slots__}
    values["scopes"] = frozenset(map(TokenScope, values["scopes"].split()))
    return Token(**values)


def _entry(row: Any) -> StoredAuditEntry:
    entry = AuditEntry(row["act"], row["subject"], orjson.loads(row["facts"]))
    return StoredAuditEntry(number=row["number"], at=row["at"], who=row["who"], action=entry, address=row["address"])
