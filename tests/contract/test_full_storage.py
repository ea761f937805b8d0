"""Full storage: no job loses an attempt, jobs that need the storage are not leased, and work continues when there is
space."""

import asyncio
import os
from pathlib import Path

import pytest

from shoal.base.clock import FakeClock, SystemClock
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.errors import BackendUnavailable, StorageFull
from shoal.base.settings import WorkSettings
from shoal.base.signals import Signals
from shoal.crawl.lifecycle.crawls import KIND
from shoal.drivers.folder_bodies import FolderBodies
from shoal.queue.states import JobState
from shoal.work.child_handle import ChildSpawner
from shoal.work.child_pool import RunChildren
from shoal.work.worker_context import (
    BODIES,
    LONGEST_PAUSE_SECONDS,
    STORE,
    StorageFilled,
    StorageFreed,
    StorageWatch,
    StoreOutOfReach,
    WorkerContext,
)
from tests.contract.conftest import PATIENCE, Bench, Severed
from tests.support.full_disk import stuff


class Full(Severed):
    """A store that is full while `writes` is off."""

    def _check(self, reachable: bool) -> None:
        if not reachable:
            raise StorageFull("the store")


class Disk:
    """A fake storage check that counts its calls, and says whether there is space."""

    def __init__(self) -> None:
        self.tries, self.has_room = 0, False

    async def check(self) -> None:
        self.tries += 1
        if not self.has_room:
            raise StorageFull("the disk", BODIES)


def says_full(storage: str) -> list[str]:
    """The command of a child that finds the disk full for its first job, and never ends the next."""
    full = f'{{"type": "Full", "error": "no room", "storage": "{storage}"}}'
    done = '{"type": "Done", "ending": "storage_full"}'
    return ["/bin/sh", "-c", f"read job; echo '{full}'; echo '{done}'; cat > /dev/null"]


def slots_of(bench: Bench, storage: StorageWatch, child: list[str], freed: asyncio.Event) -> RunChildren:
    clock, kinds = SystemClock(), ["crawl", "analysis"]
    spawner = ChildSpawner(clock, bench.signals, {}, command=child)
    context = WorkerContext(
        "n", "n/1", ["shared"], kinds, bench.queue, WorkSettings(), clock, bench.signals, spawner, storage
    )
    return RunChildren(context, freed.set)


@pytest.mark.parametrize(("storage", "others"), [(BODIES, 1), (STORE, 0)])
async def test_a_job_that_finds_no_space_is_handed_back_and_what_needs_it_is_not_taken(
    bench: Bench, storage: str, others: int
) -> None:
    disk, freed = Disk(), asyncio.Event()
    watch = bench.storage(**{BODIES: disk.check, STORE: disk.check})
    slots = slots_of(bench, watch, says_full(storage), freed)
    job_id = await bench.enqueue(kind="crawl")
    for _ in range(2):  # one more than the limit, if these counted as attempts
        await slots.lease_more()
        await asyncio.wait_for(freed.wait(), PATIENCE)
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.attempts, job.crash_count) == (JobState.PENDING, "storage_full", 0, 0)
    assert [grant["ended"] for grant in await bench.grants(job_id)] == ["released"]
    assert dict(watch.full) == {storage: "no room"}
    analysis = await bench.enqueue(kind="analysis")
    await slots.lease_more()
    assert (await bench.job(analysis)).lease_epoch == others
    disk.has_room = True
    await bench.clock.advance(1)
    assert watch.allows("crawl")
    await slots.lease_more()
    assert (await bench.job(job_id)).lease_epoch == 2
    await slots.end()
    watch.close()
    assert [type(signal) for signal in bench.signals_seen if isinstance(signal, StorageFilled | StorageFreed)][:2] == [
        StorageFilled,
        StorageFreed,
    ]


async def test_urls_in_flight_on_a_full_disk_do_not_become_suspects(bench: Bench) -> None:
    crawl = await bench.submit()
    for _ in range(6):
        walker = await bench.walker(crawl)
        [task] = await walker.take()
        assert (task.attempts, task.crashes) == (0, 0)
        await bench.queue.release(walker.lease, "storage_full")
    assert (await bench.job(walker.fence.job_id)).attempts == 0


async def test_leases_that_ran_out_while_the_store_was_full_are_not_swept_at_once(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await walker.take()
    full = Full(bench.database)
    janitor = bench.over(full).janitor()
    await janitor.run_once()
    full.writes = False
    await bench.jump(60)
    with pytest.raises(StorageFull):
        await janitor.run_once()
    full.writes = True
    await janitor.run_once()
    await bench.jump(5)
    assert (await bench.queue.extend([walker.fence])).kept == [walker.fence]
    await bench.jump(6)
    await janitor.run_once()
    job = await bench.job(walker.fence.job_id)
    assert (job.state, job.crash_count) == (JobState.LOCKED, 0)


async def test_a_full_store_is_reported_once(sqlite_bench: Bench) -> None:
    full = Full(sqlite_bench.database)
    bench = sqlite_bench.over(full)
    disk, freed = Disk(), asyncio.Event()
    watch = bench.storage(**{STORE: disk.check})
    slots = slots_of(bench, watch, says_full(STORE), freed)
    full.writes = False
    for _ in range(3):
        await slots.lease_more()
    slots._context.report_error("renewing leases", StorageFull("the store"))
    [told] = [signal for signal in bench.signals_seen if isinstance(signal, StorageFilled | StoreOutOfReach)]
    assert isinstance(told, StorageFilled)
    assert "has no space left" in told.error
    watch.close()


async def test_full_storage_is_tried_less_and_less_often_until_it_has_space_for_good() -> None:
    clock, signals, disk = FakeClock(), Signals(), Disk()
    watch = StorageWatch({BODIES: disk.check}, clock, signals)
    watch.filled(BODIES, "no room")
    watch.filled(BODIES, "no room")
    await clock.advance(0)  # the watch begins to wait
    await clock.advance(0.6)
    assert disk.tries == 1
    await clock.advance(60)
    assert disk.tries < 10
    disk.has_room = True
    await clock.advance(LONGEST_PAUSE_SECONDS)
    assert watch.allows(KIND)
    tries, disk.has_room = disk.tries, False
    watch.filled(BODIES, "full again at once")
    await clock.advance(0)
    await clock.advance(LONGEST_PAUSE_SECONDS - 1)
    assert disk.tries == tries
    disk.has_room = True
    await clock.advance(2)
    assert watch.allows(KIND)
    await clock.advance(3 * LONGEST_PAUSE_SECONDS)
    watch.filled(BODIES, "another day")
    await clock.advance(0)
    await clock.advance(0.6)
    assert watch.allows(KIND)


async def test_a_store_that_is_away_while_it_is_tried_is_tried_again() -> None:
    clock, found = FakeClock(), [BackendUnavailable("the store", "it is away", "wait"), StorageFull("the store")]

    async def check() -> None:
        if found:
            raise found.pop()

    watch = StorageWatch({STORE: check}, clock, Signals())
    watch.filled("something else", "no room")
    await clock.advance(0)
    await clock.advance(2)
    assert (found, watch.allows("analysis")) == ([], False)
    await clock.advance(2)
    assert watch.allows("analysis")


async def test_free_space_is_tested_by_writing(small_disk: Path) -> None:
    clock, stuffing = FakeClock(), small_disk / "stuffing"
    bodies, database = FolderBodies(small_disk / "bodies", clock), SqliteDatabase(small_disk / "shoal.db", clock)
    await bodies.check_space()
    await database.check_space()
    stuff(stuffing)
    with pytest.raises(StorageFull) as told:
        await bodies.check_space()
    assert told.value.storage == BODIES
    with pytest.raises(StorageFull) as told:
        await database.check_space()
    assert told.value.storage == STORE
    stuffing.unlink()
    await bodies.check_space()
    assert {path.name for path in os.scandir(small_disk)} == {"bodies"}
    assert list(os.scandir(small_disk / "bodies")) == []
