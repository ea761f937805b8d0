"""Serialize rows as JSON and CSV; Parquet has its own module. Outputs decide where the bytes go."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from io import StringIO
from typing import Any, Protocol, cast

import orjson

from shoal.pages.export.table import PAGE_COLUMNS, Columns, Row

LONGEST_CELL = 32_767  # spreadsheet limit; a longer cell is rejected or spills into other cells
CLIPPED = "… [clipped]"
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_JSON = orjson.OPT_UTC_Z

Cell = str | int | float


class Format(Protocol):
    """Serializes rows to chunks of a file, a few rows at a time to bound memory."""

    is_flat: bool  # True if rows have a value for each column; otherwise rows are whole objects

    def head(self) -> bytes:
        """Return the bytes before the first row."""
        ...

    def rows(self, rows: Iterable[Row]) -> Iterator[bytes]: ...

    def tail(self) -> Iterable[bytes]:
        """Return the bytes after the last row."""
        ...


class JsonLines:
    """One JSON object per line."""

    is_flat = False

    def __init__(self, columns: Columns = PAGE_COLUMNS) -> None: ...

    def head(self) -> bytes:
        return b""

    def rows(self, rows: Iterable[Row]) -> Iterator[bytes]:
        option = _JSON | orjson.OPT_APPEND_NEWLINE
        return (orjson.dumps(row, option=option) for row in rows)

    def tail(self) -> Iterable[bytes]:
        return ()


class Json:
    """One JSON array of objects, one per line."""

    is_flat = False

    def __init__(self, columns: Columns = PAGE_COLUMNS) -> None:
        self._before = b"\n"

    def head(self) -> bytes:
        self._before = b"\n"
        return b"["

    def rows(self, rows: Iterable[Row]) -> Iterator[bytes]:
        for row in rows:
            yield self._before + orjson.dumps(row, option=_JSON)
            self._before = b",\n"

    def tail(self) -> Iterable[bytes]:
        return (b"\n]\n",)


class Csv:
    """RFC 4180 with text quoted and numbers unquoted. Text that looks like a formula is escaped (CSV injection)."""

    is_flat = True

    def __init__(self, columns: Columns = PAGE_COLUMNS) -> None:
        self._columns = list(columns)

    def head(self) -> bytes:
        return csv_rows([self._columns])

    def rows(self, rows: Iterable[Row]) -> Iterator[bytes]:
        yield csv_rows([cell(value) for value in row.values()] for row in rows)

    def tail(self) -> Iterable[bytes]:
        return ()


def csv_rows(rows: Iterable[Sequence[Cell]]) -> bytes:
    """Serialize rows as CSV with text quoted."""
    buffer = StringIO(newline="")
    csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerows(rows)
    return buffer.getvalue().encode("utf-8", "replace")


def cell(value: Any) -> Cell:
    """Convert a record value to a cell: text is made safe, numbers stay unchanged, and other values become compact
    JSON."""
    if value is None:
        return ""
    kind = type(value)
    if kind is str:
        return safe_text(value)
    if kind is int or kind is float:
        return cast(Cell, value)
    if kind is bool:
        return "true" if value else "false"
    if kind is datetime:
        return cast(str, value.isoformat().replace("+00:00", "Z"))
    return safe_text(orjson.dumps(value, option=_JSON).decode())


def safe_text(text: str) -> str:
    """Remove NUL, escape formulas and clip the text to the spreadsheet limit."""
    text = plain_text(text)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - len(CLIPPED)] + CLIPPED


def plain_text(text: str) -> str:
    """Remove NUL and escape formulas."""
    if "\0" in text:
        text = text.replace("\0", "")
    return "'" + text if text.startswith(FORMULA) else text
