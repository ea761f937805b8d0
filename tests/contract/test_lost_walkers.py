"""A lost worker counts as a crash of the crawl only if it had a URL in flight."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.values import WalkerBatch
from shoal.crawl.lifecycle.crawls import KIND
from shoal.crawl.states import CrawlState
from shoal.queue.job import Job, Lease
from shoal.queue.states import STALLED, JobState
from tests.contract.conftest import Bench, Breakpoint, BreakpointDatabase, Walker, fetched, later, until_blocked

Lose = Callable[[Bench, Lease], Awaitable[None]]


async def child_dies(bench: Bench, lease: Lease) -> None:
    await bench.queue.recovery.lose(lease, "its child was killed by SIGKILL")


async def child_stalls(bench: Bench, lease: Lease) -> None:
    await bench.queue.recovery.lose(lease, "its child settled nothing", STALLED)


async def worker_dies(bench: Bench, lease: Lease) -> None:
    await bench.lose()


@pytest.fixture(params=[child_dies, child_stalls, worker_dies])
def lose(request: pytest.FixtureRequest) -> Lose:
    """The ways in which a walker is lost."""
    way: Lose = request.param
    return way


async def job_of(bench: Bench, crawl: Crawl) -> Job:
    [job, *_] = await bench.database.read(lambda tx: bench.jobs.jobs_of_run(tx, crawl.id))
    return job


async def waiting_crawl(bench: Bench) -> Crawl:
    """A crawl whose only URL waits for longer than any lease."""
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await walker.commits.hand_back(WalkerBatch([later(task, 900)]), "slice")
    return crawl


async def test_a_walker_that_only_waits_may_be_lost_any_number_of_times(bench: Bench, lose: Lose) -> None:
    crawl = await waiting_crawl(bench)
    for _ in range(bench.settings.poison_limit + 3):
        walker = await bench.walker(crawl)
        assert await walker.take() == []
        await lose(bench, walker.lease)
    job = await job_of(bench, crawl)
    assert (job.state, job.crash_count, job.attempts) == (JobState.PENDING, 0, 0)
    assert {grant["ended"] for grant in (await bench.grants(job.id))[1:]} <= {"crashed", "expired"}
    await bench.jump(900)
    walker = await bench.walker(crawl)
    assert (await walker.take())[0].crashes == 0
    assert (await walker.fetch_all()).drained
    assert await bench.state(crawl) is CrawlState.COMPLETED


async def test_a_grant_that_took_nothing_yet_is_not_guilty(bench: Bench, lose: Lose) -> None:
    crawl = await bench.submit()
    for _ in range(bench.settings.poison_limit + 3):
        await lose(bench, await bench.lease(kind=KIND))
    assert (await job_of(bench, crawl)).crash_count == 0
    assert await bench.state(crawl) in (CrawlState.QUEUED, CrawlState.RUNNING)


async def test_a_walker_with_a_url_in_hand_counts_a_crash(bench: Bench, lose: Lose) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    assert await walker.take()
    await lose(bench, walker.lease)
    assert (await job_of(bench, crawl)).crash_count == 1


async def test_losing_a_walker_that_took_nothing_leaves_the_crash_count(bench: Bench, lose: Lose) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    assert await walker.take()
    await lose(bench, walker.lease)
    walker = await bench.walker(crawl)
    await lose(bench, walker.lease)
    assert (await job_of(bench, crawl)).crash_count == 1


async def test_a_walker_that_put_everything_back_is_not_guilty(bench: Bench, lose: Lose) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    task_back = later(task, 900)
    task_back.untried = True
    await walker.commits.turn(WalkerBatch([task_back]), TurnRequest(0, 0))
    await lose(bench, walker.lease)
    assert (await job_of(bench, crawl)).crash_count == 0


async def test_an_idle_second_walker_is_not_guilty_of_what_the_first_holds(bench: Bench, lose: Lose) -> None:
    crawl = await bench.submit(workers=2)
    first = await bench.walker(crawl, "w1")
    [held] = await first.take()
    for _ in range(bench.settings.poison_limit + 3):
        await bench.queue.extend([first.fence])
        second = await bench.walker(crawl, "w2")
        assert await second.take() == []
        await bench.jump(5)
        await bench.queue.extend([first.fence])
        await (bench.lose(6) if lose is worker_dies else lose(bench, second.lease))
    assert first.held == [held]
    jobs = await bench.database.read(lambda tx: bench.jobs.jobs_of_run(tx, crawl.id))
    assert sorted((job.state, job.crash_count) for job in jobs) == [(JobState.LOCKED, 0), (JobState.PENDING, 0)]
    assert (await first.turn(fetched(held))).drained


async def test_many_walkers_lost_at_once_are_judged_each_by_what_it_held(bench: Bench) -> None:
    busy, idle = [await bench.submit() for _ in range(4)], [await waiting_crawl(bench) for _ in range(4)]
    for _ in range(8):
        lease = await bench.lease(kind=KIND)
        crawl = next(crawl for crawl in (*busy, *idle) if crawl.id == lease.run_id)
        walker = Walker(bench, crawl, lease)
        await walker.attach()
        await walker.take()
    await bench.lose()
    assert [(await job_of(bench, crawl)).crash_count for crawl in busy] == [1] * 4
    assert [(await job_of(bench, crawl)).crash_count for crawl in idle] == [0] * 4


async def test_hooks_that_kill_while_they_load_end_their_crawl(bench: Bench, lose: Lose) -> None:
    """No URL is in flight then, but the crawl itself causes the crash, which would repeat for ever."""
    crawl = await bench.submit(hooks=["deadly"])
    for _ in range(bench.settings.poison_limit + 1):
        await lose(bench, await bench.lease(kind=KIND))
    assert await bench.state(crawl) is CrawlState.FAILED


async def test_a_crawl_whose_hooks_are_loaded_may_wait_like_any_other(bench: Bench, lose: Lose) -> None:
    crawl = await bench.submit(hooks=["harmless"])
    for _ in range(bench.settings.poison_limit + 3):
        await lose(bench, (await bench.walker(crawl)).lease)
    assert (await job_of(bench, crawl)).crash_count == 0


async def test_a_take_under_way_when_its_worker_is_given_up_counts(postgres_bench: Bench) -> None:
    """The decision waits for the commit of a take, and sees what it took."""
    bench = postgres_bench
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    point = Breakpoint("hold_untried")
    walker.commits._database = BreakpointDatabase(bench.database, point)
    taking = asyncio.create_task(walker.take())
    await point.wait_until_reached(taking)
    losing = asyncio.create_task(bench.queue.recovery.lose(walker.lease, "its child was killed by SIGKILL"))
    await until_blocked(bench)
    point.resume()
    assert await taking
    assert await losing is JobState.PENDING
    assert (await job_of(bench, crawl)).crash_count == 1
