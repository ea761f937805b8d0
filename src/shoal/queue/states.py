"""The state machine of jobs: its states, its moves, and a named constructor for each move.

`attempts` counts failures, `crash_count` counts lost workers, and `lease_epoch` counts grants; the three are never
mixed.
"""

from datetime import timedelta
from enum import StrEnum

from msgspec import Struct

from shoal.base.ids import JobId
from shoal.base.text import message


class JobState(StrEnum):
    PENDING = "pending"  # waits in a lane, holds no lease
    LOCKED = "locked"  # leased, until `lease_until`
    DONE = "done"  # finished, its result accepted
    FAILED = "failed"  # the last attempt failed
    EXPIRED = "expired"  # its workers were lost too often: a dead letter
    CANCELLED = "cancelled"  # cancelled by a user, or its run was stopped


MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.LOCKED, JobState.CANCELLED}),
    JobState.LOCKED: frozenset(
        {JobState.DONE, JobState.PENDING, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED}
    ),
    JobState.DONE: frozenset(),
    JobState.FAILED: frozenset({JobState.PENDING}),
    JobState.EXPIRED: frozenset({JobState.PENDING}),
    JobState.CANCELLED: frozenset(),
}
TERMINAL = frozenset({JobState.DONE, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED})
LABELS = {
    JobState.PENDING: message("Waiting"),
    JobState.LOCKED: message("In progress"),
    JobState.DONE: message("Done"),
    JobState.FAILED: message("Failed"),
    JobState.EXPIRED: message("Expired"),
    JobState.CANCELLED: message("Cancelled"),
}


PRIORITY_DROP = 10  # points of priority that a retried job loses


class GrantEnd(StrEnum):
    """The end of a grant, as shown in each row of a job's history."""

    DONE = "done"
    RETRIED = "retried"
    FAILED = "failed"
    EXPIRED = "expired"  # the lease expired
    CRASHED = "crashed"  # the worker saw its child die
    RELEASED = "released"  # returned without penalty
    CANCELLED = "cancelled"


GRANT_LABELS = {
    GrantEnd.DONE: message("Done"),
    GrantEnd.RETRIED: message("Will be retried"),
    GrantEnd.FAILED: message("Failed"),
    GrantEnd.EXPIRED: message("Lease expired"),
    GrantEnd.CRASHED: message("Worker crashed"),
    GrantEnd.RELEASED: message("Handed back"),
    GrantEnd.CANCELLED: message("Cancelled"),
}


class Move(Struct):
    """One change of a locked job: its next state, the reason, and the penalty. Applied by compare-and-set on the
    epoch."""

    job_id: JobId
    epoch: int
    to: JobState
    grant_end: GrantEnd
    reason: str | None = None
    error: str | None = None
    wait: timedelta = timedelta(0)
    counts_attempt: bool = False
    counts_crash: bool = False
    priority_drop: int = 0
    to_the_back: bool = False  # the job waits behind other jobs of its priority
    unseen: bool = False  # granted in this same commit and reported to no worker: treated as never granted


def finish(job_id: JobId, epoch: int, reason: str | None = None) -> Move:
    return Move(job_id, epoch, JobState.DONE, GrantEnd.DONE, reason)


def retry(job_id: JobId, epoch: int, error: str, wait: timedelta) -> Move:
    return Move(
        job_id,
        epoch,
        JobState.PENDING,
        GrantEnd.RETRIED,
        "retry",
        error,
        wait,
        counts_attempt=True,
        priority_drop=PRIORITY_DROP,
    )


def fail(job_id: JobId, epoch: int, error: str) -> Move:
    return Move(job_id, epoch, JobState.FAILED, GrantEnd.FAILED, "attempts_exhausted", error, counts_attempt=True)


def give_up(job_id: JobId, epoch: int, reason: str, error: str) -> Move:
    """Fail the job even if attempts are left, because a further attempt would end in the same way."""
    return Move(job_id, epoch, JobState.FAILED, GrantEnd.FAILED, reason, error, counts_attempt=True)


def release(job_id: JobId, epoch: int, reason: str) -> Move:
    return Move(job_id, epoch, JobState.PENDING, GrantEnd.RELEASED, reason)


def put_off(job_id: JobId, epoch: int, wait: timedelta, reason: str) -> Move:
    """Return the job without penalty, and do not lease it again before the wait is over."""
    return Move(job_id, epoch, JobState.PENDING, GrantEnd.RELEASED, reason, wait=wait)


def take_back(job_id: JobId, epoch: int, reason: str) -> Move:
    """Undo a grant of this same commit: it leaves no history row, and its epoch is reused."""
    return Move(job_id, epoch, JobState.PENDING, GrantEnd.RELEASED, reason, unseen=True)


def step_back(job_id: JobId, epoch: int) -> Move:
    """Return the job without penalty to the end of its lane, because its time slice is over and others wait."""
    return Move(job_id, epoch, JobState.PENDING, GrantEnd.RELEASED, "slice", to_the_back=True)


WORKER_LOST = "worker_lost"
STALLED = "stalled"  # the process settled nothing for too long although work was due, and was killed
POISON = "poison"


def give_back(
    job_id: JobId, epoch: int, end: GrantEnd, error: str, reason: str = WORKER_LOST, *, counts_crash: bool = True
) -> Move:
    """Return the job of a lost worker; it may be leased again immediately. No crash is counted if the worker had no
    work of the job in flight."""
    return Move(job_id, epoch, JobState.PENDING, end, reason, error, counts_crash=counts_crash)


def bot_lost(job_id: JobId, epoch: int, error: str, wait: timedelta) -> Move:
    """Return the job of a bot that missed its heartbeats: it may be leased again after a pause, with a lower
    priority."""
    end = GrantEnd.EXPIRED
    return Move(
        job_id, epoch, JobState.PENDING, end, WORKER_LOST, error, wait, counts_crash=True, priority_drop=PRIORITY_DROP
    )


def bury(job_id: JobId, epoch: int, end: GrantEnd, error: str, reason: str = WORKER_LOST) -> Move:
    """Make a job that lost too many workers a dead letter."""
    why = STALLED if reason == STALLED else POISON
    return Move(job_id, epoch, JobState.EXPIRED, end, why, error, counts_crash=True)


def cancel(job_id: JobId, epoch: int, reason: str) -> Move:
    return Move(job_id, epoch, JobState.CANCELLED, GrantEnd.CANCELLED, reason)
