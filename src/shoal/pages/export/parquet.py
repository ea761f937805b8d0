"""Serialize rows as Parquet: typed columns, one row group at a time to bound memory.

Times are timestamps in UTC. `redirects` is a list of structs, `error` is a struct, and values without a fixed schema,
such as `data`, are JSON text.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.text import encodable
from shoal.pages.export.table import PAGE_COLUMNS, Columns, Row

ROW_GROUP_ROWS: Final = 20_000
ROW_GROUP_BYTES: Final = 16_000_000

_TYPES: Final = {
    "text": pa.string(),
    "json": pa.string(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "redirects": pa.list_(pa.struct({"url": pa.string(), "status": pa.int16()})),
    "error": pa.struct({"code": pa.string(), "message": pa.string()}),
}


class Parquet:
    """The Parquet format: row groups, then a footer that describes them."""

    is_flat = True

    def __init__(self, columns: Columns = PAGE_COLUMNS) -> None:
        self._schema = pa.schema([(name, _type(kind)) for name, kind in columns.items()])
        self._as_json = [name for name, kind in columns.items() if kind == "json"]
        self._written = WrittenPieces()
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0

    def head(self) -> bytes:
        self._written, self._waiting, self._rows, self._bytes = WrittenPieces(), [], 0, 0
        self._writer = pq.ParquetWriter(pa.PythonFile(self._written, mode="w"), self._schema, compression="zstd")
        return b"".join(self._written.taken())

    def rows(self, rows: Iterable[Row]) -> Iterator[bytes]:
        batch = self._batch([{**row, **{name: _json(row[name]) for name in self._as_json}} for row in rows])
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

    def _batch(self, rows: list[dict[str, Any]]) -> Any:
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except UnicodeEncodeError:  # a lone surrogate: rare, so handled only on failure
            return pa.RecordBatch.from_pylist([encodable(row) for row in rows], schema=self._schema)

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting)
        self._writer.write_table(table, row_group_size=max(self._rows, 1))
        self._waiting, self._rows, self._bytes = [], 0, 0


class WrittenPieces:
    """A write-only file object that buffers written data until the data is taken."""

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


def _type(kind: str) -> Any:
    return pa.list_(_TYPES[kind.removesuffix("[]")]) if kind.endswith("[]") else _TYPES[kind]


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
