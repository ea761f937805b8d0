"""The size of the store: bytes and rows of its tables, without counting them."""

from dataclasses import dataclass

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


async def read_store_size(database: Database) -> StoreSize:
    """Return the sizes. Rows are what the database estimates, or for a file the range of row numbers, which counts
    removed rows in between; URLs and pages of crawls are the sums of their counters."""

    async def look(tx: Tx) -> StoreSize:
        rows = await tx.all("table_sizes")
        counted = dict(await tx.one("rows_of_crawls") or {})
        tables = tuple(TableSize(row["name"], counted.get(row["name"], row["rows"]), row["bytes"]) for row in rows)
        whole = await tx.one("store_size") or {"bytes": 0, "free": None}
        return StoreSize(int(whole["bytes"] or 0), whole["free"], tables)

    return await database.read(look)
