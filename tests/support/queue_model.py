"""An in-memory model of the queue: the job state machine without a store and without concurrency.

A test applies the same operations to the model and to a real queue, and compares all rows. Times are microseconds of a
clock that stands still between two steps, so that everything can be compared exactly.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

SECOND = 1_000_000
LIVE = ("pending", "locked")
DEAD_LETTERS = ("failed", "expired")


@dataclass
class Grant:
    """A row of a job's history."""

    epoch: int
    holder: str
    granted_at: int
    settled: bool = False
    ended: str | None = None
    ended_at: int | None = None


@dataclass
class ModelJob:
    """A job, with everything that decides about it."""

    id: str
    kind: str
    lane: str
    priority: int
    max_attempts: int
    key: str | None
    run_id: str | None
    created_at: int
    line_at: int
    not_before: int
    capability: str = "http"
    due: bool = True  # in the queue; a delayed job is added by the first lease or sweep after it is due
    state: str = "pending"
    reason: str | None = None
    attempts: int = 0
    crashes: int = 0
    epoch: int = 0
    holder: str | None = None
    lease_until: int | None = None
    finished_at: int | None = None
    history: list[Grant] = field(default_factory=list)
    retried_after: int = 0  # the number of history rows before a user last retried the dead letter

    @property
    def live(self) -> bool:
        return self.state in LIVE

    def holds(self, epoch: int) -> bool:
        return self.state == "locked" and self.epoch == epoch


@dataclass(frozen=True)
class Rules:
    """The figures that the queue was set up with."""

    lease: int = 10 * SECOND
    poison_limit: int = 3
    retry_drop: int = 10
    ageing: int = 60 * SECOND  # the waiting time that is worth a point of priority
    backoff: Callable[[int], int] = lambda attempts: 5 * SECOND * 2 ** (attempts - 1)


class QueueModel:
    """The jobs of one queue. An operation with an expired grant returns False and changes nothing."""

    def __init__(self, rules: Rules, now: int) -> None:
        self.rules = rules
        self.now = now
        self.jobs: dict[str, ModelJob] = {}

    def rank(self, job: ModelJob) -> int:
        return job.line_at - job.priority * self.rules.ageing

    def enqueue(self, jobs: list[ModelJob]) -> list[tuple[str, bool]]:
        """Return, for each job, the id of the live job with its dedupe key, and whether it existed before."""
        answers = []
        for place, job in enumerate(jobs):
            live = [other.id for other in self.jobs.values() if other.live and other.key == job.key]
            if job.key is None or not live:
                job.line_at += place  # a batch keeps its order in the queue
                job.due = job.not_before <= self.now
                self.jobs[job.id] = job
                answers.append((job.id, False))
            else:
                answers.append((live[0], True))
        return answers

    def lease(
        self, holder: str, kinds: Collection[str], lanes: list[str], limit: int, capabilities: Collection[str]
    ) -> list[ModelJob]:
        """Lane after lane; in a lane that kind and capability whose first job ranks best, then the next."""
        got = self._take(holder, kinds, lanes, limit, capabilities)
        if self._ripen():
            got += self._take(holder, kinds, lanes, limit - len(got), capabilities)
        return sorted(got, key=lambda job: (lanes.index(job.lane), self.rank(job), job.id))

    def lease_one(self, job_id: str, holder: str) -> ModelJob | None:
        job = self.jobs[job_id]
        if job.state != "pending":
            return None
        self._grant(job, holder)
        return job

    def extend(self, job_id: str, epoch: int) -> bool:
        job = self.jobs[job_id]
        if not job.holds(epoch):
            return False
        job.lease_until = self.now + self.rules.lease
        return True

    def settle_something(self, job_id: str, epoch: int) -> bool:
        job = self.jobs[job_id]
        if not job.holds(epoch):
            return False
        job.history[-1].settled = True
        return True

    def end(self, job_id: str, epoch: int, how: str, reason: str | None) -> bool:
        """Fail the job for good, whatever attempts are left."""
        if how == "failed" and self.jobs[job_id].holds(epoch):
            self.jobs[job_id].attempts += 1
        return self._end(job_id, epoch, how, how, reason)

    def finish(self, job_id: str, epoch: int, reason: str | None) -> bool:
        return self._end(job_id, epoch, "done", "done", reason)

    def fail(self, job_id: str, epoch: int) -> bool:
        job = self.jobs[job_id]
        if not job.holds(epoch):
            return False
        job.attempts += 1
        if job.attempts >= job.max_attempts:
            return self._end(job_id, epoch, "failed", "failed", "attempts_exhausted")
        job.priority = max(0, job.priority - self.rules.retry_drop)
        return self._return(job_id, epoch, "retried", "retry", self.rules.backoff(job.attempts))

    def release(self, job_id: str, epoch: int, reason: str) -> bool:
        return self._return(job_id, epoch, "released", reason)

    def step_back(self, job_id: str, epoch: int) -> bool:
        if self.jobs[job_id].holds(epoch):
            self.jobs[job_id].line_at = self.now
        return self._return(job_id, epoch, "released", "slice")

    def lose(self, job_id: str, epoch: int, reason: str, how: str = "crashed") -> bool:
        job = self.jobs[job_id]
        if not job.holds(epoch):
            return False
        crashes = 1 if job.history[-1].settled else job.crashes + 1
        if crashes > self.rules.poison_limit:
            self._end(job_id, epoch, "expired", how, reason if reason == "stalled" else "poison")
        else:
            self._return(job_id, epoch, how, reason)
        job.crashes = crashes
        return True

    def cancel(self, job_id: str, epoch: int, reason: str) -> bool:
        return self._end(job_id, epoch, "cancelled", "cancelled", reason)

    def cancel_waiting(self, run_id: str, reason: str) -> int:
        waiting = [job for job in self.jobs.values() if job.run_id == run_id and job.state == "pending"]
        for job in waiting:
            job.state, job.reason, job.finished_at = "cancelled", reason, self.now
        return len(waiting)

    def cancel_any(self, job_id: str, reason: str) -> bool:
        """Cancel a job, whether or not it is leased; False if it has ended."""
        job = self.jobs[job_id]
        if job.state == "pending":
            job.state, job.reason, job.finished_at = "cancelled", reason, self.now
            return True
        return self.cancel(job_id, job.epoch, reason)

    def retry_dead(self, job_id: str) -> bool:
        """Queue a dead letter again as if it were new, unless a live job has its key."""
        job = self.jobs[job_id]
        taken = any(other.live and other.key == job.key for other in self.jobs.values()) and job.key is not None
        if job.state not in DEAD_LETTERS or taken:
            return False
        job.state, job.reason, job.attempts, job.crashes, job.finished_at = "pending", "retried", 0, 0, None
        job.line_at, job.not_before, job.due, job.retried_after = self.now, self.now, True, len(job.history)
        return True

    def sweep(self) -> int:
        """Return every job with an expired lease to the queue; return how many. Add jobs that have become due to the
        queue."""
        self._ripen()
        lost = [job for job in self.jobs.values() if job.lease_until is not None and job.lease_until < self.now]
        for job in lost:
            self.lose(job.id, job.epoch, "worker_lost", "expired")
        return len(lost)

    def violations(self) -> Iterator[str]:
        """Return the invariants that the model itself violates, so that a wrong model does not hide an error."""
        keys = [job.key for job in self.jobs.values() if job.live and job.key is not None]
        if len(keys) != len(set(keys)):
            yield f"a key is live twice: {keys}"
        for job in self.jobs.values():
            if job.attempts != sum(grant.ended in ("retried", "failed") for grant in job.history[job.retried_after :]):
                yield f"{job.id} has {job.attempts} attempts"
            if [grant.epoch for grant in job.history if grant.ended == "done"] not in ([], [job.epoch]):
                yield f"{job.id} was finished twice"

    def _ripen(self) -> bool:
        """Return whether there were due jobs that were not in the queue yet."""
        ripe = [job for job in self.jobs.values() if job.state == "pending" and job.not_before <= self.now]
        new = [job for job in ripe if not job.due]
        for job in new:
            job.due = True
        return bool(new)

    def _take(
        self, holder: str, kinds: Collection[str], lanes: list[str], limit: int, capabilities: Collection[str]
    ) -> list[ModelJob]:
        lines = [
            (place, self._line(lane, kind, capability))
            for place, lane in enumerate(lanes)
            for kind in kinds
            for capability in capabilities
        ]
        heads = sorted(
            [(place, line) for place, line in lines if line], key=lambda found: (found[0], self.rank(found[1][0]))
        )
        got = [job for _, line in heads for job in line][:limit]
        for job in got:
            self._grant(job, holder)
        return got

    def _line(self, lane: str, kind: str, capability: str) -> list[ModelJob]:
        waiting = [job for job in self.jobs.values() if job.state == "pending" and job.due]
        here = [job for job in waiting if (job.lane, job.kind, job.capability) == (lane, kind, capability)]
        return sorted(here, key=lambda job: (self.rank(job), job.id))

    def _grant(self, job: ModelJob, holder: str) -> None:
        job.state, job.reason, job.holder, job.due = "locked", None, holder, True
        job.epoch += 1
        job.lease_until = self.now + self.rules.lease
        job.history.append(Grant(job.epoch, holder, self.now))

    def _end(self, job_id: str, epoch: int, state: str, how: str, reason: str | None) -> bool:
        job = self.jobs[job_id]
        if not job.holds(epoch):
            return False
        self._close(job, how)
        job.state, job.reason, job.finished_at = state, reason, self.now
        return True

    def _return(self, job_id: str, epoch: int, how: str, reason: str, wait: int = 0) -> bool:
        job = self.jobs[job_id]
        if not job.holds(epoch):
            return False
        self._close(job, how)
        job.state, job.reason, job.not_before, job.due = "pending", reason, self.now + wait, wait == 0
        return True

    def _close(self, job: ModelJob, how: str) -> None:
        grant = job.history[-1]
        grant.ended, grant.ended_at = how, self.now
        job.holder = job.lease_until = None
        if grant.settled:
            job.crashes = 0
