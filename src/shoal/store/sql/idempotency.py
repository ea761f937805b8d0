"""Idempotency keys on SQL."""

from datetime import timedelta
from typing import Any

from shoal.access.idempotency import IdempotencyKey, IdempotencyRecord, StoredResponse
from shoal.base.clock import span
from shoal.base.database import Tx


class SqlIdempotencyStore:
    """Implements `access.idempotency.IdempotencyStore`."""

    async def prune(self, tx: Tx, key: IdempotencyKey, age: timedelta, limit: int) -> None:
        await tx.execute("drop_old_key", age=span(age), **_names(key))
        await tx.execute("prune_keys", age=span(age), limit=limit)

    async def keep(self, tx: Tx, key: IdempotencyKey, digest: str, subject: str) -> IdempotencyRecord:
        row = await tx.one("keep_key", digest=digest, subject=subject, **_names(key))
        assert row is not None
        return IdempotencyRecord(row["digest"], row["subject"], _answer(row))

    async def answered(self, tx: Tx, key: IdempotencyKey, answer: StoredResponse) -> StoredResponse:
        row = await tx.one(
            "answer_key", status=answer.status, answer=answer.body, location=answer.location, **_names(key)
        )
        return (None if row is None else _answer(row)) or answer

    async def forget(self, tx: Tx, key: IdempotencyKey) -> None:
        await tx.execute("forget_key", **_names(key))


def _names(key: IdempotencyKey) -> dict[str, str]:
    return {"caller": key.caller, "route": key.route, "key": key.key}


def _answer(row: Any) -> StoredResponse | None:
    return None if row["status"] is None else StoredResponse(row["status"], row["answer"], row["location"])
