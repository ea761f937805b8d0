"""The scheduler of pages: makes the job of every policy whose time has come, if none of its jobs lives.

Often, and by index. Each batch is one commit: the policy's next time and its job change together, so a crash between
two of them leaves nothing half done, and a second scheduler finds nothing left to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import orjson

from shoal.base.database import Database, Tx
from shoal.base.ids import JobId, new_id
from shoal.base.service import Pass
from shoal.base.signals import Signal, Signals
from shoal.pages.work import KIND
from shoal.plan.policy import Policy
from shoal.plan.priority import RULES, Facts, Priority, Rule, rate
from shoal.plan.store import PolicyStore, Step
from shoal.queue.job import Enqueued, NewJob
from shoal.queue.jobs import Jobs
from shoal.queue.queue import Queue

BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsScheduled(Signal):
    """What one batch of due policies came to."""

    made: int
    skipped: int  # their last run still lives
    late_seconds: float  # of the one that waited longest


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a commit did, to be told when it is through."""

    jobs: list[NewJob]
    enqueued: list[Enqueued]
    looked: int
    late: float


class Scheduler:
    """Several may run at once. `pressure` says how many more jobs may wait."""

    name = "scheduler"

    def __init__(
        self,
        database: Database,
        store: PolicyStore,
        queue: Queue,
        jobs: Jobs,
        signals: Signals,
        backlog: int,
        rules: tuple[Rule, ...] = RULES,
    ) -> None:
        self._database = database
        self._store = store
        self._queue = queue
        self._jobs = jobs
        self._signals = signals
        self._backlog = backlog
        self._rules = rules

    async def run_once(self) -> Pass:
        room = self._backlog - await self._database.read(lambda tx: self._store.waiting(tx, self._backlog))
        if room <= 0:
            return Pass()  # what is due stays due: the longest waiting goes first when there is room
        batch = await self._database.run(lambda tx: self._make(tx, min(room, BATCH)))
        self._queue.announce(batch.jobs, batch.enqueued)
        made = sum(not one.duplicate for one in batch.enqueued)
        if batch.looked:
            self._signals.emit(JobsScheduled(made=made, skipped=batch.looked - made, late_seconds=batch.late))
        return Pass(again_in=timedelta(0) if batch.looked >= min(room, BATCH) else None)

    async def _make(self, tx: Tx, limit: int) -> _Batch:
        now, due = await self._store.due(tx, limit)
        owed = await self._store.owed(tx, limit - len(due)) if len(due) < limit else []
        policies = due + owed
        if not policies:
            return _Batch([], [], 0, 0.0)
        await self._replace(tx, [one for one in due if one.form.overlap == "replace"])
        ratings = await self._rate(tx, policies, now)
        jobs = [job_of(policy, rating) for policy, rating in zip(policies, ratings, strict=True)]
        enqueued = await self._queue.enqueue_in(tx, jobs)
        steps = [step_of(policy, now, at.duplicate) for policy, at in zip(policies, enqueued, strict=True)]
        await self._store.advance(tx, steps)
        late = max((now - (one.next_run_at or now) for one in due), default=0) / 1e6
        return _Batch(jobs, enqueued, len(policies), late)

    async def _replace(self, tx: Tx, policies: Sequence[Policy]) -> None:
        """Cancel what still lives of these, in the commit that makes the new run."""
        live = await self._store.live_jobs(tx, [one.dedupe_key for one in policies])
        for job_id in sorted(live.values()):
            await self._jobs.cancel_in(tx, JobId(job_id), "replaced")

    async def _rate(self, tx: Tx, policies: Sequence[Policy], now: int) -> list[Priority]:
        subjects = {one.id: subjects_of(one) for one in policies}
        said = await self._store.signals(tx, sorted({name for names in subjects.values() for name in names}))
        return [
            rate(facts_of(one, now, sum(said.get(name, 0.0) for name in subjects[one.id])), self._rules)
            for one in policies
        ]


def facts_of(policy: Policy, now: int, signal: float) -> Facts:
    overdue = max(0.0, (now - (policy.next_run_at or now)) / 1e6)
    return Facts(policy.form.priority_base, policy.staleness(now), policy.error_rate, signal, overdue)


def job_of(policy: Policy, rating: Priority) -> NewJob:
    """The job that runs a policy once."""
    form = policy.form
    payload = {
        "url": form.url,
        "crawl_config": form.page_config.plain(),
        "rule_set": form.rule_set,
        "policy": policy.id,
        "labels": form.labels,
        "project": form.project,
        "priority": dict(rating.parts),
    }
    return NewJob(
        id=JobId(new_id("job")),
        kind=KIND,
        run_id=None,
        payload=orjson.dumps(payload).decode(),
        priority=rating.value,
        max_attempts=form.max_retry + 1,
        dedupe_key=policy.dedupe_key,
        capability=form.capability,
        lock_ttl=form.lock,
        scopes=(f"project:{form.project}", *(f"label:{name}={value}" for name, value in form.labels.items())),
    )


def subjects_of(policy: Policy) -> list[str]:
    url = [] if policy.form.url is None else [f"url:{policy.form.url}"]
    return url + [f"label:{name}={value}" for name, value in policy.form.labels.items()]


def step_of(policy: Policy, now: int, lives: bool) -> Step:
    """Where a policy goes from here. One that was only owed a run keeps its times."""
    due = policy.next_run_at is not None and policy.next_run_at <= now
    queued = lives and (policy.queued or policy.form.overlap == "queue")
    if not due:
        return Step(policy.id, policy.next_run_at or 0, policy.planned_at, policy.next_run_at, queued, not lives)
    planned = policy.rhythm.next_planned(policy.planned_at, now)
    begins = policy.rhythm.begins(policy.id, planned)
    return Step(
        policy.id, policy.next_run_at or 0, planned, None if policy.is_over(begins) else begins, queued, not lives
    )
