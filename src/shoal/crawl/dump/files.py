"""Dump files: readable by their owner only, renamed once complete, compressed if the name ends in `.gz`."""

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from shoal.base.disk import sync_folder
from shoal.base.errors import InvalidInput, NotFound, UsageError
from shoal.crawl.dump.records import FIX
from shoal.export.part_file import check_place, translated, unusable

STANDARD = "-"
BUFFER = 1 << 18
LONGEST_LINE = 64_000_000  # bytes; a page with its links and details is far below
GZIP_MAGIC = b"\x1f\x8b"


class DumpFile:
    """A dump that is being written. It is called FILE.part until it is complete; without `complete` it is removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._part = Path(f"{name}.part")
        self._file: BinaryIO | None = None
        self._lines: BinaryIO | None = None
        check_place(name)
        if Path(name).exists() and not Path(name).is_file():
            raise unusable(name, "it is not a regular file")

    def open(self) -> None:
        """Create the file with mode 600: a dump may hold credentials and private page data."""
        try:
            self._part.unlink(missing_ok=True)  # an older one may be readable by others
            descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise unusable(self.name, error.strerror or str(error)) from None
        self._file = os.fdopen(descriptor, "wb", buffering=BUFFER)
        self._lines = self._file
        if self.name.endswith(".gz"):
            self._lines = cast(BinaryIO, gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._file, mtime=0))

    def write(self, line: bytes) -> None:
        assert self._lines is not None
        try:
            self._lines.write(line + b"\n")
        except OSError as error:
            raise translated(str(self._part), error) from error

    def complete(self) -> None:
        """Flush everything to disk, then rename the file."""
        assert self._file is not None
        assert self._lines is not None
        try:
            if self._lines is not self._file:
                self._lines.close()  # writes the end of the gzip stream
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.name)
            sync_folder(self._part.parent)
        except OSError as error:
            raise translated(str(self._part), error) from error
        self._file = None

    def close(self) -> None:
        """Remove the file unless it is complete."""
        if self._file is None:
            return
        with suppress(OSError):  # on a full disk the last flush fails, too; `write` has already raised the reason
            self._file.close()
        with suppress(OSError):
            self._part.unlink()
        self._file = None


class DumpToStdout:
    """Standard output instead of a file."""

    name = STANDARD

    def open(self) -> None:
        if sys.stdout.isatty():
            raise UsageError("a dump is not written to a terminal", "use --output FILE, or redirect standard output")

    def write(self, line: bytes) -> None:
        try:
            sys.stdout.buffer.write(line + b"\n")
        except OSError as error:
            raise translated("stdout", error) from error

    def complete(self) -> None:
        try:
            sys.stdout.buffer.flush()
        except OSError as error:
            raise translated("stdout", error) from error

    def close(self) -> None: ...


def _opened(name: str) -> AbstractContextManager[BufferedReader]:
    if name == STANDARD:
        return nullcontext(cast(BufferedReader, sys.stdin.buffer))
    return cast(BufferedReader, Path(name).open("rb", buffering=BUFFER))


def dump_lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a dump file, or of standard input for `-`. Compression is recognised by content."""
    if name == STANDARD and sys.stdin.isatty():
        raise UsageError("there is no dump on standard input", "pass a file, or redirect standard input")
    try:
        with _opened(name) as source:
            packed = source.peek(2)[:2] == GZIP_MAGIC
            lines = gzip.GzipFile(fileobj=source, mode="rb") if packed else source
            while line := lines.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise InvalidInput("the dump", f"has a line longer than {LONGEST_LINE:,} bytes", FIX)
                yield line
    except FileNotFoundError:
        raise NotFound("file", name, "use a file that `shoal crawls dump` wrote") from None
    except (EOFError, zlib.error) as error:
        raise InvalidInput("the dump", f"is cut off or damaged ({error})", FIX) from None
    except gzip.BadGzipFile as error:
        raise InvalidInput("the dump", f"is damaged ({error})", FIX) from None
    except OSError as error:
        raise UsageError(f"{name!r} cannot be read ({error.strerror})", "use a file that you can read") from None
