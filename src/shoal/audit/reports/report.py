"""The report of an analysis, and its form as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Struct, json

from shoal import __version__
from shoal.audit.analyses import Analyses
from shoal.audit.analysis import Analysis
from shoal.audit.artifacts import Artifact
from shoal.audit.codes import in_words, not_checked_by
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity, most_serious_first
from shoal.audit.states import TERMINAL, AnalysisState
from shoal.audit.verdict import VERDICTS, Outcome
from shoal.base.clock import from_micros
from shoal.base.errors import StateConflict
from shoal.base.request_form import describe
from shoal.base.text import encodable, plural, visible

LONGEST_VALUE: Final = 300  # characters of a value of the evidence
MOST_PARTS: Final = 3  # items of a list in the evidence that are shown


@dataclass(frozen=True, slots=True)
class Report:
    """An analysis that has ended. `codes`: most serious first. `examples`: the first stored findings of each code.
    `quarantine`: a sentence about the URLs that the crawl left in quarantine and how to crawl them; empty if there are
    none."""

    analysis: Analysis
    codes: Sequence[FindingCount]
    outcomes: Sequence[AnalyzerOutcome]
    examples: Mapping[str, Sequence[Finding]]
    quarantine: str = ""

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the gate; None without one."""
        return None if self.analysis.verdict is None else self.analysis.verdict.outcome

    @property
    def failed_analyzers(self) -> list[AnalyzerOutcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def not_checked(self) -> str:
        """List what the analysis did not check."""
        return in_words(not_checked_by(self.analysis))

    @property
    def not_checked_text(self) -> str:
        """Return a text about what was not checked, and how to crawl the URLs in quarantine."""
        return f"Not checked: {self.not_checked}. {self.quarantine}".rstrip()

    @property
    def skipped_analyzers(self) -> list[AnalyzerOutcome]:
        return [outcome for outcome in self.outcomes if outcome.skipped is not None]

    @property
    def pages(self) -> int:
        return round((self.analysis.metrics or {}).get("pages", 0))

    def by_severity(self) -> dict[Severity, int]:
        """Return the number of findings of each severity, the most serious first."""
        return {
            severity: sum(count.count for count in self.codes if count.severity is severity) for severity in Severity
        }


async def load_report(analyses: Analyses, analysis_id: str, most_per_code: int) -> Report:
    """Read an analysis that has ended, with up to `most_per_code` findings of each code."""
    analysis = await analyses.get(analysis_id)
    if analysis.state not in TERMINAL:
        raise StateConflict("analysis", analysis_id, analysis.state, "be reported", "wait until it has ended")
    codes = most_serious_first(await analyses.counts(analysis_id))
    examples = {}
    for count in codes:
        found = await analyses.findings(analysis_id, limit=most_per_code, code=count.code)
        examples[count.code] = [finding for _, finding in found]
    outcomes, quarantine = await analyses.outcomes(analysis_id), await analyses.left_in_quarantine(analysis)
    return Report(analysis, codes, outcomes, examples, quarantine)


def evidence_in_words(evidence: Mapping[str, Any]) -> str:
    """Return evidence as one line of text: `status: 404; links: 3; linked from: https://example.com/`."""
    return "; ".join(f"{name.replace('_', ' ')}: {value_in_words(value)}" for name, value in evidence.items())


def value_in_words(value: Any) -> str:
    """Return one value of the evidence as text; a list is shown as its first items and the number of further items."""
    if isinstance(value, Mapping):
        return " ".join(value_in_words(part) for part in value.values())
    if isinstance(value, list):
        more = f" and {len(value) - MOST_PARTS} more" if len(value) > MOST_PARTS else ""
        return ", ".join(value_in_words(part) for part in value[:MOST_PARTS]) + more
    text = visible(str(value))
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"


def counted(report: Report) -> str:
    """Return the number of findings of each severity: `1 error, 4 warnings, 0 notices on 12 pages`."""
    found = [plural(number, severity) for severity, number in report.by_severity().items()]
    silent = round((report.analysis.metrics or {}).get("failed_pages", 0))
    more = f" ({silent:,} more gave no response)" if silent else ""
    return f"{', '.join(found)} on {plural(report.pages, 'page')}{more}"


def in_short(report: Report) -> str:
    """Return the result in a few words, without a full stop: the verdict, and the number of findings of each
    severity."""
    if report.analysis.error is not None:
        return f"Analysis failed: {visible(report.analysis.error).rstrip('.')}"
    return counted(report) if report.outcome is None else f"{VERDICTS[report.outcome]}: {counted(report)}"


VERSION: Final = 1
"""Increased when a field changes its meaning or is removed, but not when a field is added."""


class ReportRule(Struct, kw_only=True):
    """A rule of the gate and its measured value."""

    condition: Annotated[str, describe("The rule, such as `broken_links <= 0`.")]
    metric: str
    severity: Annotated[str, describe("`error`, or `warning` if the gate passes although this rule is violated.")]
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

    page: Annotated[str | None, describe("URL of the page concerned; null for a finding about the whole site.")]
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
    findings: Annotated[list[ReportFinding], describe("The first findings of this code.")]


class ReportAnalyzer(Struct, kw_only=True):
    """How one analyzer ended."""

    analyzer: str
    error: Annotated[str | None, describe("Why the analyzer failed; null if it did not fail.")]
    findings: int
    duration_ms: float
    artifacts: Annotated[list[Artifact], describe("Files that the analyzer left, for download by name.")] = []
    skipped: Annotated[str | None, describe("Why the analyzer was skipped; null if it was not skipped.")] = None
    optional: Annotated[bool, describe("True if a failure of this analyzer does not fail the analysis.")] = False


class AuditReport(Struct, kw_only=True):
    """The report of one analysis."""

    version: Annotated[int, describe("Version of this format.")]
    generator: Annotated[str, describe("The program that wrote the report.")]
    analysis_id: str
    crawl_id: str
    project: str
    site: Annotated[str, describe("The first seed of the crawl.")]
    state: AnalysisState
    error: Annotated[str | None, describe("Why the analysis failed; null if it did not fail.")]
    created_at: datetime
    finished_at: datetime | None
    verdict: Annotated[ReportVerdict | None, describe("Verdict of the gate; null without a gate.")]
    metrics: Annotated[dict[str, float], describe("The metrics that gates compare, by name.")]
    summary: Annotated[dict[str, Any], describe("Distributions over all pages, such as status by depth.")]
    codes: Annotated[list[ReportCode], describe("The codes that have at least one finding, most serious first.")]
    analyzers: list[ReportAnalyzer]
    quarantine: Annotated[
        str | None, describe("How many URLs the crawl left in quarantine, and how to crawl them; null if none.")
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
