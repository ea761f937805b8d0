"""The page store contract."""

from collections.abc import Sequence
from typing import Protocol

from shoal.base.database import Tx
from shoal.pages.page import Page


class PageStore(Protocol):
    async def insert(self, tx: Tx, crawl: int, pages: Sequence[tuple[int, int, Page]]) -> int:
        """Keep these pages, each under its URL's key; how many were new. A page that is there stays as it is."""
        ...

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, Page]]:
        """Pages in the order in which they were stored, after the page with that number."""
        ...

    async def links_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Number, key and link blob of pages, in the order of `after`; `shoal.pages.links` reads them, and walks the
        whole graph. Pages that were not parsed have no blob and are not among them."""
        ...

    async def details_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        """The details of pages, each with its page's number, in the order of `after`; `shoal.extract.details.unpacked`
        reads them. Pages of a crawl that did not ask for them, and pages that gave no answer, have none."""
        ...
