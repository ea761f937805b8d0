"""Writes pages to a file or to stdout, each once, also after a kill."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal.base.errors import InvalidInput
from shoal.base.text import shorten
from shoal.egress import Limits
from shoal.pages.bodies import BodyLocation, BodyStore, place_of, read_all
from shoal.pages.export.formats import Csv, Format, JsonLines
from shoal.pages.export.part_file import PartFile, Stdout
from shoal.pages.page import Page

STDOUT = "-"
MOST_BODIES = 8_000_000  # compressed bytes in memory at once, not counting what is built from one page

Bodies = Mapping[BodyLocation, bytes]


class Output(Protocol):
    """One output of one crawl."""

    name: str

    @property
    def locations(self) -> str:
        """Return where its pages are now, for messages."""
        ...

    def check(self) -> None:
        """Raise if the output cannot be written, before any work is done."""
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
    """Records in one file, or on stdout."""

    def __init__(self, name: str, made: Format) -> None:
        self.name = name
        self._format = made
        self._file: PartFile | Stdout = Stdout() if name == STDOUT else PartFile(name)
        self._crawl_id = ""

    @property
    def locations(self) -> str:
        return self._file.locations

    def check(self) -> None:
        self._file.check()

    def open(self, crawl_id: str, at: int, limits: Limits) -> None:
        self._crawl_id = crawl_id
        self._file.begin()
        self._file.write([self._format.head()])

    def write(self, pages: Sequence[Page], bodies: Bodies) -> None:
        self._file.write(self._format.pages(self._crawl_id, pages))

    def complete(self) -> None:
        self._file.write(self._format.tail())
        self._file.complete()

    def leave(self) -> None:
        self._file.leave()


class Outputs:
    """All outputs of one crawl."""

    def __init__(self, names: Sequence[str]) -> None:
        places = [name if name == STDOUT else str(Path(name).resolve()) for name in names]
        for name, place in zip(names, places, strict=True):
            if places.count(place) > 1:
                raise InvalidInput("--output", f"names {name!r} twice", "list each file once")
        self._outputs = [output_of(name) for name in names]

    def __bool__(self) -> bool:
        return bool(self._outputs)

    @property
    def to_stdout(self) -> bool:
        return any(output.name == STDOUT for output in self._outputs)

    @property
    def from_bodies(self) -> list[str]:
        """Return the names of the outputs that need stored bodies."""
        return [output.name for output in self._outputs if output.name.endswith(FROM_BODIES)]

    @property
    def locations(self) -> list[str]:
        return [output.locations for output in self._outputs]

    def check(self) -> None:
        for output in self._outputs:
            output.check()

    def check_bodies(self, crawl_id: str, kept: bool) -> None:
        """Reject outputs that need stored bodies if the crawl keeps none."""
        if self.from_bodies and not kept:
            problem = (
                f"{self.from_bodies[0]!r} is written from stored bodies, and crawl {crawl_id} does not store bodies"
            )
            raise InvalidInput("--output", problem, "run the crawl with --keep-bodies")

    async def open(self, crawl_id: str, at: int, limits: Limits) -> None:
        """Start all outputs empty; in a thread, because removing the files of an earlier run may take long."""
        await asyncio.to_thread(self._each, lambda output: output.open(crawl_id, at, limits))

    async def write(self, pages: Sequence[Page], store: BodyStore | None = None) -> None:
        """Add pages; in a thread, because a slow disk or pipe reader would block the event loop. Outputs that need
        bodies read them from the store."""
        if store is None or not self.from_bodies:
            await asyncio.to_thread(self._write, pages, {})
            return
        for some in _within(pages, MOST_BODIES):
            bodies = await read_all(store, [place for page in some if (place := place_of(page))])
            await asyncio.to_thread(self._write, some, bodies)

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
        return FileOutput(name, JsonLines())
    for ending, make in OUTPUTS.items():
        if name.endswith(ending) and Path(name).name != ending:
            return make(name)
    raise InvalidInput("--output", f"{name!r} has an unknown extension", f"use one of {', '.join(OUTPUTS)}, or -")


def _within(pages: Iterable[Page], most: int) -> Iterator[list[Page]]:
    """Yield the pages in order, in batches whose bodies fit into memory."""
    part: list[Page] = []
    size = 0
    for page in pages:
        length = page.body_length or 0
        if part and size + length > most:
            yield part
            part, size = [], 0
        part.append(page)
        size += length
    if part:
        yield part


# Rarely used formats are imported on demand.


def _parquet(name: str) -> Output:
    from shoal.pages.export.parquet import Parquet

    return FileOutput(name, Parquet())


def _warc(name: str) -> Output:
    from shoal.pages.export.warc import WarcOutput

    return WarcOutput(name)


def _markdown(name: str) -> Output:
    from shoal.pages.export.markdown import MarkdownFolder

    return MarkdownFolder(name)


OUTPUTS: dict[str, Callable[[str], Output]] = {
    ".jsonl": lambda name: FileOutput(name, JsonLines()),
    ".csv": lambda name: FileOutput(name, Csv()),
    ".parquet": _parquet,
    ".warc.gz": _warc,
    ".md": _markdown,
}
FROM_BODIES = (".warc.gz", ".md")


ERROR = "error"
_WORD = re.compile(r"[1-9](\d\d|xx)|error")


class ExportFilter:
    """Accepts pages with one of the given statuses: `200`, `4xx`, or `error` for any error. A page that was reached
    through redirects also has their statuses. None given: all pages."""

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
