"""Hourly statistics: counted from signals and added to the store in batches."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import asdict

from shoal.base.database import Work
from shoal.base.errors import BackendUnavailable
from shoal.observe.metrics import Metrics
from shoal.observe.stats import (
    HOUR,
    BotActivity,
    HourlyStatsReader,
    HourlyStatsRetention,
    HourlyStatsWriter,
    StatisticsRefused,
)
from shoal.page_jobs.bots import BotAsked, BotPulled, BotReported
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.recovery import BotLeasesLost
from shoal.queue.states import JobState
from shoal.serve.resources.stats import Hour
from tests.contract.conftest import Bench


def stats_writer(bench: Bench) -> HourlyStatsWriter:
    return HourlyStatsWriter(bench.database, bench.signals)


async def hours(bench: Bench, kind: str | None = None, back: int = 24) -> list[dict[str, object]]:
    seen, _ = await HourlyStatsReader(bench.database).read(back, kind, 10)
    return [asdict(Hour.of(one)) for one in seen]


async def active_bots(bench: Bench) -> list[BotActivity]:
    _, seen = await HourlyStatsReader(bench.database).read(24, None, 10)
    return seen


async def run_a_few(bench: Bench) -> None:
    """Four jobs: two done, one tried again, one failed."""
    for attempts in (2, 2, 2, 1):
        await bench.enqueue(max_attempts=attempts, payload='{"url": "http://example.org/"}')
    leases = await bench.queue.lease("w1", ["page"], ["shared"], 4)
    leases.sort(key=lambda lease: -lease.max_attempts)
    good = [
        ResultDelivery(lease.fence, Result(Status.SUCCESS, "u", 1, duration_seconds=seconds))
        for lease, seconds in zip(leases[:2], (1.0, 2.0), strict=True)
    ]
    bad = [ResultDelivery(lease.fence, Result(Status.FAIL, "u", 1, error_code="timeout")) for lease in leases[2:]]
    await bench.ingest.settle("w1", good + bad)


async def test_an_hour_reports_what_was_made_and_how_it_ended(bench: Bench) -> None:
    chore = stats_writer(bench)
    await run_a_few(bench)
    assert await hours(bench) == [], "nothing before the chore has run"
    await chore.run_once()
    [hour] = await hours(bench)
    assert (hour["created"], hour["done"], hour["failed"], hour["retried"]) == (4, 2, 1, 1)
    assert (hour["retry_rate"], hour["average_seconds"]) == (0.25, 1.5)
    assert await hours(bench, "crawl") == []


async def test_a_dead_letter_that_is_retried_was_created_once(bench: Bench) -> None:
    chore, metrics = stats_writer(bench), Metrics()
    bench.signals.subscribe(metrics.listen)
    await run_a_few(bench)
    assert await bench.job_admin.retry_dead(JobFilter()) == 1
    await chore.run_once()
    [hour] = await hours(bench)
    assert hour["created"] == 4
    assert 'shoal_jobs_created_total{kind="page"} 4.0' in metrics.render().decode()


async def test_several_processes_add_to_one_hour_and_time_goes_on(bench: Bench) -> None:
    first, second = stats_writer(bench), stats_writer(bench)
    await run_a_few(bench)
    await asyncio.gather(first.run_once(), second.run_once())
    [hour] = await hours(bench)
    assert hour["created"] == 8, "each has counted what it heard"
    await bench.jump(HOUR / 1e6)
    await bench.enqueue()
    await first.run_once()
    later, before = await hours(bench)
    assert (later["created"], before["created"]) == (1, 8)
    assert len(await hours(bench, back=1)) == 1


async def test_a_dead_letter_counts_as_expired_and_each_death_as_lost(bench: Bench) -> None:
    chore, metrics = stats_writer(bench), Metrics()
    bench.signals.subscribe(metrics.listen)
    job_id = await bench.enqueue()
    for _ in range(bench.settings.poison_limit + 1):
        await bench.lease()
        await bench.lose()
    assert (await bench.job(job_id)).state is JobState.EXPIRED
    await chore.run_once()
    [hour] = await hours(bench)
    assert (hour["expired"], hour["lost"]) == (1, bench.settings.poison_limit + 1)
    assert metrics.registry.get_sample_value("shoal_jobs_expired_total", {"kind": "page"}) == 1


async def test_bots_are_seen_by_their_names_and_what_they_got(bench: Bench) -> None:
    chore = stats_writer(bench)
    for name, jobs in (("b1", 3), ("b2", 0)):
        bench.signals.emit(BotAsked(token="tok_a", bot_id=name))
        if jobs:
            bench.signals.emit(BotPulled(token="tok_a", bot_id=name, jobs=jobs))
    await chore.run_once()
    [hour] = await hours(bench)
    assert hour["bots"] == 2
    seen = await active_bots(bench)
    assert {one.bot_id: one.pulled for one in seen} == {"b1": 3, "b2": 0}


async def test_the_counts_of_a_bot_are_added_up_and_a_lost_lease_is_no_sign_of_life(bench: Bench) -> None:
    chore = stats_writer(bench)
    bench.signals.emit(BotAsked(token="tok_a", bot_id="b1"))
    for _ in range(2):
        counts = {"results": 3, "failures": 1, "late_results": 2}
        bench.signals.emit(BotReported(token="tok_a", bot_id="b1", counts=counts))
        bench.signals.emit(BotLeasesLost(token="tok_a", bot_id="b1", count=4))
        bench.signals.emit(BotLeasesLost(token="tok_a", bot_id="gone", count=1))
        await chore.run_once()
    [seen] = await active_bots(bench)
    assert (seen.bot_id, seen.pulled, seen.results, seen.failures) == ("b1", 0, 6, 2)
    assert (seen.late_results, seen.lost_leases, seen.invalid_data) == (4, 8, 0)
    assert [hour["bots"] for hour in await hours(bench)] == [1]


async def test_counts_that_could_not_be_stored_are_stored_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    chore = stats_writer(bench)
    await bench.enqueue()

    async def away(*_: object) -> None:
        raise BackendUnavailable("the store", "it is away", "wait")

    with monkeypatch.context() as patch:
        patch.setattr(bench.database, "run", away)
        with pytest.raises(BackendUnavailable):
            await chore.run_once()
    await chore.close()
    assert [hour["created"] for hour in await hours(bench)] == [1]


async def test_a_row_that_cannot_be_stored_costs_only_itself(bench: Bench) -> None:
    """The edge refuses such names; one that it forgets must not stop all statistics for ever."""
    chore = stats_writer(bench)
    await bench.enqueue()
    unstorable = "\ud800"
    for name in ("b1", "b2", unstorable, "b3", "b4"):
        bench.signals.emit(BotPulled(token="tok_a", bot_id=name, jobs=2))
    await chore.run_once()
    await chore.run_once()
    assert {one.bot_id: one.pulled for one in await active_bots(bench)} == dict.fromkeys(("b1", "b2", "b3", "b4"), 2)
    assert [hour["created"] for hour in await hours(bench)] == [1]
    [refused] = [signal for signal in bench.signals_seen if isinstance(signal, StatisticsRefused)]
    assert refused.row == f"tok_a {unstorable}"


async def test_counts_are_kept_while_the_fault_is_not_in_them(bench: Bench) -> None:
    chore = stats_writer(bench)
    for name in ("b1", "b2"):
        bench.signals.emit(BotPulled(token="tok_a", bot_id=name, jobs=2))
    await bench.sql("ALTER TABLE bot_hour RENAME COLUMN pulled TO pulled_of_a_newer_version")
    with pytest.raises(Exception, match="pulled"):
        await chore.run_once()
    await bench.sql("ALTER TABLE bot_hour RENAME COLUMN pulled_of_a_newer_version TO pulled")
    await chore.run_once()
    assert {one.bot_id: one.pulled for one in await active_bots(bench)} == {"b1": 2, "b2": 2}


async def test_a_store_that_goes_away_meanwhile_loses_and_repeats_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chore, run, calls = stats_writer(bench), bench.database.run, 0
    await bench.enqueue()
    for name in ("\ud800", "b1", "b2"):
        bench.signals.emit(BotPulled(token="tok_a", bot_id=name, jobs=2))

    async def goes_away(work: Work[None]) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise BackendUnavailable("the store", "it is away", "wait")
        await run(work)

    with monkeypatch.context() as patch:
        patch.setattr(bench.database, "run", goes_away)
        with pytest.raises(BackendUnavailable):
            await chore.run_once()
    await chore.run_once()
    assert {one.bot_id: one.pulled for one in await active_bots(bench)} == {"b1": 2, "b2": 2}
    assert [hour["created"] for hour in await hours(bench)] == [1]


async def test_old_hours_are_forgotten(bench: Bench) -> None:
    chore = stats_writer(bench)
    await bench.enqueue()
    bench.signals.emit(BotAsked(token="tok_a", bot_id="b"))
    await chore.run_once()
    retention = HourlyStatsRetention(timedelta(days=90))
    now = await bench.number("SELECT shoal_now()")
    assert await retention.prune(bench.database, now + 1, 100) == (2, False)
    assert await hours(bench) == []
