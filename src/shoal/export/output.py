"""An output file: written under a temporary name as the crawl goes, and given its own name when it is complete.

Only committed pages are written, so a file never knows more than the store. A crawl that is resumed writes its outputs
anew from the store: each page is there exactly once, whatever happened before.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

import orjson

from shoal.base.errors import BadConfig, InvalidInput
from shoal.pages.page import Page


class Format(Protocol):
    """How pages become bytes."""

    def head(self) -> bytes: ...

    def pages(self, crawl_id: str, pages: Iterable[Page]) -> bytes: ...


class JsonLines:
    """One JSON object a line."""

    def head(self) -> bytes:
        return b""

    def pages(self, crawl_id: str, pages: Iterable[Page]) -> bytes:
        option = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
        return b"".join([orjson.dumps(page.record(crawl_id), option=option) for page in pages])


FORMATS: dict[str, type[Format]] = {".jsonl": JsonLines}


def format_of(name: str) -> Format:
    """The format that a file's ending names."""
    if name == "-":
        return JsonLines()
    for ending, kind in FORMATS.items():
        if name.endswith(ending):
            return kind()
    raise InvalidInput("--output", f"{name!r} has no known ending", f"use one of {', '.join(FORMATS)}, or -")


class Output:
    """One output of one crawl."""

    def __init__(self, name: str, crawl_id: str) -> None:
        self._name = name
        self._crawl_id = crawl_id
        self._format = format_of(name)
        self._part = Path(f"{name}.part")
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Begin from nothing."""
        try:
            self._file = sys.stdout.buffer if self._name == "-" else self._part.open("wb")
        except OSError as error:
            problem = f"{self._name!r} cannot be written ({error.strerror})"
            raise BadConfig("--output", problem, "name a file in a folder that exists and can be written") from None
        self._file.write(self._format.head())

    def write(self, pages: Iterable[Page]) -> None:
        assert self._file is not None
        self._file.write(self._format.pages(self._crawl_id, pages))

    def complete(self) -> None:
        """Everything is there: the file gets its name."""
        assert self._file is not None
        self._file.flush()
        if self._name != "-":
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._name)

    def leave(self) -> None:
        """Not complete: what is there stays under its temporary name."""
        if self._file is not None and self._name != "-":
            self._file.close()
