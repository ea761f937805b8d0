"""A stream of pages from a walker to a reader, with back-pressure."""

import asyncio
from collections.abc import Callable

from shoal.pages.page import Page

MOST_WAITING = 500  # unread pages at which the walker stops taking more


class PageStream:
    """A bounded buffer of pages for a reader that may be slower than the walker."""

    def __init__(self, caught_up: Callable[[], None] = lambda: None, most: int = MOST_WAITING) -> None:
        self._caught_up = caught_up
        self._most = most
        self._pages: list[Page] = []
        self._ended = False
        self._abandoned = False
        self._bounded = True
        self._news = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def add(self, pages: list[Page]) -> None:
        """Add pages. Never blocks, since they are already committed; wait for capacity before the next
        commit."""
        if not pages or self._abandoned:
            return
        self._pages += pages
        self._news.set()
        if self._bounded and len(self._pages) >= self._most:
            self._has_capacity.clear()

    @property
    def has_capacity(self) -> bool:
        return self._has_capacity.is_set()

    async def wait_for_capacity(self) -> None:
        """Wait until the reader has caught up."""
        await self._has_capacity.wait()

    async def next(self) -> list[Page]:
        """Return the pages since the last call; empty at the end."""
        while not self._pages and not self._ended:
            self._news.clear()
            await self._news.wait()
        pages, self._pages = self._pages, []
        if not self._has_capacity.is_set():
            self._has_capacity.set()
            self._caught_up()
        return pages

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def unbind(self) -> None:
        """Remove the bound, so that the rest is added without waiting."""
        self._bounded = False
        self._has_capacity.set()

    def abandon(self) -> None:
        """Discard all pages, now and later, since the reader has left; wake everybody who waits."""
        self._abandoned = True
        self._pages = []
        self.unbind()
        self.end()
