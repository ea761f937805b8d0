"""Requests that carry a key of their caller's are carried out once, however often they come, to whatever controller.

What such a request makes has an id that is chosen before it is made and kept with the key. So a repeat that finds no
answer, because the first one died or is still under way, makes the same thing and not a second one.
"""

from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Protocol

from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput

KEPT = timedelta(hours=24)
PRUNED_AT_ONCE = 100
LONGEST = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Whose key it is, for which endpoint."""

    caller: str
    route: str
    key: str


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What was answered to the first of the requests."""

    status: int
    body: str
    location: str | None


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """What is known of a key: what it was sent with, the id of what is made, and the answer, if there is one yet."""

    digest: str
    subject: str
    answer: StoredResponse | None


class IdempotencyStore(Protocol):
    async def prune(self, tx: Tx, key: IdempotencyKey, age: int, limit: int) -> None:
        """Forget keys older than `age` micros: this one, and up to `limit` others."""
        ...

    async def keep(self, tx: Tx, key: IdempotencyKey, digest: str, subject: str) -> IdempotencyRecord:
        """Keep a key, unless it is kept already; what is kept."""
        ...

    async def answered(self, tx: Tx, key: IdempotencyKey, answer: StoredResponse) -> StoredResponse:
        """Keep an answer, unless there is one already; the one that is kept. A key that is gone keeps none."""
        ...

    async def forget(self, tx: Tx, key: IdempotencyKey) -> None:
        """Forget a key that has no answer."""
        ...


class Idempotency:
    """The verbs of keys."""

    def __init__(self, database: Database, store: IdempotencyStore) -> None:
        self._database = database
        self._store = store

    async def begin(self, key: IdempotencyKey, content: str, subject: str) -> IdempotencyRecord:
        """The id to make, and the answer if it was made already. Refuses a key that was sent with something else."""
        if not key.key.isascii() or not key.key.isprintable() or not 0 < len(key.key) <= LONGEST:
            raise InvalidInput(
                "Idempotency-Key", f"is not 1 to {LONGEST} printable ASCII characters", "send such a one"
            )
        digest = sha256(content.encode()).hexdigest()

        async def commit(tx: Tx) -> IdempotencyRecord:
            await self._store.prune(tx, key, span(KEPT), PRUNED_AT_ONCE)
            return await self._store.keep(tx, key, digest, subject)

        kept = await self._database.run(commit)
        if kept.digest != digest:
            raise InvalidInput("Idempotency-Key", "was sent with another body before", "choose another key")
        return kept

    async def end(self, key: IdempotencyKey, answer: StoredResponse) -> StoredResponse:
        """Keep the answer; what everybody is answered from now on."""
        return await self._database.run(lambda tx: self._store.answered(tx, key, answer))

    async def forget(self, key: IdempotencyKey) -> None:
        """The request was refused, nothing was made: the key is free for a better one."""
        await self._database.run(lambda tx: self._store.forget(tx, key))
