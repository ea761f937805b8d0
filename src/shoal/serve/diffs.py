"""REST endpoints for the differences between two crawls."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.audit.diff_formats import FORMATS, RowFormatName, pieces
from shoal.base.errors import StateConflict
from shoal.base.request_form import Form, describe
from shoal.crawl.crawl import Name
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint
from shoal.serve.resources.crawl_diff import Differences

if TYPE_CHECKING:
    from shoal.audit.diff import CrawlDiff, CrawlDiffs

Against = Annotated[Name, describe("The earlier crawl.")]
Listed = Annotated[int, Meta(ge=0, le=1000)]


class DiffQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    against: Against
    limit: Annotated[
        Listed,
        describe("Maximum number of differences of each kind to list; fewer are listed if their values are large."),
    ] = 100


class DiffRowsQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    against: Against
    format: Annotated[RowFormatName, describe("Format of the file.")] = "jsonl"


class DiffApi:
    """`/api/v1/crawls/{crawl_id}/diff`."""

    def __init__(self, diffs: "Callable[[], CrawlDiffs]") -> None:
        self._diffs = diffs

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/diff",
        scope=TokenScope.READ,
        summary="Compare a crawl with an earlier crawl.",
        query=DiffQuery,
        response=Differences,
        problems=[StateConflict],
        expensive=always,
    )
    async def compare_crawls(self, request: EndpointRequest[Nothing, DiffQuery]) -> Differences:
        """Pages are matched by URL, and findings by code and subject. Both crawls must have ended."""
        diff = await self._open(request)
        from shoal.audit.diff import first_rows  # `_open` has already imported this module

        rows = await first_rows(diff, request.query.limit)
        return Differences.of(diff.summary, rows)

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/diff/rows",
        scope=TokenScope.READ,
        summary="Download all differences between a crawl and an earlier crawl.",
        query=DiffRowsQuery,
        response=str,
        media_type=" or ".join(media_type.partition(";")[0] for media_type, _ in FORMATS.values()),
        problems=[StateConflict],
        expensive=always,
    )
    async def download_differences(self, request: EndpointRequest[Nothing, DiffRowsQuery]) -> Response:
        """The file has one row per added or removed page, per changed field and per new or fixed finding. Rows are sent
        as soon as they are computed."""
        diff = await self._open(request)
        name = request.query.format
        return StreamingResponse(pieces(diff, name), media_type=FORMATS[name][0])

    async def _open(self, request: EndpointRequest[Nothing, Any]) -> "CrawlDiff":
        diffs = await asyncio.to_thread(self._diffs)  # the first request imports the module
        return await diffs.open(request.query.against, request.path_param("crawl_id"))
