"""Findings: what analyzers report. A finding has a stable code; the code says how serious it is and how to fix it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from shoal.audit.artifacts import Artifact
from shoal.base.text import message


class Severity(StrEnum):
    """How serious a finding is, from most to least."""

    ERROR = "error"  # visitors or search engines meet something broken
    WARNING = "warning"  # the page works, but the problem harms the site
    NOTICE = "notice"  # worth knowing; often intended


LABELS = {
    Severity.ERROR: message("Error"),
    Severity.WARNING: message("Warning"),
    Severity.NOTICE: message("Notice"),
}
NO_DETAILS: Final = message("The crawl stored no page details; crawl again with the option analyze.")
"""Why most analyzers are skipped."""


RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}
"""The order in which findings are shown: the most serious first."""


@dataclass(frozen=True, slots=True)
class FindingCode:
    """A kind of finding. `code` is public and permanent; `title` and `fix` are one sentence each.

    `timing`: true if the findings depend on how fast the server was; such findings are measured again before they fail
    a gate.
    """

    code: str
    severity: Severity
    title: str
    fix: str
    timing: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding as it is stored: its code, the page concerned (None: the whole site) and the evidence.

    `key` is the same for the same problem in every analysis of the site, so that two analyses can be compared.
    """

    analyzer: str
    code: str
    severity: Severity
    page: str | None
    key: int
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def identifier(self) -> str:
        """The key as 16 hexadecimal digits."""
        return f"{self.key & (1 << 64) - 1:016x}"


@dataclass(frozen=True, slots=True)
class FindingCount:
    """All findings of one code in one analysis. `count` is exact, though only `stored` of them are kept as rows."""

    analyzer: str
    code: str
    severity: Severity
    title: str
    fix: str
    count: int
    stored: int


@dataclass(frozen=True, slots=True)
class AnalyzerOutcome:
    """How one analyzer of an analysis ended. `error`: why it failed, else None. `skipped`: why it does not apply to the
    crawl, else None. `optional`: its failure does not fail the analysis."""

    analyzer: str
    error: str | None
    findings: int
    duration_ms: float
    artifacts: tuple[Artifact, ...] = ()
    skipped: str | None = None
    optional: bool = False

    @property
    def fails_analysis(self) -> bool:
        return self.error is not None and not self.optional

    @property
    def missing(self) -> str | None:
        """Why the findings are missing, as the end of a sentence that begins with the analyzer's name; None if they are
        not missing."""
        if self.error is not None:
            return f"failed ({self.error})"
        return None if self.skipped is None else f"was skipped ({self.skipped})"


def most_serious_first(counts: list[FindingCount]) -> list[FindingCount]:
    """Return counts in the order in which people want to read them: by severity, then by number of findings."""
    return sorted(counts, key=lambda count: (RANKS[count.severity], -count.count, count.code))
