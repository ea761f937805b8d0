"""The state machine of analyses: its states and a named constructor for each move. A retry does not change the state:
only the start of the first attempt and the end of the last one are visible."""

from dataclasses import dataclass
from enum import StrEnum

from shoal.base.text import message


class AnalysisState(StrEnum):
    PENDING = "pending"  # no attempt has started
    RUNNING = "running"  # the first attempt has started; this attempt or a later one is running or waiting
    SUCCESS = "success"  # every analyzer has run, is optional or does not apply; the findings are stored
    FAILED = "failed"  # the last attempt failed


MOVES: dict[AnalysisState, frozenset[AnalysisState]] = {
    AnalysisState.PENDING: frozenset({AnalysisState.RUNNING, AnalysisState.FAILED}),
    AnalysisState.RUNNING: frozenset({AnalysisState.SUCCESS, AnalysisState.FAILED}),
    AnalysisState.SUCCESS: frozenset(),
    AnalysisState.FAILED: frozenset(),
}
TERMINAL = frozenset({AnalysisState.SUCCESS, AnalysisState.FAILED})
LABELS = {
    AnalysisState.PENDING: message("Waiting"),
    AnalysisState.RUNNING: message("Running"),
    AnalysisState.SUCCESS: message("Completed"),
    AnalysisState.FAILED: message("Failed"),
}


@dataclass(frozen=True, slots=True)
class AnalysisMove:
    """A state change: the new state and the reason."""

    to: AnalysisState
    reason: str | None = None
    error: str | None = None


def run() -> AnalysisMove:
    return AnalysisMove(AnalysisState.RUNNING)


def succeed() -> AnalysisMove:
    return AnalysisMove(AnalysisState.SUCCESS)


def fail(reason: str | None, error: str | None) -> AnalysisMove:
    return AnalysisMove(AnalysisState.FAILED, reason, error)
