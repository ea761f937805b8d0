"""Write the responses of one walker to the body store, one batch per commit, concurrently with its loop."""

import asyncio
from contextlib import suppress

from shoal.base.errors import NotFound
from shoal.pages import warc
from shoal.pages.bodies import BodyLocation, BodyStore, CapturedExchange, Waiting, place_of
from shoal.pages.page import Page

MOST_WAITING = 32_000_000  # bytes of responses; above that, fetching pauses until they are written


class BodyRecorder:
    """Collects responses as they arrive, and writes them before the commit that stores their pages."""

    def __init__(self, store: BodyStore, name: str, most: int = MOST_WAITING) -> None:
        self._store = store
        self._writer = store.writer(name)
        self._most = most
        self._waiting: list[Waiting] = []
        self._unchanged: dict[str, BodyLocation] = {}  # where an earlier crawl stored the unchanged body, by URL
        self._bytes = 0  # bytes of responses that wait or are being written

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._most

    def add(self, page: Page, captured: tuple[CapturedExchange, ...], earlier: bytes = b"") -> None:
        """Queue a page's responses for the next commit: the last one first, then the redirects (`earlier`)."""
        self._waiting.append((page, captured, earlier))
        self._bytes += _size(captured)

    def recall(self, page: Page, earlier: Page) -> None:
        """Copy the body stored by an earlier crawl, because the server answered 304 (not modified). It is copied
        because the earlier crawl may be removed."""
        place = place_of(earlier)
        if place is not None:
            self._unchanged[page.url] = place

    def take(self) -> list[Waiting]:
        """Return and clear all queued responses, to be written before the commit that stores their pages."""
        taken, self._waiting = self._waiting, []
        return taken

    async def write(self, taken: list[Waiting]) -> None:
        """Write what `take` returned and set each page's location; the bytes are durable when this returns."""
        if not taken:
            return
        try:
            packed = await asyncio.to_thread(_pack, taken, await self._recalled())
            place = await self._writer.append(b"".join(packed))
        finally:
            self._bytes -= sum(_size(captured) for _, captured, _ in taken)
        offset = place.offset
        for (page, _, _), members in zip(taken, packed, strict=True):
            page.body_file, page.body_offset, page.body_length = place.file, offset, len(members)
            offset += len(members)

    async def _recalled(self) -> dict[str, bytes]:
        unchanged, self._unchanged = self._unchanged, {}
        found = {}
        for url, place in unchanged.items():
            with suppress(NotFound):  # removed with the earlier crawl, or lost: the 304 itself is stored anyway
                found[url] = await self._store.read(place)
        return found

    def forget(self) -> None:
        """Discard what is queued, because its pages will not be stored."""
        self._waiting.clear()
        self._unchanged.clear()
        self._bytes = 0

    async def close(self) -> None:
        await self._writer.close()


def _pack(waiting: list[Waiting], recalled: dict[str, bytes]) -> list[bytes]:
    return [_members(page, captured, recalled.get(page.url)) + earlier for page, captured, earlier in waiting]


def _members(page: Page, captured: tuple[CapturedExchange, ...], earlier: bytes | None) -> bytes:
    original, fields = _original(earlier)
    return original + b"".join([warc.exchange_members(*one, page.fetched_at, fields) for one in captured])


def _original(earlier: bytes | None) -> tuple[bytes, dict[str, str] | None]:
    """Return the members of the last full response and its request, and the fields of its record."""
    if earlier is None:
        return b"", None
    try:
        original = warc.first_exchange(earlier)
        return original, warc.read_head(original).fields
    except ValueError:  # damaged: the 304 itself is stored anyway
        return b"", None


def _size(captured: tuple[CapturedExchange, ...]) -> int:
    return sum(len(one.response.raw) for one in captured)
