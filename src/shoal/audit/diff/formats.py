"""The rows of a diff as JSON lines, CSV and Parquet."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import orjson

from shoal.audit.diff.rows import DiffRow
from shoal.base.text import encodable
from shoal.export.formats import cell, csv_rows

if TYPE_CHECKING:
    from shoal.audit.diff.diff import CrawlDiff

COLUMNS: Final = tuple(one.name for one in fields(DiffRow))
RowFormatName = Literal["jsonl", "csv", "parquet"]


class RowFormat(Protocol):
    """Serializes rows to pieces of a file."""

    def head(self) -> bytes: ...

    def rows(self, rows: Sequence[DiffRow]) -> bytes: ...

    def tail(self) -> bytes: ...


class JsonLineRows:
    """One JSON object per line."""

    def head(self) -> bytes:
        return b""

    def rows(self, rows: Sequence[DiffRow]) -> bytes:
        return b"".join(orjson.dumps(record(row), option=orjson.OPT_APPEND_NEWLINE) for row in rows)

    def tail(self) -> bytes:
        return b""


class CsvRows:
    """CSV with text quoted. Text that looks like a formula is escaped."""

    def head(self) -> bytes:
        return csv_rows([list(COLUMNS)])

    def rows(self, rows: Sequence[DiffRow]) -> bytes:
        return csv_rows([cell(value) for value in record(row).values()] for row in rows)

    def tail(self) -> bytes:
        return b""


class ParquetRows:
    """Parquet with a text column for each field, one row group per batch."""

    def __init__(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from shoal.export.parquet import WrittenPieces

        self._arrow = pa
        self._schema = pa.schema([(name, pa.string()) for name in COLUMNS])
        self._written = WrittenPieces()
        self._writer: Any = pq.ParquetWriter(pa.PythonFile(self._written, mode="w"), self._schema, compression="zstd")

    def head(self) -> bytes:
        return b"".join(self._written.taken())

    def rows(self, rows: Sequence[DiffRow]) -> bytes:
        if rows:
            columns = [[_as_text(record(row)[name]) for row in rows] for name in COLUMNS]
            self._writer.write_table(self._arrow.table(columns, schema=self._schema))
        return b"".join(self._written.taken())

    def tail(self) -> bytes:
        self._writer.close()
        return b"".join(self._written.taken())


FORMATS: Final[Mapping[RowFormatName, tuple[str, Callable[[], RowFormat]]]] = {
    "jsonl": ("application/x-ndjson", JsonLineRows),
    "csv": ("text/csv; charset=utf-8", CsvRows),
    "parquet": ("application/vnd.apache.parquet", ParquetRows),
}
"""Media type and constructor of each format."""


async def pieces(diff: "CrawlDiff", name: RowFormatName) -> AsyncIterator[bytes]:
    """Yield all rows of a diff as the pieces of a file."""
    made = FORMATS[name][1]()
    yield made.head()
    async for rows in diff.rows():
        yield await asyncio.to_thread(made.rows, rows)
    yield made.tail()


def record(row: DiffRow) -> dict[str, Any]:
    """Return a row as it is written."""
    values: dict[str, Any] = encodable({name: getattr(row, name) for name in COLUMNS})
    return values


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)
