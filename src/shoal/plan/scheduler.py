"""Schedulers: create a job for each page policy that is due, and a crawl for each site policy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import orjson

from shoal.base.clock import span
from shoal.base.database import Conflict, Database, Tx
from shoal.base.errors import AlreadyExists, NotFound, StateConflict, TimeError
from shoal.base.ids import CrawlId, JobId, new_id
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.base.url import canonical
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.lifecycle.crawls import KIND as CRAWL
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.page_jobs.spec import AS_GIVEN, KIND, host_of
from shoal.plan.policy import CAPABILITIES, Policy, PolicyForm
from shoal.plan.priority import RULES, Priority, PriorityFacts, PriorityRule, rate
from shoal.plan.store import PolicyStore, ScheduleStep
from shoal.queue.enqueuer import BackPressure, JobsHeldBack, no_back_pressure
from shoal.queue.job import NewJob
from shoal.queue.job_admin import JobAdmin
from shoal.queue.queue import Queue

BATCH = 250  # policies planned in one callback of the event loop, about 40 µs each
PUT_OFF = timedelta(hours=1)


class JobsScheduled(Signal, frozen=True, kw_only=True):
    """The outcome of one batch of due policies."""

    made: int
    skipped: int  # their last run is still active
    late_seconds: float  # delay of the policy that waited longest


class PolicyStuck(Signal, frozen=True, kw_only=True):
    """A policy is due but cannot be run as it is; it is retried after a while."""

    policy_id: str
    error: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan for one policy: its job, and its next step if that job is created."""

    policy: Policy
    job: NewJob
    step: ScheduleStep


class Scheduler:
    """Create jobs for due policies. Several may run at the same time. `backlog`: maximum waiting jobs per
    capability."""

    name = "scheduler"

    def __init__(
        self,
        queue: Queue,
        jobs: JobAdmin,
        backlog: int,
        *,
        rules: tuple[PriorityRule, ...] = RULES,
        back_pressure: BackPressure = no_back_pressure,
    ) -> None:
        self._database = queue.database
        self._store = PolicyStore()
        self._queue = queue
        self._jobs = jobs
        self._signals = queue.signals
        self._backlog = backlog
        self._rules = rules
        self._back_pressure = back_pressure

    async def run_once(self) -> PassResult:
        capacity = await self._database.read(self._capacity)
        if not capacity:
            return PassResult()  # policies stay due; once the backlog shrinks, the longest waiting policy is first
        if (why := self._back_pressure(KIND)) is not None:
            self._signals.emit(JobsHeldBack(source=self.name, kind=KIND, jobs=0, why=why))
            return PassResult()
        handled = await self._database.run(lambda tx: self._make(tx, capacity))
        full = min(BATCH, *capacity.values())
        return PassResult(again_in=timedelta(0) if handled >= full else None)

    async def _capacity(self, tx: Tx) -> dict[str, int]:
        """Return how many more jobs each capability with due policies may queue; a backlog of one capability must not
        block the others. Usually no policy is due, and this read takes no locks."""
        ready = [capability for capability in CAPABILITIES if await self._store.is_ready(tx, capability)]
        waiting = {one: await self._queue.lanes.page_backlog(tx, one, self._backlog) for one in ready}
        return {one: self._backlog - count for one, count in waiting.items() if count < self._backlog}

    async def _make(self, tx: Tx, capacity: Mapping[str, int]) -> int:
        """Create the jobs of due policies; return how many policies were handled."""
        known = await self._ready(tx, capacity)
        if not known:
            return 0
        now = await self._store.now(tx)  # read after the query, so all policies that it found due are due at this time
        plans, late, stuck = await self._plan(tx, list(known.values()), now)
        await self._replace(tx, [plan.policy for plan in plans if plan.policy.form.overlap == "replace"])
        jobs = [plan.job for plan in plans]
        enqueued = await self._queue.enqueue_in(tx, jobs)
        made = sum(not one.duplicate for one in enqueued)
        steps = [_skipped_step(plan) if at.duplicate else plan.step for plan, at in zip(plans, enqueued, strict=True)]
        steps += [*late, *(put_off(known[one.policy_id], now) for one in stuck)]
        if await self._store.advance(tx, steps) < len(steps):
            raise Conflict  # another scheduler or a user has just changed one of them
        waited = max(now - (one.next_run_at or now) for one in known.values())
        done = JobsScheduled(made=made, skipped=len(known) - made, late_seconds=max(0, waited) / 1e6)
        for signal in (*stuck, done):
            tx.on_commit(partial(self._signals.emit, signal))
        return len(known)

    async def _ready(self, tx: Tx, capacity: Mapping[str, int]) -> dict[str, Policy]:
        """Return the policies to run now, by id. A policy that is due and also has a queued run gets one run."""
        known: dict[str, Policy] = {}
        for capability, free in capacity.items():
            limit = min(free, BATCH - len(known))
            due = await self._store.due(tx, capability, limit) if limit else []
            owed = await self._store.owed(tx, capability, limit - len(due)) if len(due) < limit else []
            known |= {one.id: one for one in owed + due}
        return known

    async def _plan(
        self, tx: Tx, policies: Sequence[Policy], now: int
    ) -> tuple[list[_Plan], list[ScheduleStep], list[PolicyStuck]]:
        """Return a plan for each policy that may start, the next step of each policy that may not start now, and the
        policies that cannot be run (they must not block the others)."""
        boosts = await self._store.boosts(tx, sorted(set(_subjects(policies))))
        plans, late, stuck = [], [], []
        for policy in policies:
            try:
                if (later := kept_waiting(policy, now)) is not None:
                    late.append(later)
                    continue
                boost = sum(boosts.get(subject, 0.0) for subject in subjects_of(policy))
                rating = rate(facts_of(policy, now, boost), self._rules)
                plans.append(_Plan(policy, job_of(policy, rating), step_of(policy, now, lives=False)))
            except Exception as error:
                stuck.append(PolicyStuck(policy_id=policy.id, error=f"{type(error).__name__}: {error}"))
        return plans, late, stuck

    async def _replace(self, tx: Tx, policies: Sequence[Policy]) -> None:
        """Cancel the active jobs of these policies, in the commit that creates the new ones."""
        live = await self._store.live_jobs(tx, [one.dedupe_key for one in policies])
        for job_id in sorted(live.values()):
            await self._jobs.cancel_in(tx, JobId(job_id), "replaced")


def facts_of(policy: Policy, now: int, signal: float) -> PriorityFacts:
    overdue = max(0.0, (now - (policy.next_run_at or now)) / 1e6)
    return PriorityFacts(policy.form.priority_base, policy.staleness(now), policy.error_rate, signal, overdue)


def job_of(policy: Policy, rating: Priority) -> NewJob:
    """Return the job that runs a policy once."""
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
        host=None if form.url is None else host_of(form.url),
        quota_keys=(f"project:{form.project}", *(f"label:{name}={value}" for name, value in form.labels.items())),
    )


def subjects_of(policy: Policy) -> list[str]:
    """Return the subjects that boosts may refer to: the canonical URL and the labels."""
    url = [] if policy.form.url is None else [f"url:{canonical(policy.form.url, AS_GIVEN)}"]
    return url + [f"label:{name}={value}" for name, value in policy.form.labels.items()]


def _subjects(policies: Sequence[Policy]) -> Iterator[str]:
    for policy in policies:
        with suppress(Exception):  # an unreadable policy is reported when it is planned
            yield from subjects_of(policy)


def step_of(policy: Policy, now: int, lives: bool) -> ScheduleStep:
    """Return the next step of a policy. A policy that is not due, but has a queued run, keeps its times."""
    due = policy.next_run_at is not None and policy.next_run_at <= now
    queued = lives and (policy.queued or policy.form.overlap == "queue")
    if not due:
        return ScheduleStep.of(policy, policy.next_run_at, queued=queued, begun=not lives)
    planned = policy.planned_at  # in the future if a queued run waited for a window
    if planned <= now:
        planned = policy.schedule.next_planned(planned, now)
    begins = policy.schedule.begins(policy.id, planned)
    later = None if policy.form.is_over(begins) else begins
    return ScheduleStep.of(policy, later, queued=queued, begun=not lives, planned_at=planned)


def kept_waiting(policy: Policy, now: int) -> ScheduleStep | None:
    """Return the step of a policy that may not start now: its next run is at the opening of its next window, or never
    if `not_after` has passed by then. Return `None` if the policy may start now."""
    is_free = not policy.form.windows and policy.form.not_after is None
    if is_free or ((opens := policy.schedule.opens(now)) == now and not policy.form.is_over(now)):
        return None
    due = policy.next_run_at is None or policy.next_run_at <= now
    begins = opens if due else min(opens, policy.next_run_at or opens)
    later = None if policy.form.is_over(begins) else begins
    return ScheduleStep.of(policy, later, queued=False, begun=False)


def put_off(policy: Policy, now: int) -> ScheduleStep:
    """Return the step that delays a policy which cannot be run as it is, and drops its queued run."""
    due = policy.next_run_at is not None and policy.next_run_at <= now
    later = now + span(PUT_OFF) if due else policy.next_run_at
    return ScheduleStep.of(policy, later, queued=False, begun=False)


def _skipped_step(plan: _Plan) -> ScheduleStep:
    """Return the step of a policy whose last run is still active."""
    queued = plan.policy.queued or plan.policy.form.overlap == "queue"
    return replace(plan.step, queued=queued, begun=False)


SITES_AT_ONCE = 100


def crawl_of(policy: Policy, now: int) -> str:
    """Return the id of the crawl that a policy starts now. A queued run that starts before the planned time gets a
    different id than the planned run."""
    is_due = policy.next_run_at is not None and policy.planned_at <= policy.next_run_at <= now
    return f"{policy.id}-{policy.planned_at}{'' if is_due else 'o'}"


def config_of(form: PolicyForm, priority: int) -> CrawlConfig:
    """Return the options of a site policy's crawl; raise if they are not valid."""
    own = {"seeds": form.seeds, "project": form.project, "labels": form.labels, "priority": priority, "start": True}
    return CrawlConfig.read(
        form.crawl_config | own, called=lambda name: name if name in own else f"crawl_config.{name}"
    )


async def start_crawl(crawls: Crawls, policy: Policy, crawl_id: str, priority: int) -> None:
    """Start a crawl of a policy with this id, unless it exists."""
    with suppress(AlreadyExists):
        await crawls.submit(
            config_of(policy.form, priority),
            crawl_id=CrawlId(crawl_id),
            policy_id=policy.id,
            max_retry=policy.form.max_retry,
        )


class SiteScheduler:
    """The chore that starts the crawls of site policies; under back-pressure it starts none."""

    name = "site scheduler"

    def __init__(
        self,
        database: Database,
        crawls: Crawls,
        signals: Signals,
        rules: tuple[PriorityRule, ...] = RULES,
        back_pressure: BackPressure = no_back_pressure,
    ) -> None:
        self._database = database
        self._store = PolicyStore()
        self._crawls = crawls
        self._signals = signals
        self._rules = rules
        self._back_pressure = back_pressure

    async def run_once(self) -> PassResult:
        now, due = await self._database.read(lambda tx: self._store.due_sites(tx, SITES_AT_ONCE))
        if due and (why := self._back_pressure(CRAWL)) is not None:
            self._signals.emit(JobsHeldBack(source=self.name, kind=CRAWL, jobs=0, why=why))
            return PassResult()
        for policy in due:
            try:
                await self._run(policy, now)
            except (TimeError, OSError):
                raise  # the store is unavailable, so the other policies would fail too
            except Exception as error:  # its options may have become invalid; that must not block other policies
                await self._advance(put_off(policy, now))
                self._signals.emit(PolicyStuck(policy_id=policy.id, error=f"{type(error).__name__}: {error}"))
        return PassResult()

    async def _run(self, policy: Policy, now: int) -> None:
        if (later := kept_waiting(policy, now)) is not None:
            await self._advance(later)
            return
        last = policy.live_crawl
        lives = last is not None and await self._crawls.is_active(last)
        if lives and last is not None and policy.form.overlap == "replace":
            with suppress(StateConflict, NotFound):  # the crawl has just ended, or was removed
                await self._crawls.stop(last, "replaced")
            lives = False
        step = step_of(policy, now, lives)
        if not lives:
            crawl_id = crawl_of(policy, now)
            await start_crawl(self._crawls, policy, crawl_id, await self._priority(policy, now))
            step = replace(step, crawl=crawl_id)
        await self._advance(step)

    async def _advance(self, step: ScheduleStep) -> None:
        await self._database.run(lambda tx: self._store.advance(tx, [step]))

    async def _priority(self, policy: Policy, now: int) -> int:
        async def look(tx: Tx) -> dict[str, float]:
            return await self._store.boosts(tx, subjects_of(policy))

        return rate(facts_of(policy, now, sum((await self._database.read(look)).values())), self._rules).value
