"""Contract of the frontier: no two walkers have the same URL, a lost walker loses no URLs, zero open URLs means
drained, and the rate limits of hosts are kept."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
from xxhash import xxh3_128_digest

from shoal.base.database import Tx
from shoal.base.errors import LeaseLost
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.fates import REOPENING, Fate
from shoal.crawl.frontier.traps import TRAP_SCORE, pattern_of
from shoal.crawl.frontier.values import (
    CRASHES_ALONE,
    Control,
    FrontierTask,
    NewUrl,
    Settled,
    SitemapRecord,
    TrapPoints,
    UrlKind,
    WalkerBatch,
)
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import HostRate
from tests.contract.conftest import (
    SITE,
    Walker,
    failed,
    fetched,
    later,
    new_url,
    open_bench,
    page_of,
)
from tests.contract.frontier_driver import (
    FrontierDriver,
    RedisFrontierDriver,
    SqlFrontierDriver,
    check_counters,
    fate_of,
)
from tests.contract.test_crawl_lifecycle import check_ledger
from tests.support.servers import Servers, redis_database

SLOW = HostRate(1.0)


DRIVERS = ["sqlite", "postgres", "redis-sqlite", "redis-postgres"]
on_every_redis = pytest.mark.parametrize("driver", [*DRIVERS, "redis-sqlite-6.2", "redis-sqlite-7"], indirect=True)
"""Runs a test also on the other versions of Redis. Tests with it use every script of the frontier."""


@pytest.fixture(
    params=["sqlite", "postgres", pytest.param("redis-sqlite", marks=pytest.mark.exhaustive), "redis-postgres"]
)
async def driver(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[FrontierDriver]:
    """Each frontier in turn: on SQLite, on PostgreSQL, and on Redis beside each of them."""
    place, database, version = re.fullmatch(r"(redis-)?(sqlite|postgres)-?(.*)", request.param).groups()
    url = request.getfixturevalue(f"{database}_url")
    with redis_database(servers.redis(version)) if place else nullcontext("") as redis_url:
        bench = await open_bench(url, redis_url=redis_url)
        yield RedisFrontierDriver(bench) if place else SqlFrontierDriver(bench)
        await bench.close()


async def add(driver: FrontierDriver, crawl: Crawl, *urls: NewUrl) -> int:
    return await driver.bench.database.run(lambda tx: driver.bench.crawls.add_urls(tx, crawl, list(urls)))


async def grown(driver: FrontierDriver, *paths: str, workers: int = 1, depth: int = 1) -> Crawl:
    """A crawl whose frontier holds these URLs and no others."""
    crawl = await driver.bench.submit(f"{SITE}/seed", workers=workers)
    await driver.empty()
    await driver.bench.sql("UPDATE crawl_counter SET opened = 0")
    await add(driver, crawl, *[new_url(crawl, path, depth) for path in paths])
    return crawl


async def drain(walkers: list[Walker], links: dict[str, list[str]] | None = None) -> list[str]:
    """Let the walkers work in turns until one of them learns that nothing is left; return what they fetched, in
    order."""
    order: list[str] = []
    for _ in range(10_000):
        for walker in walkers:
            done = [fetched(task) for task in walker.held]
            found = [walker.link(path, done_task.task.depth + 1) for done_task in done
                     for path in (links or {}).get(path_of(done_task.task), [])]  # fmt: skip
            order += [path_of(task.task) for task in done]
            if (await walker.turn(*done, found=found, want=3)).drained:
                return order
    raise AssertionError("never drained")


def path_of(task: FrontierTask) -> str:
    return task.url.removeprefix(SITE)


# Adding


async def test_adding_again_changes_nothing(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    assert await add(driver, crawl, new_url(crawl, "/a"), new_url(crawl, "/c"), new_url(crawl, "/c")) == 1
    assert await add(driver, crawl, new_url(crawl, "/a"), new_url(crawl, "/b"), new_url(crawl, "/c")) == 0
    assert (await driver.bench.counts(crawl)).opened == 3
    await check_counters(driver, crawl)


async def test_a_settled_url_is_not_opened_again(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl)
    first, _ = await walker.take()
    await walker.turn(fetched(first), found=[walker.link(path_of(first))])
    assert (await driver.bench.counts(crawl)).opened == 2
    assert await fate_of(driver, crawl, first.url) is Fate.FETCHED


@on_every_redis
async def test_a_skipped_url_has_its_fate_and_is_counted_once(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a")
    skipped = new_url(crawl, "http://elsewhere.example/", fate=Fate.SKIPPED_SCOPE)
    assert await add(driver, crawl, skipped) == 1
    assert await add(driver, crawl, skipped) == 0
    counts = await driver.bench.counts(crawl)
    assert counts.skipped == {"scope": 1}
    assert counts.opened == 1
    assert await fate_of(driver, crawl, "http://elsewhere.example/") is Fate.SKIPPED_SCOPE


async def test_many_adders_of_the_same_urls_open_each_once(driver: FrontierDriver) -> None:
    crawl = await grown(driver)
    urls = [new_url(crawl, f"/{number}") for number in range(40)]
    answers = await asyncio.gather(*[add(driver, crawl, *random.Random(seed).sample(urls, 30)) for seed in range(8)])
    known = {(url.key, url.chk) for seed in range(8) for url in random.Random(seed).sample(urls, 30)}
    assert sum(answers) == len(known) == (await driver.bench.counts(crawl)).opened
    await check_counters(driver, crawl)


async def test_two_crawls_know_nothing_of_each_other(driver: FrontierDriver) -> None:
    first, second = await grown(driver, "/a"), await driver.bench.submit(f"{SITE}/a")
    assert (await driver.bench.counts(first)).opened == (await driver.bench.counts(second)).opened == 1


async def test_urls_that_share_64_bits_of_their_hash_are_two_urls(
    driver: FrontierDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shoal.crawl.frontier.values.xxh3_128_digest", lambda *given: bytes(8) + xxh3_128_digest(*given)[8:]
    )
    crawl = await grown(driver)
    twins = [new_url(crawl, "/one"), new_url(crawl, "/two")]
    assert twins[0].key == twins[1].key
    assert await add(driver, crawl, *twins) == 2
    assert await add(driver, crawl, *twins) == 0
    walker = await driver.bench.walker(crawl)
    assert sorted(path_of(task) for task in await walker.take()) == ["/one", "/two"]
    assert (await walker.fetch_all()).drained
    assert (await driver.bench.counts(crawl)).pages == 2
    urls = await driver.bench.sql("SELECT url FROM page ORDER BY url")
    assert [row["url"] for row in urls] == [f"{SITE}/one", f"{SITE}/two"]
    assert set((await driver.fates(crawl)).values()) == {Fate.FETCHED}


async def test_a_sitemap_and_a_page_of_one_url_are_two_and_keep_their_kind(driver: FrontierDriver) -> None:
    crawl = await grown(driver)
    both = [new_url(crawl, "/map", kind=kind) for kind in UrlKind]
    assert await add(driver, crawl, *both, *both) == 2
    walker = await driver.bench.walker(crawl)
    taken = await walker.take()
    assert [(path_of(task), task.kind) for task in taken] == [("/map", UrlKind.PAGE), ("/map", UrlKind.SITEMAP)]
    await walker.turn(fetched(taken[0]), later(taken[1], 5), want=0)
    await driver.bench.jump(6)
    again = await walker.take()
    assert [task.kind for task in again] == [UrlKind.SITEMAP]
    await driver.bench.lose()
    after = await driver.bench.walker(crawl)
    assert [task.kind for task in await after.take()] == [UrlKind.SITEMAP]


async def test_a_url_that_a_sitemap_lists_has_it_as_its_parent(driver: FrontierDriver) -> None:
    crawl = await grown(driver)
    map_url = new_url(crawl, "/map", kind=UrlKind.SITEMAP)
    await add(driver, crawl, map_url)
    walker = await driver.bench.walker(crawl)
    [task] = await walker.take()
    listed = new_url(crawl, "/listed")
    listed.parent_key = task.key
    record = SitemapRecord(task.url, 1, 200, listed=1, problem="is short")
    await walker.turn(Settled(task, Fate.FETCHED, sitemap=record), found=[listed], want=0)
    [found] = await walker.take()
    assert (found.parent, found.kind) == (task.url, UrlKind.PAGE)
    [row] = await driver.bench.sql("SELECT url, status, listed, problem FROM sitemap")
    assert dict(row) == {"url": f"{SITE}/map", "status": 200, "listed": 1, "problem": "is short"}
    await check_counters(driver, crawl)


@pytest.mark.parametrize("fate", sorted(REOPENING))
async def test_a_url_skipped_for_how_it_was_found_opens_when_found_another_way(
    driver: FrontierDriver, fate: Fate
) -> None:
    crawl = await grown(driver, "/seed")
    others = [new_url(crawl, "/other", fate=other) for other in sorted(REOPENING)][:1]
    await add(driver, crawl, new_url(crawl, "/a", fate=fate), *others, new_url(crawl, "/b", fate=Fate.SKIPPED_EXCLUDED))
    before = (await driver.bench.counts(crawl)).skipped
    assert await add(driver, crawl, new_url(crawl, "/a"), new_url(crawl, "/b")) == 1
    after = (await driver.bench.counts(crawl)).skipped
    assert Counter(before) - Counter(after) == {fate.word: 1}
    assert await add(driver, crawl, new_url(crawl, "/a", fate=fate)) == 0
    await check_counters(driver, crawl)


@on_every_redis
async def test_a_url_skipped_for_how_it_was_found_can_be_quarantined_and_released(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/seed")
    pattern = f"{SITE}/cal?m="
    await driver.bench.database.run(
        lambda tx: driver.frontier.quarantine(tx, crawl.number, {pattern: Url(f"{pattern}1")})
    )
    await add(driver, crawl, new_url(crawl, "/cal?m=2", fate=Fate.SKIPPED_DEPTH))
    await add(driver, crawl, new_url(crawl, "/cal?m=2", fate=Fate.QUARANTINED))
    assert (await driver.bench.counts(crawl)).skipped == {"trap": 1}
    assert await driver.bench.crawls.release(crawl.id, pattern) == 1
    assert await fate_of(driver, crawl, f"{pattern}2") is Fate.OPEN
    await check_counters(driver, crawl)


async def test_points_of_all_walkers_make_the_smallest_pattern_a_trap(driver: FrontierDriver) -> None:
    crawl, sample = await grown(driver, "/seed"), Url(f"{SITE}/maze/a/7")
    maze, site = f"{SITE}/maze/*", f"{SITE}/*"

    async def score(points: int, *patterns: str) -> list[str]:
        earned = {pattern: TrapPoints(sample, growth=points) for pattern in patterns}
        return list(await driver.bench.database.run(lambda tx: driver.frontier.score_traps(tx, crawl.number, earned)))

    assert await score(-5, maze, site) == []
    assert await score(TRAP_SCORE // 2, maze, site) == []
    assert await score(TRAP_SCORE // 2, maze, site) == [maze]
    assert await score(TRAP_SCORE - 1, site) == [], "its points were those of the maze"
    assert await score(TRAP_SCORE, pattern_of(sample)) == [], "its URLs are in quarantine already"
    await add(driver, crawl, *(new_url(crawl, path, fate=Fate.QUARANTINED) for path in ("/maze/b", "/maze/c/1")))
    assert (await driver.bench.counts(crawl)).skipped == {"trap": 2}
    assert await driver.bench.crawls.release(crawl.id, maze) == 2
    assert await score(TRAP_SCORE, maze) == []
    await check_counters(driver, crawl)


async def test_a_take_fills_up_from_other_hosts(driver: FrontierDriver) -> None:
    poor = [f"http://h{number}.example/" for number in range(4)]
    crawl = await grown(driver, *poor, *[f"/{number}" for number in range(40)])
    tasks = await (await driver.bench.walker(crawl)).take(20)
    assert len(tasks) == 20
    assert {task.url for task in tasks} >= set(poor)


async def test_returned_urls_are_taken_before_untried_ones(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b", "/c", "/d")
    walker = await driver.bench.walker(crawl)
    first = await walker.take(2)
    await walker.attach()
    assert [path_of(task) for task in await walker.take(3)] == [*map(path_of, first), "/c"]


@on_every_redis
async def test_concurrent_takers_never_share_a_url(driver: FrontierDriver) -> None:
    paths = [f"http://h{number % 7}.example/{number}" for number in range(70)]
    crawl = await grown(driver, *paths, workers=6)
    walkers = [await driver.bench.walker(crawl, f"w{number}") for number in range(6)]
    got: list[str] = []
    for _ in range(40):
        for batch in await asyncio.gather(*[walker.take(5) for walker in walkers]):
            got += [task.url for task in batch]
    assert len(got) == len(set(got))
    assert sorted(got) == sorted(paths)


async def test_a_take_gives_no_more_than_asked_for(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *[f"http://h{number}.example/" for number in range(20)])
    walker = await driver.bench.walker(crawl)
    assert len(await walker.take(7)) == 7
    assert await walker.take(0) == []
    assert len(await walker.take(100)) == 13


async def test_shallow_urls_first_then_the_order_in_which_they_were_found(driver: FrontierDriver) -> None:
    crawl = await grown(driver)
    await add(driver, crawl, new_url(crawl, "/deep", 3), new_url(crawl, "/first", 1), new_url(crawl, "/second", 1))
    await add(driver, crawl, new_url(crawl, "/middle", 2), new_url(crawl, "/third", 1))
    walker = await driver.bench.walker(crawl)
    order = [path_of(task) for _ in range(5) for task in await walker.take(1)]
    assert order == ["/first", "/second", "/third", "/middle", "/deep"]


async def test_a_small_host_does_not_wait_behind_a_large_one(driver: FrontierDriver) -> None:
    large = [f"http://large.example/{number}" for number in range(50)]
    crawl = await grown(driver, *large, "http://small.example/")
    walker = await driver.bench.walker(crawl)
    first = [task.url for task in await walker.take(4)]
    assert "http://small.example/" in first


async def test_hosts_take_turns(driver: FrontierDriver) -> None:
    urls = [f"http://h{host}.example/{number}" for number in range(4) for host in range(5)]
    crawl = await grown(driver, *urls)
    walker = await driver.bench.walker(crawl)
    seen: Counter[str] = Counter()
    for _ in range(10):
        await driver.bench.jump(0.01)
        seen.update(task.url.split("/")[2] for task in await walker.take(1))
    assert set(seen.values()) == {2}


async def test_a_task_knows_the_page_that_linked_to_it(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/parent")
    walker = await driver.bench.walker(crawl)
    [parent] = await walker.take()
    child = walker.link("/child", 2)
    child.parent_key = parent.key
    [task] = (await walker.turn(fetched(parent), found=[child])).work
    assert (task.url, task.parent, task.depth) == (f"{SITE}/child", f"{SITE}/parent", 2)


async def test_a_take_needs_a_live_grant(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a")
    walker = await driver.bench.walker(crawl)
    await driver.bench.lose()
    with pytest.raises(LeaseLost):
        await walker.take()
    assert await driver.taken_urls() == 0


# Empty is not done


async def test_a_frontier_with_urls_held_by_others_is_not_drained(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", workers=2)
    busy, idle = await driver.bench.walker(crawl, "w1"), await driver.bench.walker(crawl, "w2")
    await busy.take()
    turn = await idle.turn()
    assert turn.work == []
    assert not turn.drained
    assert turn.wait_seconds
    [link] = (await busy.fetch_all(busy.link("/b"), want=0)).work or [None]
    assert link is None
    assert not (await busy.turn(want=0)).drained
    assert [path_of(task) for task in await idle.take()] == ["/b"]
    assert not (await busy.turn()).drained
    assert (await idle.fetch_all()).drained
    assert await driver.bench.state(crawl) is CrawlState.COMPLETED


async def test_a_frontier_with_urls_waiting_for_a_retry_is_not_drained(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a")
    walker = await driver.bench.walker(crawl)
    [task] = await walker.take()
    turn = await walker.turn(later(task, 30))
    assert not turn.drained
    assert turn.work == []
    assert turn.wait_seconds is not None
    assert 0 < turn.wait_seconds <= 30


@on_every_redis
@pytest.mark.parametrize("seed", range(3))
async def test_drained_is_exact_with_several_walkers_that_still_add_links(driver: FrontierDriver, seed: int) -> None:
    dice = random.Random(seed)
    paths = [f"/{number}" for number in range(60)]
    links = {path: dice.sample(paths, 4) for path in paths}
    reachable, edge = {"/0"}, ["/0"]
    while edge:
        found = set(links[edge.pop()]) - reachable
        reachable |= found
        edge += found
    crawl = await grown(driver, "/0", workers=3)
    walkers = [await driver.bench.walker(crawl, f"w{number}") for number in range(3)]
    order = await drain(walkers, links)
    assert sorted(order) == sorted(reachable)
    counts = await driver.bench.counts(crawl)
    assert counts.pages == counts.opened == counts.settled == len(reachable)
    assert await driver.bench.number("SELECT count(*) FROM page") == len(reachable)
    await check_ledger(driver.bench, crawl)


async def test_walkers_that_work_at_the_same_moment_drain_exactly(driver: FrontierDriver) -> None:
    paths = [f"/{number}" for number in range(80)]
    links = {path: [f"/{2 * number + 1}", f"/{2 * number + 2}"] for number, path in enumerate(paths[:39])}
    crawl = await grown(driver, "/0", workers=4)
    walkers = [await driver.bench.walker(crawl, f"w{number}") for number in range(4)]

    async def work(walker: Walker) -> None:
        while True:
            found = [walker.link(path) for task in walker.held for path in links.get(path_of(task), [])]
            turn = await walker.turn(*[fetched(task) for task in walker.held], found=found, want=4)
            if turn.drained or turn.control is not Control.GO:
                return

    await asyncio.wait_for(asyncio.gather(*[work(walker) for walker in walkers]), 60)
    assert await driver.bench.state(crawl) is CrawlState.COMPLETED
    assert (await driver.bench.counts(crawl)).pages == 79
    await check_counters(driver, crawl)


# Settling


async def test_a_settle_closes_stores_counts_and_takes_in_one_commit(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b", "/c")
    walker = await driver.bench.walker(crawl)
    first, second = await walker.take(2)
    turn = await walker.turn(fetched(first, 100), failed(second), found=[walker.link("/d", 2)])
    assert [path_of(task) for task in turn.work] == ["/c", "/d"]
    counts = await driver.bench.counts(crawl)
    assert (counts.opened, counts.settled, counts.pages, counts.errors, counts.bytes) == (4, 2, 1, 1, 100)
    assert await fate_of(driver, crawl, first.url) is Fate.FETCHED
    assert await fate_of(driver, crawl, second.url) is Fate.FAILED
    await check_counters(driver, crawl)


async def test_the_same_batch_committed_twice_counts_once(driver: FrontierDriver) -> None:
    """F3, F21: the commit succeeded but its response was lost; the walker sends the same batch again."""
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl)
    first, second = await walker.take()
    report = WalkerBatch([fetched(first)], [walker.link("/c")])
    await walker.commits.turn(report, TurnRequest(0, 1))
    turn = await walker.commits.turn(report, TurnRequest(0, 1))
    assert not turn.drained
    await check_counters(driver, crawl)
    assert (await driver.bench.counts(crawl)).pages == 1
    assert await driver.taken_urls() == 1
    assert second.key


@on_every_redis
async def test_a_settlement_says_what_was_closed_opened_and_skipped(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b", "/c")
    walker = await driver.bench.walker(crawl)
    first, second, third = await walker.take()
    record = SitemapRecord(third.url, 1, 200)
    done = [fetched(first), later(second, 5), Settled(third, Fate.FETCHED, sitemap=record)]
    links = [walker.link("/a"), walker.link("/new"), walker.link("/no", fate=Fate.SKIPPED_EXCLUDED)]
    batch = WalkerBatch(done, links)
    settlement = await driver.bench.database.run(
        lambda tx: driver.frontier.settle(tx, crawl.number, walker.fence, batch)
    )
    assert [one.task for one in settlement.closed] == [first, third]
    assert settlement.pages == [(first.key, first.chk, done[0].page)]
    assert settlement.sitemaps == [((third.key, third.chk), record)]
    assert (settlement.opened, settlement.settled) == (1, 2)
    assert +settlement.skips == {Fate.SKIPPED_EXCLUDED: 1}
    again = await driver.bench.database.run(lambda tx: driver.frontier.settle(tx, crawl.number, walker.fence, batch))
    assert (again.closed, again.opened, again.settled, +again.skips) == ([], 0, 0, {})


async def test_a_commit_that_fails_takes_the_frontier_back_if_it_joins_transactions(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a")
    walker = await driver.bench.walker(crawl)
    [task] = await walker.take()

    async def settle_and_fail(tx: Tx) -> None:
        await driver.frontier.settle(tx, crawl.number, walker.fence, WalkerBatch([fetched(task)]))
        raise LookupError("the page cannot be stored")

    with pytest.raises(LookupError):
        await driver.bench.database.run(settle_and_fail)
    assert await driver.taken_urls() == (1 if driver.capabilities.joins_transactions else 0)


async def test_a_repeated_batch_does_not_end_a_crawl_with_open_urls(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl)
    first, second = await walker.take()
    report = WalkerBatch([fetched(first), later(second, 5)])
    await walker.commits.turn(report, TurnRequest(10, 0))
    turn = await walker.commits.turn(report, TurnRequest(10, 0))
    assert not turn.drained
    assert await driver.bench.state(crawl) is CrawlState.RUNNING
    assert await driver.open_urls(crawl) == 1


async def test_a_url_that_is_not_held_is_not_settled(driver: FrontierDriver) -> None:
    """For example a task that was taken before an attach: it waits again, perhaps at another walker."""
    crawl = await grown(driver, "/a", "/b", workers=2)
    walker = await driver.bench.walker(crawl, "w1")
    first, second = await walker.take()
    await walker.attach()
    other = await driver.bench.walker(crawl, "w2")
    assert len(await other.take()) == 2
    await walker.commits.turn(WalkerBatch([fetched(first), failed(second)]), TurnRequest(0, 1))
    assert await driver.taken_urls() == 2
    await check_counters(driver, crawl)
    assert (await other.fetch_all()).drained
    assert (await driver.bench.counts(crawl)).pages == 2


async def test_a_settle_by_a_walker_without_its_lease_changes_nothing(driver: FrontierDriver) -> None:
    """F2, F4: the lost walker comes back with results; the next one has its URLs."""
    crawl = await grown(driver, "/a", "/b")
    zombie = await driver.bench.walker(crawl, "w1")
    await zombie.take()
    await driver.bench.lose()
    alive = await driver.bench.walker(crawl, "w2")
    held = await alive.take()
    before = await driver.bench.counts(crawl), await driver.fates(crawl)
    with pytest.raises(LeaseLost):
        await zombie.fetch_all(zombie.link("/zombie"))
    with pytest.raises(LeaseLost):
        await zombie.commits.close(WalkerBatch([fetched(task) for task in zombie.held]), "pause")
    with pytest.raises(LeaseLost):
        await zombie.commits.hand_back(WalkerBatch(), "slice")
    assert (await driver.bench.counts(crawl), await driver.fates(crawl)) == before
    assert await driver.taken_urls() == len(held)
    await check_ledger(driver.bench, crawl)


@on_every_redis
async def test_a_retry_waits_its_time_and_counts_an_attempt(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl)
    first, second = await walker.take()
    await walker.turn(later(first, 30), want=0)
    assert await walker.take() == []
    await driver.bench.jump(8)
    await driver.bench.queue.extend([walker.fence])
    assert await walker.take() == []
    await driver.bench.jump(8)
    await driver.bench.queue.extend([walker.fence])
    await driver.bench.jump(8)
    await driver.bench.queue.extend([walker.fence])
    await driver.bench.jump(6.1)
    [again] = await walker.take()
    assert (again.url, again.attempts, again.crashes) == (first.url, 1, 0)
    assert (await walker.turn(fetched(again), fetched(second))).drained
    await check_counters(driver, crawl)


async def test_a_retry_does_not_hold_back_its_host(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl)
    [first] = await walker.take(1)
    assert [path_of(task) for task in (await walker.turn(later(first, 30))).work] == ["/b"]


async def test_a_wait_is_never_longer_than_until_the_next_url_is_due(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "http://other.example/")
    walker = await driver.bench.walker(crawl)
    first, second = await walker.take()
    await walker.turn(later(first, 0.5), later(second, 30))
    turn = await walker.turn()
    assert turn.wait_seconds is not None
    assert 0 < turn.wait_seconds <= 0.5


async def test_a_released_url_waits_again_at_no_cost(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl, "w1")
    await walker.take()
    await walker.commits.hand_back(WalkerBatch(), "slice")
    assert await driver.taken_urls() == 0
    again = await driver.bench.walker(crawl, "w2")
    assert {(path_of(task), task.attempts, task.crashes) for task in await again.take()} == {("/a", 0, 0), ("/b", 0, 0)}


async def test_any_text_of_a_page_can_be_kept(driver: FrontierDriver) -> None:
    """Untrusted text stays text, including NUL, which PostgreSQL refuses, and invalid Unicode."""
    crawl = await grown(driver, "/a")
    walker = await driver.bench.walker(crawl)
    [task] = await walker.take()
    page = page_of(task, status=200, title="a\x00b", h1="\ud800", data={"x": "\x00"})
    assert (await walker.turn(Settled(task, Fate.FETCHED, page))).drained
    assert (await driver.bench.counts(crawl)).pages == 1


# Lost walkers


@on_every_redis
async def test_urls_of_a_lost_walker_return_with_the_next_epoch(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b", "/c")
    lost = await driver.bench.walker(crawl, "w1")
    first, *_ = await lost.take()
    await lost.turn(fetched(first), want=0)
    await driver.bench.lose()
    back = await driver.bench.walker(crawl, "w1")
    assert back.fence.epoch == lost.fence.epoch + 1
    order = await drain([back])
    assert sorted(order) == ["/b", "/c"]
    assert (await driver.bench.counts(crawl)).pages == 3


async def test_another_walker_gets_a_lost_ones_urls_before_it_is_told_to_wait(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", workers=2)
    lost, idle = await driver.bench.walker(crawl, "w1"), await driver.bench.walker(crawl, "w2")
    await lost.take()
    assert await idle.take() == []
    await driver.bench.queue.recovery.lose(lost.lease, "killed")
    got = [path_of(task) for _ in range(2) for task in await idle.take()]
    assert got == ["/a"]


async def test_urls_that_a_live_walker_holds_are_not_taken_back(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", workers=2)
    busy = await driver.bench.walker(crawl, "w1")
    await busy.take()
    idle = await driver.bench.walker(crawl, "w2")
    assert await idle.take() == []
    assert await idle.take() == []
    assert await driver.taken_urls() == 1


async def test_a_dead_walkers_hosts_move_at_once(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *[f"/{number}" for number in range(10)], workers=2)
    dead, idle = await driver.bench.walker(crawl, "w1"), await driver.bench.walker(crawl, "w2")
    await dead.take(2)
    await driver.bench.jump(0.01)
    await driver.bench.queue.recovery.lose(dead.lease, "killed")
    await driver.bench.jump(0.01)
    assert await idle.take(2) != []


async def test_a_host_belongs_to_the_walker_that_claimed_it(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *[f"/{number}" for number in range(10)], workers=2)
    first, second = await driver.bench.walker(crawl, "w1"), await driver.bench.walker(crawl, "w2")
    assert len(await first.take(2)) == 2
    await driver.bench.jump(0.01)
    assert await second.take(2) == []
    await driver.bench.jump(0.01)
    assert len(await first.take(2)) == 2


# URLs that kill


async def test_urls_of_a_second_crash_are_taken_one_at_a_time_the_last_one_first(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b", "/c")
    for _ in range(2):
        dead = await driver.bench.walker(crawl, "w1")
        held = [path_of(task) for task in await dead.take()]
        await driver.bench.queue.recovery.lose(dead.lease, "killed")
    walker = await driver.bench.walker(crawl, "w2")
    order = []
    for _ in held:
        [task] = await walker.take()
        assert await walker.take() == []
        order.append(path_of(task))
        await walker.turn(fetched(task), want=0)
    assert order == list(reversed(held))


async def test_a_suspect_is_taken_alone(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b", "/c")
    for _ in range(3):
        walker = await driver.bench.walker(crawl)
        assert await walker.take() != []
        await driver.bench.settle_something(walker.fence)
        await driver.bench.queue.recovery.lose(walker.lease, "killed")
    walker = await driver.bench.walker(crawl)
    assert len(await walker.take()) == 1
    assert await walker.take() == []
    assert len((await walker.fetch_all()).work) == 1


async def test_a_suspect_keeps_its_hosts_pace(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    await driver.suspect()
    walker = await driver.bench.walker(crawl, pace=HostRate(30.0))
    [first] = await walker.take()
    await walker.turn(fetched(first), want=0)
    tasks = await walker.take()
    assert all(task.start_in_seconds >= 29 for task in tasks), "asked again 0 s after the last request"


async def test_a_suspect_whose_host_is_not_due_does_not_block_other_urls(driver: FrontierDriver) -> None:
    paced = HostRate(30.0)
    crawl = await grown(driver, "/a", "/b", "http://other.example/1", "http://third.example/1")
    await driver.suspect("/a", "/b")
    walker = await driver.bench.walker(crawl, pace=paced)
    [first] = await walker.take()
    turn = await walker.turn(fetched(first))
    assert sorted(task.url for task in turn.work) == ["http://other.example/1", "http://third.example/1"]
    assert (await walker.fetch_all()).wait_seconds == 1.0, "not in a busy loop"
    await driver.bench.jump(28.5)
    await driver.bench.lose()
    walker = await driver.bench.walker(crawl, pace=paced)
    assert [task.is_suspect for task in await walker.take()] == [True]


@on_every_redis
async def test_a_suspect_of_a_host_at_its_page_limit_is_closed_with_the_host(driver: FrontierDriver) -> None:
    limited = HostRate(0.0, per_host=1)
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl, pace=limited)
    await walker.take(1)
    await driver.suspect()
    turn = await walker.fetch_all()
    assert turn.work == []
    assert (turn.drained or (await walker.turn()).drained) is True
    assert (await driver.bench.counts(crawl)).skipped == {"host_budget": 1}


@pytest.mark.parametrize("company", [0, 1, 6])
@pytest.mark.parametrize("place", ["first", "last"])
async def test_a_url_that_kills_its_worker_fails_and_the_crawl_goes_on(
    driver: FrontierDriver, company: int, place: str
) -> None:
    """Alone in flight in three crashes in a row: `worker_killed`, not a dead letter."""
    paths = [f"/{number}" for number in range(company)]
    paths.insert(0 if place == "first" else company, "/killer")
    crawl = await grown(driver, "/before", *paths)
    first = await driver.bench.walker(crawl)
    await first.turn(*[fetched(task) for task in await first.take(1)], want=0)
    await first.commits.hand_back(WalkerBatch(), "slice")
    for _ in range(40):
        walker = await driver.bench.walker(crawl)
        while not (ended := await self_advance(walker)):
            if any(path_of(task) == "/killer" for task in walker.held):
                await driver.bench.queue.recovery.lose(walker.lease, "signal 11")
                break
        if ended or await driver.bench.state(crawl) is not CrawlState.RUNNING:
            break
    assert await driver.bench.state(crawl) is CrawlState.COMPLETED
    assert await fate_of(driver, crawl, f"{SITE}/killer") is Fate.FAILED
    assert (await driver.bench.counts(crawl)).pages == company + 1
    await check_ledger(driver.bench, crawl)


async def self_advance(walker: Walker) -> bool:
    """Run one turn as the engine does: fetch everything that is held, and fail a URL that is proven to kill workers;
    return whether the crawl is drained."""
    done = [fetched(task) for task in walker.held if path_of(task) != "/killer"]
    turn = await walker.turn(*done)
    proven = [task for task in walker.held if task.crashes - 2 >= CRASHES_ALONE]
    for task in proven:
        turn = await walker.turn(failed(task))
    return turn.drained


@pytest.mark.parametrize("seed", [0, 1, 3])  # with seed 2, one page happens to be killed three times in a row
async def test_twenty_random_kills_fail_no_innocent_page(driver: FrontierDriver, seed: int) -> None:
    dice = random.Random(seed)
    paths = [f"/{number}" for number in range(100)]
    crawl = await grown(driver, *paths)
    kills = 0
    while await driver.bench.state(crawl) not in TERMINAL:
        walker, left = await driver.bench.walker(crawl), dice.randint(1, 8) if kills < 20 else 1000
        while not (await walker.turn(*[fetched(task) for task in walker.held][:2], want=6)).drained:
            assert not [task for task in walker.held if task.crashes - 2 >= CRASHES_ALONE], "it would fail"
            left -= 1
            if not left:
                kills += 1
                await driver.bench.queue.recovery.lose(walker.lease, "signal 9")
                break
    assert await driver.bench.state(crawl) is CrawlState.COMPLETED
    assert (await driver.bench.counts(crawl)).pages == len(paths)


# Pace


async def test_slots_of_a_host_are_a_delay_apart(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *[f"/{number}" for number in range(8)])
    walker = await driver.bench.walker(crawl, pace=SLOW)
    starts = []
    for _ in range(24):
        taken = await walker.take()
        now = await driver.bench.number("SELECT shoal_now()") / 1e6
        starts += [now + task.start_in_seconds for task in taken]
        await driver.bench.jump(0.5)
        await driver.bench.queue.extend([walker.fence])
    assert len(starts) == 8
    gaps = [second - first for first, second in pairwise(starts)]
    assert min(gaps) > 0.9  # the clock advances while we read it


async def test_no_slot_is_more_than_two_seconds_ahead(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *[f"/{number}" for number in range(20)])
    walker = await driver.bench.walker(crawl, pace=HostRate(0.3))
    for _ in range(6):
        tasks = await walker.take(20)
        assert all(task.start_in_seconds <= 2.01 for task in tasks)
        await driver.bench.jump(0.7)


async def test_at_least_one_slot_is_given_whatever_the_delay(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl, pace=HostRate(60.0))
    assert len(await walker.take()) == 1
    assert await walker.take() == []


async def test_a_slow_host_does_not_hold_back_another(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl, pace=HostRate(60.0))
    assert len(await walker.take()) == 1
    await add(driver, crawl, new_url(crawl, "http://other.example/"))
    assert [task.url for task in await walker.take()] == ["http://other.example/"]


async def test_two_crawls_share_one_hosts_pace(driver: FrontierDriver) -> None:
    crawls = [await driver.bench.submit(f"{SITE}/{name}", f"{SITE}/{name}2") for name in ("a", "b")]
    starts = []
    for number in range(2):
        lease = (await driver.bench.queue.lease(f"w{number}", ["crawl"], ["shared"], 1))[0]
        walker = Walker(driver.bench, next(c for c in crawls if c.id == lease.run_id), lease, SLOW)
        await walker.attach()
        now = await driver.bench.number("SELECT shoal_now()") / 1e6  # a server's clock advances between the takes
        tasks = await walker.take()
        assert max(task.start_in_seconds for task in tasks) <= 2.01
        starts += [now + task.start_in_seconds for task in tasks]
    starts.sort()
    assert all(second - first > 0.5 for first, second in pairwise(starts))


async def test_a_hosts_own_delay_holds_however_fast_the_crawl_may_be(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *[f"/{number}" for number in range(5)])
    await driver.bench.sql("UPDATE host SET delay = 5000000")
    walker = await driver.bench.walker(crawl)
    assert len(await walker.take()) == 1
    await driver.bench.jump(1)
    assert await walker.take() == []


async def test_a_host_that_was_never_asked_for_its_robots_gets_one_url_first(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *[f"/{number}" for number in range(5)])
    walker = await driver.bench.walker(crawl, pace=HostRate(0.0, probe=True))
    assert len(await walker.take()) == 1
    await driver.bench.sql("UPDATE host SET robots_state = 'absent', robots_at = 1")
    await driver.bench.jump(0.01)
    assert len(await walker.take()) == 4


async def test_the_pace_survives_the_walker(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b", "/c")
    pace = HostRate(30.0)
    lost = await driver.bench.walker(crawl, "w1", pace=pace)
    assert len(await lost.take()) == 1
    await driver.bench.queue.recovery.lose(lost.lease, "killed")
    again = await driver.bench.walker(crawl, "w2", pace=pace)
    assert await again.take() == []


async def two_crawls(driver: FrontierDriver, first: list[str], second: list[str]) -> tuple[int, int, list[Any]]:
    crawls = {crawl.id: crawl for crawl in (await driver.bench.submit(*first), await driver.bench.submit(*second))}
    leases = await driver.bench.queue.lease("w", ["crawl"], ["shared"], 2)
    leases.sort(key=lambda lease: crawls[lease.run_id].number)
    numbers = sorted(crawl.number for crawl in crawls.values())
    return numbers[0], numbers[1], [lease.fence for lease in leases]


@on_every_redis
async def test_urls_quarantined_after_a_release_stay_in_quarantine(driver: FrontierDriver) -> None:
    """A walker knows the traps as of its last turn; a user may have released one since then."""
    crawl = await grown(driver, "/cal?m=1")
    pattern = f"{SITE}/cal?m="
    await driver.bench.database.run(
        lambda tx: driver.frontier.quarantine(tx, crawl.number, {pattern: Url(f"{pattern}1")})
    )
    walker = await driver.bench.walker(crawl)
    tasks = await walker.take()
    await driver.bench.crawls.release(crawl.id, pattern)
    trapped = [Settled(task, Fate.QUARANTINED) for task in tasks if "cal" in task.url]
    found = walker.link("/cal?m=2")
    found.fate = Fate.QUARANTINED
    await walker.turn(*trapped, found=[found], want=0)
    assert await fate_of(driver, crawl, f"{pattern}1") is Fate.OPEN
    assert await fate_of(driver, crawl, f"{pattern}2") is Fate.OPEN
    assert [trap.count for trap in await driver.bench.crawls.traps(crawl.id)] == [0]
    again = {task.url: task.attempts for task in await walker.take()}
    assert again == {f"{pattern}1": 0, f"{pattern}2": 0}  # neither was tried


@on_every_redis
async def test_a_url_in_quarantine_is_counted_once_whenever_it_was_found(driver: FrontierDriver) -> None:
    """One was found before its pattern became a trap, one after. A release queues both, and counts neither again."""
    crawl = await grown(driver, "/cal?m=1", "/other")
    pattern = f"{SITE}/cal?m="
    await driver.bench.database.run(
        lambda tx: driver.frontier.quarantine(tx, crawl.number, {pattern: Url(f"{pattern}1")})
    )
    walker = await driver.bench.walker(crawl)
    [task] = [task for task in await walker.take() if "cal" in task.url]
    await walker.turn(Settled(task, Fate.QUARANTINED), found=[walker.link("/cal?m=2", fate=Fate.QUARANTINED)], want=0)
    assert await opened_and_settled(driver, crawl) == (3, 2)
    assert await driver.bench.crawls.release(crawl.id, pattern) == 2
    assert await opened_and_settled(driver, crawl) == (3, 0)
    await walker.take()
    assert (await walker.fetch_all()).drained
    assert await opened_and_settled(driver, crawl) == (3, 3)


@on_every_redis
async def test_a_failed_url_that_is_retried_is_counted_once(driver: FrontierDriver) -> None:
    crawl = await grown(driver, "/a", "/b")
    walker = await driver.bench.walker(crawl)
    await walker.turn(*map(failed, await walker.take()), want=0)
    assert await opened_and_settled(driver, crawl) == (2, 2)
    assert await driver.bench.crawls.retry_these(crawl.id, FailedUrls()) == 2
    assert await opened_and_settled(driver, crawl) == (2, 0)


async def opened_and_settled(driver: FrontierDriver, crawl: Crawl) -> tuple[int, int]:
    counts = await driver.bench.counts(crawl)
    return counts.opened, counts.settled


async def test_a_take_does_not_wait_for_hosts_claimed_by_another_walker(driver: FrontierDriver) -> None:
    crawl = await grown(driver, *(f"/{number}" for number in range(5)))
    walker = await driver.bench.walker(crawl)
    await walker.take(want=1)

    async def next_in_seconds(job_id: str) -> float | None:
        return await driver.bench.database.run(lambda tx: driver.frontier.next_in_seconds(tx, crawl.number, job_id))

    assert await next_in_seconds(walker.lease.fence.job_id) == 0
    assert await next_in_seconds("another") is None
    assert await next_in_seconds("") == 0
