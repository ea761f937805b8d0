"""REST for the pages that a crawl found."""

from typing import Annotated

from msgspec import Meta

from shoal.access.scopes import TokenScope
from shoal.base.database import Database
from shoal.base.errors import NotFound
from shoal.base.request_form import describe
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL
from shoal.pages.store import PageFilter, PageStore
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, number_of, so_far
from shoal.serve.problems import Json

Status = Annotated[str, Meta(pattern=r"^[1-9]([0-9][0-9]|xx)\Z", examples=["404", "4xx"])]
Code = Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,64}\Z", examples=["timeout", "any"])]


class PagesWanted(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[Status | None, describe("Only pages with this status, such as `404` or `4xx`.")] = None
    error: Annotated[Code | None, describe("Only pages with this error code; `any`: with one at all.")] = None


class PageApi:
    """`/api/v1/crawls/{crawl_id}/pages`."""

    def __init__(self, crawls: Crawls, database: Database, pages: PageStore) -> None:
        self._crawls = crawls
        self._database = database
        self._pages = pages

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/pages",
        scope=TokenScope.READ,
        summary="List the pages of a crawl, in the order in which they were stored.",
        query=PagesWanted,
        answer=schemas.PageList,
        response_example={"items": [examples.PAGE], "next": "MTIw"},
        problems=[NotFound],
    )
    async def list_pages(self, ask: EndpointRequest[Nothing, PagesWanted]) -> Json:
        """What is there so far: until the crawl has ended, `next` is where to go on later."""
        query = ask.query
        crawl = (await self._crawls.get(ask.part("crawl_id"))).crawl
        after = number_of(query.cursor) or 0
        wanted, most = filter_of(query), query.limit + 1
        found = await self._database.read(lambda tx: self._pages.some_after(tx, crawl.number, after, most, wanted))
        records = [(number, page.record(crawl.id)) for number, page in found]
        return Json(so_far(records, query.limit, after, goes_on=crawl.state not in TERMINAL))


def filter_of(query: PagesWanted) -> PageFilter:
    return PageFilter(None if query.status is None else statuses_of(query.status), query.error)


def statuses_of(word: str) -> range:
    """The statuses that a word names: `404`, or `4xx`."""
    if word.endswith("xx"):
        return range(int(word[0]) * 100, int(word[0]) * 100 + 100)
    return range(int(word), int(word) + 1)
