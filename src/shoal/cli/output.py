"""What commands print: data on stdout, progress on stderr; tables are plain unless a terminal reads them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from shoal.base.text import clean, visible


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, default=_plain)
    print(text, flush=True)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return sorted(map(str, value))
    return str(value)


def note(text: str) -> None:
    """A line for the person who waits; never data."""
    print(clean(text), file=sys.stderr, flush=True)


def to_the_second(time: str | None) -> str:
    """A time of the API in a table: nobody reads microseconds."""
    return "" if time is None else f"{time[:19]}Z"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their columns; wide cells are kept whole, so that a pipe gets all of them."""
    cells = [[visible("" if cell is None else str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells)
    else:
        _print_plain([[name.upper() for name in columns], *cells])


def _print_plain(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    pairs = (zip(line, widths, strict=True) for line in lines)
    print("\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in pairs))


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))  # as Text, so that brackets in foreign words are not taken for markup
    Console().print(table)
