"""The page store contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.pages.page import Page


@dataclass(frozen=True, slots=True)
class Validators:
    """The validators of a page for conditional requests. A page that cannot be requested conditionally has only its
    depth and its links."""

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
    """A filter for pages; a page must match all given conditions."""

    statuses: range | None = None
    error: str | None = None  # a code, or ANY_ERROR
    content_type: str | None = None  # how it begins, such as `text/html` or `image/`
    depth: int | None = None
    text: str | None = None  # in its URL or title
    failed: bool = False  # an error, or a status of 400 or more

    def __bool__(self) -> bool:
        return self != PageFilter()


ANY_ERROR = "any"


class ChartFacts(NamedTuple):
    """The facts of a page that charts count."""

    number: int
    url: str
    depth: int
    status: int | None
    duration_ms: float | None
    bytes: int
    content_type: str | None


class PageOutline(NamedTuple):
    """The facts of a page that a comparison of two crawls needs."""

    number: int
    url: str
    status: int | None
    content_hash: str | None
    title: str | None


class PageStore(Protocol):
    async def insert(self, tx: Tx, crawl: int, pages: Sequence[tuple[int, int, Page]]) -> int:
        """Insert pages, each under its URL's key; return how many were new. An existing page is left unchanged."""
        ...

    async def known(self, tx: Tx, crawl: int, keys: list[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return those of these keys and checks that have a page."""
        ...

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, Page]]:
        """Return pages in storage order, after the page with that number."""
        ...

    async def some_after(
        self, tx: Tx, crawl: int, number: int, limit: int, wanted: PageFilter
    ) -> list[tuple[int, Page]]:
        """Return those pages of `after` that match the filter. It may read many more than it returns."""
        ...

    async def search(
        self, tx: Tx, crawl: int, number: int, limit: int, wanted: PageFilter, scan: int
    ) -> tuple[list[tuple[int, Page]], int | None]:
        """Look at the next `scan` pages after a number; return those that match the filter, at most `limit`, and the
        number of the last page that was looked at, None at the end."""
        ...

    async def facts_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[ChartFacts]:
        """Return the facts of pages that charts count, in the order of `after`."""
        ...

    async def outlines_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[PageOutline]:
        """Return the outlines of pages, in the order of `after`."""
        ...

    async def numbered(self, tx: Tx, crawl: int, number: int) -> Page | None:
        """Return the page with this number, with its details."""
        ...

    async def links_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return number, key and link blob of pages, in the order of `after`; `shoal.pages.links` reads the blobs.
        Pages that were not parsed have no blob and are omitted."""
        ...

    async def validators(self, tx: Tx, crawl: int, keys: list[int]) -> list[Validators]:
        """Return the pages with these keys, with the validators of those that can be requested conditionally: pages
        with a response of their own, without a redirect. Two pages may share a key."""
        ...

    async def of_keys(
        self, tx: Tx, crawl: int, keys: list[int], *, details: bool = False
    ) -> list[tuple[int, int, Page]]:
        """Return the pages with these keys, each with its key and check, optionally with their details."""
        ...

    async def urls_of(self, tx: Tx, crawl: int, keys: list[int]) -> dict[int, Url]:
        """Return the URLs of the pages with these keys; keys without a page are omitted."""
        ...

    async def details_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        """Return the details of pages, each with its page's number, in the order of `after`;
        `shoal.extract.details.unpacked` reads them. Pages of a crawl without `analyze`, and pages without a response,
        have none."""
        ...
