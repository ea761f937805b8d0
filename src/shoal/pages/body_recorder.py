"""The keeper: brings the answers of one walker into the body store, a commit's worth at a time, beside its loop."""

import asyncio
from contextlib import suppress

from shoal.base.errors import NotFound
from shoal.pages import warc
from shoal.pages.bodies import BodyLocation, BodyStore, Captured, Waiting, place_of
from shoal.pages.page import Page

MOST_WAITING = 32_000_000  # bytes of answers; then nothing more is fetched before they are written


class BodyRecorder:
    """Answers are added as they come, and written before the commit that stores their pages."""

    def __init__(self, store: BodyStore, name: str, most: int = MOST_WAITING) -> None:
        self._store = store
        self._writer = store.writer(name)
        self._most = most
        self._waiting: list[Waiting] = []
        self._unchanged: dict[str, BodyLocation] = {}  # by URL, where an earlier crawl kept what still holds
        self._bytes = 0  # of what waits, and of what is being written

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._most

    def add(self, page: Page, captured: tuple[Captured, ...], earlier: bytes = b"") -> None:
        """Keep a page's answers with the next commit: the last one first, then those that redirected (`earlier`)."""
        self._waiting.append((page, captured, earlier))
        self._bytes += _size(captured)

    def recall(self, page: Page, earlier: Page) -> None:
        """The answer was that the page has not changed: keep what an earlier crawl kept of it, too. It is copied, since
        that crawl may be removed."""
        place = place_of(earlier)
        if place is not None:
            self._unchanged[page.url] = place

    def take(self) -> list[Waiting]:
        """All that waits: to be written with the commit that stores its pages."""
        taken, self._waiting = self._waiting, []
        return taken

    async def write(self, taken: list[Waiting]) -> None:
        """What was taken is durable when this returns, and each page knows the place of its own."""
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
            with suppress(NotFound):  # gone with the earlier crawl, or lost: that nothing changed is kept all the same
                found[url] = await self._store.read(place)
        return found

    def forget(self) -> None:
        """The pages of what waits will not be stored."""
        self._waiting.clear()
        self._unchanged.clear()
        self._bytes = 0

    async def close(self) -> None:
        await self._writer.close()


def _pack(waiting: list[Waiting], recalled: dict[str, bytes]) -> list[bytes]:
    return [_run(page, captured, recalled.get(page.url)) + earlier for page, captured, earlier in waiting]


def _run(page: Page, captured: tuple[Captured, ...], earlier: bytes | None) -> bytes:
    original, fields = _original(earlier)
    return original + b"".join([warc.exchange_members(*one, page.fetched_at, fields) for one in captured])


def _original(earlier: bytes | None) -> tuple[bytes, dict[str, str] | None]:
    """What was sent when the page was last sent whole, and the fields of its record."""
    if earlier is None:
        return b"", None
    try:
        original = warc.first_exchange(earlier)
        return original, warc.read_head(original).fields
    except ValueError:  # damaged: that nothing changed is kept all the same
        return b"", None


def _size(captured: tuple[Captured, ...]) -> int:
    return sum(len(one.response.raw) for one in captured)
