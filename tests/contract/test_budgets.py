"""Budgets that several walkers share: never one page too many, time by the clock, and nothing after the end."""

import asyncio
from datetime import timedelta

import pytest

from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.values import WalkerBatch
from shoal.crawl.states import CrawlState as S
from shoal.crawl.store import HostRate
from tests.contract.conftest import SITE, Bench, Breakpoint, BreakpointDatabase, Walker, failed, fetched

SEEDS = [f"http://h{number}.example/" for number in range(30)]  # one host each: no walker waits for another


async def three(bench: Bench, **budget: int) -> tuple[Crawl, list[Walker]]:
    crawl = await bench.submit(*SEEDS, workers=3, **budget)
    return crawl, [await bench.walker(crawl, f"w{number}") for number in range(3)]


async def work_for(walker: Walker, seconds: float) -> None:
    """One turn of a walker that worked this long and has no results."""
    await walker.commits.turn(WalkerBatch(walked_seconds=seconds), TurnRequest(0, 1))


async def test_all_walkers_together_take_no_more_than_the_budget_allows(bench: Bench) -> None:
    _, (first, second, third) = await three(bench, max_pages=4)
    assert [len(await walker.take(3)) for walker in (first, second, third)] == [3, 1, 0]


async def test_a_url_without_a_page_does_not_use_up_the_budget(bench: Bench) -> None:
    crawl, (first, second, third) = await three(bench, max_pages=4)
    await first.take(3)
    await second.take(3)
    good, bad, unsettled = first.held
    assert (await first.turn(fetched(good), failed(bad), want=0)).work == []
    assert len(await third.take(3)) == 1
    assert len(first.held + second.held + third.held) + (await bench.counts(crawl)).pages == 4
    assert unsettled in first.held


async def test_urls_of_a_lost_walker_are_fetched_by_the_others(bench: Bench) -> None:
    crawl, (first, second, _) = await three(bench, max_pages=4)
    await first.take(4)
    await bench.queue.recovery.lose(first.lease, "killed")
    assert await second.take() == []  # the URL was put back by this turn, which found no other
    assert len(await second.take()) == 4
    await second.fetch_all()
    assert (await bench.counts(crawl)).pages == 4


async def test_concurrent_takes_do_not_exceed_the_budget(postgres_bench: Bench) -> None:
    _, walkers = await three(postgres_bench, max_pages=4)
    taken = await asyncio.gather(*(walker.take(3) for walker in walkers))
    assert sum(map(len, taken)) == 4


async def test_a_walker_that_helps_at_anothers_host_counts_the_pages_it_gave_meanwhile(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("hosts_of_others")
    seeds = [*(f"{SITE}/{number}" for number in range(8)), "http://other.example/"]
    crawl = await bench.submit(*seeds, workers=2, max_pages_per_host=2)
    pace = HostRate(0.0, per_host=2, walkers=2)
    owner = await bench.walker(crawl, "w1", pace=pace)
    first = next(task for task in await owner.take(2) if task.url.startswith(SITE))
    helper = await bench.walker(crawl, "w2", pace=pace)
    halting = Walker(bench.over(BreakpointDatabase(bench.database, point)), crawl, helper.lease, pace)
    helping = asyncio.create_task(halting.take(1))
    await point.wait_until_reached(helping)
    [second] = (await owner.turn(fetched(first), want=1)).work
    point.resume()
    assert second.host == first.host
    assert await helping == []


async def test_urls_that_an_exchange_closes_are_counted(bench: Bench) -> None:
    """Callers that fetch by themselves take like a walker: what a full host closes is settled."""
    crawl = await bench.submit(*(f"{SITE}/{number}" for number in range(8)), max_pages_per_host=2)
    walker = await bench.walker(crawl, pace=HostRate(0.0, per_host=2))
    one, two = await walker.take(2)
    await walker.turn(fetched(one), want=0)
    report = WalkerBatch([fetched(two)])
    state, taken = await bench.database.run(lambda tx: walker.commits.exchange(tx, report, 5))
    assert (state, taken) == (S.RUNNING, [])
    counts = await bench.counts(crawl)
    assert (counts.opened, counts.settled) == (8, 8)


async def test_no_more_is_taken_than_bytes_are_likely_left_for(bench: Bench) -> None:
    crawl, (first, second, _) = await three(bench, max_bytes=1000)
    [task] = await first.take()  # the size of pages is not known yet, so one page alone
    assert await second.take() == []
    await first.turn(fetched(task, size=200), want=3)
    await second.take()
    assert len(first.held + second.held) == 4
    await first.turn(*[fetched(task, size=800) for task in first.held], want=0)
    assert (await bench.counts(crawl)).bytes >= 1000
    assert await second.take() == []


async def test_the_last_walker_to_leave_completes_a_crawl_whose_budget_is_spent(bench: Bench) -> None:
    crawl, (first, second, third) = await three(bench, max_bytes=10)
    [task] = await first.take()
    await first.commits.close(WalkerBatch([fetched(task)]), "max_bytes")
    await second.commits.close(WalkerBatch(), "max_bytes")
    assert await bench.state(crawl) is S.RUNNING
    await third.commits.close(WalkerBatch(), "max_bytes")
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.COMPLETED, "max_bytes")


@pytest.mark.parametrize("how", ["handed back", "lost"])
async def test_a_walker_that_goes_otherwise_after_the_budget_completes_it_too(bench: Bench, how: str) -> None:
    crawl = await bench.submit(*SEEDS, workers=2, max_pages=1)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    [task] = await first.take()
    await first.commits.close(WalkerBatch([fetched(task)]), "max_pages")
    if how == "lost":
        await bench.queue.recovery.lose(second.lease, "killed")
    else:
        await second.commits.hand_back(WalkerBatch(), "shutdown")
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.COMPLETED, "max_pages")
    assert await bench.live(crawl) == (0, 0)


async def test_time_that_walkers_share_counts_once(bench: Bench) -> None:
    crawl, walkers = await three(bench, max_seconds=60)
    for _ in range(4):
        for walker in walkers:
            await work_for(walker, 3)
    assert (await bench.counts(crawl)).walked == timedelta(seconds=12)


async def test_walkers_that_never_came_do_not_stretch_the_time(bench: Bench) -> None:
    crawl = await bench.submit(*SEEDS, workers=3, max_seconds=60)
    walker = await bench.walker(crawl)
    for _ in range(4):
        await work_for(walker, 3)
    assert (await bench.counts(crawl)).walked == timedelta(seconds=12)


async def test_time_in_which_nothing_finished_is_counted_sooner_or_later(bench: Bench) -> None:
    crawl = await bench.submit(*SEEDS)
    walker = await bench.walker(crawl)
    for _ in range(5):
        await work_for(walker, 0.3)
    assert (await bench.counts(crawl)).walked == timedelta(
        seconds=1.2
    )  # amounts too small for a write are kept for the next commit
    await walker.commits.hand_back(WalkerBatch(walked_seconds=0.1), "shutdown")
    assert (await bench.counts(crawl)).walked == timedelta(seconds=1.6)
