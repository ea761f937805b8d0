"""What is told of the end of a page job: one event, whether it brought a result or not."""

from collections.abc import Sequence
from typing import Any, Final

from shoal.base.database import Tx
from shoal.events.event import Event
from shoal.events.store import OutboxStore
from shoal.pages.jobs_store import HeldJob, ResultStore
from shoal.pages.result import Result, Status
from shoal.queue.states import Move

EVENTS: Final = {Status.SUCCESS: "crawl.job.completed", Status.FAIL: "crawl.job.failed"}


def job_event(job: HeldJob, result: Result) -> Event:
    about: dict[str, Any] = {
        "job_id": job.id,
        "group": job.run_id,
        "policy": job.policy,
        "labels": job.labels,
        "attempt": job.attempts + 1,
    }
    return Event(EVENTS[result.status], job.id, about | result.told())


class LastWords:
    """Tells of page jobs that have no result, but an end: their workers were lost too often, or raised."""

    def __init__(self, results: ResultStore, outbox: OutboxStore) -> None:
        self._results = results
        self._outbox = outbox

    async def buried(self, tx: Tx, moves: Sequence[Move]) -> None:
        """Write the events of dead letters in the commit that makes them such."""
        why = {move.job_id: move for move in moves}
        now: int = await tx.value("now")
        jobs = await self._results.ended(tx, sorted(why))
        await self._outbox.append(tx, *[job_event(job, _lost(job, why[job.id], now)) for job in jobs])


def _lost(job: HeldJob, move: Move, now: int) -> Result:
    return Result(Status.FAIL, job.url, now, error_code=move.reason, error_message=move.error)
