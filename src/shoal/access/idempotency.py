"""Idempotency keys: a request that is repeated with the same key is executed once, whichever controllers receive it.

The id of the object that a request creates is chosen in advance and stored with the key. A repeated request that finds
no response, because the first one died or is still running, therefore creates the same object, not a second one.
"""

from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Protocol

from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput

KEPT = timedelta(hours=24)
PRUNED_AT_ONCE = 100
LONGEST = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A key of a caller for one endpoint."""

    caller: str
    route: str
    key: str


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response to the first of the requests."""

    status: int
    body: str
    location: str | None


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The stored state of a key: the digest of the request, the id of the created object, and the response, if there is
    one yet."""

    digest: str
    subject: str
    answer: StoredResponse | None


class IdempotencyStore(Protocol):
    async def prune(self, tx: Tx, key: IdempotencyKey, age: timedelta, limit: int) -> None:
        """Remove keys older than `age`: this one, and up to `limit` others."""
        ...

    async def keep(self, tx: Tx, key: IdempotencyKey, digest: str, subject: str) -> IdempotencyRecord:
        """Store a key unless it is stored already; return the stored record."""
        ...

    async def answered(self, tx: Tx, key: IdempotencyKey, answer: StoredResponse) -> StoredResponse:
        """Store a response unless there is one already; return the stored one. If the key is gone, nothing is
        stored."""
        ...

    async def forget(self, tx: Tx, key: IdempotencyKey) -> None:
        """Remove a key that has no response."""
        ...


class Idempotency:
    """Executes requests with an idempotency key once."""

    def __init__(self, database: Database, store: IdempotencyStore) -> None:
        self._database = database
        self._store = store

    async def begin(self, key: IdempotencyKey, content: str, subject: str) -> IdempotencyRecord:
        """Return the id to create, and the response if it was created already. Reject a key that was sent with a
        different request."""
        if not key.key.isascii() or not key.key.isprintable() or not 0 < len(key.key) <= LONGEST:
            raise InvalidInput(
                "Idempotency-Key", f"is not 1 to {LONGEST} printable ASCII characters", "send a key of that form"
            )
        digest = sha256(content.encode()).hexdigest()

        async def commit(tx: Tx) -> IdempotencyRecord:
            await self._store.prune(tx, key, KEPT, PRUNED_AT_ONCE)
            return await self._store.keep(tx, key, digest, subject)

        kept = await self._database.run(commit)
        if kept.digest != digest:
            raise InvalidInput("Idempotency-Key", "was already used with a different request", "choose another key")
        return kept

    async def end(self, key: IdempotencyKey, answer: StoredResponse) -> StoredResponse:
        """Store the response; return the one that every repeated request gets from now on."""
        return await self._database.run(lambda tx: self._store.answered(tx, key, answer))

    async def forget(self, key: IdempotencyKey) -> None:
        """Release the key of a rejected request, which created nothing, so that a corrected one can use it."""
        await self._database.run(lambda tx: self._store.forget(tx, key))
