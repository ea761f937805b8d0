"""REST endpoint for the pages of a crawl."""

import math
from typing import Annotated

from msgspec import Meta

from shoal.access.token import TokenScope
from shoal.base.errors import NotFound
from shoal.base.request_form import describe
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL
from shoal.pages.pages import Pages
from shoal.pages.store import PageFilter
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, growing_page_of, number_of
from shoal.serve.resources.page import Page, PageList

Status = Annotated[str, Meta(pattern=r"^[1-9]([0-9][0-9]|xx)\Z", examples=["404", "4xx"])]
Code = Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,64}\Z", examples=["timeout", "any"])]


class PageQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[Status | None, describe("Only pages with this HTTP status, such as `404` or `4xx`.")] = None
    error: Annotated[Code | None, describe("Only pages with this error code; `any` for all errors.")] = None


class PageApi:
    """`/api/v1/crawls/{crawl_id}/pages`."""

    def __init__(self, crawls: Crawls, pages: Pages) -> None:
        self._crawls = crawls
        self._pages = pages

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/pages",
        scope=TokenScope.READ,
        summary="List the pages of a crawl, in the order in which they were stored.",
        query=PageQuery,
        response=PageList,
        problems=[NotFound],
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
        return PageList(items=[Page.of(page, crawl.id) for _, page in pages], next=following)


def statuses_of(word: str) -> range:
    """Return the statuses that match `404` or `4xx`."""
    if word.endswith("xx"):
        return range(int(word[0]) * 100, int(word[0]) * 100 + 100)
    return range(int(word), int(word) + 1)
