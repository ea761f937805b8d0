"""The report as JSON. Its schema is published as `docs/reference/audit-report.schema.json`."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Struct, json

from shoal import __version__
from shoal.audit.artifacts import Artifact
from shoal.audit.finding import Severity
from shoal.audit.not_checked import not_checked_by
from shoal.audit.reports.report import Report
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Outcome
from shoal.base.clock import from_micros
from shoal.base.request_form import describe
from shoal.base.text import encodable

VERSION: Final = 1
"""Raised when a field changes its meaning or is removed. New fields do not raise it."""


class ReportRule(Struct, kw_only=True):
    """A rule of the gate with what was measured."""

    condition: Annotated[str, describe("The rule, such as `broken_links <= 0`.")]
    metric: str
    severity: Annotated[str, describe("`warning` if the rule cannot fail the gate.")]
    outcome: Outcome
    value: Annotated[float | None, describe("The measured value; null if it could not be measured.")]
    baseline: Annotated[float | None, describe("The value of the baseline, if the rule compares with it.")]
    reason: Annotated[str | None, describe("Why the rule did not pass.")]


class ReportVerdict(Struct, kw_only=True):
    """The verdict of the gate."""

    outcome: Outcome
    reasons: Annotated[list[str], describe("Why the gate did not pass, as sentences.")]
    rules: list[ReportRule]


class ReportFinding(Struct, kw_only=True):
    """One finding."""

    page: Annotated[str | None, describe("URL of the page concerned; null if it concerns the whole site.")]
    key: Annotated[str, describe("Key of the problem; identical in every analysis of the site.")]
    evidence: dict[str, Any]


class ReportCode(Struct, kw_only=True):
    """All findings of one code."""

    code: str
    analyzer: str
    severity: Severity
    title: Annotated[str, describe("What is wrong.")]
    fix: Annotated[str, describe("How to fix it.")]
    count: Annotated[int, describe("Exact number of findings.")]
    findings: Annotated[list[ReportFinding], describe("The first of them.")]


class ReportAnalyzer(Struct, kw_only=True):
    """How one analyzer ended."""

    analyzer: str
    error: Annotated[str | None, describe("Why it failed; null unless it did.")]
    findings: int
    duration_ms: float
    artifacts: Annotated[list[Artifact], describe("Files that it left, to download by name.")] = []
    skipped: Annotated[str | None, describe("Why it does not apply to the crawl; null if it does.")] = None
    optional: Annotated[bool, describe("Its failure does not fail the analysis.")] = False


class AuditReport(Struct, kw_only=True):
    """The report of one analysis."""

    version: Annotated[int, describe("Version of this format.")]
    generator: Annotated[str, describe("The program that wrote the report.")]
    analysis_id: str
    crawl_id: str
    project: str
    site: Annotated[str, describe("The first seed of the crawl.")]
    state: AnalysisState
    error: Annotated[str | None, describe("Why the analysis failed; null unless it did.")]
    created_at: datetime
    finished_at: datetime | None
    verdict: Annotated[ReportVerdict | None, describe("Verdict of the gate; null without a gate.")]
    metrics: Annotated[dict[str, float], describe("What gates compare, by name.")]
    summary: Annotated[dict[str, Any], describe("Distributions over all pages, such as status by depth.")]
    codes: Annotated[list[ReportCode], describe("The finding codes with a finding, most serious first.")]
    analyzers: list[ReportAnalyzer]
    quarantine: Annotated[
        str | None, describe("What the crawl left in quarantine, and how to crawl it; null if nothing.")
    ] = None


def to_json(report: Report) -> str:
    """Return the report as an indented JSON document."""
    analysis = report.analysis
    verdict = None
    if analysis.verdict is not None:
        rules = [ReportRule(**asdict(rule)) for rule in analysis.verdict.rules]
        verdict = ReportVerdict(outcome=analysis.verdict.outcome, reasons=analysis.verdict.reasons, rules=rules)
    document = AuditReport(
        version=VERSION,
        generator=f"Shoal {__version__}",
        analysis_id=analysis.id,
        crawl_id=analysis.crawl_id,
        project=analysis.project,
        site=encodable(analysis.site),
        state=analysis.state,
        error=encodable(analysis.error),
        created_at=from_micros(analysis.created_at),
        finished_at=None if analysis.finished_at is None else from_micros(analysis.finished_at),
        verdict=verdict,
        metrics=analysis.metrics or {},
        summary=encodable({**(analysis.summary or {}), "not_checked": not_checked_by(analysis)}),
        quarantine=report.quarantine or None,
        codes=[
            ReportCode(
                code=count.code,
                analyzer=count.analyzer,
                severity=count.severity,
                title=count.title,
                fix=count.fix,
                count=count.count,
                findings=[
                    ReportFinding(
                        page=encodable(finding.page), key=finding.identifier, evidence=encodable(finding.evidence)
                    )
                    for finding in report.examples.get(count.code, ())
                ],
            )
            for count in report.codes
        ],
        analyzers=[ReportAnalyzer(**encodable(asdict(outcome))) for outcome in report.outcomes],
    )
    return json.format(json.encode(document), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema of the report."""
    described = json.schema(AuditReport)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Shoal audit report", **described}
