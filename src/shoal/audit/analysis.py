"""What an analysis is, and what a finding is."""

from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.audit.states import AnalysisState
from shoal.base.clock import moment
from shoal.base.ids import AnalysisId

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What an analyzer reports: `key` names it within its analyzer, so that it is there once however often that ran."""

    analyzer: str
    key: str
    message: str
    severity: Severity = "info"
    facts: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("analyzer", "key", "severity", "message", "facts")}


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysis as its row says."""

    number: int
    id: AnalysisId
    crawl: int
    crawl_id: str
    project: str
    state: AnalysisState
    state_reason: str | None
    error: str | None
    findings: int | None
    created_at: int
    started_at: int | None
    finished_at: int | None

    def answer(self) -> dict[str, Any]:
        """The analysis as the API and the command line show it."""
        failed = self.state is AnalysisState.FAILED
        return {
            "id": self.id,
            "crawl_id": self.crawl_id,
            "project": self.project,
            "state": self.state.value,
            "state_reason": self.state_reason,
            "error": {"code": self.state_reason, "message": self.error} if failed else None,
            "findings": self.findings,
            "created_at": moment(self.created_at),
            "started_at": moment(self.started_at),
            "finished_at": moment(self.finished_at),
        }
