"""The state machine of a crawl, as users see it. Retries and worker crashes do not change a crawl's state."""

from enum import StrEnum

from msgspec import Struct

from shoal.base.text import message
from shoal.queue.reasons import REASONS as JOB_REASONS


class CrawlState(StrEnum):
    PENDING = "pending"  # stored, but not submitted to the queue
    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # at least one worker crawls it, or will crawl it again soon
    PAUSING = "pausing"  # pause requested; a walker is still committing its last pages
    PAUSED = "paused"  # can be resumed
    STOPPING = "stopping"  # stop requested; a walker is still committing its last pages
    STOPPED = "stopped"  # ended by a user, permanently
    COMPLETED = "completed"  # no URL is left to fetch, or a budget is used up
    FAILED = "failed"  # the crawl's job became a dead letter, or no seed returned a page


DRAINED = "drained"
DRAINED_PARTLY = "drained_partly"  # only URLs in quarantine are left

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
    CrawlState.COMPLETED: frozenset({CrawlState.QUEUED}),  # if URLs are retried
    CrawlState.FAILED: frozenset({CrawlState.QUEUED}),
}
TERMINAL = frozenset({CrawlState.STOPPED, CrawlState.COMPLETED, CrawlState.FAILED})
ENDING = TERMINAL | {CrawlState.STOPPING}
RELEASABLE = frozenset(CrawlState) - {CrawlState.STOPPED, CrawlState.FAILED}  # quarantined patterns may be released
SETTLED = TERMINAL | {CrawlState.PAUSED}  # no pages are added, so it can be analyzed and compared
WALKED = frozenset({CrawlState.RUNNING, CrawlState.PAUSING, CrawlState.STOPPING})
PAUSABLE = frozenset(state for state in MOVES if CrawlState.PAUSED in MOVES[state]) - {CrawlState.PAUSING}
STOPPABLE = frozenset(state for state in MOVES if CrawlState.STOPPED in MOVES[state]) - {CrawlState.STOPPING}

LABELS = {
    CrawlState.PENDING: message("Not started"),
    CrawlState.QUEUED: message("In queue"),
    CrawlState.RUNNING: message("Running"),
    CrawlState.PAUSING: message("Pausing"),
    CrawlState.PAUSED: message("Paused"),
    CrawlState.STOPPING: message("Stopping"),
    CrawlState.STOPPED: message("Stopped"),
    CrawlState.COMPLETED: message("Completed"),
    CrawlState.FAILED: message("Failed"),
}
REASONS = JOB_REASONS | {
    DRAINED_PARTLY: message("URLs in quarantine were left out"),
    "no_seed_gave_a_page": message("no seed returned a page"),
    "process_gone": message("its process is gone; continue with `shoal crawl --resume`"),
    "unattended": message("no worker has it now"),
    "schema_mismatch": message("its store was upgraded while it ran"),
    "cleanup": message("its scan was cleaned up"),
    "loading": message("it is being loaded"),
}
"""Texts for the reasons of a crawl's state, and for the reasons why a walker left."""


def reason_text(reason: str | None) -> str:
    """Return the text for the reason of a crawl's state. An unknown reason is returned as it is stored."""
    return REASONS.get(reason or "", reason or "")


class CrawlMove(Struct, frozen=True):
    """A state change of a crawl. It is applied by compare-and-set, only in the states from which it is allowed."""

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


def drain(*, leaves_urls: bool) -> CrawlMove:
    """Complete a crawl whose frontier is empty. `leaves_urls`: the frontier still has URLs in quarantine."""
    return complete(DRAINED_PARTLY if leaves_urls else DRAINED)


def complete(reason: str) -> CrawlMove:
    return CrawlMove(CrawlState.COMPLETED, reason)


def fail(reason: str) -> CrawlMove:
    return CrawlMove(CrawlState.FAILED, reason)
