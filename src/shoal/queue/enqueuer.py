"""Store new jobs, or hold them back. Separate from the queue, so that the commit that ends a run can create follow-up
jobs."""

from collections.abc import Callable, Sequence

from shoal.base.database import Tx
from shoal.base.errors import InvalidInput
from shoal.base.ids import JobId
from shoal.base.signals import Signal, Signals
from shoal.queue.job import Enqueued, Job, NewJob
from shoal.queue.lanes import LaneChoice, Lanes, lanes_as_given
from shoal.queue.store import JobStore

LONGEST_NAME = 1000  # characters of a dedupe key or a quota key


class JobEnqueued(Signal, frozen=True, kw_only=True):
    """Jobs became available in one commit, all of the same kind, run and lane: new jobs, or dead letters that are
    retried."""

    job_ids: tuple[str, ...]
    kind: str
    run_id: str | None
    lane: str
    is_new: bool = True


class Enqueuer:
    """Stores jobs in the lanes that the lane chooser gives them."""

    def __init__(
        self, jobs: JobStore, lanes: Lanes, signals: Signals, choose_lanes: LaneChoice = lanes_as_given
    ) -> None:
        self.jobs = jobs
        self.lanes = lanes
        self.signals = signals
        self._choose_lanes = choose_lanes

    async def enqueue_in(self, tx: Tx, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store jobs, all or none; return the outcome of each, in their order."""
        for place, job in enumerate(jobs):
            _check(job, place)
        jobs = self._choose_lanes(jobs)
        enqueued = await self.jobs.insert(tx, jobs)
        if new := [job for job, at in zip(jobs, enqueued, strict=True) if not at.duplicate]:
            await self.lanes.push(tx, new)
            tx.on_commit(lambda: self.emit_enqueued(new))
        return enqueued

    def emit_enqueued(self, jobs: Sequence[NewJob | Job], *, is_new: bool = True) -> None:
        """Signal that these jobs can be leased: one signal for all jobs of the same kind, run and lane."""
        groups: dict[tuple[str, str | None, str], list[JobId]] = {}
        for job in jobs:
            groups.setdefault((job.kind, job.run_id, job.lane), []).append(job.id)
        for (kind, run_id, lane), ids in groups.items():
            self.signals.emit(JobEnqueued(job_ids=tuple(ids), kind=kind, run_id=run_id, lane=lane, is_new=is_new))


def _check(job: NewJob, place: int) -> None:
    """Reject a value that the store would reject with an unclear error, and name its field."""
    if not 0 <= job.priority <= 100:
        raise InvalidInput(f"jobs[{place}].priority", f"cannot be {job.priority}", "give a whole number from 0 to 100")
    if job.max_attempts < 1:
        raise InvalidInput(f"jobs[{place}].max_attempts", f"cannot be {job.max_attempts}", "give 1 or more")
    if len(job.dedupe_key or "") > LONGEST_NAME or any(not 0 < len(key) <= LONGEST_NAME for key in job.quota_keys):
        problem = "has a dedupe key or a quota key that is empty or too long"
        raise InvalidInput(f"jobs[{place}]", problem, f"use 1 to {LONGEST_NAME} characters")


BackPressure = Callable[[str], str | None]
"""Return, in words, why no more jobs of this kind should be created now; None: create them. Does no I/O."""


class JobsHeldBack(Signal, frozen=True, kw_only=True):
    """Back-pressure kept jobs from being created: a scheduler postponed due work (then `jobs` is 0, because the jobs
    were not counted), or a batch of jobs was refused."""

    source: str
    kind: str
    jobs: int
    why: str


def no_back_pressure(kind: str) -> None:
    """Never hold jobs back."""
