"""REST for the journal of a crawl: its lines, and everything that becomes of it, live."""

from typing import Annotated

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from shoal.access.scopes import TokenScope
from shoal.base.errors import InvalidInput, NotFound, RateLimited
from shoal.base.request_form import Form, describe
from shoal.crawl.journal.journal import MOST_AT_ONCE
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL
from shoal.serve import examples, schemas
from shoal.serve.crawl_feed import CrawlFeeds
from shoal.serve.endpoint import WHOLE, EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, number_of, so_far
from shoal.serve.problems import Json

Tail = Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)]
LAST_LINE = 10**15
Line = Annotated[int, Meta(ge=0, le=LAST_LINE)]
UNCACHED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class LinesWanted(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tail: Annotated[Tail | None, describe("Only the last so many lines; then go on with `next`.")] = None


class CrawlFeedQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[Line | None, describe("The number of the last line that you have; `Last-Event-ID` beats it.")] = (
        None
    )


class JournalApi:
    """`/api/v1/crawls/{crawl_id}/logs` and `/events`."""

    def __init__(self, crawls: Crawls, live: CrawlFeeds) -> None:
        self._crawls = crawls
        self._live = live

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/logs",
        scope=TokenScope.READ,
        summary="Read the journal of a crawl, in order.",
        query=LinesWanted,
        answer=schemas.LineList,
        response_example={"items": [examples.LINE], "next": "MTI"},
        problems=[NotFound],
    )
    async def list_lines(self, ask: EndpointRequest[Nothing, LinesWanted]) -> Json:
        """What was said so far: until the crawl has ended, `next` is where to go on later."""
        query, crawl_id = ask.query, ask.part("crawl_id")
        if query.tail is not None and query.cursor is not None:
            raise InvalidInput("tail", "cannot stand beside a cursor", "leave one of them out")
        # First whether it has ended, then what it said: the line about its end comes with the end.
        ended = (await self._crawls.get(crawl_id)).crawl.state in TERMINAL
        after = None if query.tail is not None else number_of(query.cursor) or 0
        limit = query.limit + 1 if query.tail is None else query.tail
        found = await self._crawls.journal.lines(crawl_id, after, limit)
        rows = [(line.number, line.answer(crawl_id)) for line in found]
        return Json(so_far(rows, query.tail or query.limit, after or 0, goes_on=not ended))

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/events",
        scope=TokenScope.READ,
        summary="Watch a crawl: server-sent events, until it has ended.",
        query=CrawlFeedQuery,
        answer=str,
        media_type="text/event-stream",
        problems=[NotFound, RateLimited],
    )
    async def watch_crawl(self, ask: EndpointRequest[Nothing, CrawlFeedQuery]) -> Response:
        """`state` and `progress` (at most one a second) tell how it is now, `log` brings each line of the journal with
        its number as id, `end` comes last. Who reconnects with `Last-Event-ID` misses no line. Without it, the last 100
        lines come first. A comment comes every 15 seconds when nothing else does."""
        after = ask.query.after if (sent := ask.request.headers.get("last-event-id")) is None else _number(sent)
        stream = await self._live.watch(ask.part("crawl_id"), after)
        if ask.request.method == "HEAD":
            return Response(headers=UNCACHED, media_type="text/event-stream")
        return StreamingResponse(stream, headers=UNCACHED, media_type="text/event-stream")


def _number(sent: str) -> int:
    if not WHOLE.fullmatch(sent) or not 0 <= int(sent) <= LAST_LINE:
        raise InvalidInput("Last-Event-ID", "is not one that this stream gave", "leave it out")
    return int(sent)
