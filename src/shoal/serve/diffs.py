"""REST endpoints for the differences between two crawls."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.audit.diff_formats import FORMATS, Change, DiffSummary, RowFormatName, pieces, record
from shoal.audit.finding import Severity
from shoal.base.errors import NotFound, StateConflict
from shoal.base.request_form import Form, describe
from shoal.crawl.crawl import Name
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint

if TYPE_CHECKING:
    from shoal.audit.diff import CrawlDiff, CrawlDiffs

Against = Annotated[Name, describe("The earlier crawl.")]
Listed = Annotated[int, Meta(ge=0, le=1000)]


class DiffQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    against: Against
    limit: Annotated[Listed, describe("Maximum number of differences of each kind to list.")] = 100


class DiffRowsQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    against: Against
    format: Annotated[RowFormatName, describe("Format of the file.")] = "jsonl"


class Difference(Struct, kw_only=True):
    """One difference between two crawls."""

    change: Annotated[Change, describe("added, removed or changed for a page; new or fixed for a finding.")]
    url: Annotated[str | None, describe("The page; null for a finding about the whole site.")]
    field: Annotated[str | None, describe("Field of the page that changed.")]
    before: Annotated[str | int | None, describe("Value of the field in the earlier crawl.")]
    after: Annotated[str | int | None, describe("Value of the field in the later crawl.")]
    code: Annotated[str | None, describe("Code of a finding.")]
    severity: Severity | None


class PageDifferences(Struct, kw_only=True):
    """How many pages were added, removed or changed."""

    before: Annotated[int, describe("Pages of the earlier crawl.")]
    after: Annotated[int, describe("Pages of the later crawl.")]
    added: Annotated[int, describe("Pages that only the later crawl has.")]
    removed: Annotated[int, describe("Pages that only the earlier crawl has.")]
    changed: Annotated[int, describe("Pages that differ in a field.")]
    unchanged: Annotated[int, describe("Pages that do not differ.")]
    fields: Annotated[dict[str, int], describe("Number of pages by the field that changed.")]


class CodeDifferences(Struct, kw_only=True):
    """The changes in the findings of one code."""

    code: Annotated[str, describe("Stable code of the problem.")]
    severity: Severity
    new: Annotated[int, describe("Findings that only the later analysis has.")]
    fixed: Annotated[int, describe("Findings that only the earlier analysis has.")]
    open: Annotated[int, describe("Findings of both analyses.")]
    complete: Annotated[bool, describe("False if so many were found that not all are stored and compared.")]


class FindingDifferences(Struct, kw_only=True):
    """The changes between the findings of the newest analysis of each crawl."""

    before: Annotated[str, describe("Analysis of the earlier crawl.")]
    after: Annotated[str, describe("Analysis of the later crawl.")]
    new: Annotated[int, describe("Findings that only the later analysis has.")]
    fixed: Annotated[int, describe("Findings that only the earlier analysis has.")]
    open: Annotated[int, describe("Findings of both.")]
    codes: Annotated[list[CodeDifferences], describe("The finding codes with a difference.")]


class Differences(Struct, kw_only=True):
    """The differences between two crawls."""

    before: Annotated[str, describe("The earlier crawl.")]
    after: Annotated[str, describe("The later crawl.")]
    pages: Annotated[PageDifferences, describe("Pages that were added, removed or changed.")]
    findings: Annotated[FindingDifferences | None, describe("Null unless both crawls were analyzed.")]
    items: Annotated[list[Difference], describe("The first differences of each kind.")]


EXAMPLE = {
    "before": "crl_01hr2v8k3m4n5p6q",
    "after": "crl_01hs7w9m2p3q4r5s",
    "pages": {
        "before": 120,
        "after": 121,
        "added": 2,
        "removed": 1,
        "changed": 3,
        "unchanged": 116,
        "fields": {"title": 3},
    },
    "findings": None,
    "items": [
        {
            "change": "changed",
            "url": "https://example.com/about",
            "field": "title",
            "before": "About",
            "after": "About us",
            "code": None,
            "severity": None,
        }
    ],
}


class DiffApi:
    """`/api/v1/crawls/{crawl_id}/diff`."""

    def __init__(self, diffs: "Callable[[], CrawlDiffs]") -> None:
        self._diffs = diffs

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/diff",
        scope=TokenScope.READ,
        summary="Compare a crawl with an earlier one.",
        query=DiffQuery,
        response=Differences,
        response_example=EXAMPLE,
        problems=[NotFound, StateConflict],
        expensive=always,
    )
    async def compare_crawls(self, request: EndpointRequest[Nothing, DiffQuery]) -> Differences:
        """Pages are compared by URL, findings by what they are about. Both crawls must have ended."""
        diff = await self._open(request)
        from shoal.audit.diff import first_rows  # which `_open` has imported

        rows = await first_rows(diff, request.query.limit)
        return differences_of(diff.summary, [Difference(**record(row)) for row in rows])

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/diff/rows",
        scope=TokenScope.READ,
        summary="Download all differences between a crawl and an earlier one.",
        query=DiffRowsQuery,
        response=str,
        media_type=" or ".join(media_type.partition(";")[0] for media_type, _ in FORMATS.values()),
        problems=[NotFound, StateConflict],
        expensive=always,
    )
    async def download_differences(self, request: EndpointRequest[Nothing, DiffRowsQuery]) -> Response:
        """One row per added or removed page, per changed field and per finding, written while it is computed."""
        diff = await self._open(request)
        name = request.query.format
        return StreamingResponse(pieces(diff, name), media_type=FORMATS[name][0])

    async def _open(self, request: EndpointRequest[Nothing, Any]) -> "CrawlDiff":
        diffs = await asyncio.to_thread(self._diffs)  # which imports it for the first request
        return await diffs.open(request.query.against, request.path_param("crawl_id"))


def differences_of(summary: DiffSummary, items: list[Difference]) -> Differences:
    """Translate a summary that is complete."""
    found = summary.findings
    findings = None
    if found is not None:
        codes = [
            CodeDifferences(
                code=one.code, severity=one.severity, new=one.new, fixed=one.fixed, open=one.open, complete=one.complete
            )
            for one in found.codes
        ]
        totals = {name: found.total(name) for name in ("new", "fixed", "open")}
        findings = FindingDifferences(before=found.before, after=found.after, codes=codes, **totals)
    pages = PageDifferences(
        before=summary.pages_before,
        after=summary.pages_after,
        added=summary.added,
        removed=summary.removed,
        changed=summary.changed,
        unchanged=summary.unchanged,
        fields=summary.fields,
    )
    return Differences(before=summary.before, after=summary.after, pages=pages, findings=findings, items=items)
