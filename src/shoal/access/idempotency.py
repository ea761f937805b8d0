"""Idempotency keys: a request that is repeated with the same key is executed only once, no matter which controllers
receive it.

The id of the object that a request creates is chosen in advance and stored with the key. A repeated request may find no
response, because the first request failed or is still running. It then uses the stored id, and so creates the same
object, not a second one.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

from shoal.base.clock import span
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
    """The response to the first request with a key."""

    status: int
    body: str
    location: str | None


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The stored state of a key: the id of the created object, and the response (if there is one yet)."""

    subject: str
    answer: StoredResponse | None = None


class Idempotency:
    """Makes sure that requests with the same idempotency key are executed only once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, key: IdempotencyKey, content: str, subject: str) -> IdempotencyRecord:
        """Return the id of the object to create, and the response if a request with this key already has one. Reject a
        key that was already used with a different request."""
        if not key.key.isascii() or not key.key.isprintable() or not 0 < len(key.key) <= LONGEST:
            raise InvalidInput(
                "Idempotency-Key", f"is not 1 to {LONGEST} printable ASCII characters", "send a key of that form"
            )
        digest = sha256(content.encode()).hexdigest()

        async def commit(tx: Tx) -> Any:
            await tx.execute("drop_old_key", age=span(KEPT), **asdict(key))
            await tx.execute("prune_keys", age=span(KEPT), limit=PRUNED_AT_ONCE)
            return await tx.one("keep_key", digest=digest, subject=subject, **asdict(key))

        row = await self._database.run(commit)
        if row["digest"] != digest:
            raise InvalidInput("Idempotency-Key", "was already used with a different request", "choose another key")
        return IdempotencyRecord(row["subject"], _response(row))

    async def end(self, key: IdempotencyKey, subject: str, answer: StoredResponse) -> StoredResponse:
        """Store the response, unless the key already has a response, is gone, or is used for a different object. Return
        the response that every repeated request gets from now on."""
        return await self._database.run(lambda tx: self.end_in(tx, key, subject, answer))

    async def end_in(self, tx: Tx, key: IdempotencyKey, subject: str, answer: StoredResponse) -> StoredResponse:
        """Like `end`, in the commit that creates the object. Required if the caller chose the object's id: that the
        object exists does not show who created it, but the response does."""
        values = {"status": answer.status, "answer": answer.body, "location": answer.location}
        row = await tx.one("answer_key", subject=subject, **values, **asdict(key))
        return (None if row is None else _response(row)) or answer

    async def answer(self, key: IdempotencyKey, subject: str) -> StoredResponse | None:
        """Return the stored response, if there is one."""
        row = await self._database.read(lambda tx: tx.one("kept_key", subject=subject, **asdict(key)))
        return None if row is None else _response(row)

    async def forget(self, key: IdempotencyKey, subject: str) -> None:
        """Release the key of a rejected request, which created no object, so that a corrected request can use the key.
        A key that was released before, and is in use again for a different object, is left alone."""
        await self._database.run(lambda tx: tx.execute("forget_key", subject=subject, **asdict(key)))


def _response(row: Any) -> StoredResponse | None:
    return None if row["status"] is None else StoredResponse(row["status"], row["answer"], row["location"])
