"""The status that a commit should show for an analysis. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.audit.analysis import Analysis
from shoal.audit.finding import Severity
from shoal.audit.metrics import BY_SEVERITY
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import VERDICTS, Outcome
from shoal.base.forge_commit import ForgeCommit
from shoal.base.text import plural, visible
from shoal.queue.reasons import reason_text

LONGEST_DESCRIPTION: Final = 140  # GitHub refuses longer ones


class CommitState(StrEnum):
    PENDING = "pending"  # the analysis has started
    SUCCESS = "success"  # the gate passed, or there is none
    FAILURE = "failure"  # the gate failed, or the analysis failed after its last attempt
    ERROR = "error"  # the gate is inconclusive


OUTCOMES: Final = {
    Outcome.PASSED: CommitState.SUCCESS,
    Outcome.FAILED: CommitState.FAILURE,
    Outcome.INCONCLUSIVE: CommitState.ERROR,
}


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """A status to publish. `attempts`: how often in a row it could not be published. `error`: why the last attempt
    failed. `attempt` and `max_attempts`: those of the analysis, for the log; None if its job was removed."""

    analysis: int
    analysis_id: str
    commit: ForgeCommit
    state: CommitState
    description: str
    attempts: int = 0
    shown: CommitState | None = None  # what the forge shows
    is_due: bool = True  # False: it is published, or was given up
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
