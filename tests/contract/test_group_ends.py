"""PostgreSQL: commits that end jobs of one group share it, and exactly one of them ends the group (decision 0050)."""

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator

from shoal.base.errors import LeaseLost
from shoal.base.ids import JobId
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.page_jobs.spec import Group, GroupConfig, GroupState
from shoal.queue.job import Lease, LeaseRequest
from tests.contract.conftest import PATIENCE, Bench, Breakpoint, BreakpointDatabase, until_blocked
from tests.support.effort import times
from tests.support.fleet import SEED
from tests.support.interleaving import BLOCKED_SECONDS, Schedule, SteppedPostgres

JOBS = 6
SEEDS = 12


async def made(bench: Bench, jobs: int) -> Group:
    urls = [f"http://www{place}.example.org/" for place in range(jobs)]
    return await bench.groups.make(GroupConfig(urls=urls))


async def take(bench: Bench, holder: str, count: int = 1) -> list[Lease]:
    return await bench.queue.lease(holder, ["page"], ["shared"], count)


def done(lease: Lease) -> ResultDelivery:
    return ResultDelivery(lease.fence, Result(Status.SUCCESS, "http://www.example.org/", 1, http_status=200))


def stopped_at(bench: Bench, query: str) -> tuple[Bench, Breakpoint]:
    """Return a bench whose next commit stops after that query."""
    point = Breakpoint(query)
    return bench.over(BreakpointDatabase(bench.database, point)), point


async def ends_of(bench: Bench) -> int:
    return len(await bench.events("crawl.group.completed"))


async def test_results_of_one_group_do_not_wait_for_each_other_while_a_job_waits(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await made(bench, 3)
    [first], [second] = await take(bench, "w1"), await take(bench, "w2")
    slow, point = stopped_at(bench, "group_to_end")
    settling = asyncio.create_task(slow.ingest.settle("w1", [done(first)]))
    await point.wait_until_reached(settling)
    await asyncio.wait_for(bench.ingest.settle("w2", [done(second)]), PATIENCE)
    assert not settling.done()
    point.resume()
    await settling
    assert await ends_of(bench) == 0


async def test_the_last_result_waits_for_those_that_share_the_group(postgres_bench: Bench) -> None:
    bench = postgres_bench
    group = await made(bench, 2)
    [first] = await take(bench, "w1")
    slow, point = stopped_at(bench, "group_to_end")
    settling = asyncio.create_task(slow.ingest.settle("w1", [done(first)]))  # the second job still waits
    await point.wait_until_reached(settling)
    [second] = await take(bench, "w2")
    last = asyncio.create_task(bench.ingest.settle("w2", [done(second)]))
    await until_blocked(bench)
    assert not last.done()
    point.resume()
    await asyncio.gather(settling, last)
    assert (await bench.groups.get(group.id)).state is GroupState.COMPLETED
    assert await ends_of(bench) == 1


async def test_results_that_share_a_group_whose_last_job_is_leased_meanwhile_end_it_once(postgres_bench: Bench) -> None:
    """Both began while a third job waited. If none waits when one of them is done, it may be the last or not: it starts
    over, and waits for the other."""
    bench = postgres_bench
    group = await made(bench, 3)
    [first], [second] = await take(bench, "w1"), await take(bench, "w2")
    (one, at_one), (two, at_two) = stopped_at(bench, "lock_groups"), stopped_at(bench, "lock_groups")
    settling = [
        asyncio.create_task(one.ingest.settle("w1", [done(first)])),
        asyncio.create_task(two.ingest.settle("w2", [done(second)])),
    ]
    await at_one.wait_until_reached(*settling)
    await at_two.wait_until_reached(*settling)
    [third] = await take(bench, "w3")
    at_one.resume()
    await until_blocked(bench)
    at_two.resume()
    await asyncio.wait_for(asyncio.gather(*settling, bench.ingest.settle("w3", [done(third)])), PATIENCE)
    assert (await bench.groups.get(group.id)).state is GroupState.COMPLETED
    assert await ends_of(bench) == 1


async def test_results_that_lease_the_last_waiting_job_do_not_wait_for_others(postgres_bench: Bench) -> None:
    """To start over would change nothing: the job would wait again, and be leased again."""
    bench = postgres_bench
    group = await made(bench, 3)
    [first], [second] = await take(bench, "w1"), await take(bench, "w2")
    slow, point = stopped_at(bench, "group_to_end")
    settling = asyncio.create_task(slow.ingest.settle("w2", [done(second)]))
    await point.wait_until_reached()
    request = LeaseRequest("w1", ["page"])
    turn = await asyncio.wait_for(
        bench.database.run(lambda tx: bench.ingest.settle_in(tx, request, [done(first)], 1)), PATIENCE
    )
    point.resume()
    await settling
    assert await ends_of(bench) == 0
    await bench.ingest.settle("w1", [done(lease) for lease in turn.leases])
    assert (await bench.groups.get(group.id)).state is GroupState.COMPLETED
    assert await ends_of(bench) == 1


async def test_a_group_that_is_cancelled_while_results_share_it_ends_once(postgres_bench: Bench) -> None:
    bench = postgres_bench
    group = await made(bench, 2)
    [first] = await take(bench, "w1")
    slow, point = stopped_at(bench, "lock_held_jobs")
    settling = asyncio.create_task(slow.ingest.settle("w1", [done(first)]))
    await point.wait_until_reached(settling)
    cancelling = asyncio.create_task(bench.groups.cancel(group.id))
    await until_blocked(bench)
    point.resume()
    await asyncio.wait_for(asyncio.gather(settling, cancelling), PATIENCE)
    assert (await bench.groups.get(group.id)).jobs == {"done": 1, "cancelled": 1}
    assert await ends_of(bench) == 1


def seeds() -> Iterator[int]:
    yield from [int(os.environ[SEED])] if os.environ.get(SEED) else range(1, times(SEEDS) + 1)


async def test_a_group_ends_exactly_once_whatever_runs_between_two_statements(postgres_bench: Bench) -> None:
    for seed in seeds():
        schedule = Schedule(seed, BLOCKED_SECONDS)
        stepped = SteppedPostgres(postgres_bench.database, schedule)  # type: ignore[arg-type]
        bench = postgres_bench.over(stepped)  # type: ignore[arg-type]
        group = await made(postgres_bench, JOBS)
        before = await ends_of(postgres_bench)
        actors = {name: work(bench, name, schedule.dice) for name in ("w1", "w2", "w3")}
        if schedule.dice.random() < 0.2:
            actors["person"] = meddle(bench, group, schedule.dice)
        try:
            await schedule.play(actors)
            await postgres_bench.jump(60)  # failed jobs wait before they are tried again
            while leases := await take(postgres_bench, "last", JOBS):
                await postgres_bench.ingest.settle("last", [done(lease) for lease in leases])
            assert stepped.deadlocks == []
            assert (await postgres_bench.groups.get(group.id)).state is not GroupState.OPEN
            assert await ends_of(postgres_bench) == before + 1
        except BaseException as error:
            error.add_note(f"again with {SEED}={seed}; the last steps: {schedule.trace[-40:]}")
            raise


async def work(bench: Bench, name: str, dice: random.Random) -> None:
    """Lease jobs and settle them one by one or together; return some."""
    while leases := await take(bench, name, dice.randint(1, 2)):
        with contextlib.suppress(LeaseLost):
            if dice.random() < 0.2:
                await bench.queue.release(leases.pop(), "shutdown")
            if leases and dice.random() < 0.2:
                await bench.queue.fail(leases.pop(), "boom")
        while leases:
            batch = [leases.pop() for _ in range(dice.randint(1, len(leases)))]
            await bench.ingest.settle(name, [done(lease) for lease in batch])


async def meddle(bench: Bench, group: Group, dice: random.Random) -> None:
    if dice.random() < 0.5:
        await bench.groups.cancel(group.id)
        return
    jobs = await bench.database.read(lambda tx: bench.queue.jobs.jobs_of_run(tx, group.id))
    await bench.database.run(lambda tx: bench.job_admin.cancel_in(tx, JobId(dice.choice(jobs).id), "asked"))
