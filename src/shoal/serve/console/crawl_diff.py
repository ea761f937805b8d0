"""The comparison of a crawl with an earlier or later one of the same site."""

from starlette.responses import Response

from shoal.access.scopes import TokenScope
from shoal.base.url import UrlRefusal, canonical, hostname
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.store import CrawlFilter
from shoal.pages.comparison import PageComparer
from shoal.serve.console.crawl import CrawlPage
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.messages import message
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint

MOST_CRAWLS = 30
KINDS = (
    ("status", message("Status changed")),
    ("new", message("New pages")),
    ("missing", message("Missing pages")),
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
    )
    async def show_diff(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        status = await self._crawls.get(request.path_param("crawl_id"))
        others = await self._others(status)
        wanted = request.http.query_params.get("with") or status.crawl.config.recrawl_of
        earlier = [one for one in others if one.crawl.number < status.crawl.number]
        base = await self._crawls.get(wanted) if wanted else next(iter(earlier), None)
        view = self._shell.view(request.http)
        context = self._frame.head(view, status, "diff") | {
            "others": others,
            "base": base,
            "kinds": [(name, view.language(title)) for name, title in KINDS],
            "diff": None if base is None else await self._comparer.compare(base.crawl.number, status.crawl.number),
        }
        return self._shell.page(request.http, "crawl_diff.html", context, section="crawls")

    async def _others(self, status: CrawlStatus) -> list[CrawlStatus]:
        """Return other crawls of the same site, newest first."""
        seed = canonical(status.crawl.config.seeds[0])
        if isinstance(seed, UrlRefusal):
            return []
        found = await self._crawls.matching(CrawlFilter(host=hostname(seed)), limit=MOST_CRAWLS)
        return [one for one in found if one.crawl.id != status.crawl.id]
