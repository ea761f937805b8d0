"""The chores of the queue: expired offers, batches of lost jobs, retention, and leadership."""

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

from shoal.base.errors import NotFound
from shoal.base.service import LeaderOnly, PassResult
from shoal.base.settings import QueueSettings
from shoal.base.settings_loader import load
from shoal.base.signals import ChoreDone
from shoal.observe.stats import HourlyStatsWriter
from shoal.plan.policies import SignalForm
from shoal.queue.job import Lease
from shoal.queue.pruner import Pruner, job_retention
from shoal.queue.recovery import ExpiryFailed
from shoal.queue.states import JobState
from tests.contract.conftest import PATIENCE, Bench
from tests.support.controller import served_controller
from tests.support.page_jobs import add_page_jobs

J = JobState


async def test_an_offer_that_was_not_taken_in_time_is_open_to_all(bench: Bench) -> None:
    job_id = await bench.enqueue(lane="node:a")
    until = await bench.number("SELECT shoal_now()") + 5_000_000
    await bench.sql(f"UPDATE job SET offered_until = {until}, offered_session = 's' WHERE id = '{job_id}'")
    await bench.janitor().run_once()
    assert (await bench.job(job_id)).lane == "node:a"
    await bench.jump(6)
    await bench.janitor().run_once()
    assert (await bench.job(job_id)).lane == "shared"
    assert (await bench.lease()).fence.job_id == job_id


async def test_a_job_whose_time_has_come_is_seen_though_nobody_leases(bench: Bench) -> None:
    """All slots are in use, so no worker leases jobs of this kind, and a run that could yield only checks the
    queues."""
    now = await bench.number("SELECT shoal_now()")
    await bench.enqueue(kind="crawl", run_id="long")
    long = await bench.lease(kind="crawl")
    await bench.enqueue(kind="crawl", run_id="later", not_before=now + 5_000_000)
    await bench.enqueue(not_before=now + 5_000_000)

    async def seen() -> tuple[bool, bool]:
        mine, patience = long.fence.job_id, timedelta(seconds=1)
        other = await bench.database.read(lambda tx: bench.jobs.other_run_waits(tx, mine, patience))
        return other, await bench.queue.waits("page", ["shared"])

    assert await seen() == (False, False)
    await bench.jump(6)
    assert await bench.queue.waits("page", ["shared"])
    await bench.queue.extend([long.fence])
    await bench.janitor().run_once()
    assert await seen() == (True, True)


async def test_jobs_without_a_run_go_back_in_one_commit(bench: Bench) -> None:
    for _ in range(20):
        await bench.enqueue()
    await bench.janitor().run_once()  # records the current clock reading
    await bench.queue.lease("w1", ["page"], ["shared"], 20)
    await bench.jump(11)
    commits = 0
    run = bench.database.run

    async def counted(work: Any) -> Any:
        nonlocal commits
        commits += 1
        return await run(work)

    bench.database.run = counted  # type: ignore[method-assign]
    assert "20 of 20" in (await bench.janitor().run_once()).did
    assert commits == 2  # and one for the clean-up
    assert await bench.number("SELECT count(*) FROM job WHERE crash_count = 1 AND state = 'pending'") == 20


async def test_the_jobs_of_a_group_go_back_together(bench: Bench) -> None:
    for _ in range(5):
        await bench.enqueue(run_id="grp_1")
    await bench.queue.lease("w1", ["page"], ["shared"], 5)
    await bench.jump(11)
    assert "5 of 5" in (await bench.janitor().run_once()).did
    assert await bench.number("SELECT count(*) FROM job WHERE crash_count = 1 AND state = 'pending'") == 5


async def test_a_run_that_nobody_can_read_keeps_no_other_from_being_swept(bench: Bench) -> None:
    broken, whole = await bench.submit(), await bench.submit()
    await bench.queue.lease("w1", ["crawl"], ["shared"], 2)
    await bench.sql(f"UPDATE crawl SET config = 'nonsense' WHERE id = '{broken.id}'")
    await bench.jump(11)
    await bench.janitor().run_once()
    assert [signal.count for signal in bench.signals_seen if isinstance(signal, ExpiryFailed)] == [1]
    states = {job["run_id"]: job["state"] for job in await bench.sql("SELECT run_id, state FROM job")}
    assert states == {broken.id: "locked", whole.id: "pending"}


async def test_a_child_that_dies_gives_all_it_held_back_at_once(bench: Bench) -> None:
    for _ in range(5):
        await bench.enqueue()
    leases: list[Lease] = await bench.queue.lease("w1", ["page"], ["shared"], 5)
    await bench.queue.finish(leases[0])
    assert len(await bench.queue.recovery.lose_all(leases, "signal 9")) == 4
    found = [await bench.job(lease.fence.job_id) for lease in leases]
    assert [(job.state, job.crash_count) for job in found] == [(J.DONE, 0)] + [(J.PENDING, 1)] * 4
    assert (await bench.grants(found[1].id))[0]["ended"] == "crashed"


async def test_a_job_that_was_lost_too_often_becomes_a_dead_letter_and_the_others_do_not(bench: Bench) -> None:
    """F13: only the job that causes the crashes reaches the limit."""
    guilty = await bench.enqueue()
    for _ in range(3):
        await bench.lease()
        await bench.lose()
    innocent = await bench.enqueue()
    leases = await bench.queue.lease("w1", ["page"], ["shared"], 2)
    await bench.queue.recovery.lose_all(leases, "signal 9")
    assert [(await bench.job(job_id)).state for job_id in (guilty, innocent)] == [J.EXPIRED, J.PENDING]


# Pruning


def pruner(bench: Bench, **settings: Any) -> Pruner:
    return Pruner(bench.database, job_retention(bench.job_admin_store, QueueSettings(**settings)))


async def test_jobs_are_kept_for_a_time_and_dead_letters_for_longer(bench: Bench) -> None:
    done = await bench.enqueue()
    await bench.queue.finish(await bench.lease())
    dead = await bench.enqueue(max_attempts=1)
    await bench.queue.fail(await bench.lease(), "boom")
    waiting = await bench.enqueue(kind="audit")
    chore = pruner(bench, keep_finished="7d", keep_dead="30d")
    await bench.jump(6 * 86_400)
    assert (await chore.run_once()).did == ""
    await bench.jump(2 * 86_400)
    assert (await chore.run_once()).did == "removed 1 ended jobs"
    await bench.jump(23 * 86_400)
    assert (await chore.run_once()).did == "removed 1 dead letters"
    left = await bench.sql("SELECT id FROM job")
    assert [row["id"] for row in left] == [waiting]
    assert {done, dead} & {row["job_id"] for row in await bench.sql("SELECT job_id FROM job_grant")} == set()


async def test_jobs_that_are_kept_for_ever_are_not_pruned(bench: Bench) -> None:
    await bench.enqueue()
    await bench.queue.finish(await bench.lease())
    await bench.jump(10_000 * 86_400)
    assert (await pruner(bench, keep_finished="inf", keep_dead="inf").run_once()).did == ""
    assert await bench.number("SELECT count(*) FROM job") == 1


async def test_pruning_during_leases_removes_only_ended_jobs(bench: Bench) -> None:
    """F59: finished jobs are pruned while workers lease others."""
    for number in range(60):
        await bench.enqueue(key=f"k{number}")
    for lease in await bench.queue.lease("w1", ["page"], ["shared"], 30):
        await bench.queue.finish(lease)
    await bench.jump(8 * 86_400)
    passes = [pruner(bench).run_once() for _ in range(3)]
    leases, *_ = await asyncio.gather(bench.queue.lease("w2", ["page"], ["shared"], 30), *passes)
    await pruner(bench).run_once()
    assert len(leases) + await bench.number("SELECT count(*) FROM job WHERE state = 'pending'") == 30
    assert await bench.number("SELECT count(*) FROM job") == 30


def with_settings(bench: Bench, **given: str) -> Bench:
    """Return a bench whose app has the settings that an operator gave."""
    settings = load(given, env={}).settings
    return replace(bench, settings=settings.queue, defaults=settings)


async def test_hourly_statistics_are_kept_as_long_as_set(bench: Bench) -> None:
    chores = with_settings(bench, SHOAL_STATS_RETENTION="2d").app.chores
    stats = HourlyStatsWriter(bench.database, bench.signals)
    await bench.enqueue()
    await stats.run_once()
    await bench.jump(86_400)
    assert (await chores.pruner.run_once()).did == ""
    await bench.jump(1.1 * 86_400)
    assert (await chores.pruner.run_once()).did == "removed 1 hourly stats"
    assert await bench.number("SELECT count(*) FROM job_hour") == 0


async def test_priority_signals_are_kept_as_long_as_set(bench: Bench) -> None:
    app = with_settings(bench, SHOAL_SIGNAL_RETENTION="2h").app
    await app.plan.policies.signal(SignalForm.read({"label": "team=a", "boost": 30.0, "lasts": "1h"}))
    await bench.jump(2.9 * 3_600)
    assert (await app.chores.pruner.run_once()).did == ""
    await bench.jump(0.2 * 3_600)
    assert (await app.chores.pruner.run_once()).did == "removed 1 priority boosts"
    assert await bench.number("SELECT count(*) FROM business_signal") == 0


async def test_a_controller_prunes_as_often_as_set(sqlite_url: str) -> None:
    """By default the first pass is up to ten minutes after the start."""
    pruned = asyncio.Event()
    async with served_controller(sqlite_url, SHOAL_PRUNE="50ms", SHOAL_JOB_RETENTION="1ms") as shop:
        shop.app.signals.subscribe(
            lambda signal: pruned.set() if isinstance(signal, ChoreDone) and signal.chore == "pruner" else None
        )
        [job] = await add_page_jobs(shop.app)
        with contextlib.suppress(NotFound):  # it may be pruned before its new state is read
            await shop.app.job_admin.cancel(job)
        async with asyncio.timeout(PATIENCE):
            await pruned.wait()
        assert (await shop.ask(f"/api/v1/jobs/{job}", await shop.token())).status == 404


# Leading


class Counting:
    name = "counting"

    def __init__(self) -> None:
        self.passes = 0

    async def run_once(self) -> PassResult:
        self.passes += 1
        return PassResult()


async def claim(bench: Bench, holder: str) -> int | None:
    return await LeaderOnly(Counting(), bench.database, holder).claim()


async def test_one_leads_and_goes_on_leading_while_it_claims(bench: Bench) -> None:
    first = await claim(bench, "a")
    assert await claim(bench, "b") is None
    await bench.jump(4)
    assert await claim(bench, "a") == first
    await bench.jump(4)
    assert await claim(bench, "b") is None


async def test_another_takes_over_with_a_new_term_when_the_time_is_up(bench: Bench) -> None:
    """F16: a leader that was suspended until its lease expired is no longer the leader."""
    first = await claim(bench, "a")
    assert first is not None
    await bench.jump(6)
    assert await claim(bench, "b") == first + 1
    assert await claim(bench, "a") is None


async def test_a_lead_that_lapsed_is_a_new_term_also_for_the_same_holder(bench: Bench) -> None:
    first = await claim(bench, "a")
    await bench.jump(6)
    again = await claim(bench, "a")
    assert first is not None
    assert again is not None
    assert again == first + 1


async def test_a_leader_that_resigns_is_replaced_at_once(bench: Bench) -> None:
    leader = LeaderOnly(Counting(), bench.database, "a")
    await leader.run_once()
    assert await claim(bench, "b") is None
    await leader.close()
    assert await claim(bench, "b") is not None


async def test_of_many_that_claim_at_once_one_leads(bench: Bench) -> None:
    terms = await asyncio.gather(*[claim(bench, f"h{number}") for number in range(8)])
    assert sum(term is not None for term in terms) == 1


async def test_a_led_chore_is_done_by_its_leader_alone(bench: Bench) -> None:
    chores = [Counting(), Counting()]
    led = [LeaderOnly(chore, bench.database, f"h{n}") for n, chore in enumerate(chores)]
    for _ in range(3):
        for one in led:
            await one.run_once()
        await bench.jump(timedelta(seconds=4).total_seconds())
    assert [chore.passes for chore in chores] == [3, 0]
