"""Serialize pages as Parquet: the typed columns of the record, one row group at a time to bound memory.

Times are timestamps in UTC. `redirects` is a list of structs, `error` is a struct, and `data`, which has no fixed
schema, is JSON text.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.text import encodable
from shoal.pages.page import RECORD_FIELDS, Page

ROW_GROUP_ROWS: Final = 20_000
ROW_GROUP_BYTES: Final = 16_000_000

_NUMBERS: Final = {
    "status": pa.int16(),
    "depth": pa.int32(),
    "bytes": pa.int64(),
    "word_count": pa.int32(),
    "links_internal": pa.int32(),
    "links_external": pa.int32(),
    "duration_ms": pa.float64(),
    "attempt": pa.int32(),
}
_OTHERS: Final = {
    "fetched_at": pa.timestamp("us", tz="UTC"),
    "rendered": pa.bool_(),
    "redirects": pa.list_(pa.struct({"url": pa.string(), "status": pa.int16()})),
    "error": pa.struct({"code": pa.string(), "message": pa.string()}),
}
SCHEMA: Final = pa.schema([(name, (_NUMBERS | _OTHERS).get(name, pa.string())) for name in RECORD_FIELDS])


class Parquet:
    """The Parquet format: row groups, then a footer that describes them."""

    def __init__(self) -> None:
        self._written = WrittenPieces()
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0

    def head(self) -> bytes:
        self._written, self._waiting, self._rows, self._bytes = WrittenPieces(), [], 0, 0
        self._writer = pq.ParquetWriter(pa.PythonFile(self._written, mode="w"), SCHEMA, compression="zstd")
        return b"".join(self._written.taken())

    def pages(self, crawl_id: str, pages: Iterable[Page]) -> Iterator[bytes]:
        batch = _batch([_row(page, crawl_id) for page in pages])
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write_group()
        return iter(self._written.taken())

    def tail(self) -> Iterator[bytes]:
        if self._rows:
            self._write_group()
        self._writer.close()
        return iter(self._written.taken())

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting)
        self._writer.write_table(table, row_group_size=max(self._rows, 1))
        self._waiting, self._rows, self._bytes = [], 0, 0


class WrittenPieces:
    """A write-only file object that buffers what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._length += len(data)
        return len(data)

    def tell(self) -> int:
        return self._length

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def taken(self) -> list[bytes]:
        pieces, self._pieces = self._pieces, []
        return pieces


def _row(page: Page, crawl_id: str) -> dict[str, Any]:
    row = page.record(crawl_id)
    if row["data"] is not None:
        row["data"] = orjson.dumps(row["data"]).decode()
    return row


def _batch(rows: list[dict[str, Any]]) -> Any:
    try:
        return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    except UnicodeEncodeError:  # a lone surrogate: rare, so handled only on failure
        return pa.RecordBatch.from_pylist([encodable(row) for row in rows], schema=SCHEMA)
