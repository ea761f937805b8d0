"""REST endpoints for the parts of a crawl: pages, links, journal and politeness receipt."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.base.database import Database
from shoal.base.errors import BodyNotKept, InvalidInput, NotFound, RateLimited
from shoal.base.request_form import Form, describe
from shoal.base.text import shorten
from shoal.base.url import Url, UrlRefusal
from shoal.crawl.frontier.admin_store import FrontierAdminStore
from shoal.crawl.frontier.fates import SKIPPED
from shoal.crawl.journal import MOST_AT_ONCE
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.links import CrawlLinks, LinkFilter, LinkPlace
from shoal.crawl.politeness import Politeness
from shoal.crawl.states import TERMINAL
from shoal.crawl.store import ByDriver
from shoal.egress import Failure, Limits
from shoal.extract.converter import ContentFormat, Converter, UnconvertedPage
from shoal.pages.bodies import BodyStore, body_missing, source_of
from shoal.pages.export.output import ExportFilter
from shoal.pages.pages import Pages
from shoal.pages.store import PageFilter
from shoal.serve.crawl_feed import CrawlFeeds
from shoal.serve.endpoint import WHOLE, EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json
from shoal.serve.requests import Paging, cursor_of, growing_page_of, number_of, text_of
from shoal.serve.resources.crawl import PolitenessReceipt
from shoal.serve.resources.page import JournalEntryList, Page, PageLink, PageLinkList, PageList

Status = Annotated[str, Meta(pattern=r"^[1-9]([0-9][0-9]|xx)\Z", examples=["404", "4xx"])]
Code = Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,64}\Z", examples=["timeout", "any"])]


class PageQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[Status | None, describe("Only pages with this HTTP status, such as `404` or `4xx`.")] = None
    error: Annotated[Code | None, describe("Only pages with this error code; `any` for all errors.")] = None


class ContentQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Annotated[ContentFormat, describe("Format of the content; `json` is the page record.")] = "markdown"


class PageApi:
    """`/api/v1/crawls/{crawl_id}/pages`."""

    def __init__(self, crawls: Crawls, pages: Pages, bodies: BodyStore, limits: Limits, converter: Converter) -> None:
        self._crawls = crawls
        self._pages = pages
        self._bodies = bodies
        self._limits = limits
        self._converter = converter

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/pages",
        scope=TokenScope.READ,
        summary="List the pages of a crawl, in the order in which they were stored.",
        query=PageQuery,
        response=PageList,
        expensive=lambda query: query.status is not None or query.error is not None,
    )
    async def list_pages(self, request: EndpointRequest[Nothing, PageQuery]) -> PageList:
        """Until the crawl has ended, `next` is set: request it later for the pages that follow."""
        query = request.query
        crawl = (await self._crawls.get(request.path_param("crawl_id"))).crawl
        after = number_of(query.cursor) or 0
        which = PageFilter(None if query.status is None else statuses_of(query.status), query.error)
        found = await self._pages.search(crawl.number, after, query.limit + 1, which, math.inf)
        growing = crawl.state not in TERMINAL
        pages, following = growing_page_of(found.pages, query.limit, after, lambda row: row[0], growing=growing)
        return PageList(items=[Page.of(page, crawl.id, number) for number, page in pages], next=following)

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/pages/{number}/content",
        scope=TokenScope.READ,
        summary="Return the content of a page in one format.",
        query=ContentQuery,
        response=Any,
        media_type="text/plain or application/json",
        problems=[BodyNotKept],
        expensive=lambda query: query.format != "json",
    )
    async def show_page_content(self, request: EndpointRequest[Nothing, ContentQuery]) -> Response:
        """`markdown`, `text` and `html` are sent as text, `links` and `json` as JSON. Content is available only for
        crawls with `keep_bodies`; `json`, the page record, is always available. If the page was too long to be read as
        a whole, the header `Shoal-Is-Cut` is `true`."""
        crawl = (await self._crawls.get(request.path_param("crawl_id"))).crawl
        number = request.path_param("number")
        is_number = number.isascii() and number.isdecimal() and len(number) < 18
        page = await self._pages.get(crawl.number, int(number)) if is_number else None
        if page is None:
            raise NotFound("page", number, "take the `number` of an item of the list of pages")
        if request.query.format == "json":
            return Json(page.record(crawl.id))
        source = await source_of(self._bodies, page, self._limits)
        if source is None:
            raise body_missing(page)
        if isinstance(source, Failure):
            raise BodyNotKept(page.url, source.message.rstrip("."), "check its error first")
        form, rules = request.query.format, crawl.config.url_rules()
        found = await self._converter.convert(
            UnconvertedPage(source.url, source.body, source.content_type, [form], page.robots, rules)
        )
        return Response(  # so a browser shows the content and does not run its scripts
            found.content[form],
            headers={"Shoal-Is-Cut": "true"} if found.is_cut else {},
            media_type=Json.media_type if form == "links" else "text/plain",
        )


LinkStatus = Annotated[str, Meta(pattern=r"^([1-9]([0-9][0-9]|xx)|error)\Z", examples=["404", "4xx", "error"])]
LinkKind = Literal[
    "a",
    "area",
    "canonical",
    "form",
    "frame",
    "hreflang",
    "iframe",
    "img",
    "link",
    "media",
    "refresh",
    "script",
    "style",
]
SkipReason = Annotated[str, Meta(pattern=rf"^({'|'.join(SKIPPED)})\Z", examples=["robots", "excluded"])]
LinkUrl = Annotated[str, Meta(min_length=1, max_length=10_000)]
LINK_SECONDS = 1.0  # per request


class LinkQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Annotated[LinkUrl | None, describe("Only links of the page with this URL.")] = field(
        default=None, name="from"
    )
    target: Annotated[LinkUrl | None, describe("Only links to this URL.")] = field(default=None, name="to")
    kind: Annotated[LinkKind | None, describe("Only links of this kind.")] = None
    status: Annotated[
        list[LinkStatus],
        describe(
            "Only links whose target, or a redirect on the way to the target, has one of these statuses: `404`,"
            " `4xx`, `3xx` or `error`."
        ),
    ] = field(default_factory=list)
    skipped: Annotated[
        SkipReason | None, describe("Only links to URLs that were skipped for this reason, such as `robots`.")
    ] = None


class LinkApi:
    """`/api/v1/crawls/{crawl_id}/links`."""

    def __init__(
        self, crawls: Crawls, database: Database, max_url_length: int, frontiers: ByDriver[FrontierAdminStore]
    ) -> None:
        self._crawls = crawls
        self._database = database
        self._max_url_length = max_url_length
        self._frontiers = frontiers

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/links",
        scope=TokenScope.READ,
        summary="List the links of a crawl: the links of one page, the links to one URL, or all.",
        query=LinkQuery,
        response=PageLinkList,
        expensive=lambda query: query.source is None,
    )
    async def list_links(self, request: EndpointRequest[Nothing, LinkQuery]) -> PageLinkList:
        """Links are stored only for crawls with the option `links`, which `analyze` turns on. For other crawls, `to`
        still finds the pages that link to a URL. A search of a large crawl may return few items, or none, together with
        `next`: continue with that cursor. Until the crawl has ended, `next` is set."""
        query = request.query
        crawl = (await self._crawls.get(request.path_param("crawl_id"))).crawl
        links = CrawlLinks(self._database, crawl, self._max_url_length, frontier=self._frontiers.of(crawl))
        wanted = link_filter(links, query.source, query.target, query.kind, query.status, query.skipped)
        found = await links.search(wanted, place_in(query.cursor), query.limit, LINK_SECONDS)
        goes_on = not found.is_complete or (crawl.state not in TERMINAL and query.source is None)
        following = cursor_of(f"{found.place.number}.{found.place.links}") if goes_on else None
        items = [PageLink.of(link) for link in found.links]
        return PageLinkList(items=items, next=following, stored=crawl.config.links)


def link_filter(
    links: CrawlLinks,
    source: str | None,
    target: str | None,
    kind: str | None,
    statuses: Sequence[str],
    skipped: str | None,
) -> LinkFilter:
    """Return the filter that a request describes. Raise if a URL cannot be parsed or a skip reason does not exist."""
    if skipped and skipped not in SKIPPED:
        raise InvalidInput("skipped", f"cannot be {shorten(skipped)!r}", f"give one of {', '.join(SKIPPED)}")
    if skipped:
        links.check_stored()
    urls: dict[str, Url | None] = {"from": None, "to": None}
    for name, text in (("from", source), ("to", target)):
        if text:
            url = links.canonical(text)
            if isinstance(url, UrlRefusal):
                raise InvalidInput(name, f"is {shorten(text)!r}, which {url.problem}", "give an absolute URL")
            urls[name] = url
    why = SKIPPED[skipped] if skipped else None
    return LinkFilter(urls["from"], urls["to"], kind or None, ExportFilter(statuses), why)


def place_in(cursor: str | None) -> LinkPlace:
    """Decode a position in the list of links."""
    if cursor is None:
        return LinkPlace()
    number, dot, index = text_of(cursor).partition(".")
    return LinkPlace(number_of(cursor_of(number)) or 0, number_of(cursor_of(index if dot else "-")) or 0)


def statuses_of(word: str) -> range:
    """Return the statuses that match `404` or `4xx`."""
    if word.endswith("xx"):
        return range(int(word[0]) * 100, int(word[0]) * 100 + 100)
    return range(int(word), int(word) + 1)


Tail = Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)]
LAST_ENTRY = 10**15
EntryNumber = Annotated[int, Meta(ge=0, le=LAST_ENTRY)]
UNCACHED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class JournalQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tail: Annotated[Tail | None, describe("Return only the last entries, at most this many; continue with `next`.")] = (
        None
    )


class CrawlFeedQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[
        EntryNumber | None, describe("Number of the last entry received; `Last-Event-ID` takes precedence.")
    ] = None

    other_names: ClassVar = {"cursor": "after"}


class JournalApi:
    """`/api/v1/crawls/{crawl_id}/logs` and `/events`."""

    def __init__(self, crawls: Crawls, feeds: CrawlFeeds) -> None:
        self._crawls = crawls
        self._feeds = feeds

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/logs",
        scope=TokenScope.READ,
        summary="List the journal of a crawl, oldest entries first.",
        query=JournalQuery,
        response=JournalEntryList,
    )
    async def list_journal_entries(self, request: EndpointRequest[Nothing, JournalQuery]) -> dict[str, Any]:
        """Until the crawl has ended, `next` is set: request it later for the entries that follow."""
        query, crawl_id = request.query, request.path_param("crawl_id")
        if query.tail is not None and query.cursor is not None:
            raise InvalidInput("tail", "cannot be combined with cursor", "pass one of them")
        # The state is read before the journal: the last entry is written in the commit that ends the crawl.
        ended = (await self._crawls.get(crawl_id)).crawl.state in TERMINAL
        after = None if query.tail is not None else number_of(query.cursor) or 0
        limit = query.limit + 1 if query.tail is None else query.tail
        found = await self._crawls.journal.entries(crawl_id, after, limit)
        most = query.tail or query.limit
        entries, following = growing_page_of(found, most, after or 0, lambda entry: entry.number, growing=not ended)
        return {"items": [entry.record(crawl_id) for entry in entries], "next": following}

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/events",
        scope=TokenScope.READ,
        summary="Follow a crawl with server-sent events until it ends.",
        query=CrawlFeedQuery,
        response=str,
        media_type="text/event-stream",
        problems=[RateLimited],
    )
    async def watch_crawl(self, request: EndpointRequest[Nothing, CrawlFeedQuery]) -> Response:
        """`state` and `progress` events (at most one per second) carry the current status, `log` events carry journal
        entries with their number as id, and `end` is the last event. A client that reconnects with `Last-Event-ID`
        misses no entry; without it, the stream begins with the last 100 entries. A comment is sent every 15 seconds as
        a keep-alive."""
        after = request.query.after if (sent := request.http.headers.get("last-event-id")) is None else _number(sent)
        stream = await self._feeds.watch(request.path_param("crawl_id"), after)
        if request.http.method == "HEAD":
            return Response(headers=UNCACHED, media_type="text/event-stream")
        return StreamingResponse(stream, headers=UNCACHED, media_type="text/event-stream")


def _number(sent: str) -> int:
    if not WHOLE.fullmatch(sent) or not 0 <= int(sent) <= LAST_ENTRY:
        raise InvalidInput("Last-Event-ID", "is not an event id of this stream", "leave it out")
    return int(sent)


class PolitenessApi:
    """`/api/v1/crawls/{crawl_id}/politeness`."""

    def __init__(self, politeness: Politeness) -> None:
        self._politeness = politeness

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/politeness",
        scope=TokenScope.READ,
        summary="Show how a crawl treated its hosts: request rates, robots.txt, delays and pauses.",
        response=PolitenessReceipt,
    )
    async def show_politeness(self, request: EndpointRequest[Nothing, Nothing]) -> PolitenessReceipt:
        """At most 200 hosts are listed, those with the most pages first. Pauses are read from the journal of the
        crawl."""
        return PolitenessReceipt.of(await self._politeness.receipt(request.path_param("crawl_id")))
