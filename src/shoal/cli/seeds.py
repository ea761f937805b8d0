"""Seeds as users give them: URLs with or without a scheme, and files of URLs (lines, CSV, JSON Lines, CDXJ or CDX).

A file is read line by line, twice: first to check every line, then to use the URLs. So files may have any size.
"""

import csv
import gzip
import io
import os
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, NamedTuple

import click
import orjson

from shoal.base.errors import InvalidInput, UsageError
from shoal.base.parsing import is_loopback
from shoal.base.text import plural, redact_url, shorten
from shoal.base.url import UrlRefusal, canonical
from shoal.crawl.crawl import MOST_SEEDS
from shoal.crawl.scope import SEED_FIX
from shoal.observe.logs import note

# Number of seeds of a large file that are stored with the crawl. All other seeds are only added to its frontier.
FIRST = 1_000
# Maximum number of seeds in one request, and of their bytes; less than the default of SHOAL_MAX_REQUEST.
BATCH, BATCH_BYTES = 5_000, 500_000
LONGEST_LINE = 1_000_000  # characters
MAX_LISTED = 10  # invalid lines in an error message
STDIN = "-"
COLUMNS = ("url", "urls", "uri", "address", "link", "loc", "page", "page_url", "original")
FORMAT_HELP = "one per line, CSV with a column `url`, JSON Lines with a field `url`, or CDXJ; - is stdin"

_BARE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]++\]|[\w.-]++)(?::[0-9]++)?(?:[/?#]\S*+)?")
_CDX = re.compile(r"\S++ [0-9]{4,14} (?:(?P<url>https?://\S++)|(?P<json>\{.*))")
_HTTP = re.compile(r"https?://", re.IGNORECASE)

seeds_option = click.option("--seeds", "seeds_file", metavar="FILE", help=f"Read URLs from this file: {FORMAT_HELP}.")


class Seed(NamedTuple):
    """A URL, and the place where the user wrote it: the line of a file, or empty for the command line."""

    url: str
    place: str = ""


def with_scheme(text: str) -> str:
    """Add a scheme to a URL without a scheme: `https`, or `http` for a server on this machine. Any other text is
    returned unchanged."""
    bare = None if "://" in text else _BARE.fullmatch(text)
    if bare is None or not (bare["host"] == "localhost" or re.search(r"\w\.\w|:", bare["host"])):
        return text
    return f"{'http' if is_loopback(bare['host']) else 'https'}://{text}"


class Seeds:
    """The seeds of a command, in this order: the URLs on the command line, the URLs in files given as `@FILE`, then the
    URLs in `file`. The constructor checks all of them."""

    def __init__(self, urls: Sequence[str], file: str | None = None) -> None:
        self._urls = [text for text in urls if not text.startswith("@")]
        files = [text[1:] for text in urls if text.startswith("@")] + ([] if file is None else [file])
        self._files = [SeedFile(name) for name in files]
        self.count = 0
        self._check()

    def __iter__(self) -> Iterator[Seed]:
        for text in self._urls:
            yield Seed(with_scheme(text))
        for file in self._files:
            for url, place in file:
                yield Seed(with_scheme(url), place)

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def first(self) -> list[Seed]:
        """The seeds with which a crawl is created: all seeds, or the first seeds of a large file."""
        return list(islice(self, FIRST if self.count > MOST_SEEDS else MOST_SEEDS))

    @property
    def has_more(self) -> bool:
        """True if further seeds must be added to the crawl before it starts."""
        return self.count > MOST_SEEDS

    def more(self) -> Iterator[list[Seed]]:
        """Yield the seeds after the first ones, in batches."""
        yield from batches(islice(self, FIRST, None) if self.has_more else iter(()))

    def _check(self) -> None:
        self._tell_schemes()
        refused = 0
        error: InvalidInput | None = None
        others = list[str]()
        for seed in self:
            self.count += 1
            if not isinstance(refusal := canonical(seed.url), UrlRefusal):
                continue
            refused += 1
            if error is None:
                what = f"{redact_url(seed.url[:2000])[:200]!r} {refusal.problem}"
                error = InvalidInput(seed.place or "URL", what, SEED_FIX)
            elif len(others) < MAX_LISTED:
                others.append(seed.place or redact_url(shorten(seed.url)))
        if error is not None:
            rest = f" and {refused - 1 - len(others):,} more" if refused - 1 > len(others) else ""
            also = f"; {', '.join(others)}{rest} cannot be fetched either." if others else "."
            raise error.again(error.message[:-1] + also, error.facts)
        if self._files and not self.count:
            raise InvalidInput(self._files[0].name, "has no URL", f"write URLs into it: {FORMAT_HELP}")

    def _tell_schemes(self) -> None:
        for text in self._urls:
            if "://" not in text and _is_file(text):
                raise UsageError(f'"{shorten(text)}" is a file, not a URL', f"read it with `--seeds {shorten(text)}`")
        assumed = [text for text in self._urls if with_scheme(text) != text]
        for text in assumed[:3]:
            note(f"{shorten(text)} has no scheme; trying {shorten(with_scheme(text))}.")
        if len(assumed) > 3:
            note(f"{plural(len(assumed) - 3, 'other URL')} without a scheme; trying https, or http on this machine.")


def batches(seeds: Iterator[Seed]) -> Iterator[list[Seed]]:
    """Yield the seeds in batches. Each batch fits into one request."""
    batch, size = list[Seed](), 0
    for seed in seeds:
        length = len(seed.url.encode()) + 3  # quotes and a comma
        if batch and (len(batch) == BATCH or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(seed)
        size += length
    if batch:
        yield batch


class SeedFile:
    """A file of URLs, which can be read several times. Its first line determines the format."""

    def __init__(self, name: str) -> None:
        self.name = "stdin" if name == STDIN else shorten(name)
        self._path = Path(name).expanduser()
        self._stdin = _spooled(sys.stdin.buffer) if name == STDIN else None
        if self._stdin is not None:
            weakref.finalize(self, self._stdin.close)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield each URL with the line number and the file, such as `line 3 of urls.txt`."""
        try:
            with self._open() as file:
                # If a line is longer than `LONGEST_LINE`, the rest of it is refused as an invalid URL.
                lines = iter(lambda: file.readline(LONGEST_LINE), "")
                first = next(lines, "")
                for number, text in self._reader(first)(chain([first] if first else [], lines)):
                    yield text, f"line {number:,} of {self.name}"
        except UnicodeDecodeError:
            raise InvalidInput(self.name, "is not UTF-8 text", "save it as UTF-8") from None
        except (OSError, EOFError) as error:  # a broken .gz file raises `EOFError`
            why = (getattr(error, "strerror", None) or str(error)).lower()
            raise InvalidInput(self.name, f"cannot be read ({why})", "pass a readable file with URLs") from None

    def _open(self) -> IO[str]:
        if self._stdin is not None:
            self._stdin.seek(0)
            return io.TextIOWrapper(os.fdopen(os.dup(self._stdin.fileno()), "rb"), encoding="utf-8-sig")
        if self._path.suffix == ".gz":
            return io.TextIOWrapper(gzip.open(self._path), encoding="utf-8-sig")
        return self._path.open(encoding="utf-8-sig")

    def _reader(self, first: str) -> Callable[[Iterator[str]], Iterator[tuple[int, str]]]:
        text = first.strip()
        if text.startswith(("{", '"')) and not _header(text):
            return self._json_lines
        if _CDX.match(text) or text.startswith("CDX "):
            return self._cdx
        if (header := _header(text)) is not None:
            delimiter, column, begins = header
            return lambda lines: self._csv(lines, delimiter, column, begins)
        if self._path.name.removesuffix(".gz").endswith((".csv", ".tsv")) and self._stdin is None:
            fix = f"name the column of the URLs `url`, not {shorten(text)!r}"
            raise InvalidInput(self.name, "has no column with URLs", fix)
        return self._plain

    @staticmethod
    def _plain(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            if (text := line.strip()) and not text.startswith("#"):
                yield number, text

    @staticmethod
    def _csv(lines: Iterator[str], delimiter: str, column: int, begins: int) -> Iterator[tuple[int, str]]:
        rows = csv.reader((line.replace("\0", "") for line in lines), delimiter=delimiter)
        for row in islice(rows, begins, None):
            if len(row) > column and (text := row[column].strip()):
                yield rows.line_num, text

    def _json_lines(self, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, self._url_in(line, number)

    def _cdx(self, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith(("CDX ", "!")):
                continue
            match = _CDX.match(text)
            if match is None:
                place = f"line {number:,} of {self.name}"
                raise InvalidInput(place, f"{shorten(text)!r} is not CDXJ", "write key, time and JSON into each line")
            yield number, match["url"] or self._url_in(match["json"], number)

    def _url_in(self, text: str, number: int) -> str:
        place = f"line {number:,} of {self.name}"
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise InvalidInput(
                place, f"{shorten(text.strip())!r} is not JSON", "write an object into each line"
            ) from None
        url = value.get("url") if isinstance(value, dict) else value
        if not isinstance(url, str):
            raise InvalidInput(place, "has no text `url`", "write objects with the field `url`")
        return url


def _header(line: str) -> tuple[str, int, int] | None:
    """Return the delimiter, the URL column and the number of header lines of a CSV file, based on the first line.
    Return None if the file is not CSV."""
    for delimiter in (",", "\t", ";"):
        with suppress(csv.Error):
            cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
            names = [cell.lower() for cell in cells]
            if column := next((name for name in COLUMNS if name in names), None):
                return delimiter, names.index(column), 1
            urls = [place for place, cell in enumerate(cells) if _HTTP.match(cell)]
            if len(cells) > 1 and urls and not _HTTP.match(line):
                return delimiter, urls[0], 0
    return None


def _spooled(stream: IO[bytes]) -> IO[bytes]:
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - stays open as long as the `SeedFile` exists
    shutil.copyfileobj(stream, spool)
    spool.flush()
    return spool


def _is_file(text: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(text).is_file()
    return False
