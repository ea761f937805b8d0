"""F63: the queue behaves like its model under any sequence of operations.

Every step is done to a real store and to `QueueModel`; then every row of every job, and of its history, is compared.
The clock moves only when a step moves it, on PostgreSQL too. Longer: SHOAL_TEST_EFFORT=20.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shoal.base.clock import FakeClock
from shoal.base.database import Tx
from shoal.base.errors import LeaseLost, StateConflict
from shoal.base.ids import JobId
from shoal.queue import states
from shoal.queue.enqueuer import Enqueuer
from shoal.queue.job import Lease, LeaseRequest, NewJob
from shoal.queue.job_admin import JobAdmin
from shoal.queue.queue import Queue
from shoal.queue.states import STALLED, WORKER_LOST, Move
from tests.contract.conftest import Bench, open_bench
from tests.support import ledger
from tests.support.effort import times
from tests.support.queue_model import DEAD_LETTERS, SECOND, ModelJob, QueueModel, Rules

T = TypeVar("T")

EXAMPLES = {"sqlite": 30, "postgres": 8}
STEPS = 50
DICE = 0.5  # the value of the random jitter, which only adds to the delay
FAKE_CLOCK = """
    CREATE OR REPLACE FUNCTION server_now(shift BIGINT) RETURNS BIGINT LANGUAGE sql STABLE AS
    $$ SELECT shift $$
"""
JOBS = """
    SELECT id, state, state_reason AS reason, attempts, crash_count AS crashes, lease_epoch AS epoch,
           lease_holder AS holder, lease_until, priority, rank, line_at, not_before, created_at, finished_at,
           CASE WHEN finished_at IS NULL THEN due END AS due
    FROM job ORDER BY id
"""
GRANTS = f"""
    SELECT job_id, epoch, holder, granted_at, settled, ended, ended_at FROM ({ledger.GRANTS}) AS g
    ORDER BY job_id, epoch
"""


class Ground:
    """One store for all examples, cleared after each, and an event loop to call it from synchronous code."""

    def __init__(self, store_url: str) -> None:
        self._runner = asyncio.Runner()
        self.bench: Bench = self.run(open_bench(store_url, FakeClock()))
        self.queue = Queue(
            self.bench.database,
            Enqueuer(self.bench.jobs, self.bench.lanes, self.bench.signals),
            self.bench.settings,
            jitter=lambda: DICE,
        )
        self.bench.queue = self.queue
        self.bench.job_admin = JobAdmin(self.bench.database, self.queue, self.bench.job_admin_store)
        if self.bench.dialect == "postgres":
            self.run(self.bench.sql(FAKE_CLOCK))
            self.run(self.bench.sql(f"UPDATE store_clock SET shift = {self.bench.clock.micros()}"))

    def run(self, doing: Awaitable[T]) -> T:
        async def call() -> T:
            return await doing

        return self._runner.run(call())

    def clear(self) -> None:
        for table in ("job_grant", "job"):
            self.run(self.bench.sql(f"DELETE FROM {table}"))

    def close(self) -> None:
        self.run(self.bench.close())
        self._runner.close()

    @property
    def rules(self) -> Rules:
        return Rules(backoff=lambda attempts: round(self.queue.recovery.backoff(attempts).total_seconds() * 1e6))


@dataclass(frozen=True)
class New:
    """A job to be stored. `wait`: the seconds until it is due."""

    kind: str = "page"
    lane: str = "shared"
    priority: int = 50
    max_attempts: int = 2
    key: str | None = None
    run_id: str | None = None
    capability: str = "http"
    wait: float | None = None


NEW = st.builds(
    New,
    kind=st.sampled_from(["page", "page", "analysis"]),
    lane=st.sampled_from(["shared", "shared", "node:a"]),
    priority=st.sampled_from([0, 5, 50, 50, 50, 51, 100]),
    max_attempts=st.integers(1, 3),
    key=st.sampled_from([None, None, "a", "b"]),
    run_id=st.sampled_from([None, "r", "s"]),
    capability=st.sampled_from(["http", "http", "js"]),
    wait=st.sampled_from([None, None, None, -1.5, 8.5]),
)
Whose = tuple[bool, int]
WHOSE = st.tuples(st.sampled_from([True, True, True, False]), st.integers(0, 20))  # holder or zombie, and which one
somebody = precondition(lambda self: self.granted)


class QueueMachine(RuleBasedStateMachine):
    """Enqueues, leases and ends; zombies, deaths, sweeps, cancels; and time."""

    ground: Ground

    @initialize()
    def begin(self) -> None:
        self.ground.clear()
        self.bench = self.ground.bench
        self.queue = self.ground.queue
        self.model = QueueModel(self.ground.rules, self.bench.clock.micros())
        self.made = 0
        self.granted: list[Lease] = []
        self.enqueue([New(run_id="r"), New(run_id="r"), New(), New(priority=40, max_attempts=3, key="a")])
        self.lease(limit=3)

    @rule(batch=st.lists(NEW, min_size=1, max_size=4))
    def enqueue(self, batch: list[New]) -> None:
        self.time_passes(0.5)
        now, jobs, models = self.model.now, [], []
        for new in batch:
            self.made += 1
            job_id = JobId(f"job_{self.made:05}")
            later = None if new.wait is None else now + round(new.wait * SECOND)
            fixed = (new.lane, new.priority, new.max_attempts, new.key)
            jobs.append(NewJob(job_id, new.kind, new.run_id, "{}", *fixed, new.capability, later))
            times = (now, now, later or now)
            models.append(ModelJob(job_id, new.kind, *fixed, new.run_id, *times, capability=new.capability))
        wanted = self.model.enqueue(models)
        assert [(at.id, at.duplicate) for at in self.do(self.queue.enqueue(jobs))] == wanted

    @rule(
        holder=st.sampled_from(["w1", "w2"]),
        kinds=st.sampled_from([["page"], ["page", "analysis"], ["analysis", "page"]]),
        lanes=st.sampled_from([["shared"], ["node:a", "shared"]]),
        limit=st.integers(1, 3),
        capabilities=st.sampled_from([["http"], ["http", "js"]]),
    )
    def lease(
        self,
        holder: str = "w1",
        kinds: Sequence[str] = ("page",),
        lanes: Sequence[str] = ("shared",),
        limit: int = 1,
        capabilities: Sequence[str] = ("http",),
    ) -> None:
        wanted = self.model.lease(holder, kinds, list(lanes), limit, capabilities)
        self.check_leases(self.do(self.queue.lease(holder, list(kinds), list(lanes), limit, capabilities)), wanted)

    @somebody
    @rule(
        whose=st.lists(WHOSE, max_size=4),
        how=st.sampled_from(["done", "done", "failed", "cancelled"]),
        limit=st.integers(0, 3),
    )
    def end_some_and_lease(self, whose: list[Whose], how: str, limit: int) -> None:
        """End a batch of jobs, including some of zombies, and lease the next ones in one commit."""
        jobs = {self.pick(one).fence.job_id for one in whose}
        ends = sorted({(*of(lease),) for lease in self.granted if lease.fence.job_id in jobs})
        moves = [move_of(how, JobId(job_id), epoch) for job_id, epoch in ends]
        refused = [move for move in moves if not self.model.end(move.job_id, move.epoch, how, move.reason)]
        wanted = self.model.lease("w1", ["page"], ["shared"], limit, ["http"]) if limit else []
        turned = self.do(self.queue.finish_and_lease(moves, LeaseRequest("w1", ["page"]), limit))
        assert turned.refused == refused
        self.check_leases(turned.leases, wanted)

    @precondition(lambda self: self.model.jobs)
    @rule(place=st.integers(0, 20))
    def lease_one(self, place: int) -> None:
        job_id = sorted(self.model.jobs)[place % len(self.model.jobs)]
        wanted = self.model.lease_one(job_id, "here")
        got = self.do(self.queue.lease_one(JobId(job_id), "here"))
        self.check_leases([got] if got else [], [wanted] if wanted else [])

    def pick(self, whose: Whose) -> Lease:
        """The lease of a holder, or of a zombie, if there is one of that sort."""
        holds, place = whose
        of_sort = [one for one in self.granted if self.model.jobs[one.fence.job_id].holds(one.fence.epoch) == holds]
        found = of_sort or self.granted
        return found[place % len(found)]

    def check_leases(self, got: list[Lease], wanted: list[ModelJob]) -> None:
        found = [
            (one.fence.job_id, one.fence.epoch, one.kind, one.run_id, one.attempts, one.max_attempts, one.crash_count)
            for one in got
        ]
        assert found == [
            (job.id, job.epoch, job.kind, job.run_id, job.attempts, job.max_attempts, job.crashes) for job in wanted
        ]
        self.granted += got

    @somebody
    @rule(whose=st.lists(WHOSE, max_size=4))
    def extend(self, whose: list[Whose]) -> None:
        holders = sorted({self.pick(one).fence for one in whose}, key=str)
        wanted = {holder for holder in holders if self.model.extend(holder.job_id, holder.epoch)}
        assert set(self.do(self.queue.extend(holders)).kept) == wanted

    @somebody
    @rule(whose=WHOSE)
    def settle_something(self, whose: Whose) -> None:
        lease = self.pick(whose)

        async def settle(tx: Tx) -> bool:
            held = await self.bench.jobs.fence(tx, lease.fence)
            if held:
                await self.bench.jobs.mark_settled(tx, lease.fence)
            return held

        wanted = self.model.settle_something(lease.fence.job_id, lease.fence.epoch)
        assert self.do(self.bench.database.run(settle)) == wanted

    @somebody
    @rule(whose=WHOSE)
    def finish(self, whose: Whose) -> None:
        lease = self.pick(whose)
        self.accepted(self.model.finish(*of(lease), "well"), self.queue.finish(lease, "well"))

    @somebody
    @rule(whose=WHOSE)
    def fail(self, whose: Whose) -> None:
        lease = self.pick(whose)
        self.accepted(self.model.fail(*of(lease)), self.queue.fail(lease, "boom"))

    @somebody
    @rule(whose=WHOSE)
    def release(self, whose: Whose) -> None:
        lease = self.pick(whose)
        self.accepted(self.model.release(*of(lease), "shutdown"), self.queue.release(lease, "shutdown"))

    @somebody
    @rule(whose=WHOSE)
    def step_back(self, whose: Whose) -> None:
        lease = self.pick(whose)
        move = states.step_back(lease.fence.job_id, lease.fence.epoch)
        self.accepted(self.model.step_back(*of(lease)), self.move(move, lease))

    @somebody
    @rule(whose=WHOSE, reason=st.sampled_from([WORKER_LOST, STALLED]))
    def lose(self, whose: Whose, reason: str) -> None:
        lease = self.pick(whose)
        self.accepted(self.model.lose(*of(lease), reason), self.queue.recovery.lose(lease, "signal 9", reason))

    @rule(holder=st.sampled_from(["w1", "w2"]), deaths=st.integers(2, 5))
    def die_again_and_again(self, holder: str, deaths: int) -> None:
        """A job that kills its workers, or one that merely appears to."""
        for _ in range(deaths):
            self.lease(holder)
            self.time_passes(10.5)
            self.sweep()

    @somebody
    @rule(whose=WHOSE)
    def cancel(self, whose: Whose) -> None:
        lease = self.pick(whose)
        move = states.cancel(lease.fence.job_id, lease.fence.epoch, "asked")
        self.accepted(self.model.cancel(*of(lease), "asked"), self.move(move, lease))

    @rule(run_id=st.sampled_from(["r", "s"]))
    def cancel_waiting(self, run_id: str) -> None:
        wanted = self.model.cancel_waiting(run_id, "stopped")
        assert (
            self.do(self.bench.database.run(lambda tx: self.bench.jobs.cancel_waiting(tx, run_id, "stopped"))) == wanted
        )

    @rule(place=st.integers(0, 20))
    def cancel_any(self, place: int) -> None:
        """A user cancels a job, whether or not it is leased."""
        job = self.some_page(place)
        ended = job.state in ("done", "failed", "expired")
        self.model.cancel_any(job.id, "by hand")
        self.agreed(not ended, self.bench.job_admin.cancel(job.id, "by hand"))

    @rule(place=st.integers(0, 20), dead=st.booleans())
    def retry_dead(self, place: int, dead: bool) -> None:
        """A user retries a job, which may or may not be a dead letter."""
        job = self.some_page(place, DEAD_LETTERS if dead else None)
        self.agreed(self.model.retry_dead(job.id), self.bench.job_admin.retry(job.id))

    def some_page(self, place: int, states: Sequence[str] | None = None) -> ModelJob:
        """Users cannot change single jobs of runs."""
        pages = [job for job in self.model.jobs.values() if job.kind == "page"]
        found = [job for job in pages if states is None or job.state in states] or pages
        return found[place % len(found)]

    @rule(seconds=st.sampled_from([0.5, 3, 6, 10, 10.5, 40, 3700]))
    def time_passes(self, seconds: float) -> None:
        self.model.now += round(seconds * SECOND)
        self.do(self.bench.jump(seconds))

    @rule()
    def sweep(self) -> None:
        """Run a new janitor. A janitor that ran before an outage has separate tests."""
        self.model.sweep()
        self.do(self.bench.janitor().run_once())

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        jobs = sorted(self.model.jobs.values(), key=lambda job: job.id)
        assert self.do(self.bench.sql(JOBS)) == [row_of(job, self.model) for job in jobs]
        assert self.do(self.bench.sql(GRANTS)) == [row for job in jobs for row in grants_of(job)]
        assert list(self.model.violations()) == []

    def move(self, move: Move, lease: Lease) -> Awaitable[None]:
        return self.bench.database.run(lambda tx: self.queue.moves.move_in(tx, move, lease.kind, None))

    def accepted(self, wanted: bool, doing: Awaitable[Any]) -> None:
        """The holder of the current grant may change the job; anybody else is told that the lease is lost."""
        try:
            self.do(doing)
        except LeaseLost:
            assert not wanted, "the holder was refused"
        else:
            assert wanted, "somebody was obeyed whose grant is over"

    def agreed(self, wanted: bool, doing: Awaitable[Any]) -> None:
        try:
            self.do(doing)
        except StateConflict:
            assert not wanted, "a wish that could be fulfilled was refused"
        else:
            assert wanted, "a wish that could not be fulfilled was not refused"

    def do(self, doing: Awaitable[T]) -> T:
        return self.ground.run(doing)


def of(lease: Lease) -> tuple[str, int]:
    return lease.fence.job_id, lease.fence.epoch


def move_of(how: str, job_id: JobId, epoch: int) -> Move:
    if how == "done":
        return states.finish(job_id, epoch, "well")
    return states.fail(job_id, epoch, "boom") if how == "failed" else states.cancel(job_id, epoch, "asked")


def row_of(job: ModelJob, model: QueueModel) -> dict[str, Any]:
    names = ("id", "state", "reason", "attempts", "crashes", "epoch", "holder", "lease_until", "priority", "line_at")
    times = ("not_before", "created_at", "finished_at")
    own = {name: getattr(job, name) for name in (*names, *times)}
    return own | {"rank": model.rank(job), "due": int(job.due) if job.live else None}


def grants_of(job: ModelJob) -> list[dict[str, Any]]:
    names = ("epoch", "holder", "granted_at", "settled", "ended", "ended_at")
    return [{"job_id": job.id} | {name: getattr(grant, name) for name in names} for grant in job.history]


@pytest.fixture
def ground(store_url: str) -> Iterator[Ground]:
    ground = Ground(store_url)
    yield ground
    ground.close()


def test_the_queue_does_what_its_model_does(ground: Ground) -> None:
    machine = type("QueueMachine", (QueueMachine,), {"ground": ground})
    limits = settings(
        max_examples=times(EXAMPLES[ground.bench.dialect]),
        stateful_step_count=STEPS,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)
