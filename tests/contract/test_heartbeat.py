"""The heartbeat of a worker: what it extends, and who does not suffer from whom."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from shoal.base.clock import Clock, FakeClock, SystemClock
from shoal.hosts.throttle import HoldsBegun
from shoal.queue.job import Extended, Fence
from shoal.queue.states import JobState
from shoal.settings import WorkSettings
from shoal.work.child_process import ChildProcess, ChildSpawner
from shoal.work.heartbeat import LeaseHeartbeat
from shoal.work.ipc import Renewed
from shoal.work.run_children import RunChildren
from shoal.work.worker_context import StoreOutOfReach, WorkerContext
from tests.contract.conftest import PATIENCE, Bench, Gate, Gated, Severed


class Hand:
    """Holds what it is given, and hears what it keeps."""

    def __init__(self, holder: Fence) -> None:
        self._holder = holder
        self.heard = asyncio.Event()

    def holders(self) -> list[Fence]:
        return [self._holder]

    def extended(self, asked: Sequence[Fence], answer: Extended) -> None:
        assert answer.kept == list(asked) == [self._holder]
        self.heard.set()


def place_of(bench: Bench, clock: Clock, nursery: ChildSpawner) -> WorkerContext:
    settings, signals = WorkSettings(), bench.signals
    return WorkerContext(
        "n", "n/1", ["shared"], ["crawl"], bench.queue, settings, clock, signals, nursery, bench.storage()
    )


async def hand(bench: Bench, kind: str) -> Hand:
    await bench.enqueue(kind=kind)
    return Hand((await bench.lease(kind=kind)).holder)


async def test_a_lease_that_a_stuck_commit_holds_does_not_cost_the_others_theirs(postgres_bench: Bench) -> None:
    """A page child is stopped between two statements that settle its jobs: the crawls of its worker go on."""
    bench, gate = postgres_bench, Gate("lock_job")
    bench.queue.settings = bench.settings.but(lease=timedelta(seconds=1), extend_every=timedelta(milliseconds=100))
    stuck, free = await hand(bench, "page"), await hand(bench, "crawl")
    settling = asyncio.create_task(Gated(bench.database, gate).run(lambda tx: bench.jobs.lost(tx, stuck.holders()[0])))
    await gate.wait_until_reached()
    troubles: list[str] = []
    heart = LeaseHeartbeat(bench.queue, SystemClock(), [stuck, free], lambda doing, error: troubles.append(str(error)))
    beating = asyncio.create_task(heart.beat())
    await asyncio.wait_for(free.heard.wait(), PATIENCE)
    assert not stuck.heard.is_set()
    assert troubles
    gate.open()
    await settling
    await asyncio.wait_for(stuck.heard.wait(), PATIENCE)
    beating.cancel()


async def test_a_job_whose_child_heard_too_long_of_no_renewal_is_handed_back_at_once(bench: Bench) -> None:
    job_id = await bench.enqueue(kind="crawl")
    says_so = ["/bin/sh", "-c", """read job; echo '{"say": "Done", "ending": "lease_lost"}'; read more"""]
    nursery = ChildSpawner(SystemClock(), bench.signals, {}, command=says_so)
    place = place_of(bench, SystemClock(), nursery)
    freed = asyncio.Event()
    slots = RunChildren(place, freed.set)
    await slots.lease_more()
    await asyncio.wait_for(freed.wait(), PATIENCE)
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.crash_count, slots.free) == (JobState.PENDING, "store_away", 0, 2)
    await slots.end()


async def test_a_job_that_was_left_during_an_outage_is_handed_back_when_the_store_is_there_again(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.work.run_children.CHILD_PAUSE", 0.01)
    bench, severed, freed, tried = sqlite_bench, Severed(sqlite_bench.database), asyncio.Event(), asyncio.Event()
    apart = bench.over(severed)
    apart.signals.subscribe(lambda signal: tried.set() if isinstance(signal, StoreOutOfReach) else None)
    job_id = await bench.enqueue(kind="crawl")
    leaves = ["/bin/sh", "-c", """read job; read go; echo '{"say": "Done", "ending": "store_away"}'; read more"""]
    nursery = Remembering(SystemClock(), apart.signals, {}, command=leaves)
    place = place_of(apart, SystemClock(), nursery)
    slots = RunChildren(place, freed.set)
    await slots.lease_more()
    severed.writes = False
    nursery.children[0].say(Renewed())
    await asyncio.wait_for(tried.wait(), PATIENCE)
    assert (await bench.job(job_id)).state is JobState.LOCKED
    severed.writes = True
    await asyncio.wait_for(freed.wait(), PATIENCE)
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.crash_count) == (JobState.PENDING, "store_away", 0)
    await slots.end()


async def test_an_idle_child_that_fell_silent_is_given_no_job(sqlite_bench: Bench) -> None:
    bench, clock, spoke, freed = sqlite_bench, FakeClock(), asyncio.Event(), asyncio.Event()
    bench.signals.subscribe(lambda signal: spoke.set() if isinstance(signal, HoldsBegun) else None)
    speaks_once = """echo '{"say": "Held", "holds": {}}'; read job; echo '{"say": "Done", "ending": "x"}'"""
    nursery = Remembering(clock, bench.signals, {}, command=["/bin/sh", "-c", speaks_once])
    place = place_of(bench, clock, nursery)
    slots = RunChildren(place, freed.set)
    await slots.warm_up()
    await asyncio.wait_for(spoke.wait(), PATIENCE)
    clock.jump(place.settings.child_silence.total_seconds() * 0.6)
    job_id = await bench.enqueue(kind="crawl")
    await slots.lease_more()
    await asyncio.wait_for(freed.wait(), PATIENCE)
    await slots.end()
    [grant] = await bench.grants(job_id)
    silent, fresh = nursery.children
    assert grant["pid"] == fresh.pid != silent.pid


class Remembering(ChildSpawner):
    """Knows whom it had."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.children: list[ChildProcess] = []

    async def spawn(self, *words: str) -> ChildProcess:
        child = await super().spawn(*words)
        self.children.append(child)
        return child
