"""Recognize Shoal's outputs, so that other files are not replaced without a question."""

import csv
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from shoal.pages.export.table import DATA, LINK_COLUMNS, PAGE_COLUMNS, PARTS

FIRST: Final = 4_000_000  # bytes of a file that are looked at: one record is smaller
_OURS: Final = frozenset({*PAGE_COLUMNS, *LINK_COLUMNS, *PARTS})


def may_replace(name: str, columns: Iterable[str]) -> bool:
    """Return whether a file is empty, or a table with the columns of the one to be written, or with several columns,
    all of which pages or links have."""
    path = Path(name)
    try:
        if not path.stat().st_size:
            return True
        found = _columns(path)
    except (OSError, ValueError, csv.Error):
        return False
    return found == list(columns) or (len(found) > 1 and all(one in _OURS or one.startswith(DATA) for one in found))


def is_archive(name: str) -> bool:
    """Return whether a WARC file is empty, or begins with a record that names Shoal."""
    try:
        with Path(name).open("rb") as file:
            first = file.read(FIRST)
        return not first or b"software: Shoal/" in zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(first, 10_000)
    except (OSError, zlib.error):
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
