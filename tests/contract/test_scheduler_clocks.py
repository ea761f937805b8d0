"""The scheduler and clock changes: daylight saving time, clocks that are set, and times without a scheduler. B76."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from shoal.base.clock import from_micros
from tests.contract.two_days import Days, days_of

BERLIN = ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)
Quiet = Callable[[datetime], AbstractAsyncContextManager[Days]]


@pytest.fixture
def quiet(store_url: str) -> Quiet:
    return quiet_at(store_url)


@pytest.fixture
def quiet_file(sqlite_url: str) -> Quiet:
    """Return days on SQLite only, for tests of schedules, which are computed without the store."""
    return quiet_at(sqlite_url)


def quiet_at(store_url: str) -> Quiet:
    """Days without kills, with only the correct bot."""

    @asynccontextmanager
    async def opened(begins: datetime) -> AsyncIterator[Days]:
        async with days_of(store_url, 1, begins) as days:
            days.dying.chance = 0.0
            days.bots = days.pulling = days.bots[-1:]
            yield days

    return opened


def policy(**values: Any) -> dict[str, Any]:
    return {"url": "http://example.org/", "max_retry": 0, **values}


async def local_times(days: Days) -> list[str]:
    rows = await days.bench.sql("SELECT created_at FROM job ORDER BY created_at")
    return [from_micros(row["created_at"]).astimezone(BERLIN).strftime("%d %H:%M") for row in rows]


async def made(days: Days) -> int:
    return await days.bench.number("SELECT count(*) FROM job")


@pytest.mark.parametrize(
    ("begins", "times"),
    [(SPRING, ["28 02:30", "29 03:00", "30 02:30"]), (AUTUMN, ["24 02:30", "25 02:30", "26 02:30"])],
)
async def test_a_nightly_policy_runs_once_on_the_night_when_clocks_change(
    quiet_file: Quiet, begins: datetime, times: list[str]
) -> None:
    async with quiet_file(begins) as days:
        await days.begin([policy(cron="30 2 * * *", timezone="Europe/Berlin")])
        for _ in range(2 * 60):
            await days.live(30)
        assert await local_times(days) == times


@pytest.mark.parametrize("begins", [SPRING, AUTUMN])
async def test_an_hourly_policy_goes_on_through_the_night_when_clocks_change(
    quiet_file: Quiet, begins: datetime
) -> None:
    async with quiet_file(begins) as days:
        await days.begin([policy(cron="0 * * * *", timezone="Europe/Berlin"), policy(frequency="1h")])
        for _ in range(48):
            await days.live(60)
        runs = await days.bench.sql("SELECT runs, number FROM policy ORDER BY number")
        assert [row["runs"] for row in runs] == [47, 48]  # with cron, not immediately but at the next full hour


async def test_a_clock_that_is_set_back_stops_no_policy_and_runs_none_twice(quiet: Quiet) -> None:
    """Policies keep their schedule: the store's clock runs ahead until the machine's clock has caught up."""
    async with quiet(SPRING) as days:
        janitor = days.bench.janitor()
        await days.begin([policy(frequency="1h"), policy(cron="0 * * * *")])
        for _ in range(12):
            await days.live(10)
            await janitor.run_once()
        before = await made(days)
        await days.bench.step(-5400)
        for _ in range(9):
            for _ in range(20):  # a controller checks every second; every thirty seconds is enough here
                await days.bench.jump(30)
                await janitor.run_once()
            await days.live(0.5)
        assert before + 2 <= await made(days) <= before + 4
        planned = await days.bench.sql("SELECT created_at / 600000000 AS at, dedupe_key FROM job")
        assert len({(row["at"], row["dedupe_key"]) for row in planned}) == len(planned)


async def test_a_clock_that_is_set_forward_makes_up_for_it_with_one_run(quiet: Quiet) -> None:
    async with quiet(SPRING) as days:
        janitor = days.bench.janitor()
        await days.begin([policy(frequency="1h")])
        await days.live(10)
        await janitor.run_once()
        await days.bench.step(36_000)
        for _ in range(4):
            await janitor.run_once()
            await days.live(10)
        assert await made(days) == 2
        await days.live(10)
        await days.live(10)
        assert await made(days) == 3  # on its own grid again


@pytest.mark.parametrize("hours", [0.5, 7, 50, 24 * 40, 24 * 3 * 366])
async def test_runs_do_not_pile_up_while_no_scheduler_runs(quiet: Quiet, hours: float) -> None:
    """Each policy has exactly one job afterwards, whether it was active, had missed a run or was due before."""
    schedules: list[dict[str, Any]] = [
        {"frequency": "20m"},
        {"cron": "*/20 * * * *"},
        {"frequency": "1h", "jitter": "5m"},
    ]
    kinds = ("skip", "queue", "replace")
    async with quiet(SPRING) as days:
        await days.begin([policy(**schedule, overlap=kind) for schedule in schedules for kind in kinds])
        days.pulling = []
        for _ in range(12):  # no job is executed, so some policies miss a run
            await days.live(10)
        await days.bench.jump(hours * 3600)
        await days.live(1)
        live = "SELECT dedupe_key FROM job WHERE finished_at IS NULL"
        assert len({row["dedupe_key"] for row in await days.bench.sql(live)}) == len(await days.bench.sql(live)) == 9
        assert await days.bench.number("SELECT count(*) FROM policy WHERE next_run_at <= shoal_now()") == 0
        before = await made(days)
        days.pulling = days.bots
        for _ in range(3):
            await days.live(1)
        assert await made(days) <= before + 3  # the queued ones had missed one
