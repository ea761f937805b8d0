"""What commands print: data on stdout, progress on stderr; a terminal gets the head of a table in bold."""

import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from shoal.base.text import clean, escaped, visible
from shoal.observe.logs import has_colour

TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def print_json(value: Any) -> None:
    """One JSON document on one line; on a terminal, without what could fool it or its reader."""
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    if sys.stdout.isatty():
        text = escaped(text)
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
    print(as_called(clean(text)), file=sys.stderr, flush=True)


def as_called(text: str) -> str:
    """Advice with the name by which the launcher was called, so that it can be copied as it stands."""
    command = os.environ.get("SHOAL_COMMAND", "shoal")
    return text if command == "shoal" else re.sub('(?<=[`"])shoal(?= )', lambda _: command, text)


def to_the_second(time: str | None) -> str:
    """A time of the API in a table: nobody reads microseconds."""
    return "" if time is None else f"{time[:19]}Z"


def facts_of(values: Mapping[str, Any], *, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """What the API says of one thing, as rows for people; what there is nothing to tell of is left out."""
    rows = [(name.replace("_", " ").capitalize(), shown(values[name])) for name in values if name not in without]
    return [row for row in rows if row[1]]


def shown(value: Any) -> str:
    """A value of the API for people; empty if there is nothing to tell."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value + 0:.3g}" if abs(value) < 100 else f"{value:,.0f}"  # no -0
        case str():
            return to_the_second(value) if TIME.fullmatch(value) else value
        case Mapping():
            parts = [(name, shown(part)) for name, part in value.items()]
            return ", ".join(f"{name} {part}" for name, part in parts if part)
        case list():
            return ", ".join(map(shown, value))
        case _:
            return str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their columns. Cells are kept whole, on a narrow terminal too: a folded id cannot be copied."""
    cells = [[visible("" if cell is None else str(cell)) for cell in row] for row in rows]
    lines = [[name.upper() for name in columns], *cells]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    head, *rest = [_aligned(line, widths) for line in lines]
    print("\n".join([f"\x1b[1m{head}\x1b[0m" if has_colour(sys.stdout) else head, *rest]))


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Columns that a text takes; some letters take two, and few tables have them."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
