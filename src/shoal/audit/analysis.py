"""Analyses: their options, and their stored form."""

from dataclasses import dataclass, field
from typing import Any

from shoal.audit.gate import Gate
from shoal.audit.metrics import Metrics
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Verdict
from shoal.base.forge_commit import ForgeCommit
from shoal.base.ids import AnalysisId

Summary = dict[str, Any]
"""Distributions over all pages, for reports: see `audit.overview`."""

PREVIOUS = "previous"
"""As a baseline: the newest earlier analysis of the same site in the same project."""


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """Options for the findings. `gate_name` is the name under which the gate is stored, if it is.

    `baseline`: the analysis to compare with. `commit`: where to publish the verdict.
    """

    gate: Gate | None = None
    gate_name: str | None = None
    baseline: AnalysisId | None = None
    commit: ForgeCommit | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysis as it is stored. `site` is the first seed of its crawl; `findings` counts those not stored, too."""

    number: int
    id: AnalysisId
    crawl: int
    crawl_id: str
    project: str
    site: str
    state: AnalysisState
    state_reason: str | None
    error: str | None
    findings: int | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    options: AnalysisOptions = field(default_factory=AnalysisOptions)
    metrics: Metrics | None = None  # None before its last analyzer has ended
    summary: Summary | None = None
    verdict: Verdict | None = None  # None without a gate
