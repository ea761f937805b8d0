"""The database contract: how packages open a transaction. The statements inside it are named queries."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Rows = Sequence[dict[str, Any]] | Sequence[tuple[Any, ...]]
"""The rows of a batch: tuples in the parameter order of the query, or dictionaries where speed does not matter."""

MOST_READ = 16_000_000
"""The characters of large rows that are in memory at the same time."""
MOST_DECODED = 5_000_000
"""The characters of JSON that are decoded in one step: on PostgreSQL, the event loop does it in 30 ms."""

Callback = Callable[[], None]
Call = Callable[[], Awaitable[None]]


class Conflict(Exception):
    """Raised by a store inside a transaction when a concurrent commit interfered; the unit of work is run again."""


class Tx(Protocol):
    """An open transaction. Each query stands beside the module that runs it (`queries.py`)."""

    async def all(self, query: str, **values: Any) -> list[Any]:
        """Return every row of a named query."""
        ...

    async def one(self, query: str, **values: Any) -> Any | None:
        """Return the first row, or None."""
        ...

    async def value(self, query: str, **values: Any) -> Any:
        """Return the first column of the first row, or None."""
        ...

    async def execute(self, query: str, **values: Any) -> int:
        """Run a statement and return the number of rows it changed."""
        ...

    async def many(self, query: str, rows: Rows) -> int:
        """Run a statement for all rows of a batch and return the number of rows it changed."""
        ...

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        """Run a statement for all rows of a batch and return the rows it returns, in no particular order."""
        ...

    def on_commit(self, callback: Callback) -> None:
        """Call a plain function on the event loop once this transaction has committed, before `Database.run` returns.

        Callbacks run in the order in which they were registered. They are dropped if the transaction is rolled back;
        an attempt that is repeated after a conflict registers its own. They must be quick, must not raise, and cannot
        use the transaction: read what they need before. For signals and other effects inside this process.
        """
        ...

    def after_commit(self, call: "Call") -> None:
        """Await a call to another system, such as Redis, once this transaction has committed, before `Database.run`
        returns.

        It is dropped if the transaction is rolled back, and lost if the process dies in between, so a periodic sweep
        must be able to make up for it. It must not raise: the transaction is committed, and its caller must learn so.
        The driver may await it where there is no event loop.
        """
        ...

    def after_rollback(self, call: "Call") -> None:
        """Await a call to another system if this transaction is rolled back, to undo there what was done for it. Like
        `after_commit`, it must not raise, and it is lost if the process dies."""
        ...

    def afterwards(self, work: "Work[Any]") -> None:
        """Run a further unit of work after this one; on stores with several writers, in a separate transaction, so that
        others need not wait for its locks.

        It is tried once: if the process dies or the store fails in between, it is lost. Use it for changes that a
        periodic sweep repeats. To call a function after the commit, use `on_commit`.
        """
        ...


Work = Callable[[Tx], Awaitable[T]]


class Effects:
    """What a unit of work wants done after it. The drivers' transactions keep it."""

    __slots__ = ("callbacks", "calls", "later", "undo_calls")

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self.calls: list[Call] = []
        self.undo_calls: list[Call] = []
        self.later: list[Work[Any]] = []

    def on_commit(self, callback: Callback) -> None:
        self.callbacks.append(callback)

    def after_commit(self, call: Call) -> None:
        self.calls.append(call)

    def after_rollback(self, call: Call) -> None:
        self.undo_calls.append(call)

    def afterwards(self, work: Work[Any]) -> None:
        self.later.append(work)


class Database(Protocol):
    """A store of record. A unit of work awaits nothing but its transaction and changes nothing else: the driver may run
    it on another thread, together with other units, and again after a conflict. Effects go into `Tx.on_commit`."""

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        """Run `work` in one write transaction: commit all of it, or nothing and raise an error.

        If the connection is lost during the commit, it may have taken effect. `within`: how long a store behind a
        network may take to answer a statement, if that is less than usual."""
        ...

    async def once(self, work: Work[T], *, within: timedelta) -> T:
        """Run `work`, which is a single statement, as its own commit: nothing else is sent to the store, so only
        this deadline shows that its connection has fallen silent."""
        ...

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        """Run `work` on one consistent snapshot. It must not write, and its `on_commit` callbacks are never called."""
        ...

    async def close(self) -> None: ...


CALL_FAILED = "a call failed after its transaction was committed"


def call_all(callbacks: Iterable[Callback]) -> None:
    """Call the `on_commit` callbacks of a committed transaction, in order. Its caller must learn of the commit in any
    case, so an error goes to the exception handler of the event loop, and the others are still called."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": CALL_FAILED, "exception": error})


async def await_all(calls: Iterable[Call]) -> None:
    """Await the `after_commit` calls of a committed transaction, in order, in the same way."""
    for call in calls:
        try:
            await call()
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": CALL_FAILED, "exception": error})


def run_to_end(call: Awaitable[T], otherwise: str) -> T:
    """Return the result of a coroutine that never suspends; raise `RuntimeError` with these words if it does."""
    coroutine: Any = call
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(otherwise)


def readable(rows: Sequence[Any], *, decoded: bool = False) -> list[Any]:
    """Return the first rows whose contents may be read together, by the column `size`, which is queried before the
    contents; at least one."""
    limit = MOST_DECODED if decoded else MOST_READ
    size, found = 0, list[Any]()
    for row in rows:
        size += row["size"]
        if size > limit and found:
            break
        found.append(row)
    return found
