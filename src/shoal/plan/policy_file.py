"""Read and write policies as CSV or JSON Lines. The module `importer` validates and stores them.

In CSV an empty cell leaves its field unset; lists and objects are written as JSON, labels also as
`name=value;name=value`.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any, TextIO

import orjson

from shoal.base.errors import InvalidInput, ShoalError
from shoal.base.request_form import fields_of
from shoal.base.text import shorten
from shoal.pages.export.formats import FORMULA, Cell, cell, plain_text
from shoal.plan.policy import Policy, PolicyForm

COLUMNS = tuple(fields_of(PolicyForm))
LONGEST_LINE = 1_000_000
_NESTED = frozenset({"seeds", "windows", "crawl_config", "rule_set", "rules", "adaptive", "labels"})

csv.field_size_limit(LONGEST_LINE)


@dataclass(frozen=True, slots=True)
class PolicyFileRow:
    """One line: the parsed form, or the problem of an invalid line. A blank line has neither."""

    line: int
    form: PolicyForm | None
    problem: str = ""


def lines_of(file: TextIO) -> Iterator[str]:
    """Yield the lines of a file. A line that is too long is cut one character after the limit, so that the readers
    reject it. Otherwise, a file without line breaks would fill the memory."""
    while line := file.readline(LONGEST_LINE + 1):
        yield line
        while len(line) > LONGEST_LINE and not line.endswith(("\n", "\r")):
            line = file.readline(LONGEST_LINE + 1)


def read_json_lines(lines: Iterable[str]) -> Iterator[PolicyFileRow]:
    for number, line in enumerate(lines, 1):
        yield _row(number, partial(_read_object, line)) if line.strip() else PolicyFileRow(number, None)


def read_csv(lines: Iterable[str]) -> Iterator[PolicyFileRow]:
    """Parse CSV. An unreadable record counts as one invalid line, which is reported with the number of the record's
    first line. Parsing continues after the record."""
    taken = _Taken(lines)
    reader = csv.reader(taken, strict=True)
    try:
        names = next(reader, [])
    except csv.Error as error:
        raise InvalidInput(
            "the first line", f"cannot be read as CSV ({error})", "write the column names into it"
        ) from None
    _check_names(names)
    while True:
        begins = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            taken.had_too_long()
            yield PolicyFileRow(begins, None, _unreadable(error, begins, reader.line_num))
            continue
        if taken.had_too_long():
            yield PolicyFileRow(begins, None, _TOO_LONG.message)
        else:
            yield _row(begins, partial(_read_cells, names, cells)) if any(cells) else PolicyFileRow(begins, None)


def write_json_lines(policies: Iterable[Policy]) -> bytes:
    return b"".join(policy.form.text().encode() + b"\n" for policy in policies)


def write_csv(policies: Iterable[Policy], *, head: bool) -> bytes:
    buffer = StringIO(newline="")
    writer = csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    if head:
        writer.writerow(COLUMNS)
    for policy in policies:
        values = policy.form.plain()
        writer.writerow([_cell(values[name] or None if name in _NESTED else values[name]) for name in COLUMNS])
    return buffer.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Cell:
    """Return a value as a CSV cell that can be read back without loss, regardless of its length."""
    if isinstance(value, str | list | dict):
        return plain_text(value if isinstance(value, str) else orjson.dumps(value).decode())
    return cell(value)


def _row(number: int, read: Callable[[], PolicyForm]) -> PolicyFileRow:
    try:
        return PolicyFileRow(number, read())
    except ShoalError as error:
        return PolicyFileRow(number, None, error.message)


def _read_object(line: str) -> PolicyForm:
    if len(line) > LONGEST_LINE:
        raise _TOO_LONG
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            "the line", f"is not JSON ({shorten(str(error))})", "write one JSON object per line"
        ) from None
    if not isinstance(values, dict):
        raise InvalidInput("the line", "is not a JSON object", "write one JSON object per line")
    return PolicyForm.read(values)


def _unreadable(error: csv.Error, begins: int, ends: int) -> str:
    several = f"; lines {begins} to {ends} were read as one: a quote may not be closed" if ends > begins else ""
    return f"cannot be read as CSV ({error}){several}"


def _check_names(names: list[str]) -> None:
    for name in names:
        if name not in COLUMNS and name not in PolicyForm.other_names:
            raise InvalidInput(
                "the first line",
                f"names {shorten(name)!r}, which is not a field of a policy",
                f"use {', '.join(COLUMNS)}",
            )
    if len(set(names)) < len(names) or not names:
        raise InvalidInput("the first line", "must name each column exactly once", "write url,frequency,… into it")


def _read_cells(names: list[str], cells: list[str]) -> PolicyForm:
    if len(cells) != len(names):
        raise InvalidInput(
            "the line", f"has {len(cells)} cells, but there are {len(names)} columns", "quote text that contains commas"
        )
    values = {name: _value(name, text) for name, text in zip(names, cells, strict=True) if text}
    return PolicyForm.read(values, strict=False)


def _value(name: str, text: str) -> Any:
    if text[0] == "'" and text[1:2] in FORMULA:
        text = text[1:]  # our own exports add a prefix to formulas, so that spreadsheets do not run them
    if name == "labels" and text[0] != "{":
        return dict(part.partition("=")[::2] for part in text.split(";"))
    if name not in _NESTED:
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InvalidInput(name, f"{shorten(text)!r} is not JSON", "write it as JSON") from None


class _Taken:
    """Yields lines to the CSV reader, without NUL characters, and records whether a line was too long."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._too_long = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._too_long |= len(line) > LONGEST_LINE
        return line.replace("\0", "")

    def had_too_long(self) -> bool:
        """Return whether a line was too long since the last call."""
        found, self._too_long = self._too_long, False
        return found


_TOO_LONG = InvalidInput("the line", f"is longer than {LONGEST_LINE} characters", "write one policy per line")
