"""Analyses and findings."""

from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.audit.states import AnalysisState
from shoal.base.ids import AnalysisId

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of an analyzer. `key` identifies it within its analyzer, so that repeated runs store it once."""

    analyzer: str
    key: str
    message: str
    severity: Severity = "info"
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysis as it is stored."""

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
