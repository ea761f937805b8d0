"""The contents of a report: an analysis, how its analyzers ended, and findings of each code as examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal.audit.analyses import Analyses
from shoal.audit.analysis import Analysis
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity, most_serious_first
from shoal.audit.not_checked import in_words, not_checked_by
from shoal.audit.states import TERMINAL
from shoal.audit.verdict import VERDICTS, Outcome
from shoal.base.errors import StateConflict
from shoal.base.text import plural, visible

LONGEST_VALUE: Final = 300  # characters of a value of the evidence
MOST_PARTS: Final = 3  # items that are shown of a list in the evidence


@dataclass(frozen=True, slots=True)
class Report:
    """An analysis that has ended. `codes`: most serious first. `examples`: the first stored findings of each code.
    `quarantine`: what the crawl left in quarantine, and how to crawl it; empty if nothing."""

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
        """Say what was not checked, and how to crawl what is in quarantine."""
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
    """Return one value of the evidence as text; of a list, its first items and the number of the others."""
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
