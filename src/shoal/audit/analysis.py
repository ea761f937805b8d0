"""An analysis: its record, its options, and the status that its commit shows."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from shoal.audit.codes import BY_SEVERITY, Metrics
from shoal.audit.finding import Severity
from shoal.audit.gate import Gate
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import VERDICTS, Outcome, Verdict
from shoal.base.forge_commit import ForgeCommit
from shoal.base.ids import AnalysisId
from shoal.base.text import plural, visible
from shoal.queue.reasons import reason_text

Summary = dict[str, Any]
"""Distributions over all pages, for reports: see `audit.overview`."""

PREVIOUS = "previous"
"""As a baseline: the newest earlier analysis of the same site in the same project."""


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """Options for the findings. `gate_name`: the name of the gate if it is a stored gate, else None.

    `baseline`: the analysis to compare with. `commit`: where to publish the verdict.
    """

    gate: Gate | None = None
    gate_name: str | None = None
    baseline: AnalysisId | None = None
    commit: ForgeCommit | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysis as it is stored. `site` is the first seed of its crawl; `findings` is the number of all findings,
    including those that are not stored."""

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


LONGEST_DESCRIPTION: Final = 140  # GitHub refuses longer ones


class CommitState(StrEnum):
    PENDING = "pending"  # the analysis has started
    SUCCESS = "success"  # the gate passed, or there is no gate
    FAILURE = "failure"  # the gate failed, or the analysis failed after its last attempt
    ERROR = "error"  # the gate is inconclusive


OUTCOMES: Final = {
    Outcome.PASSED: CommitState.SUCCESS,
    Outcome.FAILED: CommitState.FAILURE,
    Outcome.INCONCLUSIVE: CommitState.ERROR,
}


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """A status to publish. `attempts`: how many times in a row publishing failed. `error`: why the last attempt failed.
    `attempt` and `max_attempts` belong to the analysis job and are for the log; None if the job was removed."""

    analysis: int
    analysis_id: str
    commit: ForgeCommit
    state: CommitState
    description: str
    attempts: int = 0
    shown: CommitState | None = None  # what the forge shows
    is_due: bool = True  # False: the status is published, or publishing was given up
    error: str | None = None
    attempt: int | None = None
    max_attempts: int | None = None


def status_of(analysis: Analysis) -> tuple[CommitState, str]:
    """Return the state and the description of an analysis."""
    if analysis.state is AnalysisState.FAILED:
        return CommitState.FAILURE, _bounded(f"Analysis failed: {analysis.error or reason_text(analysis.state_reason)}")
    if analysis.state is not AnalysisState.SUCCESS:
        return CommitState.PENDING, "The site is being analyzed."
    verdict = analysis.verdict
    if verdict is None:
        return CommitState.SUCCESS, _bounded(_counted(analysis))
    state, words = OUTCOMES[verdict.outcome], VERDICTS[verdict.outcome]
    if not verdict.reasons:
        return state, _bounded(f"{words}: {_counted(analysis)}")
    more = f" (and {len(verdict.reasons) - 1} more)" if len(verdict.reasons) > 1 else ""
    return state, _bounded(f"{words}: {verdict.reasons[0]}", more)


def _counted(analysis: Analysis) -> str:
    metrics = analysis.metrics or {}
    severities = {Severity(severity): round(metrics.get(name, 0)) for name, severity in BY_SEVERITY.items()}
    found = ", ".join(plural(number, severity) for severity, number in severities.items())
    return f"{found} on {plural(round(metrics.get('pages', 0)), 'page')}"


def _bounded(text: str, tail: str = "") -> str:
    text = visible(text)
    room = LONGEST_DESCRIPTION - len(tail)
    return (text if len(text) <= room else f"{text[: room - 1]}…") + tail
