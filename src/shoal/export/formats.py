"""How pages become bytes: JSONL and CSV here, Parquet beside. Where the bytes go is the output's."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from io import StringIO
from typing import Any, Protocol, cast

import orjson

from shoal.pages.page import RECORD_FIELDS, Page

LONGEST_CELL = 32_767  # what a spreadsheet takes; a longer cell spills into others or is refused
CLIPPED = "… [clipped]"
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_JSON = orjson.OPT_UTC_Z

Cell = str | int | float


class Format(Protocol):
    """Pages go in, pieces of a file come out; a piece at a time, so that nothing large is held."""

    def head(self) -> bytes:
        """What stands before the first page."""
        ...

    def pages(self, crawl_id: str, pages: Iterable[Page]) -> Iterator[bytes]: ...

    def tail(self) -> Iterable[bytes]:
        """What stands behind the last page."""
        ...


class JsonLines:
    """One JSON object a line."""

    def head(self) -> bytes:
        return b""

    def pages(self, crawl_id: str, pages: Iterable[Page]) -> Iterator[bytes]:
        option = _JSON | orjson.OPT_APPEND_NEWLINE
        return (orjson.dumps(page.record(crawl_id), option=option) for page in pages)

    def tail(self) -> Iterable[bytes]:
        return ()


class Csv:
    """RFC 4180, text always in quotes, numbers never; text that a spreadsheet would run as a formula stays text."""

    def head(self) -> bytes:
        return _rows([list(RECORD_FIELDS)])

    def pages(self, crawl_id: str, pages: Iterable[Page]) -> Iterator[bytes]:
        yield _rows([cell(value) for value in page.record(crawl_id).values()] for page in pages)

    def tail(self) -> Iterable[bytes]:
        return ()


def _rows(rows: Iterable[Sequence[Cell]]) -> bytes:
    buffer = StringIO(newline="")
    csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerows(rows)
    return buffer.getvalue().encode("utf-8", "replace")


def cell(value: Any) -> Cell:
    """A value of a record as a cell: text made safe, numbers as they are, the rest as compact JSON."""
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
    """A text without NUL, no longer than a spreadsheet takes, and never a formula."""
    text = plain_text(text)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - len(CLIPPED)] + CLIPPED


def plain_text(text: str) -> str:
    """A text without NUL, and never a formula."""
    if "\0" in text:
        text = text.replace("\0", "")
    return "'" + text if text.startswith(FORMULA) else text
