"""The comparison of a crawl with an earlier or later one of the same site."""

from contextlib import suppress

from starlette.responses import Response

from shoal.access.scopes import TokenScope
from shoal.base.errors import NotFound
from shoal.base.sentence import message
from shoal.base.url import UrlRefusal, canonical, hostname
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import CrawlState
from shoal.crawl.store import CrawlFilter
from shoal.pages.comparison import PageComparer
from shoal.serve.console.crawl import CrawlPage
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
        others = await self._others(status)
        wanted = request.http.query_params.get("with")
        base = await self._crawls.get(wanted) if wanted else await self._base(status, others)
        view = self._shell.view(request.http)
        context = self._frame.head(view, status, "diff") | {
            "others": others,
            "base": base,
            "kinds": [(name, view.language(title)) for name, title in KINDS],
            "diff": None if base is None else await self._comparer.compare(base.crawl.number, status.crawl.number),
        }
        return self._shell.page(request.http, "crawl_diff.html", context, section="crawls")

    async def _base(self, status: CrawlStatus, others: list[CrawlStatus]) -> CrawlStatus | None:
        """Return the crawl to compare with unless another is asked for: the one that this crawl repeats, or else the
        last completed one before it with the same seeds in the same project."""
        crawl = status.crawl
        if crawl.config.recrawl_of:
            with suppress(NotFound):
                return await self._crawls.get(crawl.config.recrawl_of)
        for other in others:
            one = other.crawl
            is_like = one.project == crawl.project and one.config.seeds == crawl.config.seeds
            if one.number < crawl.number and is_like and one.state is CrawlState.COMPLETED:
                return other
        return None

    async def _others(self, status: CrawlStatus) -> list[CrawlStatus]:
        """Return other crawls of the same site, newest first."""
        seed = canonical(status.crawl.config.seeds[0])
        if isinstance(seed, UrlRefusal):
            return []
        found = await self._crawls.matching(CrawlFilter(host=hostname(seed)), limit=MOST_CRAWLS)
        return [one for one in found if one.crawl.id != status.crawl.id]
