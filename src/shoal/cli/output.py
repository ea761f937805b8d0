"""Output of commands: data on stdout, progress on stderr; table headers are bold on a terminal. And the options that
select it."""

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import click

from shoal.base.text import escaped, visible
from shoal.observe.logs import has_colour, note

C = TypeVar("C", bound=Callable[..., Any])
Columns = Mapping[str, str | Callable[[dict[str, Any]], object]]
"""The columns of a table by heading: a field of the API object, or a function of it."""

TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def limit_option(default: int = 50, most: int = 1000) -> Callable[[C], C]:
    kind = click.IntRange(1, most)
    return click.option("--limit", type=kind, default=default, show_default=True, metavar="N", help="Show at most N.")


def state_option(states: type[StrEnum], words: str) -> Callable[[C], C]:
    return click.option("--state", type=click.Choice([state.value for state in states]), help=words)


def print_json(value: Any) -> None:
    """Print a JSON document on one line; on a terminal, escape control and misleading characters."""
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


def to_the_second(time: str | None) -> str:
    """Return an API time for a table, without microseconds."""
    return "" if time is None else f"{time[:19]}Z"


def facts_of(values: Mapping[str, Any], *, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the fields of an API object as rows for people, without empty ones."""
    rows = [(name.replace("_", " ").capitalize(), shown(values[name])) for name in values if name not in without]
    return [row for row in rows if row[1]]


def shown(value: Any) -> str:
    """Format an API value for people; empty if there is nothing to show."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value + 0:.3g}" if abs(value) < 100 else f"{value:,.0f}"  # avoid -0
        case str():
            return to_the_second(value) if TIME.fullmatch(value) else value
        case Mapping():
            parts = [(name, shown(part)) for name, part in value.items()]
            return ", ".join(f"{name} {part}" for name, part in parts if part)
        case list():
            return ", ".join(map(shown, value))
        case _:
            return str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "Nothing to show.") -> None:
    """Print a table; if it has no rows, only the sentence `empty`, on stderr. Cells are never folded, even on a narrow
    terminal: a folded id cannot be copied."""
    if not rows:
        note(empty)
        return
    cells = [[visible("" if cell is None else str(cell)) for cell in row] for row in rows]
    lines = [[name.upper() for name in columns], *cells]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    head, *rest = [_aligned(line, widths) for line in lines]
    print("\n".join([f"\x1b[1m{head}\x1b[0m" if has_colour(sys.stdout) else head, *rest]))


def print_list(
    items: Sequence[dict[str, Any]],
    more: str | None,
    columns: Columns,
    *,
    as_json: bool,
    empty: str = "Nothing to show.",
    hint: str = "Not all are shown; raise --limit.",
) -> None:
    """Print what an API list returned, as JSON or as a table; if there is more, also how to see it."""
    if as_json:
        print_json({"items": items, "next": more})
        return
    print_table(list(columns), [[_cell(item, column) for column in columns.values()] for item in items], empty)
    if more is not None:
        note(hint)


def _cell(item: dict[str, Any], column: str | Callable[[dict[str, Any]], object]) -> object:
    value = item[column] if isinstance(column, str) else column(item)
    return to_the_second(value) if isinstance(value, str) and TIME.fullmatch(value) else value


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Return the display width of a text; some characters take two columns, but are rare in tables."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
