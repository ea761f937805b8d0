"""The heartbeat of a worker, and the children whose leases it extends."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from shoal.app.drivers import single_connection_of
from shoal.base.clock import Clock, FakeClock, SystemClock
from shoal.base.settings import DatabaseSettings, WorkSettings
from shoal.hosts.throttle import HoldsBegun
from shoal.queue.job import Extended, Fence
from shoal.queue.states import JobState
from shoal.work.child_handle import ChildProcess, ChildSpawner, Listener
from shoal.work.child_pool import RunChildren
from shoal.work.ipc import Renewed
from shoal.work.leases import LeaseHeartbeat
from shoal.work.worker_context import StoreOutOfReach, WorkerContext
from tests.contract.conftest import PATIENCE, Bench, Breakpoint, BreakpointDatabase, Severed
from tests.support.delay_proxy import delay_proxy
from tests.support.patience import with_load


class OneLease:
    """Holds one lease, and records when it was extended."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.extended = asyncio.Event()

    def fences(self) -> list[Fence]:
        return [self.fence]

    def on_extended(self, requested: Sequence[Fence], result: Extended) -> None:
        assert result.kept == list(requested) == [self.fence]
        self.extended.set()


def context_of(bench: Bench, clock: Clock, spawner: ChildSpawner) -> WorkerContext:
    settings, signals = WorkSettings(), bench.signals
    return WorkerContext(
        "n", "n/1", ["shared"], ["crawl"], bench.queue, settings, clock, signals, spawner, bench.storage()
    )


async def lease(bench: Bench, kind: str) -> OneLease:
    await bench.enqueue(kind=kind)
    return OneLease((await bench.lease(kind=kind)).fence)


async def test_a_lease_locked_by_a_stuck_commit_does_not_keep_others_from_being_extended(postgres_bench: Bench) -> None:
    """A page child hangs between two statements that settle its jobs; the crawls of its worker continue."""
    bench, point = postgres_bench, Breakpoint("lock_jobs")
    bench.queue.settings = bench.settings.but(lease=timedelta(seconds=1), extend_every=timedelta(milliseconds=100))
    stuck, free = await lease(bench, "page"), await lease(bench, "crawl")
    settling = asyncio.create_task(
        BreakpointDatabase(bench.database, point).run(lambda tx: bench.jobs.lost_in(tx, [stuck.fence], expired=False))
    )
    await point.wait_until_reached(settling)
    troubles: list[str] = []
    heartbeat = LeaseHeartbeat(
        bench.queue, SystemClock(), [stuck, free], lambda doing, error: troubles.append(str(error))
    )
    beating = asyncio.create_task(heartbeat.run())
    await asyncio.wait_for(free.extended.wait(), PATIENCE)
    assert not stuck.extended.is_set()
    assert troubles
    point.resume()
    await settling
    await asyncio.wait_for(stuck.extended.wait(), PATIENCE)
    beating.cancel()


async def test_a_lease_is_extended_although_the_connection_of_the_heartbeat_fell_silent(postgres_bench: Bench) -> None:
    bench = postgres_bench
    bench.queue.settings = bench.settings.but(lease=timedelta(seconds=1), extend_every=timedelta(milliseconds=200))
    one = await lease(bench, "crawl")
    with delay_proxy(bench.url) as proxy:
        settings = DatabaseSettings(url=proxy.url, connect_timeout=timedelta(seconds=30))
        apart = single_connection_of(bench.app.database, settings, SystemClock())
        await apart.open()
        heartbeat = LeaseHeartbeat(bench.queue.on(apart), SystemClock(), [one], lambda doing, error: None)
        beating = asyncio.create_task(heartbeat.run())
        await asyncio.wait_for(one.extended.wait(), PATIENCE)
        proxy.fall_silent()
        one.extended.clear()
        await asyncio.wait_for(one.extended.wait(), with_load(10))
        beating.cancel()
        proxy.cut_in(0)
        await apart.close()


@pytest.mark.exhaustive
async def test_leases_of_two_holders_are_extended_although_both_connections_fell_silent(postgres_bench: Bench) -> None:
    """The holders are served one after the other, so what the first one waits for must not happen to the second."""
    bench, term = postgres_bench, timedelta(seconds=6)
    bench.queue.settings = bench.settings.but(lease=term, extend_every=timedelta(seconds=0.5))
    holders = [await lease(bench, "crawl"), await lease(bench, "page")]
    with delay_proxy(bench.url) as proxy:
        settings = DatabaseSettings(url=proxy.url, connect_timeout=term)
        apart = single_connection_of(bench.app.database, settings, SystemClock())
        await apart.open()
        queue = bench.queue.on(apart)
        await asyncio.gather(*(queue.extend(holder.fences()) for holder in holders))  # opens both connections
        heartbeat = LeaseHeartbeat(queue, SystemClock(), holders, lambda doing, error: None)
        proxy.fall_silent()
        beating = asyncio.create_task(heartbeat.run())
        async with asyncio.timeout(with_load(term.total_seconds())):
            for holder in holders:
                await holder.extended.wait()
        beating.cancel()
        proxy.cut_in(0)
        await apart.close()


async def test_a_job_whose_child_missed_its_renewals_is_handed_back_at_once(bench: Bench) -> None:
    job_id = await bench.enqueue(kind="crawl")
    says_so = ["/bin/sh", "-c", """read job; echo '{"type": "Done", "ending": "lease_lost"}'; read more"""]
    spawner = ChildSpawner(SystemClock(), bench.signals, {}, command=says_so)
    context = context_of(bench, SystemClock(), spawner)
    freed = asyncio.Event()
    runs = RunChildren(context, freed.set)
    await runs.lease_more()
    await asyncio.wait_for(freed.wait(), PATIENCE)
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.crash_count, runs.free) == (JobState.PENDING, "store_away", 0, 2)
    await runs.end()


async def test_a_job_that_was_left_during_an_outage_is_handed_back_when_the_store_is_there_again(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.work.child_pool.RETRY_AFTER", timedelta(milliseconds=10))
    bench, severed, freed, tried = sqlite_bench, Severed(sqlite_bench.database), asyncio.Event(), asyncio.Event()
    apart = bench.over(severed)
    apart.signals.subscribe(lambda signal: tried.set() if isinstance(signal, StoreOutOfReach) else None)
    job_id = await bench.enqueue(kind="crawl")
    leaves = ["/bin/sh", "-c", """read job; read go; echo '{"type": "Done", "ending": "store_away"}'; read more"""]
    spawner = Remembering(SystemClock(), apart.signals, {}, command=leaves)
    context = context_of(apart, SystemClock(), spawner)
    runs = RunChildren(context, freed.set)
    await runs.lease_more()
    severed.writes = False
    spawner.children[0].send(Renewed())
    await asyncio.wait_for(tried.wait(), PATIENCE)
    assert (await bench.job(job_id)).state is JobState.LOCKED
    severed.writes = True
    await asyncio.wait_for(freed.wait(), PATIENCE)
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.crash_count) == (JobState.PENDING, "store_away", 0)
    await runs.end()


async def test_an_idle_child_that_fell_silent_is_given_no_job(sqlite_bench: Bench) -> None:
    bench, clock, spoke, freed = sqlite_bench, FakeClock(), asyncio.Event(), asyncio.Event()
    bench.signals.subscribe(lambda signal: spoke.set() if isinstance(signal, HoldsBegun) else None)
    speaks_once = """echo '{"type": "HoldsBegun", "holds": {}}'; read job; echo '{"type": "Done", "ending": "x"}'"""
    spawner = Remembering(clock, bench.signals, {}, command=["/bin/sh", "-c", speaks_once])
    context = context_of(bench, clock, spawner)
    runs = RunChildren(context, freed.set)
    await runs.warm_up()
    await asyncio.wait_for(spoke.wait(), PATIENCE)
    clock.jump(context.settings.child_silence.total_seconds() * 0.6)
    job_id = await bench.enqueue(kind="crawl")
    await runs.lease_more()
    await asyncio.wait_for(freed.wait(), PATIENCE)
    await runs.end()
    [grant] = await bench.grants(job_id)
    silent, fresh = spawner.children
    assert grant["pid"] == fresh.pid != silent.pid


class Remembering(ChildSpawner):
    """Keeps a list of the children it started."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.children: list[ChildProcess] = []

    async def spawn(self, *arguments: str, listener: Listener | None = None) -> ChildProcess:
        child = await super().spawn(*arguments, listener=listener)
        self.children.append(child)
        return child
