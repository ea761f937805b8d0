"""Outputs: files that hold each page of a crawl exactly once, written as the crawl goes.

A file has the name FILE.part until it is complete. Only committed pages are given here, so a file never knows more than
the store; whoever resumes a crawl begins its outputs anew. Which pages, and when, is the caller's.
"""

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from shoal.base.errors import BackendUnavailable, BadConfig, InvalidInput, ShoalError, StorageFull
from shoal.export.formats import FORMATS, Format, JsonLines
from shoal.pages.page import Page

STDOUT = "-"
BUFFER = 1 << 18
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Output:
    """One output of one crawl. Nothing is touched before it is opened."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._format = format_of(name)
        self._part = Path(f"{name}.part")
        self._file: BinaryIO | None = None
        _check_place(name)

    @property
    def to_stdout(self) -> bool:
        return self.name == STDOUT

    @property
    def whereabouts(self) -> str:
        """Where its pages are now, in words."""
        if self.to_stdout:
            return "stdout"
        return self.name if self._file is None else str(self._part)

    def check(self) -> None:
        """Refuse a place that cannot be written, before anything else is done."""
        if self.to_stdout:
            return
        was_there = self._part.exists()
        try:
            self._part.open("ab").close()
        except OSError as error:
            raise _unusable(self.name, error.strerror or str(error)) from None
        if not was_there:
            self._part.unlink()

    def open(self) -> None:
        """Begin from nothing."""
        try:
            self._file = sys.stdout.buffer if self.to_stdout else self._part.open("wb", buffering=BUFFER)
        except OSError as error:
            raise _unusable(self.name, error.strerror or str(error)) from None
        self._guarded([self._format.head()])

    def write(self, crawl_id: str, pages: Iterable[Page]) -> None:
        self._guarded(self._format.pages(crawl_id, pages))

    def complete(self) -> None:
        """Everything is there: the file gets its name."""
        assert self._file is not None
        try:
            self._file.flush()
            if not self.to_stdout:
                os.fsync(self._file.fileno())
                self._file.close()
                self._part.replace(self.name)
        except OSError as error:
            raise self._translate(error) from error
        self._file = None

    def leave(self) -> None:
        """Not complete: what is there stays under its temporary name."""
        if self._file is None or self.to_stdout:
            return
        try:
            self._file.close()
        except OSError:  # why it cannot be written was said when it was
            return

    def _guarded(self, pieces: Iterable[bytes]) -> None:
        assert self._file is not None
        try:
            self._file.writelines(pieces)
            if self.to_stdout:
                self._file.flush()  # whoever reads the pipe gets each commit at once
        except OSError as error:
            raise self._translate(error) from error

    def _translate(self, error: OSError) -> Exception:
        if isinstance(error, BrokenPipeError):
            return error  # the reader went away: the frame knows what that means
        place = "stdout" if self.to_stdout else str(self._part)
        if error.errno in NO_ROOM:
            return StorageFull(place)
        return BackendUnavailable(place, error.strerror or type(error).__name__, "check the disk and try again")


class Outputs:
    """All outputs of one crawl, as one."""

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput("--output", f"names {name!r} twice", "name each file once")
        self._outputs = [Output(name) for name in names]

    def __bool__(self) -> bool:
        return bool(self._outputs)

    @property
    def to_stdout(self) -> bool:
        return any(output.to_stdout for output in self._outputs)

    @property
    def whereabouts(self) -> list[str]:
        return [output.whereabouts for output in self._outputs]

    def check(self) -> None:
        for output in self._outputs:
            output.check()

    def open(self) -> None:
        for output in self._outputs:
            output.open()

    def write(self, crawl_id: str, pages: Sequence[Page]) -> None:
        for output in self._outputs:
            output.write(crawl_id, pages)

    def complete(self) -> None:
        for output in self._outputs:
            output.complete()

    def leave(self) -> None:
        for output in self._outputs:
            output.leave()


def format_of(name: str) -> Format:
    """The format that a file's ending names."""
    if name == STDOUT:
        return JsonLines()
    for ending, kind in FORMATS.items():
        if name.endswith(ending) and Path(name).name != ending:
            return kind()
    raise InvalidInput("--output", f"{name!r} has no known ending", f"use one of {', '.join(FORMATS)}, or -")


def _check_place(name: str) -> None:
    """Refuse a place that cannot be written before anything is crawled for it."""
    path = Path(name)
    if name == STDOUT:
        return
    if path.is_dir():
        raise _unusable(name, "it is a folder")
    if not path.parent.is_dir():
        raise _unusable(name, "its folder does not exist")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unusable(name, "its folder cannot be written")


def _unusable(name: str, why: str) -> ShoalError:
    problem = f"{name!r} cannot be written ({why})"
    return BadConfig("--output", problem, "name a file in a folder that exists and can be written")
