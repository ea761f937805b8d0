"""The event at the end of a page job, with or without a result; and the stored result of a job that ended without
one."""

from collections.abc import Sequence
from typing import Any, Final

from shoal.base.database import Tx
from shoal.events.event import Event
from shoal.events.store import OutboxStore
from shoal.page_jobs.result import Result, Status
from shoal.page_jobs.store import HeldJob, NewResult, ResultStore
from shoal.queue.states import JobState, Move

EVENTS: Final = {Status.SUCCESS: "crawl.job.completed", Status.FAIL: "crawl.job.failed"}


def job_event(job: HeldJob, result: Result, attempt: int | None = None) -> Event:
    """Return the event of an ended job. `attempt`: its number, if it differs from what the job's row says."""
    about: dict[str, Any] = {
        "job_id": job.id,
        "group": job.run_id,
        "policy": job.policy,
        "labels": job.labels,
        "attempt": attempt or job.attempts + 1,
    }
    return Event(EVENTS[result.status], job.id, about | result.event_data())


class DeadLetterEvents:
    """Write results and events for page jobs that ended without one: their workers were lost too often, or raised."""

    def __init__(self, results: ResultStore, outbox: OutboxStore) -> None:
        self._results = results
        self._outbox = outbox

    async def on_dead_letters(self, tx: Tx, moves: Sequence[Move]) -> None:
        """Write the results and events of dead letters in the commit that creates them."""
        why = {move.job_id: move for move in moves}
        now: int = await tx.value("now")
        ends = []
        for job in await self._results.ended(tx, sorted(why)):
            move = why[job.id]
            result = Result(Status.FAIL, job.url, now, error_code=move.reason, error_message=move.error)
            ends.append((job, move, result))
        await self._results.insert(tx, [_row(job, move.to, result) for job, move, result in ends])
        await self._outbox.append(tx, *[job_event(job, result, _attempt(job, move)) for job, move, result in ends])


def _attempt(job: HeldJob, move: Move) -> int:
    """Return which attempt the move ended: the row already counts a failed attempt, but never a lost one."""
    return max(1, job.attempts + (not move.counts_attempt))


def _row(job: HeldJob, state: JobState, result: Result) -> NewResult:
    """Return a result row with a digest that no real result can have: nobody sent it, so nobody can send it again."""
    return NewResult(job.id, job.epoch, job.run_id, job.policy, state, digest="", result=result)
