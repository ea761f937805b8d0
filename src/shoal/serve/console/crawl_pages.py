"""The pages of a crawl: a table with filters, an export of exactly what the filters select, and the broken links with
the pages that link to them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from typing import Final

from msgspec import field
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, NotFound
from shoal.base.text import message
from shoal.base.url import Url, UrlRefusal, canonical, hostname
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.values import key_of
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import CrawlState
from shoal.crawl.store import CrawlFilter
from shoal.pages.export.formats import Csv, Format, JsonLines
from shoal.pages.export.table import PageTable
from shoal.pages.page import Page, response_class
from shoal.pages.pages import PageComparer, Pages
from shoal.pages.store import ANY_ERROR, PageFilter
from shoal.serve.console.crawl import CrawlPage
from shoal.serve.console.crawl_rows import class_parts, row_of
from shoal.serve.console.forms import AnyQuery
from shoal.serve.console.shell import Shell, sentence
from shoal.serve.crawl_parts import statuses_of
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint

ROWS: Final = 50
BROKEN_ROWS: Final = 30
REFERRERS: Final = 5  # shown for each broken link
REFERRER_SECONDS: Final = 0.5
FILTERS: Final = ("status", "type", "depth", "error", "text")
STATUSES: Final = ("2xx", "3xx", "4xx", "5xx", "none")
FORMATS: Final[Mapping[str, tuple[type[Csv] | type[JsonLines], str]]] = {
    "csv": (Csv, "text/csv; charset=utf-8"),
    "jsonl": (JsonLines, "application/jsonl"),
}


class PagesQuery(AnyQuery, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The filters of the table, as text, so that the page can say what is wrong with them, and where it begins."""

    status: str = ""
    type: str = ""
    depth: str = ""
    error: str = ""
    contained: str = field(default="", name="text")
    after: str = ""

    @property
    def given(self) -> dict[str, str]:
        """The filters that are filled in."""
        values = self.plain()
        return {name: value for name in FILTERS if (value := values[name].strip())}


class CrawlPagesPage:
    """`/crawls/{crawl_id}/pages`, `/broken` and `/export/…`."""

    def __init__(self, shell: Shell, crawls: Crawls, pages: Pages, frame: CrawlPage) -> None:
        self._shell = shell
        self._crawls = crawls
        self._pages = pages
        self._frame = frame

    @endpoint(
        "GET",
        "/crawls/{crawl_id}/pages",
        scope=TokenScope.READ,
        summary="Show the pages of a crawl.",
        query=PagesQuery,
        public=False,
        expensive=lambda query: bool(query.given),
    )
    async def show_pages(self, request: EndpointRequest[Nothing, PagesQuery]) -> Response:
        given = request.query.given
        status = await self._crawls.get(request.path_param("crawl_id"))
        view, problem, wanted = self._shell.view(request.http), "", PageFilter()
        try:
            wanted = page_filter(given)
        except InvalidInput as error:
            problem = sentence(error.message)
        after = number_in(request.query.after)
        found = await self._pages.search(status.crawl.number, after, ROWS, wanted)
        head = self._frame.head(view, status, "pages")
        context = head | {
            "responses": class_parts(head["row"], self._shell.formats(view)),
            "given": given,
            "problem": problem,
            "pages": [(number, page, response_class(page.status)) for number, page in found.pages],
            "more": found.next,
            "is_first": not after,
            "is_short": found.next is not None and len(found.pages) < ROWS,
            "statuses": STATUSES,
            "can_retry": view.may_write and bool(given) and set(given) <= {"status", "error", "text"} and _fails(given),
        }
        return self._shell.page(request.http, "crawl_pages.html", context, section="crawls")

    @endpoint(
        "GET",
        "/crawls/{crawl_id}/export/{kind}",
        scope=TokenScope.READ,
        summary="Download the pages that the filters select.",
        query=PagesQuery,
        public=False,
        expensive=always,
    )
    async def export_pages(self, request: EndpointRequest[Nothing, PagesQuery]) -> Response:
        kind = request.path_param("kind")
        if kind not in FORMATS:
            return self._shell.missing(request.http, 404)
        wanted = page_filter(request.query.given)
        crawl = (await self._crawls.get(request.path_param("crawl_id"))).crawl
        made, media_type = FORMATS[kind]
        headers = {"Content-Disposition": f'attachment; filename="{crawl.id}.{kind}"', "Cache-Control": "no-store"}
        table = PageTable(rules=crawl.config.rules, is_open=bool(crawl.config.hooks))
        content = self._export(crawl, wanted, table, made(table.columns))
        return StreamingResponse(content, headers=headers, media_type=media_type)

    @endpoint(
        "GET",
        "/crawls/{crawl_id}/broken",
        scope=TokenScope.READ,
        summary="Show the broken links of a crawl.",
        query=AnyQuery,
        public=False,
        expensive=always,
    )
    async def show_broken(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        status = await self._crawls.get(request.path_param("crawl_id"))
        after = number_in(request.http.query_params.get("after"))
        number = status.crawl.number
        found = await self._pages.search(number, after, BROKEN_ROWS, PageFilter(failed=True))
        keys = {page.url: key_of(Url(page.url), status.crawl.key_seed)[0] for _, page in found.pages}
        referrers = await self._pages.referrers(number, keys.values(), REFERRERS, REFERRER_SECONDS)
        parents = {key_of(Url(page.parent), status.crawl.key_seed)[0] for _, page in found.pages if page.parent}
        linking = set((await self._pages.urls_of(number, sorted(parents))).values())  # a sitemap is not a page
        context = self._frame.head(self._shell.view(request.http), status, "broken") | {
            "broken": [
                (
                    *(one, page, response_class(page.status)),
                    _sources(page, linking, referrers.sources.get(keys[page.url], [])),
                )
                for one, page in found.pages
            ],
            "referrers": referrers,
            "more": found.next,
            "is_first": not after,
        }
        return self._shell.page(request.http, "crawl_broken.html", context, section="crawls")

    async def _export(self, crawl: Crawl, wanted: PageFilter, table: PageTable, made: Format) -> AsyncIterator[bytes]:
        yield made.head()
        async for batch in self._pages.all(crawl.number, wanted):
            rows = table.rows(crawl.id, batch) if made.is_flat else table.records(crawl.id, batch)
            for part in await asyncio.to_thread(lambda: list(made.rows(rows))):  # noqa: B023 - awaited at once
                yield part
        for part in made.tail():
            yield part


def page_filter(given: Mapping[str, str]) -> PageFilter:
    """Return the filter that the fields of the form describe; raise if one cannot be read."""
    status, depth, error = given.get("status"), given.get("depth"), given.get("error")
    statuses = None
    if status == "none":
        error = error or ANY_ERROR
    elif status:
        is_class = len(status) == 3 and status[0] in "12345" and (status[1:] == "xx" or status[1:].isdecimal())
        if not is_class or not status.isascii():
            raise InvalidInput("status", f"cannot be {status[:60]!r}", "write 404, 4xx or none")
        statuses = statuses_of(status)
    if depth is not None and not (depth.isascii() and depth.isdecimal() and len(depth) < 6):
        raise InvalidInput("depth", f"cannot be {depth[:60]!r}", "give a whole number")
    return PageFilter(
        statuses=statuses,
        error=error,
        content_type=given.get("type"),
        depth=None if depth is None else int(depth),
        text=given.get("text"),
    )


def number_in(text: str | None) -> int:
    """Return the number of the last page on the previous screen; 0 for anything else."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 18 else 0


def _fails(given: Mapping[str, str]) -> bool:
    """Return whether the filter selects only failures, which can be retried."""
    return bool(given.get("error")) or given.get("status", "")[:1] in ("4", "5", "n")


def _sources(page: Page, linking: Collection[str], found: list[Url]) -> list[str]:
    """Return the pages that link to a page; the one that led the crawl there is always known, if it was a page."""
    first = [page.parent] if page.parent is not None and page.parent in linking else []
    return list(dict.fromkeys([*first, *found]))[:REFERRERS]


MOST_CRAWLS = 30
KINDS = (
    ("status", message("Status changed")),
    ("new", message("New pages")),
    ("missing", message("Missing pages")),
    ("robots", message("Indexing rules changed")),
    ("canonical", message("Canonical URL changed")),
    ("title", message("Title changed")),
    ("content", message("Content changed")),
)


class CrawlDiffPage:
    """`/crawls/{crawl_id}/diff`."""

    def __init__(self, shell: Shell, crawls: Crawls, comparer: PageComparer, frame: CrawlPage) -> None:
        self._shell = shell
        self._crawls = crawls
        self._comparer = comparer
        self._frame = frame

    @endpoint(
        "GET",
        "/crawls/{crawl_id}/diff",
        scope=TokenScope.READ,
        summary="Compare a crawl with another.",
        query=AnyQuery,
        public=False,
        expensive=always,
    )
    async def show_diff(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        status = await self._crawls.get(request.path_param("crawl_id"))
        seed = canonical(status.crawl.config.seeds[0])
        host = None if isinstance(seed, UrlRefusal) else hostname(seed)
        wanted = request.http.query_params.get("with")
        base = await self._crawls.get(wanted) if wanted else await self._base(status, host)
        others = [] if host is None else await self._before(status, CrawlFilter(host=host))
        if base is not None and all(one.crawl.id != base.crawl.id for one in others):
            others.insert(0, base)
        view = self._shell.view(request.http)
        formats = self._shell.formats(view)
        context = self._frame.head(view, status, "diff") | {
            "others": [row_of(one, formats) for one in others],
            "base": base,
            "kinds": [(name, view.language(title)) for name, title in KINDS],
            "diff": None if base is None else await self._comparer.compare(base.crawl.number, status.crawl.number),
        }
        return self._shell.page(request.http, "crawl_diff.html", context, section="crawls")

    async def _base(self, status: CrawlStatus, host: str | None) -> CrawlStatus | None:
        """Return the crawl to compare with unless another is asked for: the one that this crawl repeats, or else the
        last completed one before it with the same seeds in the same project."""
        crawl = status.crawl
        if crawl.config.recrawl_of:
            with suppress(NotFound):
                return await self._crawls.get(crawl.config.recrawl_of)
        if host is None:
            return None
        completed = await self._before(status, CrawlFilter(CrawlState.COMPLETED, crawl.project, host=host))
        return next((one for one in completed if one.crawl.config.seeds == crawl.config.seeds), None)

    async def _before(self, status: CrawlStatus, wanted: CrawlFilter) -> list[CrawlStatus]:
        """Return the crawls before this one that match a filter, newest first."""
        return await self._crawls.matching(wanted, after=status.crawl.number, limit=MOST_CRAWLS)
