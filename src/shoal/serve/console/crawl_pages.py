"""The pages of a crawl: a table with filters, an export of the selected pages, and a list of broken links with the
pages that link to them."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from msgspec import field
from starlette.responses import Response

from shoal.base.errors import InvalidInput, NotFound
from shoal.base.text import message
from shoal.base.url import Url, UrlRefusal, canonical, hostname
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.values import key_of
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import CrawlFilter
from shoal.pages.export.formats import Format
from shoal.pages.export.table import PageTable, Row
from shoal.pages.page import Page, response_class
from shoal.pages.pages import DATA, OTHER_DATA, QUICK, FoundPages, LinkCounters, LinkCounts, PageComparer, Pages
from shoal.pages.store import ANY_ERROR, PageFilter, PageRank
from shoal.serve.console.crawl import LONGEST_URL, CrawlPage
from shoal.serve.console.crawl_rows import class_parts, row_of
from shoal.serve.console.exports import exported, format_of
from shoal.serve.console.forms import AnyQuery, FilterQuery, page_endpoint, row_in
from shoal.serve.console.shell import Shell, sentence
from shoal.serve.crawl_parts import statuses_of
from shoal.serve.endpoint import EndpointRequest, Nothing, always

ROWS: Final = 50
LAST_PAGE: Final = 10**17
MOST_SORTED: Final = 1000  # maximum number of rows in a sorted table
SORT_SECONDS: Final = 2.0  # time limit for counting links before pages are sorted by the number of links
BROKEN_ROWS: Final = 30
REFERRERS: Final = 5  # maximum number of linking pages shown per broken link
REFERRER_SECONDS: Final = 0.5
STATUSES: Final = ("2xx", "3xx", "4xx", "5xx", "none")


class PagesQuery(FilterQuery, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The filters of the table. `after` is a page number, or in a sorted table the number of preceding rows."""

    status: str = ""
    type: str = ""
    depth: str = ""
    error: str = ""
    contained: str = field(default="", name="text")
    failed: str = ""
    sort: str = ""  # a column name, with a leading minus for descending order

    filters = ("status", "type", "depth", "error", "text", "failed")


class CrawlPagesPage:
    """`/crawls/{crawl_id}/pages`, `/page`, `/broken` and `/export/…`."""

    def __init__(
        self, shell: Shell, crawls: Crawls, pages: Pages, link_counters: LinkCounters, frame: CrawlPage
    ) -> None:
        self._shell = shell
        self._crawls = crawls
        self._pages = pages
        self._link_counters = link_counters
        self._frame = frame

    @page_endpoint(
        "/crawls/{crawl_id}/pages",
        "Show the pages of a crawl.",
        query=PagesQuery,
        expensive=lambda query: bool(query.given or query.sort),
    )
    async def show_pages(self, request: EndpointRequest[Nothing, PagesQuery]) -> Response:
        given = request.query.given
        status = await self._crawls.get(request.path_param("crawl_id"))
        view, problem, wanted = self._shell.view(request.http), "", PageFilter()
        try:
            wanted = page_filter(given)
        except InvalidInput as error:
            problem = sentence(error.message)
        after, sort, crawl = row_in(request.query.after, LAST_PAGE) or 0, request.query.sort, status.crawl
        column = sort.removeprefix("-")
        order = COLUMNS.get(column)
        links = await self._link_counts(crawl, SORT_SECONDS if column == "linked" else QUICK)
        ranked = None
        if order is None:
            found = await self._pages.search(crawl.number, after, ROWS, wanted)
        else:
            value = _smallest_first(order, links, is_reversed=sort.startswith("-"))
            ranked = await self._pages.ranked(crawl.number, wanted, value, min(after + ROWS + 1, MOST_SORTED))
            pages = await self._pages.numbered(crawl.number, ranked.numbers[after : after + ROWS])
            found = FoundPages(pages, after + ROWS if len(ranked.numbers) > after + ROWS else None)
        head = self._frame.head(view, status, "pages")
        context = head | {
            "responses": class_parts(head["row"], self._shell.formats(view)),
            "given": given,
            "problem": problem,
            "pages": [
                (number, page, response_class(page.status), links and links.pages[_key(page, crawl)])
                for number, page in found.pages
            ],
            "sort": sort if order else "",
            "columns": COLUMNS.keys() if links else COLUMNS.keys() - {"linked"},
            "ranked": ranked,
            "most_sorted": MOST_SORTED,
            "more": found.next,
            "is_first": not after,
            "is_short": ranked is None and found.next is not None and len(found.pages) < ROWS,
            "statuses": STATUSES,
            # The selected pages can be retried if the filter selects only failures.
            "can_retry": view.may_write
            and set(given) <= {"status", "error", "text"}
            and bool(given.get("error") or given.get("status", "")[:1] in ("4", "5", "n")),
        }
        return self._shell.page(request.http, "crawl_pages.html", context, section="crawls")

    @page_endpoint("/crawls/{crawl_id}/page", "Redirect to the page or the explanation of a URL.")
    async def find_page(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """Redirect to the page of the URL in `url`. If the URL has no page, redirect to its explanation."""
        crawl, text = (
            (await self._crawls.get(request.path_param("crawl_id"))).crawl,
            request.http.query_params.get("url"),
        )
        url = canonical(text or "", crawl.config.url_rules(LONGEST_URL))
        if not isinstance(url, UrlRefusal):
            number = await self._pages.number_of(crawl.number, key_of(url, crawl.key_seed))
            if number is not None:
                return self._shell.redirect(f"/pages/{crawl.id}~{number}")
        return self._shell.redirect(f"/crawls/{crawl.id}/frontier?{urlencode({'url': text or ''})}")

    @page_endpoint(
        "/crawls/{crawl_id}/export/{kind}",
        "Download the pages that the filters select.",
        query=PagesQuery,
        expensive=always,
    )
    async def export_pages(self, request: EndpointRequest[Nothing, PagesQuery]) -> Response:
        kind, wanted = request.path_param("kind"), page_filter(request.query.given)
        crawl = (await self._crawls.get(request.path_param("crawl_id"))).crawl
        table = PageTable(rules=crawl.config.rules, is_open=bool(crawl.config.hooks))
        made = format_of(kind, table.columns)
        return exported(made, f"{crawl.id}.{kind}", self._rows(crawl, wanted, table, made))

    @page_endpoint("/crawls/{crawl_id}/broken", "Show the broken links of a crawl.", expensive=always)
    async def show_broken(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        status = await self._crawls.get(request.path_param("crawl_id"))
        after = row_in(request.http.query_params.get("after"), LAST_PAGE) or 0
        number = status.crawl.number
        found = await self._pages.search(number, after, BROKEN_ROWS, PageFilter(failed=True))
        keys = {page.url: key_of(Url(page.url), status.crawl.key_seed)[0] for _, page in found.pages}
        referrers = await self._pages.referrers(number, keys.values(), REFERRERS, REFERRER_SECONDS)
        parents = {key_of(Url(page.parent), status.crawl.key_seed)[0] for _, page in found.pages if page.parent}
        # a parent that is a sitemap is not a page
        linking = set((await self._pages.urls_of(number, sorted(parents))).values())
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

    async def _link_counts(self, crawl: Crawl, seconds: float) -> LinkCounts | None:
        """Return the number of links to each page. Return None while the crawl is active, or if not all links have been
        counted."""
        if crawl.state not in TERMINAL or crawl.finished_at is None:
            return None
        counts = await self._link_counters.of(crawl.number, crawl.finished_at, seconds)
        return counts if counts.is_complete else None

    async def _rows(
        self, crawl: Crawl, wanted: PageFilter, table: PageTable, made: Format
    ) -> AsyncIterator[Iterator[Row]]:
        async for batch in self._pages.all(crawl.number, wanted):
            yield table.rows(crawl.id, batch) if made.is_flat else table.records(crawl.id, batch)


def _key(page: Page, crawl: Crawl) -> int:
    return key_of(Url(page.url), crawl.key_seed)[0]


Value = Callable[[PageRank, Counter[int]], float | None]
COLUMNS: Final[Mapping[str, Value]] = {
    "status": lambda page, _: page.status,
    "depth": lambda page, _: page.depth,
    "size": lambda page, _: page.bytes,
    "time": lambda page, _: page.duration_ms,
    "words": lambda page, _: page.word_count,
    "links": lambda page, _: page.links,
    "linked": lambda page, links: links[page.key],
}
"""The columns by which pages can be sorted."""


def _smallest_first(value: Value, links: LinkCounts | None, *, is_reversed: bool) -> Callable[[PageRank], float]:
    """Return the sort key; pages without a value come last."""
    counts = Counter[int]() if links is None else links.pages

    def by(page: PageRank) -> float:
        found = value(page, counts)
        return math.inf if found is None else -found if is_reversed else found

    return by


def page_filter(given: Mapping[str, str]) -> PageFilter:
    """Return the filter that the form fields describe; raise if a field is invalid."""
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
        failed="failed" in given,
    )


def _sources(page: Page, linking: Collection[str], found: list[Url]) -> list[str]:
    """Return the pages that link to a page. The page on which the crawl found its URL comes first, unless it was found
    in a sitemap."""
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
MORE_DATA = message("More fields of the extracted data changed")


class CrawlDiffPage:
    """`/crawls/{crawl_id}/diff`."""

    def __init__(self, shell: Shell, crawls: Crawls, comparer: PageComparer, frame: CrawlPage) -> None:
        self._shell = shell
        self._crawls = crawls
        self._comparer = comparer
        self._frame = frame

    @page_endpoint("/crawls/{crawl_id}/diff", "Compare a crawl with a different crawl.", expensive=always)
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
        diff = None if base is None else await self._comparer.compare(base.crawl.number, status.crawl.number)
        context = self._frame.head(view, status, "diff") | {
            "others": [row_of(one, formats) for one in others],
            "base": base,
            "diff": diff,
            "kinds": []
            if diff is None
            else [(name, view.language(title)) for name, title in KINDS]
            + [(name, name) for name in sorted(diff.changes) if name.startswith(DATA)]
            + [(OTHER_DATA, view.language(MORE_DATA)) for name in diff.changes if name == OTHER_DATA],
        }
        return self._shell.page(request.http, "crawl_diff.html", context, section="crawls")

    async def _base(self, status: CrawlStatus, host: str | None) -> CrawlStatus | None:
        """Return the default crawl for the comparison: the crawl that this crawl repeats, or else the last completed
        crawl before it with the same seeds in the same project."""
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
