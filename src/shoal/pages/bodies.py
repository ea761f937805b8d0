"""The interface of body stores, which store responses as servers sent them, outside the database, and return them by
location.

Bodies are stored as gzip members of WARC records (see `warc`); a page's row holds their location. Bodies are written
before the commit that stores the row: a crash in between leaves unreferenced bytes, but never a row without its bytes.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from shoal.base.errors import BodyNotKept, NotFound
from shoal.base.signals import Signal
from shoal.egress import Failure, Headers, Limits, Request, Response
from shoal.pages.page import NOT_MODIFIED, Page

if TYPE_CHECKING:
    from shoal.extract.tree import Source


P = TypeVar("P")


class BodyStoreFailed(Signal, frozen=True, kw_only=True):
    """An operation of the body store failed; it is retried after a pause."""

    store: str
    error: str
    retry_in_seconds: float


class BodyLocation(NamedTuple):
    """The location of stored bytes: a file of the store, and a range in it."""

    file: str
    offset: int
    length: int


class CapturedExchange(NamedTuple):
    """A response and its request, and the page after its scripts have run if a browser rendered it."""

    request: Request
    response: Response
    rendered: bytes = b""

    @property
    def size(self) -> int:
        return len(self.response.raw) + len(self.rendered)


RENDERED_TYPE: Final = "text/html; charset=utf-8"  # media type of rendered documents


Waiting = tuple[Page, tuple[CapturedExchange, ...], bytes]
"""A page, its responses, and WARC records to append after them."""


class BodyWriter(Protocol):
    """Appends to the stored bodies of one crawl, for one walker."""

    async def append(self, data: bytes) -> BodyLocation:
        """Store these bytes contiguously; they are durable when this returns. Raise `StorageFull` or
        `BodiesUnavailable` on failure: then no row refers to bytes that may have been written, and the next call starts
        a new file."""
        ...

    async def close(self) -> None: ...


class BodyStore(Protocol):
    def writer(self, crawl_id: str) -> BodyWriter:
        """Return a new writer; writers never share a file. Nothing is created before the first write."""
        ...

    async def read(self, place: BodyLocation) -> bytes:
        """Return the bytes at a location; raises `NotFound` if they are missing."""
        ...

    async def forget(self, crawl_id: str) -> None:
        """Remove all bodies of a crawl; not an error if there are none."""
        ...

    async def check_space(self) -> None:
        """Raise `StorageFull` if the store can tell that no more bodies can be stored."""
        ...

    def close(self) -> None: ...


def place_of(page: Page) -> BodyLocation | None:
    """Return the location of a page's stored response, or None."""
    if page.body_file is None or page.body_offset is None or page.body_length is None:
        return None
    return BodyLocation(page.body_file, page.body_offset, page.body_length)


async def read_all(store: BodyStore, places: Sequence[BodyLocation]) -> dict[BodyLocation, bytes]:
    """Return the bytes at these locations. Adjacent locations, such as the bodies of one commit, are read in one
    request."""
    found = {}
    for run in _runs(places):
        first, last = run[0], run[-1]
        kept = await store.read(BodyLocation(first.file, first.offset, last.offset + last.length - first.offset))
        for place in run:
            start = place.offset - first.offset
            found[place] = kept[start : start + place.length]
    return found


def within(pages: Iterable[P], most: int, page_of: Callable[[P], Page]) -> Iterator[list[P]]:
    """Yield the pages in order, in batches. The stored bodies of a batch have at most `most` bytes in total, but a
    larger page is a batch by itself."""
    part: list[P] = []
    size = 0
    for page in pages:
        length = page_of(page).body_length or 0
        if part and size + length > most:
            yield part
            part, size = [], 0
        part.append(page)
        size += length
    if part:
        yield part


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
    """Return a page's last response; None if it was not stored. `Response.body` decodes it."""
    place = place_of(page)
    return None if place is None else await asyncio.to_thread(answer_in, await store.read(place), place)


def answer_in(kept: bytes, place: BodyLocation) -> Response:
    """Return the last response of a page from its stored bytes, where this response comes first."""
    from shoal.pages import warc  # imported here, so that only crawls that keep bodies pay for the import

    try:
        record = warc.read_first(kept)
        head, body = record.http()
        status = int(head[9:12])
    except ValueError as error:
        raise _damaged(place, error) from None
    fields = record.fields
    return Response(fields["warc-target-uri"], status, Headers(head), body, fields.get("warc-ip-address", ""), 0.0)


async def source_of(store: BodyStore, page: Page, limits: Limits) -> "Source | Failure | None":
    """Return a page in the form that readers get (see `source_in`); None if its response was not stored."""
    place = place_of(page)
    return None if place is None else await asyncio.to_thread(source_in, await store.read(place), place, limits)


def source_in(kept: bytes, place: BodyLocation, limits: Limits) -> "Source | Failure":
    """Return a page from its stored bytes: the document after its scripts have run if it was rendered, otherwise the
    decoded body of its last response; a failure if the body cannot be decoded."""
    from shoal.pages import warc

    answer = answer_in(kept, place)
    try:
        rendered = warc.rendered_in(kept)
    except ValueError as error:
        raise _damaged(place, error) from None
    return source_from(answer, rendered, limits)


def source_from(answer: Response, rendered: bytes | None, limits: Limits) -> "Source | Failure":
    """Return a page from its last response and, if it was rendered, from the document after its scripts have run."""
    from shoal.extract.tree import Source

    body = answer.body(limits) if rendered is None else rendered
    if isinstance(body, Failure):
        return body
    kind = answer.headers.get("content-type") if rendered is None else RENDERED_TYPE
    return Source(
        answer.url,
        body,
        kind,
        status=answer.status,
        headers=answer.headers.pairs(),
        is_rendered=rendered is not None,
    )


def body_missing(page: Page) -> BodyNotKept:
    """Return the error for a request for the content of a page that has no stored body. The error says what can be
    done."""
    if page.status is None:
        why = (page.error_message or "it was not fetched").rstrip(".")
        return BodyNotKept(page.url, f"it got no response ({why})", "check its status or error first")
    if page.status == NOT_MODIFIED:
        why = "it was not modified (304), and the previous crawl did not store its body"
        return BodyNotKept(page.url, why, "run both crawls with keep_bodies")
    return BodyNotKept(page.url, "its body was not stored", "run the crawl with keep_bodies")


def _damaged(place: BodyLocation, error: ValueError) -> NotFound:
    return NotFound("stored body", place.file, f"the stored data is damaged ({error})")
