"""A line at the bottom of a terminal that is updated in place and removed at the end."""

import os
import sys
from itertools import cycle
from typing import Any, Final, TextIO

from shoal.base.text import shorten

DOTS: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ERASE: Final = "\r\x1b[K"


class LiveLine:
    """Until `close`, this stands for `sys.stderr`, so that other lines, such as warnings, are written above it."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._dots = cycle(DOTS)
        self._shown = ""
        self._begun = ""  # a line without its end, which is not written yet
        sys.stderr = self

    def show(self, text: str) -> None:
        """Replace the line; its first word is bold. What does not fit is cut off, because nothing erases a second
        line."""
        first, space, rest = shorten(text, self._columns() - 4).partition(" ")
        self._shown = f"{next(self._dots)} \x1b[1m{first}\x1b[0m{space}{rest}"
        self._put("")

    def write(self, text: str) -> int:
        """Write whole lines above the line."""
        lines, newline, self._begun = (self._begun + text).rpartition("\n")
        self._put(lines + newline)
        return len(text)

    def close(self) -> None:
        """Remove the line."""
        if sys.stderr is self:
            sys.stderr = self._terminal
        self._shown = ""
        self._put(self._begun)

    def _put(self, lines: str) -> None:
        self._terminal.write(f"{ERASE}{lines}{self._shown}")
        self._terminal.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._terminal.fileno()).columns or 80
        except OSError:
            return 80

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)
