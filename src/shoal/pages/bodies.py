"""The body store contract: answers as their servers sent them, kept beside the database, each found by its place.

What is kept are gzip members of WARC records (see `warc`); a page's row says where its own are. They are written
before the commit that stores the row: whoever dies in between leaves bytes that nobody refers to, and never a row
without its bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.base.errors import NotFound
from shoal.base.signals import Signal
from shoal.egress import Headers, Request, Response
from shoal.pages.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyStoreFailed(Signal):
    """The body store did not do what it was asked; it is asked again after a pause."""

    store: str
    error: str
    retry_in_seconds: float


class BodyLocation(NamedTuple):
    """Where bytes are kept: a file of the store, and the piece of it."""

    file: str
    offset: int
    length: int


class Captured(NamedTuple):
    """One answer, and the request that it answers."""

    request: Request
    response: Response


Waiting = tuple[Page, tuple[Captured, ...], bytes]
"""A page, its answers, and WARC records to follow them."""


class BodyWriter(Protocol):
    """Adds to what is kept of one crawl, for one walker."""

    async def append(self, data: bytes) -> BodyLocation:
        """Keep these bytes in one piece; they are durable when this returns. Raises `StorageFull` or
        `BodiesUnavailable`; then nothing refers to what may have been written, and the next call begins a new file."""
        ...

    async def close(self) -> None: ...


class BodyStore(Protocol):
    def writer(self, crawl_id: str) -> BodyWriter:
        """A writer of its own: two of them never share a file. Nothing is made before the first bytes come."""
        ...

    async def read(self, place: BodyLocation) -> bytes:
        """The bytes at a place; `NotFound` if they are not there."""
        ...

    async def forget(self, crawl_id: str) -> None:
        """Remove everything that was kept of a crawl; to find nothing is no error."""
        ...

    async def check_room(self) -> None:
        """Raise `StorageFull` unless more can be kept, as far as the store can tell."""
        ...

    def close(self) -> None: ...


def place_of(page: Page) -> BodyLocation | None:
    """Where a page's answer is kept, if it is."""
    if page.body_file is None or page.body_offset is None or page.body_length is None:
        return None
    return BodyLocation(page.body_file, page.body_offset, page.body_length)


async def read_all(store: BodyStore, places: Sequence[BodyLocation]) -> dict[BodyLocation, bytes]:
    """What is kept at these places. Neighbours are read in one go: those of one commit stand side by side."""
    found = {}
    for run in _runs(places):
        first, last = run[0], run[-1]
        kept = await store.read(BodyLocation(first.file, first.offset, last.offset + last.length - first.offset))
        for place in run:
            start = place.offset - first.offset
            found[place] = kept[start : start + place.length]
    return found


def _runs(places: Sequence[BodyLocation]) -> Iterator[list[BodyLocation]]:
    run: list[BodyLocation] = []
    for place in places:
        if run and (place.file, place.offset) != (run[-1].file, run[-1].offset + run[-1].length):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


async def answer_of(store: BodyStore, page: Page) -> Response | None:
    """A page's last answer, read back; None if it was not kept. `Response.body` decodes it."""
    place = place_of(page)
    return None if place is None else answer_in(await store.read(place), place)


def answer_in(kept: bytes, place: BodyLocation) -> Response:
    """The last answer among the bytes that were kept of a page: it stands first."""
    from shoal.pages import warc  # only crawls that keep bodies pay for it

    try:
        record = warc.read_first(kept)
        head, body = record.http()
        status = int(head[9:12])
    except ValueError as error:
        raise NotFound("kept body", place.file, f"what stands there cannot be read ({error})") from None
    fields = record.fields
    return Response(fields["warc-target-uri"], status, Headers(head), body, fields.get("warc-ip-address", ""), 0.0)
