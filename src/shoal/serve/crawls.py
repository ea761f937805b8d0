"""REST for crawls."""

from typing import Annotated

from shoal.access.scopes import Scope
from shoal.base.errors import NotFound
from shoal.base.form import says
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.crawls import Crawls, Seen
from shoal.crawl.states import CrawlState
from shoal.serve import examples, shapes
from shoal.serve.cursor import Paging, cursor_of, cut, number_of
from shoal.serve.endpoint import Ask, Nothing, endpoint
from shoal.serve.problems import Json

LAST_CRAWL = 2**31 - 1  # the largest number that a crawl can have


class CrawlFilter(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[CrawlState | None, says("Only crawls in this state.")] = None


class CrawlApi:
    """`/api/v1/crawls`."""

    def __init__(self, crawls: Crawls) -> None:
        self._crawls = crawls

    @endpoint(
        "POST",
        "/api/v1/crawls",
        scope=Scope.WRITE,
        says="Start a crawl.",
        body=CrawlConfig,
        status=202,
        answer=shapes.Crawl,
        answers=examples.NEW_CRAWL,
        asks={"seeds": ["https://example.com/"], "depth": 2, "max_pages": 500, "labels": {"team": "search"}},
    )
    async def create_crawl(self, ask: Ask[CrawlConfig, Nothing]) -> Json:
        """It is stored and waits for a worker when the answer comes; with `start: false` it waits for its start."""
        crawl = await self._crawls.submit(ask.body)
        seen = await self._crawls.get(crawl.id)
        return Json(seen.answer(), status_code=202, headers={"Location": f"/api/v1/crawls/{crawl.id}"})

    @endpoint(
        "GET",
        "/api/v1/crawls",
        scope=Scope.READ,
        says="List crawls, the newest first.",
        query=CrawlFilter,
        answer=shapes.CrawlList,
        answers={"items": [examples.CRAWL], "next": "MTI"},
    )
    async def list_crawls(self, ask: Ask[Nothing, CrawlFilter]) -> Json:
        query = ask.query
        after = number_of(query.cursor, LAST_CRAWL)
        found = await self._crawls.newest(after=after, limit=query.limit + 1, state=query.state)
        return Json(cut(found, query.limit, Seen.answer, lambda seen: cursor_of(str(seen.crawl.number))))

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}",
        scope=Scope.READ,
        says="Show one crawl.",
        answer=shapes.CrawlDetail,
        answers=examples.CRAWL | {"held_hosts": [examples.HELD_HOST]},
        problems=[NotFound],
    )
    async def show_crawl(self, ask: Ask[Nothing, Nothing]) -> Json:
        crawl_id = ask.part("crawl_id")
        held = [host.answer() for host in await self._crawls.held_hosts(crawl_id)]
        return Json((await self._crawls.get(crawl_id)).answer() | {"held_hosts": held})
