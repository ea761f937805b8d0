"""The state machine of a crawl, as users see it. Retries and worker crashes do not change this state."""

from dataclasses import dataclass
from enum import StrEnum


class CrawlState(StrEnum):
    PENDING = "pending"  # stored, not submitted
    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # at least one worker crawls it, or soon will again
    PAUSING = "pausing"  # pause requested; a walker is still settling
    PAUSED = "paused"  # can be resumed
    STOPPING = "stopping"  # stop requested; a walker is still settling
    STOPPED = "stopped"  # ended by a user, permanently
    COMPLETED = "completed"  # frontier drained, or a budget spent
    FAILED = "failed"  # its job became a dead letter, or no seed returned a page


MOVES: dict[CrawlState, frozenset[CrawlState]] = {
    CrawlState.PENDING: frozenset({CrawlState.QUEUED, CrawlState.STOPPED}),
    CrawlState.QUEUED: frozenset(
        {CrawlState.RUNNING, CrawlState.PAUSED, CrawlState.STOPPING, CrawlState.STOPPED, CrawlState.FAILED}
    ),
    CrawlState.RUNNING: frozenset(
        {
            CrawlState.PAUSING,
            CrawlState.PAUSED,
            CrawlState.STOPPING,
            CrawlState.STOPPED,
            CrawlState.COMPLETED,
            CrawlState.FAILED,
        }
    ),
    CrawlState.PAUSING: frozenset(
        {CrawlState.PAUSED, CrawlState.STOPPING, CrawlState.STOPPED, CrawlState.COMPLETED, CrawlState.FAILED}
    ),
    CrawlState.PAUSED: frozenset({CrawlState.QUEUED, CrawlState.STOPPED}),
    CrawlState.STOPPING: frozenset({CrawlState.STOPPED}),
    CrawlState.STOPPED: frozenset(),
    CrawlState.COMPLETED: frozenset({CrawlState.QUEUED}),  # when URLs are retried
    CrawlState.FAILED: frozenset({CrawlState.QUEUED}),
}
TERMINAL = frozenset({CrawlState.STOPPED, CrawlState.COMPLETED, CrawlState.FAILED})
ENDING = TERMINAL | {CrawlState.STOPPING}
WALKED = frozenset({CrawlState.RUNNING, CrawlState.PAUSING, CrawlState.STOPPING})


@dataclass(frozen=True, slots=True)
class CrawlMove:
    """A state change of a crawl, applied by compare-and-set on the states it is allowed from."""

    to: CrawlState
    reason: str | None = None

    @property
    def sources(self) -> list[str]:
        return sorted(state.value for state, targets in MOVES.items() if self.to in targets)


def queue() -> CrawlMove:
    return CrawlMove(CrawlState.QUEUED)


def run() -> CrawlMove:
    return CrawlMove(CrawlState.RUNNING)


def ask_to_pause(reason: str = "asked") -> CrawlMove:
    return CrawlMove(CrawlState.PAUSING, reason)


def pause(reason: str = "asked") -> CrawlMove:
    return CrawlMove(CrawlState.PAUSED, reason)


def ask_to_stop(reason: str = "asked") -> CrawlMove:
    return CrawlMove(CrawlState.STOPPING, reason)


def stop(reason: str = "asked") -> CrawlMove:
    return CrawlMove(CrawlState.STOPPED, reason)


def complete(reason: str) -> CrawlMove:
    return CrawlMove(CrawlState.COMPLETED, reason)


def fail(reason: str) -> CrawlMove:
    return CrawlMove(CrawlState.FAILED, reason)
