"""The page store contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.pages.page import Page


@dataclass(frozen=True, slots=True)
class Validators:
    """What a server said about a page, and what decides whether it may be asked for again under that condition. Of a
    page that cannot be, only where it was found and its links are known."""

    key: int
    chk: int
    depth: int
    etag: str | None
    last_modified: str | None
    links: bytes | None

    @property
    def is_condition(self) -> bool:
        return self.etag is not None or self.last_modified is not None


@dataclass(frozen=True, slots=True)
class PageFilter:
    """Which pages are looked for: those that have all that is named here."""

    statuses: range | None = None
    error: str | None = None  # a code, or ANY_ERROR


ANY_ERROR = "any"


class PageStore(Protocol):
    async def insert(self, tx: Tx, crawl: int, pages: Sequence[tuple[int, int, Page]]) -> int:
        """Keep these pages, each under its URL's key; how many were new. A page that is there stays as it is."""
        ...

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, Page]]:
        """Pages in the order in which they were stored, after the page with that number."""
        ...

    async def some_after(
        self, tx: Tx, crawl: int, number: int, limit: int, wanted: PageFilter
    ) -> list[tuple[int, Page]]:
        """Those of the pages of `after` that are looked for. It may read many more than it gives."""
        ...

    async def links_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Number, key and link blob of pages, in the order of `after`; `shoal.pages.links` reads them, and walks the
        whole graph. Pages that were not parsed have no blob and are not among them."""
        ...

    async def validators(self, tx: Tx, crawl: int, keys: list[int]) -> list[Validators]:
        """The pages with these keys, with what servers said about those that may be asked for under a condition: pages
        that gave an answer of their own, without a redirect. Two pages may share a key."""
        ...

    async def of_keys(
        self, tx: Tx, crawl: int, keys: list[int], *, details: bool = False
    ) -> list[tuple[int, int, Page]]:
        """Pages with these keys, each with its key and check; with their details if those are wanted."""
        ...

    async def urls_of(self, tx: Tx, crawl: int, keys: list[int]) -> dict[int, Url]:
        """The URLs of the pages with these keys. A key of which there is no page is not among them."""
        ...

    async def details_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        """The details of pages, each with its page's number, in the order of `after`; `shoal.extract.details.unpacked`
        reads them. Pages of a crawl that did not ask for them, and pages that gave no answer, have none."""
        ...
