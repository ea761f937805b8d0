"""The line at the bottom of a terminal."""

import fcntl
import os
import re
import struct
import sys
import termios
from io import StringIO

import pytest

from shoal.cli.progress import ERASE, LiveLine
from shoal.observe.logs import note

COLUMNS = 30


def rows(written: str) -> list[str]:
    """Return what a terminal shows, without bold."""
    shown = [""]
    for part in re.split(f"({re.escape(ERASE)}|\n)", re.sub(r"\x1b\[[01]m", "", written)):
        if part == "\n":
            shown.append("")
        else:
            shown[-1] = "" if part == ERASE else shown[-1] + part
    return shown


def test_other_lines_are_written_above_it_and_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = LiveLine(terminal)
    line.show("5 pages")
    line.show("7 pages")
    assert [row[2:] for row in rows(terminal.getvalue())] == ["7 pages"]
    note("a warning")
    sys.stderr.write("unfinished")
    above, shown = rows(terminal.getvalue())
    assert (above, shown[2:]) == ("a warning", "7 pages")
    line.close()
    assert rows(terminal.getvalue()) == ["a warning", "unfinished"]
    assert sys.stderr is terminal


def test_it_never_takes_a_second_row(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, COLUMNS, 0, 0))
    with os.fdopen(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        line = LiveLine(terminal)
        line.show("12 pages · " * COLUMNS)
        [shown] = rows(os.read(master, 10_000).decode())
        line.close()
    os.close(master)
    assert COLUMNS - 3 <= len(shown) <= COLUMNS
    assert shown[2:].startswith("12 pages · ")
