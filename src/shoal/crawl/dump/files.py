"""Dump files: readable by their owner only, renamed once complete, compressed if the name ends in `.gz`."""

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from io import BufferedReader
from pathlib import Path
from typing import cast

from shoal.base.errors import InvalidInput, NotFound, UsageError
from shoal.crawl.dump.records import FIX
from shoal.pages.export.part_file import PartFile, translated, unusable

STANDARD = "-"
BUFFER = 1 << 18
LONGEST_LINE = 64_000_000  # bytes; a page with its links and details is far below
GZIP_FORMAT = 16 + zlib.MAX_WBITS
GZIP_MAGIC = b"\x1f\x8b"


class DumpFile:
    """A dump that is being written. It is called FILE.part until it is complete; without `complete` it is removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = PartFile(name, private=True)  # a dump may hold credentials and private page data
        self._gzip = zlib.compressobj(wbits=GZIP_FORMAT) if name.endswith(".gz") else None
        if Path(name).exists() and not Path(name).is_file():
            raise unusable(name, "it is not a regular file")

    def open(self) -> None:
        self._file.begin()

    def write(self, line: bytes) -> None:
        if self._gzip is None:
            self._file.write((line, b"\n"))
        else:
            self._file.write((self._gzip.compress(line + b"\n"),))

    def complete(self) -> None:
        """Flush everything to disk, then rename the file."""
        if self._gzip is not None:
            self._file.write((self._gzip.flush(),))
        self._file.complete()

    def close(self) -> None:
        """Remove the file unless it is complete."""
        self._file.discard()


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


def dump_lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a dump file, or of standard input for `-`. Compression is recognised by content."""
    if name == STANDARD and sys.stdin.isatty():
        raise UsageError("there is no dump on standard input", "pass a file, or redirect standard input")
    try:
        with nullcontext(sys.stdin.buffer) if name == STANDARD else Path(name).open("rb", buffering=BUFFER) as file:
            source = cast(BufferedReader, file)
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
