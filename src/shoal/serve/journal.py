"""REST endpoints for the journal of a crawl and its live feed (server-sent events)."""

from typing import Annotated, Any

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, NotFound, RateLimited
from shoal.base.request_form import Form, describe
from shoal.crawl.journal.journal import MOST_AT_ONCE
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL
from shoal.serve.crawl_feed import CrawlFeeds
from shoal.serve.endpoint import WHOLE, EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, growing_page_of, number_of
from shoal.serve.resources.page import JournalEntryList

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
        problems=[NotFound],
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
        problems=[NotFound, RateLimited],
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
