"""The database port: how rooms open a transaction. What runs inside is the stores' business (`store/`)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Rows = Sequence[dict[str, Any]] | Sequence[tuple[Any, ...]]
"""The rows of a batch: tuples in the order that their query names, or, where nothing hurries, values by name."""


class Conflict(Exception):
    """Raised by a store inside a transaction: somebody else's commit came between; the unit of work is run again."""


class Tx(Protocol):
    """An open transaction. Rooms pass it on to their stores; only stores call the query verbs."""

    async def all(self, query: str, **values: Any) -> list[Any]:
        """Every row of a named query."""
        ...

    async def one(self, query: str, **values: Any) -> Any | None:
        """The first row, or None."""
        ...

    async def value(self, query: str, **values: Any) -> Any:
        """The first column of the first row, or None."""
        ...

    async def execute(self, query: str, **values: Any) -> int:
        """Run a statement; how many rows it touched."""
        ...

    async def many(self, query: str, rows: Rows) -> int:
        """Run a statement for all rows of a batch; how many rows it touched."""
        ...

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        """Run a statement for all rows of a batch; every row that it returns, in no order."""
        ...

    def afterwards(self, work: "Work[Any]") -> None:
        """Run `work` once this transaction is committed, in one of its own where others could wait for its locks. It is
        tried once: if the process dies or the store goes away in between, it is not done. For what a sweep repeats."""
        ...


Work = Callable[[Tx], Awaitable[T]]


class Database(Protocol):
    """One store of record. A unit of work awaits nothing but its transaction: the driver may run it on another
    thread, together with other units, and may run it again after a conflict, so it must not touch anything else."""

    async def run(self, work: Work[T]) -> T:
        """Run `work` in one write transaction: all of it is committed, or nothing and an error is raised."""
        ...

    async def once(self, work: Work[T]) -> T:
        """Run `work`, which is a single statement, as a commit of its own: nothing else is sent to the store."""
        ...

    async def read(self, work: Work[T]) -> T:
        """Run `work` on one consistent snapshot; it must not write."""
        ...

    async def close(self) -> None: ...
