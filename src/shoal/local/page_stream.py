"""Pages between whoever walks and whoever reads, with a bound on how far the walker may run ahead."""

import asyncio
from collections.abc import Callable

from shoal.pages.page import Page

MOST_WAITING = 500  # pages that nobody has read yet; then the walker takes no more


class PageStream:
    """Pages on their way to a reader who may be slower than the walker."""

    def __init__(self, caught_up: Callable[[], None] = lambda: None, most: int = MOST_WAITING) -> None:
        self._caught_up = caught_up
        self._most = most
        self._pages: list[Page] = []
        self._ended = False
        self._abandoned = False
        self._bounded = True
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def add(self, pages: list[Page]) -> None:
        """Never refuses: what was committed cannot be taken back. Who adds asks for room before the next commit."""
        if not pages or self._abandoned:
            return
        self._pages += pages
        self._news.set()
        if self._bounded and len(self._pages) >= self._most:
            self._room.clear()

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    async def room(self) -> None:
        """Until the reader has caught up."""
        await self._room.wait()

    async def next(self) -> list[Page]:
        """What came since the last call; nothing more at the end."""
        while not self._pages and not self._ended:
            self._news.clear()
            await self._news.wait()
        pages, self._pages = self._pages, []
        if not self._room.is_set():
            self._room.set()
            self._caught_up()
        return pages

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def unbind(self) -> None:
        """The end is near: let whoever adds bring what is left without waiting."""
        self._bounded = False
        self._room.set()

    def abandon(self) -> None:
        """Nobody reads any more: nothing is kept, nobody waits."""
        self._abandoned = True
        self._pages = []
        self.unbind()
        self.end()
