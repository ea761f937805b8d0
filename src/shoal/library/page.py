"""The page class of the Python API: the fields of the page record, and the content, which is computed on first use."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from shoal.app import App
from shoal.base.clock import from_micros
from shoal.base.errors import BadConfig, BodyNotKept, NotFound
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.base.url import UrlRules
from shoal.crawl.crawl import Crawl
from shoal.egress import Failure, HeaderPairs, Limits
from shoal.pages.bodies import BodyLocation, BodyStore, body_missing, place_of, read_all, source_from, source_in
from shoal.process.local_crawl import CrawledPage

if TYPE_CHECKING:
    from turbohtml import Element

    from shoal.extract.content import Content
    from shoal.extract.links import Link

MOST_BODIES: Final = 16_000_000  # limit for the bytes of stored bodies in memory, beside the bodies of pages in use


def settings_of(store: str | None) -> Settings:
    """Return the settings, with this store instead of the configured one. An error calls it `store`, as callers do."""
    try:
        return load({"DATABASE_URL": store}).settings
    except BadConfig as error:
        is_named = store is not None and error.facts["key"].startswith("DATABASE_URL")
        raise (error.called("store") if is_named else error) from None


class PageOrigin(Struct, frozen=True):
    """Values that all pages of one crawl share."""

    crawl_id: str | None
    rules: UrlRules
    limits: Limits


class ResponseHeaders(Mapping[str, str]):
    """The response headers by case-insensitive name. Values with the same name are joined by commas."""

    def __init__(self, pairs: HeaderPairs) -> None:
        self.pairs = pairs  # the header lines as sent
        self._names = {name.lower(): name for name, _ in reversed(pairs)}

    def __getitem__(self, name: str) -> str:
        if name.lower() not in self._names:
            raise KeyError(name)
        return ", ".join(self.all(name))

    def __iter__(self) -> Iterator[str]:
        return reversed(self._names.values())

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"ResponseHeaders({dict(self)})"

    def all(self, name: str) -> list[str]:
        """Return all values of a header that may be repeated, such as `Set-Cookie`, in the order in which they were
        sent."""
        return [value for written, value in self.pairs if written.lower() == name.lower()]


class Page:
    """One fetched page: the fields of its record, and its content.

    Content is computed from the response on first use. A page has content if it was just fetched in this process, or if
    its crawl keeps bodies; otherwise, `html` and the other content properties raise `BodyNotKept`. The content of a
    rendered page is its document after its scripts have run.
    """

    url: str
    final_url: str | None
    status: int | None
    depth: int
    parent: str | None
    content_type: str | None
    encoding: str | None
    bytes: int
    title: str | None
    description: str | None
    canonical: str | None
    robots: str | None
    lang: str | None
    h1: str | None
    word_count: int | None
    content_hash: str | None
    links_internal: int | None
    links_external: int | None
    redirects: list[dict[str, Any]]
    duration_ms: float | None
    attempt: int
    rendered: bool
    render_wait: Literal["settled", "selector", "timeout"] | None
    error: dict[str, str | None] | None
    data: dict[str, Any] | None

    def __init__(
        self,
        crawled: CrawledPage,
        origin: PageOrigin,
        kept: "Blob | NotFound | None" = None,
        screenshot: "Blob | None" = None,
    ) -> None:
        """`kept` contains the stored bytes of the page, or the error from reading them."""
        self.screenshot = screenshot  # a PNG image, if requested
        self._page, self._captured = crawled
        self._origin = origin
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        """Return a field of the record."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._page, name)

    def __dir__(self) -> list[str]:
        return sorted({*Page.__annotations__, *(name for name in vars(Page) if not name.startswith("_"))})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Page) and self.record() == other.record()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        how = self.status if self.error is None or self.status is not None else self.error["code"]
        return f"<shoal.Page {how} {self.url}>"

    @property
    def fetched_at(self) -> datetime:
        """The time of the fetch, in UTC."""
        return from_micros(self._page.fetched_at)

    def record(self, crawl_id: str | None = None) -> dict[str, Any]:
        """Return the page record, as output files have it."""
        return self._page.record(crawl_id or self._origin.crawl_id)

    @property
    def body(self) -> "Blob":
        """The body in bytes, after content decoding."""
        return self.content.source.body

    @property
    def headers(self) -> ResponseHeaders:
        """The headers of the response."""
        return ResponseHeaders(tuple(self.content.source.headers))

    @property
    def html(self) -> str:
        """The HTML document; if the page is not HTML, its body decoded as text."""
        return self.content.html

    @property
    def text(self) -> str:
        """The readable text, without menus, headers and footers."""
        return self.content.text

    @property
    def markdown(self) -> str:
        """The readable text as Markdown."""
        return self.content.markdown

    @property
    def links(self) -> "list[Link]":
        """The links, with absolute URLs, in document order."""
        return self.content.links

    @property
    def is_cut(self) -> bool:
        """True if the page was too long to be read as a whole, so that its content is incomplete."""
        return self.content.is_cut

    def css(self, selector: str) -> "list[Element]":
        """Return the elements that a CSS selector matches."""
        return self.content.css(selector)

    def xpath(self, expression: str) -> Any:
        """Return the result of an XPath expression: a list of elements or strings, or a string, number or boolean."""
        return self.content.xpath(expression)

    def json(self) -> Any:
        """Return the value of a JSON response."""
        return self.content.json()

    @cached_property
    def content(self) -> "Content":
        """The content in all formats; raises `BodyNotKept` if the body is not available."""
        from shoal.extract.content import Content  # imported here because few crawls read the content

        page, origin = self._page, self._origin
        if self._captured is not None:
            source = source_from(self._captured.response, self._captured.rendered or None, origin.limits)
        elif isinstance(self._kept, NotFound):
            raise self._kept
        elif self._kept is None or (place := place_of(page)) is None:
            raise body_missing(page)
        else:
            source = source_in(self._kept, place, origin.limits)
        if isinstance(source, Failure):
            raise BodyNotKept(page.url, source.message.rstrip("."), "check its error first")
        self._captured = self._kept = None
        return Content(source, page.robots, origin.rules)


Blob = bytes  # an alias, because a page has a field `bytes`


def origin_of(app: App, crawl: Crawl, crawl_id: str | None) -> PageOrigin:
    rules = crawl.config.url_rules(app.settings.crawl.max_url_length)
    return PageOrigin(crawl_id, rules, Limits.of(app.settings.egress))


async def pages_of(crawled: Sequence[CrawledPage], origin: PageOrigin, bodies: BodyStore) -> list[Page]:
    """Return the pages of a crawl. Pages from the store include their stored bodies."""
    places = [place for page, captured in crawled if captured is None and (place := place_of(page)) is not None]
    kept = await _read(bodies, places) if places else {}
    return [Page(one, origin, kept.get(place) if (place := place_of(one.page)) else None) for one in crawled]


async def _read(bodies: BodyStore, places: list[BodyLocation]) -> "Mapping[BodyLocation, Blob | NotFound]":
    """Return stored bodies. A missing body causes an error only for its page, and only when the content of this page is
    read."""
    try:
        return await read_all(bodies, places)
    except NotFound:
        found: dict[BodyLocation, Blob | NotFound] = {}
        for place in places:
            try:
                found[place] = await bodies.read(place)
            except NotFound as error:
                found[place] = error
        return found
