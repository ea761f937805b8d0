"""The rows of a diff, and the formats in which they are written."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import orjson

from shoal.audit.finding import Severity
from shoal.base.extras import require
from shoal.base.text import encodable
from shoal.pages.export.formats import cell, csv_rows

if TYPE_CHECKING:
    from shoal.audit.diff import CrawlDiff


class Change(StrEnum):
    """The kind of change in a row of a diff."""

    ADDED = "added"  # the page is only in the later crawl
    REMOVED = "removed"  # the page is only in the earlier crawl
    CHANGED = "changed"  # a field of the page has another value; one row per field
    NEW = "finding_new"  # the finding is only in the later analysis
    FIXED = "finding_fixed"  # the finding is only in the earlier analysis
    OPEN = "finding_open"  # the finding is in both


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One difference. `url`: the page, or None for a finding about the whole site."""

    change: Change
    url: str | None
    field: str | None = None
    before: str | int | None = None
    after: str | int | None = None
    code: str | None = None
    severity: str | None = None


@dataclass(slots=True)
class CodeDiff:
    """The findings of one code. `complete`: whether all findings were compared. If a code has very many findings, not
    all of them are stored."""

    code: str
    severity: Severity
    new: int = 0
    fixed: int = 0
    open: int = 0
    complete: bool = True


@dataclass(frozen=True, slots=True)
class FindingDiff:
    """The analyses that were compared, and what became of their findings."""

    before: str
    after: str
    codes: list[CodeDiff]

    def total(self, name: str) -> int:
        return sum(getattr(code, name) for code in self.codes)


@dataclass(slots=True)
class DiffSummary:
    """The number of differences of each kind. `fields`: by field, the number of pages that differ in it. `findings`:
    None unless both crawls have a successful analysis."""

    before: str
    after: str
    pages_before: int
    pages_after: int
    added: int
    removed: int
    changed: int
    unchanged: int
    fields: dict[str, int] = field(default_factory=dict)
    findings: FindingDiff | None = None


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
        require("parquet", "Parquet")
        import pyarrow as pa
        import pyarrow.parquet as pq

        from shoal.pages.export.parquet import WrittenPieces

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


def pieces(diff: "CrawlDiff", name: RowFormatName) -> AsyncIterator[bytes]:
    """Return all rows of a diff as the pieces of a file; raise before the first one if the format cannot be written."""
    return _pieces(diff, FORMATS[name][1]())


async def _pieces(diff: "CrawlDiff", made: RowFormat) -> AsyncIterator[bytes]:
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
