"""The keeper: brings the answers of one walker into the body store, a commit's worth at a time, beside its loop."""

import asyncio

from shoal.pages import warc
from shoal.pages.bodies import BodyWriter, Captured
from shoal.pages.page import Page

MOST_WAITING = 32_000_000  # bytes of answers; then nothing more is fetched before they are written

Waiting = tuple[Page, tuple[Captured, ...]]


class BodyKeeper:
    """Answers are added as they come, and written before the commit that stores their pages."""

    def __init__(self, writer: BodyWriter, most: int = MOST_WAITING) -> None:
        self._writer = writer
        self._most = most
        self._waiting: list[Waiting] = []
        self._bytes = 0  # of what waits, and of what is being written

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._most

    def add(self, page: Page, captured: tuple[Captured, ...]) -> None:
        """Keep a page's answers with the next `write`: the last one first, then those that redirected."""
        self._waiting.append((page, captured))
        self._bytes += _size(captured)

    async def write(self) -> None:
        """Everything that waits is durable when this returns, and each page knows the place of its own."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            packed = await asyncio.to_thread(_pack, waiting)
            place = await self._writer.append(b"".join(packed))
        finally:
            self._bytes -= sum(_size(captured) for _, captured in waiting)
        offset = place.offset
        for (page, _), members in zip(waiting, packed, strict=True):
            page.body_file, page.body_offset, page.body_length = place.file, offset, len(members)
            offset += len(members)

    def forget(self) -> None:
        """The pages of what waits will not be stored."""
        self._waiting.clear()
        self._bytes = 0

    async def close(self) -> None:
        await self._writer.close()


def _pack(waiting: list[Waiting]) -> list[bytes]:
    return [
        b"".join([warc.exchange_members(request, response, page.fetched_at) for request, response in captured])
        for page, captured in waiting
    ]


def _size(captured: tuple[Captured, ...]) -> int:
    return sum(len(one.response.raw) for one in captured)
