"""Writes pages and links to a file or to stdout, each exactly once, even if the process is killed and continued."""

import asyncio
import csv
import re
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from shoal.base.errors import InvalidInput
from shoal.base.extras import require
from shoal.base.text import shorten
from shoal.egress import Limits
from shoal.pages.bodies import BodyLocation, BodyStore, place_of, read_all, within
from shoal.pages.export.formats import Csv, Format, Json, JsonLines
from shoal.pages.export.part_file import MayOverwrite, PartFile, Stdout, check_replace
from shoal.pages.export.table import DATA, LINK_COLUMNS, PAGE_COLUMNS, PARTS, Columns, PageTable, Row
from shoal.pages.page import Page

STDOUT = "-"
LARGEST_RECORD: Final = 4_000_000  # bytes of a file that are read: one record is smaller
FEW: Final = 10  # columns; a table with more columns, all of them known, was not written by hand
_OURS: Final = frozenset({*PAGE_COLUMNS, *LINK_COLUMNS, *PARTS})
MOST_BODIES = 8_000_000  # compressed bytes in memory at the same time, without the data that is built from one page

Bodies = Mapping[BodyLocation, bytes]


class Output(Protocol):
    """One output of one crawl."""

    name: str

    @property
    def locations(self) -> str:
        """Return where the output's pages are now, for messages."""
        ...

    def check(self) -> None:
        """Raise if the output cannot be written, before any work is done."""
        ...

    def may_replace(self) -> bool:
        """Return whether an existing file with the output's name is empty or was written by Shoal."""
        ...

    def open(self, crawl_id: str, at: int, limits: Limits) -> None:
        """Start an empty output; `at` is its creation time. Stored bodies are decompressed within these limits."""
        ...

    def write(self, pages: Sequence[Page], bodies: Bodies) -> None:
        """Add pages; `bodies` holds their stored bodies, if this output needs them."""
        ...

    def complete(self) -> None:
        """Finish the output and rename it to its final name."""
        ...

    def leave(self) -> None:
        """Close an incomplete output; it keeps its temporary name."""
        ...


class FileOutput:
    """Rows in one file, or on stdout."""

    def __init__(self, name: str, make: Callable[[Columns], Format], columns: Columns = PAGE_COLUMNS) -> None:
        self.name = name
        self._make = make
        self._format = make(columns)
        self._columns: Iterable[str] = columns
        self._table = PageTable()
        self._file: PartFile | Stdout = Stdout() if name == STDOUT else PartFile(name)
        self._crawl_id = ""

    @property
    def locations(self) -> str:
        return self._file.locations

    def fit(self, table: PageTable) -> None:
        """Write pages in the form of this table."""
        if self._format.is_flat:
            table.check_columns()
        self._table = table
        self._columns = table.columns if self._format.is_flat else table.fields
        self._format = self._make(table.columns)

    def check(self) -> None:
        self._file.check()

    def may_replace(self) -> bool:
        return self.name == STDOUT or may_replace(self.name, self._columns)

    def open(self, crawl_id: str, at: int, limits: Limits) -> None:
        self._crawl_id = crawl_id
        self._file.begin()
        self._file.write([self._format.head()])

    def write(self, pages: Sequence[Page], bodies: Bodies) -> None:
        table = self._table
        self.write_rows((table.rows if self._format.is_flat else table.records)(self._crawl_id, pages))

    def write_rows(self, rows: Iterable[Row]) -> None:
        self._file.write(self._format.rows(rows))

    def complete(self) -> None:
        self._file.write(self._format.tail())
        self._file.complete()

    def leave(self) -> None:
        self._file.leave()


class Outputs:
    """All outputs of one crawl: files of pages, and files of links, which are written when the crawl has ended."""

    def __init__(self, names: Sequence[str], links: Sequence[str] = ()) -> None:
        """`names`: files of pages; a file with a name like `links.csv` is a file of links."""
        places = [name if name == STDOUT else str(Path(name).resolve()) for name in (*names, *links)]
        for name, place in zip((*names, *links), places, strict=True):
            if places.count(place) > 1:
                raise InvalidInput("--output", f"names {name!r} twice", "list each file once")
        self._outputs = [output_of(name) for name in names if not is_for_links(name)]
        self.links = [links_output_of(name) for name in (*filter(is_for_links, names), *links)]
        self._has_links = False  # the outputs of links are written

    def __bool__(self) -> bool:
        return bool(self._outputs)

    @property
    def to_stdout(self) -> bool:
        return any(output.name == STDOUT for output in (*self._outputs, *self.links))

    @property
    def from_bodies(self) -> list[str]:
        """Return the names of the outputs that need stored bodies."""
        return [output.name for output in self._outputs if output.name.endswith(FROM_BODIES)]

    @property
    def locations(self) -> list[str]:
        """Return where the rows are now. Files of links are listed only once all links are written."""
        written = self.links if self._has_links else ()
        return [output.locations for output in (*self._outputs, *written)]

    def fit(self, table: PageTable) -> None:
        """Write pages in the form of this table, to the outputs that have rows."""
        for output in self._outputs:
            if isinstance(output, FileOutput):
                output.fit(table)

    def check(self, may_overwrite: MayOverwrite | None = None) -> None:
        """Raise if an output cannot be written. An existing file is replaced if it looks like an output of Shoal's;
        if `may_overwrite` is given, it gets the file's name and a description, and must agree, too."""
        for output in (*self._outputs, *self.links):
            output.check()
            check_replace(output.name, output.may_replace, may_overwrite)

    def check_bodies(self, crawl_id: str, kept: bool) -> None:
        """Reject outputs that need stored bodies if the crawl keeps none."""
        if self.from_bodies and not kept:
            problem = (
                f"{self.from_bodies[0]!r} is written from stored bodies, and crawl {crawl_id} does not store bodies"
            )
            raise InvalidInput("--output", problem, "run the crawl with --keep-bodies")

    def check_links(self, crawl_id: str, stored: bool) -> None:
        """Reject outputs of links if the crawl stores none."""
        if self.links and not stored:
            problem = f"{self.links[0].name!r} is written from stored links, and crawl {crawl_id} does not store links"
            raise InvalidInput("--output", problem, "run the crawl with --links FILE")

    async def open(self, crawl_id: str, at: int, limits: Limits) -> None:
        """Start all outputs of pages empty. This runs in a thread, because removing the files of an earlier run may
        take a long time."""
        await asyncio.to_thread(self._each, lambda output: output.open(crawl_id, at, limits))

    async def write(self, pages: Sequence[Page], store: BodyStore | None = None) -> None:
        """Add pages. This runs in a thread, because a slow disk or pipe reader would block the event loop. Outputs that
        need bodies read them from the store."""
        if store is None or not self.from_bodies:
            await asyncio.to_thread(self._write, pages, {})
            return
        for some in within(pages, MOST_BODIES, lambda page: page):
            bodies = await read_all(store, [place for page in some if (place := place_of(page))])
            await asyncio.to_thread(self._write, some, bodies)

    async def write_links(self, batches: AsyncIterable[Iterable[Row]]) -> int:
        """Write the links of the crawl to the outputs of links, and complete them; return the number of links."""
        count = 0
        try:
            for output in self.links:
                output.open("", 0, Limits())
            async for rows in batches:
                written = list(rows)
                count += len(written)
                for output in self.links:
                    await asyncio.to_thread(output.write_rows, written)
            for output in self.links:
                await asyncio.to_thread(output.complete)
            self._has_links = True
        finally:
            for output in self.links:
                output.leave()
        return count

    async def complete(self) -> None:
        await asyncio.to_thread(self._each, lambda output: output.complete())

    def leave(self) -> None:
        self._each(lambda output: output.leave())

    def _write(self, pages: Sequence[Page], bodies: Bodies) -> None:
        self._each(lambda output: output.write(pages, bodies))

    def _each(self, act: Callable[[Output], None]) -> None:
        for output in self._outputs:
            act(output)


def output_of(name: str) -> Output:
    """Return the output for a file name, chosen by its extension."""
    if name == STDOUT:
        return FileOutput(name, JsonLines)
    for ending, make in OUTPUTS.items():
        if name.endswith(ending) and Path(name).name != ending:
            return make(name)
    raise _unusable("--output", name, OUTPUTS)


def is_for_links(name: str) -> bool:
    """Return whether a file is a file of links, by its name: `links.csv`, `site.links.parquet` and so on."""
    stem, dot, ending = Path(name).name.rpartition(".")
    return f".{ending}" in TABLES and bool(dot) and stem.rpartition(".")[2].lower() == "links"


def links_output_of(name: str) -> FileOutput:
    """Return the output of links for a file name, chosen by its extension."""
    if name == STDOUT:
        return FileOutput(name, JsonLines, LINK_COLUMNS)
    for ending, make in TABLES.items():
        if name.endswith(ending) and Path(name).name != ending:
            return FileOutput(name, make, LINK_COLUMNS)
    raise _unusable("--links", name, TABLES)


def _unusable(flag: str, name: str, endings: Iterable[str]) -> InvalidInput:
    if name.endswith("/") or (name and Path(name).is_dir()):
        return InvalidInput(flag, f"{name!r} is a folder", f"name a file that ends in one of {', '.join(endings)}")
    return InvalidInput(flag, f"{name!r} has an unknown extension", f"use one of {', '.join(endings)}, or -")


# Rarely used formats are imported on demand.


def _parquet(columns: Columns) -> Format:
    require("parquet", "Parquet")
    from shoal.pages.export.parquet import Parquet

    return Parquet(columns)


def _warc(name: str) -> Output:
    from shoal.pages.export.warc import WarcOutput

    return WarcOutput(name)


def _markdown(name: str) -> Output:
    from shoal.pages.export.markdown import MarkdownFolder

    return MarkdownFolder(name)


TABLES: dict[str, Callable[[Columns], Format]] = {".jsonl": JsonLines, ".json": Json, ".csv": Csv, ".parquet": _parquet}
OUTPUTS: dict[str, Callable[[str], Output]] = {
    **{ending: partial(FileOutput, make=make) for ending, make in TABLES.items()},
    ".warc.gz": _warc,
    ".md": _markdown,
}
FROM_BODIES = (".warc.gz", ".md")


ERROR = "error"
_WORD = re.compile(r"[1-9](\d\d|xx)|error")


class ExportFilter:
    """Accepts pages with one of the given statuses: `200`, `4xx`, or `error` for any error. A page that was reached
    through redirects also has the statuses of the redirects. Without statuses, all pages are accepted."""

    def __init__(self, words: Sequence[str]) -> None:
        for word in words:
            if not _WORD.fullmatch(word):
                raise InvalidInput(
                    "--status", f"{shorten(word)!r} is not a status", "use one such as 404, 4xx, or error"
                )
        self.words = frozenset(words)

    def __call__(self, page: Page) -> bool:
        return self.accepts([page.status, *(hop["status"] for hop in page.redirects)], page.error_code)

    def accepts(self, statuses: Iterable[int | None], error_code: str | None) -> bool:
        """Return whether one of the statuses, or the error, is wanted."""
        if not self.words or (error_code is not None and ERROR in self.words):
            return True
        return any(word in self.words or f"{word[0]}xx" in self.words for word in map(str, statuses))


def may_replace(name: str, columns: Iterable[str]) -> bool:
    """Return whether a file may be replaced. The file must be empty, or a table; the table must have the columns of the
    new file, many of them (an earlier version may have written fewer), or several columns that all occur in tables of
    pages or links."""
    path = Path(name)
    try:
        if not path.stat().st_size:
            return True
        found = _columns(path)
    except (OSError, ValueError, csv.Error):
        return False
    wanted = list(columns)
    if found == wanted or (len(found) > FEW and set(found) <= set(wanted)):
        return True
    return len(found) > 1 and all(one in _OURS or one.startswith(DATA) for one in found)


def _columns(path: Path) -> list[str]:
    """Return the columns of a file; raise ValueError if it has none."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_schema(path).names)  # its errors are ValueErrors
    with path.open("rb") as file:
        first = file.readline(LARGEST_RECORD)
        if path.suffix == ".json" and first.strip() == b"[":
            first = file.readline(LARGEST_RECORD)
            if first.strip() == b"]":
                return list(PAGE_COLUMNS)  # an empty array
    if path.suffix == ".csv":
        return next(csv.reader([first.decode()]), [])
    row: Any = orjson.loads(first.rstrip().rstrip(b","))
    return list(row) if isinstance(row, dict) else []
