"""Sizes of tables on SQL."""

from shoal.base.database import Tx
from shoal.observe.store_sizes import StoreSize, TableSize


class SqlStoreSizes:
    """Implements `observe.store_sizes.StoreSizes`."""

    async def read(self, tx: Tx) -> StoreSize:
        rows = await tx.all("table_sizes")
        counted = dict(await tx.one("rows_of_crawls") or {})
        tables = tuple(TableSize(row["name"], counted.get(row["name"], row["rows"]), row["bytes"]) for row in rows)
        whole = await tx.one("store_size") or {"bytes": 0, "free": None}
        return StoreSize(int(whole["bytes"] or 0), whole["free"], tables)
