"""The size of the store: bytes and rows of its tables, without counting them."""

from dataclasses import dataclass
from typing import Protocol

from shoal.base.database import Database, Tx


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of one table; None: not known without reading all of it."""

    name: str
    rows: int | None  # an estimate
    bytes: int | None


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a store. `free`: bytes inside of it that new rows use first; None if that is not known."""

    bytes: int
    free: int | None
    tables: tuple[TableSize, ...]


class StoreSizes(Protocol):
    async def read(self, tx: Tx) -> StoreSize:
        """Return the sizes. Rows are what the database estimates, or for a file the range of row numbers, which counts
        removed rows in between; URLs and pages of crawls are the sums of their counters."""
        ...


class StoreSizeReader:
    """Reads the sizes of the store."""

    def __init__(self, database: Database, sizes: StoreSizes) -> None:
        self._database = database
        self._sizes = sizes

    async def read(self) -> StoreSize:
        return await self._database.read(self._sizes.read)
