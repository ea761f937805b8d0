"""One page of a crawl: its fields, redirects, headers, links, findings, extracted data, stored body and history."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
from starlette.responses import Response

from shoal.audit.analyses import Analyses
from shoal.audit.codes import CODES
from shoal.audit.finding import Finding
from shoal.audit.states import AnalysisState
from shoal.base.errors import NotFound, ShoalError
from shoal.base.text import HIDDEN, LONGEST, message, names_a_secret
from shoal.base.url import Url, hostname
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.admin import FrontierAdmin
from shoal.crawl.frontier.values import key_of
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.store import CrawlFilter
from shoal.egress import Failure, Limits
from shoal.egress import Response as Stored
from shoal.extract.tree import Source
from shoal.pages.bodies import BodyStore, answer_of, source_of
from shoal.pages.links import LinkFlag, unpack
from shoal.pages.page import Page, RenderWait, response_class
from shoal.pages.pages import Pages
from shoal.serve.console import texts as url_texts
from shoal.serve.console.crawl_rows import row_of
from shoal.serve.console.forms import AnyQuery, page_endpoint
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.web.renderer import file_name


class PageCopies:
    """Reads the stored copies of pages. Screenshots are available if this controller shares a folder with its
    workers."""

    def __init__(self, bodies: BodyStore, screenshots: Path | None) -> None:
        self._bodies = bodies
        self._screenshots = screenshots

    async def response(self, page: Page) -> Stored | None:
        """Return the stored response, or None if it was not stored or was removed."""
        try:
            return await answer_of(self._bodies, page)
        except ShoalError:
            return None

    async def source(self, page: Page) -> Source | Failure | None:
        """Return the stored document of a page, rendered if the crawl rendered the page. Return None if it was not
        stored or was removed."""
        try:
            return await source_of(self._bodies, page, Limits())
        except ShoalError:
            return None

    async def screenshot(self, page: Page) -> bytes | None:
        """Return the screenshot of a rendered page as PNG, or None if there is none."""
        if self._screenshots is None or not page.rendered:
            return None
        path = self._screenshots / file_name(Url(page.url))
        try:
            return await asyncio.to_thread(path.read_bytes)
        except OSError:
            return None


NOT_RENDERED: Final = message("no")
RENDERED: Final[dict[RenderWait | None, str]] = {
    None: message("yes"),
    "settled": message("yes, read once it had settled"),
    "selector": message("yes, read once the selector matched"),
    "timeout": message("yes, read when the time was up"),
}
LONGEST_URL: Final = 10_000
MOST_LINKS: Final = 200
MOST_SOURCES: Final = 50
SOURCE_SECONDS: Final = 0.5
MOST_CRAWLS: Final = 20
LONGEST_BODY: Final = 500_000  # maximum number of characters shown
SANDBOX: Final = "default-src 'none'; sandbox; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class LinkOut:
    """A link on the page. If its target was not fetched, its URL is unknown, because only a hash is stored."""

    url: str | None
    is_nofollow: bool


@dataclass(frozen=True, slots=True)
class PageInOtherCrawl:
    """The same page in a different crawl."""

    crawl: Crawl
    page: Page
    kind: str


class PagePage:
    """`/pages/{page_id}`. The id consists of the crawl id and the page number: `crl_…~12`."""

    def __init__(
        self,
        shell: Shell,
        crawls: Crawls,
        frontier: FrontierAdmin,
        pages: Pages,
        copies: PageCopies,
        analyses: Analyses,
    ) -> None:
        self._shell = shell
        self._crawls = crawls
        self._frontier = frontier
        self._pages = pages
        self._copies = copies
        self._analyses = analyses

    @page_endpoint("/pages/{page_id}", "Show a page.", expensive=always)
    async def show_page(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        crawl, page = await self._page(request.path_param("page_id"))
        response = await self._copies.response(page)
        view = self._shell.view(request.http)
        key = key_of(Url(page.url), crawl.key_seed)[0]
        referrers = await self._pages.referrers(crawl.number, [key], MOST_SOURCES + 1, SOURCE_SECONDS)
        parents = [] if page.parent is None else [key_of(Url(page.parent), crawl.key_seed)[0]]
        # a parent that is a sitemap is not a page
        linking = list((await self._pages.urls_of(crawl.number, parents)).values())
        sources = list(dict.fromkeys([*linking, *referrers.sources[key]]))
        data = None if page.data is None else orjson.dumps(page.data, option=orjson.OPT_INDENT_2).decode()
        status = await self._crawls.get(crawl.id)
        formats = self._shell.formats(view)
        explained = await self._frontier.explain(crawl.id, page.url, LONGEST_URL)
        origin = url_texts.origin(page, formats, is_linked=bool(linking))
        context = {
            "crawl": crawl,
            "row": row_of(status, formats),
            "page": page,
            "page_id": request.path_param("page_id"),
            "kind": response_class(page.status),
            "rendered": RENDERED[page.render_wait] if page.rendered else NOT_RENDERED,
            "headers": [
                (name, HIDDEN if names_a_secret(name) else value)  # hides, for example, cookies
                for name, value in (response.headers.pairs() if response is not None else ())
            ],
            "has_body": response is not None,
            "has_screenshot": await self._copies.screenshot(page) is not None,
            "links": await self._links(crawl, page),
            "sources": sources[:MOST_SOURCES],
            "has_more_sources": len(sources) > MOST_SOURCES,
            "referrers": referrers,
            "data": data,
            "history": await self._history(crawl, page),
            "why": f"{origin} {formats.sentence(explained.sentence, LONGEST)}",
            "findings": [(one, CODES.get(one.code)) for one in await self._findings(crawl, page)],
        }
        return self._shell.page(request.http, "page.html", context, section="crawls")

    @page_endpoint("/pages/{page_id}/body", "Show the stored body of a page as text.")
    async def show_body(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """The body is sent as plain text, whatever its original media type, so no script in it is executed."""
        _, page = await self._page(request.path_param("page_id"))
        source = await self._copies.source(page)
        if source is None:
            raise NotFound("stored body", request.path_param("page_id"), "the crawl did not keep bodies")
        text = source.message if isinstance(source, Failure) else source.body.decode(_encoding(page), "replace")
        headers = {"Content-Security-Policy": SANDBOX, "Cache-Control": "no-store", "X-Frame-Options": "SAMEORIGIN"}
        return Response(text[:LONGEST_BODY], headers=headers, media_type="text/plain; charset=utf-8")

    @page_endpoint("/pages/{page_id}/screenshot", "Show the screenshot of a rendered page.")
    async def show_screenshot(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        _, page = await self._page(request.path_param("page_id"))
        picture = await self._copies.screenshot(page)
        if picture is None:
            raise NotFound(
                "screenshot", request.path_param("page_id"), "the page was not rendered, or its screenshot was not kept"
            )
        return Response(picture, headers={"Content-Security-Policy": SANDBOX}, media_type="image/png")

    async def _page(self, page_id: str) -> tuple[Crawl, Page]:
        crawl_id, _, number = page_id.rpartition("~")
        crawl = (await self._crawls.get(crawl_id)).crawl
        is_number = number.isascii() and number.isdecimal() and len(number) < 18
        page = await self._pages.get(crawl.number, int(number)) if is_number else None
        if page is None:
            raise NotFound(
                "page", page_id, "the page may have been fetched again; look for its URL in the pages of the crawl"
            )
        return crawl, page

    async def _links(self, crawl: Crawl, page: Page) -> list[LinkOut]:
        if page.links is None:
            return []
        links = unpack(page.links)
        keys = list(links.keys[:MOST_LINKS])
        urls = await self._pages.urls_of(crawl.number, keys)
        return [
            LinkOut(urls.get(key), bool(flags & LinkFlag.NOFOLLOW))
            for key, flags in zip(keys, links.flags, strict=False)
        ]

    async def _findings(self, crawl: Crawl, page: Page) -> list[Finding]:
        """Return the findings about the page in the newest analysis of the crawl."""
        newest = await self._analyses.newest(limit=1, state=AnalysisState.SUCCESS, crawl_id=crawl.id)
        return await self._analyses.findings_of_page(newest[0].id, page.url) if newest else []

    async def _history(self, crawl: Crawl, page: Page) -> list[PageInOtherCrawl]:
        """Return the pages with the same URL in other crawls of the host, newest first."""
        others = await self._crawls.matching(CrawlFilter(host=hostname(Url(page.url))), limit=MOST_CRAWLS)
        found = []
        for other in others:
            key = key_of(Url(page.url), other.crawl.key_seed)[0]
            for same in await self._pages.of_keys(other.crawl.number, [key]):
                if same.url == page.url:
                    found.append(PageInOtherCrawl(other.crawl, same, response_class(same.status)))
        return found


def _encoding(page: Page) -> str:
    """Return the encoding of the body, or UTF-8 if Python does not support that encoding."""
    try:
        "".encode(page.encoding or "utf-8")
    except LookupError:
        return "utf-8"
    return page.encoding or "utf-8"
