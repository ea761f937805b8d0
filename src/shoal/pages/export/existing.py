"""Tell outputs of Shoal's from other files, so that these are not replaced without a question."""

import csv
import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from shoal.pages.export.table import DATA, LINK_COLUMNS, PAGE_COLUMNS, PARTS

FIRST: Final = 4_000_000  # bytes of a file that are looked at: one record is smaller
_MARKS: Final = (
    {"crawl_id"},
    {"from", "to"},
    {"url", "data"},
)  # few other files have these and nothing but our columns


def may_replace(name: str, columns: Iterable[str]) -> bool:
    """Return whether a file is empty, or a table with the columns of the one to be written, or one that has no other
    columns than ours and looks like pages, links or data."""
    path = Path(name)
    try:
        if not path.stat().st_size:
            return True
        found = _columns(path)
    except (OSError, ValueError, csv.Error):
        return False
    ours = all(one in PAGE_COLUMNS or one in LINK_COLUMNS or one in PARTS or one.startswith(DATA) for one in found)
    looks_so = any(one.startswith(DATA) for one in found) or any(mark <= set(found) for mark in _MARKS)
    return bool(found) and (found == list(columns) or (ours and looks_so))


def is_archive(name: str) -> bool:
    """Return whether a WARC file is empty, or begins with a record that names Shoal."""
    try:
        with Path(name).open("rb") as file:
            first = file.read(FIRST)
        return not first or b"software: Shoal/" in zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(first, 10_000)
    except (OSError, zlib.error, gzip.BadGzipFile):
        return False


def _columns(path: Path) -> list[str]:
    """Return the columns of a file; raise ValueError if it has none."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_schema(path).names)  # its errors are ValueErrors
    with path.open("rb") as file:
        first = file.readline(FIRST)
        if path.suffix == ".json" and first.strip() == b"[":
            first = file.readline(FIRST)
            if first.strip() == b"]":
                return list(PAGE_COLUMNS)  # an empty array
    if path.suffix == ".csv":
        return next(csv.reader([first.decode()]), [])
    row: Any = orjson.loads(first.rstrip().rstrip(b","))
    return list(row) if isinstance(row, dict) else []
