"""Clocks that are set back and forward: the store's clock always advances, and no wait, lease or run is affected. F9
and F10 of the fault list are here and in test_queue.py."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.base.clock import FakeClock, SystemClock
from shoal.base.database.clock import (
    MARK_EVERY,
    ClockAnchor,
    ClockStepped,
    OwnClockSetBack,
    WallClock,
    after_boot,
    after_check,
)
from shoal.base.database.sqlite import SqliteDatabase
from shoal.hosts.rate import SlotRequest
from shoal.hosts.throttle import HostUpdate
from shoal.queue.janitor import Janitor
from shoal.queue.lanes import Availability
from shoal.queue.states import JobState as J
from shoal.queue.store import JobStore
from tests.contract.conftest import Bench, database_at, open_bench

HOUR = 3600
LEASE = 10
SECOND = 1_000_000


@pytest.fixture
async def other(bench: Bench) -> AsyncIterator[Bench]:
    """Another process on the same store and machine."""
    database = database_at(bench.url, bench.clock)
    await database.open()
    twin = bench.over(database)
    yield twin
    await database.close()


async def now(bench: Bench) -> int:
    value: int = await bench.database.read(lambda tx: tx.value("now"))
    return value


def steps(bench: Bench) -> list[tuple[str, int]]:
    told = [signal for signal in bench.signals_seen if isinstance(signal, ClockStepped)]
    return [(signal.direction, round(signal.seconds / HOUR)) for signal in told]


async def watched(bench: Bench) -> Janitor:
    """A janitor that has seen the clocks as they were."""
    janitor = bench.janitor()
    await janitor.run_once()
    return janitor


async def seconds_until_given_back(bench: Bench, janitor: Janitor, job_id: str) -> int:
    """Run the janitor once a second and return the seconds until the job is returned."""
    for second in range(20):
        if (await bench.job(job_id)).state is J.PENDING:
            return second
        await bench.jump(1)
        await janitor.run_once()
    raise AssertionError("it is not given back")


@pytest.mark.parametrize("hours", [-1, 1])
async def test_killed_work_is_given_back_in_time_whatever_the_clock_does(bench: Bench, hours: int) -> None:
    janitor = await watched(bench)
    job_id = await bench.enqueue()
    await bench.lease()
    await bench.step(hours * HOUR)
    await janitor.run_once()
    assert (await bench.job(job_id)).state is J.LOCKED
    assert await seconds_until_given_back(bench, janitor, job_id) <= LEASE + 2
    assert steps(bench) == [("back" if hours < 0 else "forward", 1)]


@pytest.mark.parametrize("hours", [-1, 1])
async def test_killed_work_is_given_back_in_time_when_nobody_saw_the_clock_step(bench: Bench, hours: int) -> None:
    """Controller and workers died, too; the new processes have no earlier reading of the clock to compare with."""
    await watched(bench)
    job_id = await bench.enqueue()
    await bench.lease()
    await bench.step(hours * HOUR)
    bench.jobs.clock = JobStore(bench.dialect, timedelta(0), Availability()).clock
    janitor = bench.app.chores.janitor
    await janitor.run_once()
    assert (await bench.job(job_id)).state is J.LOCKED
    assert await seconds_until_given_back(bench, janitor, job_id) <= LEASE + 2


@pytest.mark.parametrize("hours", [-1, 1])
async def test_live_work_goes_on_whatever_the_clock_does(bench: Bench, hours: int) -> None:
    janitor = await watched(bench)
    job_id = await bench.enqueue()
    lease = await bench.lease()
    await bench.step(hours * HOUR)
    for _ in range(4):
        await janitor.run_once()
        assert (await bench.queue.extend([lease.fence])).kept
        await bench.jump(3)
    await janitor.run_once()
    assert await bench.queue.finish(lease) is J.DONE
    assert (await bench.job(job_id)).crash_count == 0


async def test_a_janitor_that_did_not_see_the_clock_step_gives_leases_the_same_grace(
    bench: Bench, other: Bench
) -> None:
    janitor = await watched(bench)
    job_id = await bench.enqueue()
    await bench.lease()
    await bench.jump(LEASE - 1)
    await bench.step(HOUR)
    await janitor.run_once()  # informs all processes through the store
    await bench.jump(2)
    await other.janitor().run_once()
    assert (await bench.job(job_id)).state is J.LOCKED
    await bench.jump(LEASE)
    await other.janitor().run_once()
    assert (await bench.job(job_id)).state is J.PENDING


@pytest.mark.parametrize("seconds", [-60, -HOUR, HOUR])
async def test_a_process_that_starts_after_a_step_is_not_taken_for_dead(bench: Bench, seconds: int) -> None:
    """The clock is set, a worker restarts and leases a job: all processes agree on the end of its lease."""
    janitor = await watched(bench)
    await bench.step(seconds)
    database = database_at(bench.url, bench.clock)
    await database.open()
    try:
        worker = bench.over(database)
        job_id = await worker.enqueue()
        lease = await worker.lease()
        for _ in range(3):
            await janitor.run_once()
            await bench.jump(3)
            assert (await worker.queue.extend([lease.fence])).kept
        assert (await bench.job(job_id)).state is J.LOCKED
    finally:
        await database.close()


async def test_a_host_waits_for_its_delay_and_not_for_the_length_of_a_step(bench: Bench) -> None:
    janitor = await watched(bench)

    async def reserve() -> tuple[int, float]:
        host = (await bench.database.run(lambda tx: bench.hosts.numbers(tx, ["http://example.org"])))[
            "http://example.org"
        ]
        granted = await bench.database.run(lambda tx: bench.hosts.reserve(tx, [SlotRequest(host, 1, 5.0)]))
        return (granted[host].slots, granted[host].first_in_seconds) if host in granted else (0, 0.0)

    assert (await reserve())[0] == 1
    await bench.step(-HOUR)
    await janitor.run_once()
    assert (await reserve())[0] == 0  # five seconds have not passed
    await bench.jump(6)
    assert (await reserve())[0] == 1


async def test_a_hold_ends_after_its_own_length_when_the_clock_is_set_back(bench: Bench) -> None:
    janitor = await watched(bench)
    origin = "http://example.org"
    host = (await bench.database.run(lambda tx: bench.hosts.numbers(tx, [origin])))[origin]
    news = HostUpdate(origin, 429, 60.0)
    await bench.database.run(lambda tx: bench.hosts.record(tx, {host: news}))
    await bench.step(-HOUR)
    await janitor.run_once()
    held = (await bench.database.read(lambda tx: bench.hosts.states(tx, [host])))[host].held_seconds
    assert 50 <= held <= 60
    for _ in range(7):
        await bench.jump(10)
        await janitor.run_once()
    assert (await bench.database.read(lambda tx: bench.hosts.states(tx, [host])))[host].held_seconds == 0


async def test_the_store_clock_never_goes_back_and_meets_the_other_again(bench: Bench) -> None:
    janitor, watch = await watched(bench), SystemClock()
    began, began_at = await now(bench), watch.monotonic()

    def passed(seconds: float) -> float:
        """How much a right clock advances: that of PostgreSQL goes on by itself while the test runs."""
        itself = watch.monotonic() - began_at if bench.dialect == "postgres" else 0
        return (seconds + itself) * SECOND

    await bench.step(-HOUR)
    await janitor.run_once()
    seen = await now(bench)
    assert abs(seen - began - passed(0)) < 60 * SECOND
    for _ in range(20):
        await bench.jump(30)
        last, seen = seen, await now(bench)
        assert seen - last > 25 * SECOND
        await janitor.run_once()
    assert seen - began < passed(600 - 30)  # at nine tenths of its speed
    for _ in range(62):
        await bench.jump(600)
        await janitor.run_once()
        last, seen = seen, await now(bench)
        assert seen > last
    assert abs(seen - began - passed(600 + 62 * 600 - HOUR)) < 60 * SECOND


async def test_a_step_that_is_undone_leaves_the_clock_as_it_was(bench: Bench) -> None:
    janitor = await watched(bench)
    began = await now(bench)
    for _ in range(5):
        for seconds in (-HOUR, HOUR):
            await bench.step(seconds)
            await janitor.run_once()
            await bench.jump(1)
    assert began < await now(bench) < began + 180 * SECOND


async def test_a_clock_step_is_reported_once_by_several_watchers(bench: Bench, other: Bench) -> None:
    janitors = [await watched(bench), await watched(other)]
    await bench.step(-HOUR)
    for _ in range(3):
        for janitor in janitors:
            await janitor.run_once()
        await bench.jump(1)
    assert steps(bench) + steps(other) == [("back", 1)]
    if bench.dialect == "postgres":  # and the clock of our machine, which is another one
        bench.clock.step(-HOUR)
        for janitor in janitors:
            await janitor.run_once()
        assert [signal.seconds for signal in bench.signals_seen if isinstance(signal, OwnClockSetBack)] == [HOUR]


async def test_time_that_passes_is_not_reported_as_a_step(bench: Bench) -> None:
    janitor = await watched(bench)
    for seconds in (1, 30, 59, 61, 8 * HOUR, 0.5):
        await bench.jump(seconds)
        await janitor.run_once()
    assert steps(bench) == []


async def test_a_process_with_a_wrong_clock_changes_nothing_for_others(sqlite_url: str) -> None:
    """Only a controller, which follows the wall clock, adjusts the store's clock; other processes that open the file do
    not."""

    class Wrong(FakeClock):
        def micros(self) -> int:
            return right.micros() - HOUR * SECOND

        def uptime(self) -> int:
            return right.uptime()

    bench = await open_bench(sqlite_url)
    right, wrong = bench.clock, Wrong()
    wrong.boot = right.boot
    database = SqliteDatabase(Path(sqlite_url.removeprefix("sqlite:///")), wrong)
    await database.open()
    try:
        await bench.enqueue()
        await bench.over(database).lease()
        assert await bench.database.read(lambda tx: tx.value("now")) == right.micros()
        assert await bench.database.read(bench.jobs.freshest_lease) == timedelta(seconds=LEASE)
    finally:
        await database.close()
        await bench.close()


async def test_a_machine_that_starts_with_a_clock_of_yesterday_goes_on_from_today(sqlite_url: str) -> None:
    bench = await open_bench(sqlite_url)
    await bench.jump(HOUR)
    await watched(bench)
    last = await now(bench)
    job_id = await bench.enqueue()
    await bench.lease()
    await bench.close()
    started = await open_bench(sqlite_url, FakeClock())  # it shows the same time as the other one when that was new
    try:
        assert last < await now(started) <= last + MARK_EVERY
        janitor = started.app.chores.janitor
        await janitor.run_once()
        assert await seconds_until_given_back(started, janitor, job_id) <= LEASE + 2
        assert steps(started) == [("back", 1)]
    finally:
        await started.close()


async def test_a_machine_that_starts_with_a_right_clock_takes_it(sqlite_url: str) -> None:
    bench = await open_bench(sqlite_url)
    await bench.close()
    clock = FakeClock()
    clock.jump(HOUR)
    started = await open_bench(sqlite_url, clock)
    try:
        assert await now(started) == clock.micros()
        await watched(started)
        assert steps(started) == []
    finally:
        await started.close()


def test_a_slow_reading_of_the_clocks_is_not_reported_as_a_step() -> None:
    """A process may be suspended for any time between its two clock readings."""
    anchor = ClockAnchor("b", base=1_000 * SECOND, at=1_000 * SECOND, since=1_000 * SECOND)
    slow = WallClock("b", 1_010 * SECOND, before=10 * SECOND, after=40 * SECOND)
    assert after_check(anchor, slow) == (anchor, 0)
    late = replace_wall(slow, before=5 * SECOND, after=10 * SECOND)
    assert after_check(anchor, late) == (anchor, 0)


def test_uptime_that_went_back_is_another_run_of_the_machine() -> None:
    anchor = ClockAnchor("b", base=1_000 * SECOND, at=1_500 * SECOND, since=1_500 * SECOND)
    assert after_boot(anchor, WallClock("b", 1_600 * SECOND, 600 * SECOND, 600 * SECOND)) is None
    again = after_boot(anchor, WallClock("b", 1_600 * SECOND, 5 * SECOND, 5 * SECOND))
    assert again is not None
    assert again.now(5 * SECOND) == 1_600 * SECOND


def replace_wall(wall: WallClock, *, before: int, after: int) -> WallClock:
    return WallClock(wall.boot, wall.micros, before, after)
