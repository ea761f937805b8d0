"""A policy learns how its run ended in the commit that ends the run."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from shoal.base.database import Tx, postgres
from shoal.base.database import queries as migrations
from shoal.events.event import Event, append_events
from shoal.page_jobs.result import ResultDelivery, Status
from shoal.plan.policy import Policy
from shoal.plan.run_recorder import SINK, UNTIL, RunRecorder
from shoal.queue.job import Lease, LeaseRequest
from shoal.queue.states import JobState
from tests.contract.bad_bots import result_of
from tests.contract.conftest import BLOCKED, PATIENCE, Bench, database_at
from tests.contract.test_policies import HOUR, PlanBench
from tests.support.effort import times

ADAPTIVE = {"frequency": "4h", "adaptive": {"min": "1h", "max": "12h"}}
UPGRADE = 11  # the migration after which runs are recorded in the commits that end them


@pytest.fixture
def plan(bench: Bench) -> PlanBench:
    return PlanBench(bench)


def delivery(bench: Bench, lease: Lease, digest: str = "a") -> ResultDelivery:
    return ResultDelivery(lease.fence, result_of(Status.SUCCESS, bench.clock.micros(), digest))


async def leased(plan: PlanBench, count: int, **values: Any) -> tuple[list[Policy], list[Lease]]:
    """Make policies and lease the jobs of their first runs, both ordered by policy."""
    made = [await plan.make(url=f"http://example.org/{place}", **values) for place in range(count)]
    await plan.pass_()
    return made, [await plan.take() for _ in made]


async def test_the_note_of_a_run_and_its_end_are_one_commit(plan: PlanBench) -> None:
    bench = plan.bench
    [policy], [lease] = await leased(plan, 1)

    class KilledError(Exception):
        pass

    async def killed(tx: Tx) -> None:
        settlement = await bench.ingest.settle_in(tx, LeaseRequest("bot", ["page"]), [delivery(bench, lease)])
        await bench.ingest.call_hooks(tx, settlement)
        raise KilledError

    with pytest.raises(KilledError):
        await bench.database.run(killed)
    assert (await plan.policies.get(policy.id)).last_success_at is None
    await plan.end(lease, digest="a")  # it is still leased
    seen = await plan.policies.get(policy.id)
    assert (seen.last_hash, seen.live_job_id) == ("a", None)
    if bench.dialect == "postgres":
        [rows] = await bench.sql("SELECT policy.xmin AS noted, job.xmin AS ended FROM policy, job")
        assert rows["noted"] == rows["ended"]  # by the same transaction


async def test_a_job_whose_bot_is_lost_too_often_is_noted_as_a_failed_run(plan: PlanBench) -> None:
    policies, leases = await leased(plan, 2, max_retry=0)
    await plan.bench.queue.recovery.lose_all(leases[::-1], "its process ended")
    for _ in range(plan.bench.queue.settings.poison_limit):
        await plan.bench.jump(HOUR)
        again = [await plan.take() for _ in leases]
        await plan.bench.queue.recovery.lose_all(again[::-1], "its process ended")
    assert await plan.live() == 0
    for policy in policies:
        assert (await plan.policies.get(policy.id)).error_rate == pytest.approx(0.2)


async def test_a_site_policy_is_noted_when_its_crawl_completes_or_fails(plan: PlanBench) -> None:
    bench = plan.bench
    policy = await plan.make(url=None, seeds=["http://example.org/"], frequency="1h")
    for is_success, rate in ((True, 0), (False, 0.2)):
        await plan.site_scheduler.run_once()
        [seen, *_] = await bench.crawls.newest()
        walker = await bench.walker(seen.crawl)
        await walker.take()
        await (walker.fetch_all() if is_success else bench.queue.cancel(walker.lease, "lost"))
        noted = await plan.policies.get(policy.id)
        assert (noted.last_success_at is not None, noted.error_rate) == (True, pytest.approx(rate))
        await bench.jump(1.1 * HOUR)


async def test_a_policy_that_cannot_be_read_fails_nothing_else(plan: PlanBench) -> None:
    bench = plan.bench
    (broken, fine), leases = await leased(plan, 2, **ADAPTIVE)
    await bench.sql("UPDATE policy SET last_hash = 'a'")
    await bench.sql(f"UPDATE policy SET spec = 'x' WHERE id = '{broken.id}'")
    results = (await bench.ingest.settle("bot", [delivery(bench, lease) for lease in leases])).receipts
    assert [receipt.state for receipt in results] == [JobState.DONE] * 2
    assert (await plan.policies.get(fine.id)).frequency_now == timedelta(hours=6)
    seen = await plan.policies.get(broken.id)
    assert (seen.frequency_now, seen.last_success_at is not None) == (None, True)


async def test_a_policy_that_was_removed_meanwhile_is_not_noted(plan: PlanBench) -> None:
    [policy], [lease] = await leased(plan, 1)
    await plan.policies.remove(policy.id)
    await plan.end(lease)
    assert await plan.live() == 0


@pytest.fixture
def postgres_plan(postgres_bench: Bench) -> PlanBench:
    return PlanBench(postgres_bench)


async def test_policies_are_locked_last_and_by_key(postgres_plan: PlanBench) -> None:
    """While the first of two policies is locked by somebody else, the commit that ends a run of each has not locked the
    second."""
    plan, bench = postgres_plan, postgres_plan.bench
    policies, leases = await leased(plan, 2)
    first, second = sorted(policy.id for policy in policies)
    holder, looker = [await asyncpg.connect(bench.url) for _ in range(2)]
    try:
        async with holder.transaction():
            await holder.execute(f"SELECT 1 FROM policy WHERE id = '{first}' FOR UPDATE")
            ending = asyncio.create_task(
                bench.ingest.settle("bot", [delivery(bench, lease) for lease in reversed(leases)])
            )
            async with asyncio.timeout(PATIENCE):
                while not await looker.fetchval(BLOCKED):
                    assert not ending.done(), await ending
            await looker.execute(f"SELECT 1 FROM policy WHERE id = '{second}' FOR UPDATE NOWAIT")
        await asyncio.wait_for(ending, PATIENCE)
    finally:
        await holder.close()
        await looker.close()


async def test_runs_that_end_at_once_and_schedulers_do_not_wait_in_a_circle(
    postgres_plan: PlanBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bots end the runs of the same policies in different orders while two schedulers replace them. The driver
    repeats a transaction after a deadlock; here that is an error."""
    plan, bench = postgres_plan, postgres_plan.bench
    for name in ("CONFLICTS", "RACES"):
        others = [error for error in getattr(postgres, name) if error is not asyncpg.DeadlockDetectedError]
        monkeypatch.setattr(postgres, name, tuple(others))
    made = [await plan.make(url=f"http://example.org/{place}", overlap="replace") for place in range(8)]
    other = PlanBench(bench)
    for _ in range(times(6)):
        await plan.pass_()
        leases = await bench.queue.lease("bot", ["page"], ["shared"], len(made))
        await bench.jump(6.1 * HOUR)  # all of them are due again
        parts = [leases[place::4][:: 1 if place % 2 else -1] for place in range(4)]
        ends = [bench.ingest.settle("bot", [delivery(bench, one) for one in part]) for part in parts]
        await asyncio.wait_for(asyncio.gather(*ends, plan.pass_(), other.pass_()), PATIENCE)
        for lease in await bench.queue.lease("bot", ["page"], ["shared"], len(made)):
            await plan.end(lease)
    assert await bench.number("SELECT count(*) FROM policy WHERE last_success_at IS NULL") == 0
    live = await bench.sql("SELECT dedupe_key FROM job WHERE finished_at IS NULL")
    assert len(live) == len({row["dedupe_key"] for row in live})


async def downgraded(bench: Bench) -> None:
    """Undo the last migrations, as a store of the version before would be."""
    await bench.sql("ALTER TABLE crawl DROP COLUMN policy_id")
    await bench.sql(f"DELETE FROM event_cursor WHERE sink IN ('{SINK}', '{UNTIL}')")
    await bench.sql(f"DELETE FROM schema_version WHERE version >= {UPGRADE}")
    if bench.dialect == "sqlite":
        await bench.sql(f"PRAGMA user_version = {UPGRADE - 1}")


async def test_ends_from_before_the_upgrade_are_read_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs of each policy have ended, interleaved with those of others; one event was read, one has no number
    yet. What ends after the upgrade is noted by itself."""
    plan, steps = PlanBench(bench), migrations.migrations(bench.dialect)
    monkeypatch.setattr(migrations, "migrations", lambda dialect: steps[:UPGRADE])
    policies, leases = await leased(plan, 3, **ADAPTIVE)
    planned = {policy.id: (await plan.policies.get(policy.id)).planned_at for policy in policies}
    site = await plan.make(url=None, seeds=["http://example.org/"])
    await plan.site_scheduler.run_once()
    [crawl] = await bench.crawls.newest()
    ends = [("crawl.job.completed", policy.id, digest) for digest in "xaab" for policy in policies]
    events = [Event(kind, f"job_{digest}", {"policy": of, "meta": {"html_hash": digest}}) for kind, of, digest in ends]
    await bench.database.run(lambda tx: append_events(tx, *events))
    await bench.app.chores.forwarder.run_once()
    await downgraded(bench)
    await bench.sql(f"INSERT INTO event_cursor (sink, seen) VALUES ('{SINK}', {len(policies)})")
    await bench.database.run(
        lambda tx: append_events(tx, Event("crawl.failed", crawl.crawl.id, {"crawl_id": crawl.crawl.id}))
    )
    database = database_at(bench.url, bench.clock)
    await database.open(upgrade=True)
    await database.close()
    assert (await bench.crawls.get(crawl.crawl.id)).crawl.policy_id == site.id

    async def record() -> None:
        recorder = RunRecorder(bench.database)
        while (await recorder.run_once()).again_in is not None:
            pass

    await record()
    for policy in policies:
        seen = await plan.policies.get(policy.id)
        assert (seen.frequency_now, seen.last_hash) == (timedelta(hours=3), "b")  # 4, then 6, then half of that
        assert (seen.planned_at - planned[policy.id]) / 1e6 / HOUR == -1
    assert (await plan.policies.get(site.id)).error_rate == 0
    await plan.end(leases[0], digest="b")
    await bench.app.chores.forwarder.run_once()
    for _ in range(2):
        await record()
    assert (await plan.policies.get(site.id)).error_rate == pytest.approx(0.2)
    rows = await bench.sql("SELECT frequency_now FROM policy WHERE frequency_now IS NOT NULL ORDER BY frequency_now")
    assert [row["frequency_now"] / 1e6 / HOUR for row in rows] == [3, 3, 4.5]
    assert await bench.number("SELECT count(*) FROM event_cursor") == 0
