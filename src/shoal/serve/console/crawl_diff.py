"""The comparison of a crawl with an earlier or later one of the same site."""

from contextlib import suppress

from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.errors import NotFound
from shoal.base.text import message
from shoal.base.url import UrlRefusal, canonical, hostname
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import CrawlState
from shoal.crawl.store import CrawlFilter
from shoal.pages.pages import PageComparer
from shoal.serve.console.crawl import CrawlPage
from shoal.serve.console.crawl_rows import row_of
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint

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
