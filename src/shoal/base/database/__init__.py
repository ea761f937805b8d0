"""The database contract: how packages open a transaction. Inside a transaction, they run named queries."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Rows = Sequence[dict[str, Any]] | Sequence[tuple[Any, ...]]
"""The rows of a batch: tuples in the parameter order of the query, or dictionaries where speed does not matter."""

MOST_READ = 16_000_000
"""Maximum number of characters of large rows in memory at the same time."""
MOST_DECODED = 5_000_000
"""Maximum number of JSON characters decoded in one step: on PostgreSQL, they block the event loop for 30 ms."""

Callback = Callable[[], None]
Call = Callable[[], Awaitable[None]]


class Conflict(Exception):
    """Raised by a store inside a transaction when a concurrent commit interfered; the unit of work is run again."""


class Tx(Protocol):
    """An open transaction. The text of each query is in a file beside the module that runs it (`queries.py`)."""

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

        Use it for signals and other effects inside this process. Callbacks run in the order in which they were
        registered. They are dropped if the transaction is rolled back; when the unit of work is run again after a
        conflict, it registers them again. They must be quick, must not raise, and cannot use the transaction, so read
        the values that they need before the commit.
        """
        ...

    def after_commit(self, call: "Call") -> None:
        """Await a call to another system, such as Redis, once this transaction has committed, before `Database.run`
        returns.

        The call is dropped if the transaction is rolled back. It is lost if the process dies between the commit and
        the call, so a periodic sweep must be able to make up for it. The call must not raise, because the caller of
        the transaction must learn that it was committed. The driver may await the call where there is no event loop.
        """
        ...

    def after_rollback(self, call: "Call") -> None:
        """Await a call to another system if this transaction is rolled back. The call undoes changes that were made in
        that system for this transaction. It must not raise, and it is lost if the process dies."""
        ...

    def afterwards(self, work: "Work[Any]") -> None:
        """Run a further unit of work after this one. On stores with several writers, the further unit runs in a
        separate transaction, so this transaction can release its locks first.

        The further unit is tried once: if the process dies or the store fails before its commit, it is lost. Use it
        only for changes that a periodic sweep repeats. To call a function after the commit, use `on_commit`.
        """
        ...


Work = Callable[[Tx], Awaitable[T]]


class Effects:
    """The callbacks, calls and further work that a unit of work has registered to run after it. The transaction classes
    of the drivers inherit from this class."""

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

        If the connection is lost during the commit, the commit may have taken effect. `within`: how long a store behind
        a network may take to respond to a statement, if that is shorter than usual."""
        ...

    async def once(self, work: Work[T], *, within: timedelta) -> T:
        """Run `work`, which must be a single statement, as a separate commit in one round trip. The deadline `within`
        is the only way to notice that the connection has fallen silent."""
        ...

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        """Run `work` on one consistent snapshot. It must not write, and its `on_commit` callbacks are never called."""
        ...

    async def close(self) -> None: ...


CALL_FAILED = "a call failed after its transaction was committed"


def call_all(callbacks: Iterable[Callback]) -> None:
    """Call the `on_commit` callbacks of a committed transaction, in order. The caller of the transaction must learn of
    the commit in any case. So if a callback raises, the exception handler of the event loop gets the error, and the
    remaining callbacks are still called."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": CALL_FAILED, "exception": error})


async def await_all(calls: Iterable[Call]) -> None:
    """Await the `after_commit` calls of a committed transaction, in order. Errors are handled as in `call_all`."""
    for call in calls:
        try:
            await call()
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": CALL_FAILED, "exception": error})


def run_to_end(call: Awaitable[T], otherwise: str) -> T:
    """Return the result of a coroutine that never suspends; raise `RuntimeError` with this message if it does."""
    coroutine: Any = call
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(otherwise)


def readable(rows: Sequence[Any], *, decoded: bool = False) -> list[Any]:
    """Return as many of the first rows as may be read together, at least one. The column `size`, which is queried
    before the contents, tells how large each row is."""
    limit = MOST_DECODED if decoded else MOST_READ
    size, found = 0, list[Any]()
    for row in rows:
        size += row["size"]
        if size > limit and found:
            break
        found.append(row)
    return found
