"""The differences between two crawls."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Self

from shoal.audit.diff_formats import Change, DiffRow, DiffSummary, FindingDiff, record
from shoal.audit.finding import Severity
from shoal.base.request_form import describe
from shoal.serve.resources.resource import Resource


class Difference(Resource, kw_only=True):
    """One difference between two crawls."""

    change: Annotated[Change, describe("added, removed or changed for a page; new or fixed for a finding.")]
    url: Annotated[str | None, describe("The page; null for a finding about the whole site.")]
    field: Annotated[str | None, describe("The page field that changed.")]
    before: Annotated[str | int | None, describe("Value of the field in the earlier crawl.")]
    after: Annotated[str | int | None, describe("Value of the field in the later crawl.")]
    code: Annotated[str | None, describe("Code of a finding.")]
    severity: Severity | None


class PageDifferences(Resource, kw_only=True):
    """The numbers of added, removed and changed pages."""

    before: Annotated[int, describe("Pages of the earlier crawl.")]
    after: Annotated[int, describe("Pages of the later crawl.")]
    added: Annotated[int, describe("Pages that only the later crawl has.")]
    removed: Annotated[int, describe("Pages that only the earlier crawl has.")]
    changed: Annotated[int, describe("Pages of both crawls that differ in at least one field.")]
    unchanged: Annotated[int, describe("Pages of both crawls that do not differ.")]
    fields: Annotated[dict[str, int], describe("Number of changed pages, by field.")]


class CodeDifferences(Resource, kw_only=True):
    """The changes in the findings of one code."""

    code: Annotated[str, describe("Stable code of the problem.")]
    severity: Severity
    new: Annotated[int, describe("Findings that only the later analysis has.")]
    fixed: Annotated[int, describe("Findings that only the earlier analysis has.")]
    open: Annotated[int, describe("Findings that both analyses have.")]
    complete: Annotated[
        bool, describe("False if there are so many findings that only some of them are stored and compared.")
    ]


class FindingDifferences(Resource, kw_only=True):
    """The changes between the findings of the newest analysis of each crawl."""

    before: Annotated[str, describe("Analysis of the earlier crawl.")]
    after: Annotated[str, describe("Analysis of the later crawl.")]
    new: Annotated[int, describe("Findings that only the later analysis has.")]
    fixed: Annotated[int, describe("Findings that only the earlier analysis has.")]
    open: Annotated[int, describe("Findings that both analyses have.")]
    codes: Annotated[list[CodeDifferences], describe("The finding codes whose findings changed.")]

    @classmethod
    def of(cls, found: FindingDiff) -> Self:
        totals = {name: found.total(name) for name in ("new", "fixed", "open")}
        return super().of(found, codes=[CodeDifferences.of(one) for one in found.codes], **totals)


class Differences(Resource, kw_only=True):
    """The differences between two crawls."""

    before: Annotated[str, describe("The earlier crawl.")]
    after: Annotated[str, describe("The later crawl.")]
    pages: Annotated[PageDifferences, describe("Pages that were added, removed or changed.")]
    findings: Annotated[FindingDifferences | None, describe("Null unless both crawls were analyzed.")]
    items: Annotated[list[Difference], describe("The first differences of each kind.")]

    example: ClassVar = {
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

    @classmethod
    def of(cls, summary: DiffSummary, rows: Iterable[DiffRow]) -> Self:
        """Build the resource from a complete summary and some of its rows."""
        found = summary.findings
        return super().of(
            summary,
            pages=PageDifferences.of(summary, before=summary.pages_before, after=summary.pages_after),
            findings=None if found is None else FindingDifferences.of(found),
            items=[Difference(**record(row)) for row in rows],
        )
