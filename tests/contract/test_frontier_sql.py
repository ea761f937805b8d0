"""The frontier on SQL: commits that meet in the database neither share a URL nor deadlock, and a take stays cheap."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import pytest

from shoal.base.database import Tx, Work
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import (
    FrontierTask,
    Settled,
    WalkerBatch,
)
from shoal.crawl.store import HostRate
from tests.contract.conftest import (
    FREE,
    PATIENCE,
    SITE,
    Bench,
    Breakpoint,
    BreakpointDatabase,
    BreakpointTx,
    Walker,
    fetched,
    later,
    new_url,
    suspected,
    until_blocked,
)
from tests.contract.frontier_driver import SqlFrontierDriver
from tests.contract.test_frontier import SLOW, add, grown, two_crawls

T = TypeVar("T")


# Taking


class Tally(Breakpoint):
    """A breakpoint that stops nothing and records the queries."""

    def __init__(self) -> None:
        super().__init__("")
        self.asked: list[str] = []

    async def passing(self, query: str) -> None:
        self.asked.append(query)


async def asked_by_a_take(
    bench: Bench, crawl: Crawl, want: int, pace: HostRate
) -> tuple[list[str], list[FrontierTask]]:
    walker, tally = await bench.walker(crawl), Tally()

    async def take(tx: Tx) -> list[FrontierTask]:
        tally.asked.clear()  # a commit may be tried twice
        return (await bench.frontier.take(BreakpointTx(tx, tally), crawl.number, walker.fence, want, 0, pace)).tasks

    tasks = await bench.database.run(take)
    return tally.asked, tasks


@pytest.mark.parametrize("pace", [FREE, SLOW, HostRate(0.0, per_host=5)], ids=["free", "slow", "limited"])
async def test_a_take_of_many_hosts_asks_no_more_than_a_take_of_one(bench: Bench, pace: HostRate) -> None:
    one = await bench.submit("http://h0.example/1", "http://h0.example/2")
    few, tasks = await asked_by_a_take(bench, one, 2, pace)
    assert len(tasks) == 2
    many = await bench.submit(*[f"http://h{number % 40}.example/{number}" for number in range(100, 200)])
    asked, tasks = await asked_by_a_take(bench, many, 80, pace)
    assert len(tasks) >= 79  # one host may yield fewer, because it shares its slots with the first crawl
    assert Counter(asked) == Counter(few)


async def test_a_recovery_never_takes_from_a_live_walker(postgres_bench: Bench) -> None:
    """A walker finds lost URLs, but another one returns and takes them first: every move is a compare-and-set."""
    bench, point = postgres_bench, Breakpoint("lost_urls")
    crawl = await grown(SqlFrontierDriver(bench), "/a", workers=2)
    dead = await bench.walker(crawl, "w1")
    await dead.take()
    await bench.queue.recovery.lose(dead.lease, "killed")
    halting = BreakpointDatabase(bench.database, point)
    slow = asyncio.create_task(halting.run(lambda tx: bench.frontier.recover(tx, crawl.number)))
    await point.wait_until_reached(slow)
    alive = await bench.walker(crawl, "w2")
    [task] = await alive.take()
    point.resume()
    await slow
    assert await SqlFrontierDriver(bench).taken_urls() == 1
    assert (await alive.turn(fetched(task))).drained


async def test_two_walkers_never_share_a_suspect(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("suspect_waiting")
    crawl = await grown(SqlFrontierDriver(bench), "/a", workers=2)
    await suspected(bench)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    halting = BreakpointDatabase(bench.database, point)
    slow = asyncio.create_task(halting.run(lambda tx: bench.frontier.take(tx, crawl.number, first.fence, 5, 0, FREE)))
    await point.wait_until_reached(slow)
    quick = await bench.database.run(lambda tx: bench.frontier.take(tx, crawl.number, second.fence, 5, 0, FREE))
    point.resume()
    assert len((await slow).tasks) + len(quick.tasks) == 1


async def test_two_crawls_at_once_reserve_no_slot_beyond_two_seconds(postgres_bench: Bench) -> None:
    """Reading and reserving a slot are one statement, so nobody can reserve in between."""
    bench, point = postgres_bench, Breakpoint("ready_hosts")
    first, second, holders = await two_crawls(
        SqlFrontierDriver(bench), [f"{SITE}/a{n}" for n in range(5)], [f"{SITE}/b{n}" for n in range(5)]
    )
    halting = BreakpointDatabase(bench.database, point)
    slow = asyncio.create_task(halting.run(lambda tx: bench.frontier.take(tx, first, holders[0], 5, 0, SLOW)))
    between = asyncio.create_task(point.reached.wait())
    await asyncio.wait({slow, between}, timeout=PATIENCE, return_when="FIRST_COMPLETED")
    between.cancel()
    quick = await bench.database.run(lambda tx: bench.frontier.take(tx, second, holders[1], 5, 0, SLOW))
    point.resume()
    tasks = (await slow).tasks + quick.tasks
    assert max(task.start_in_seconds for task in tasks) <= 2.01


async def test_two_crawls_over_the_same_hosts_never_deadlock(postgres_bench: Bench) -> None:
    """Hosts are locked by key, whichever of them waited longest."""
    bench = postgres_bench
    a, b = "http://a.example/", "http://b.example/"
    first, second, holders = await two_crawls(
        SqlFrontierDriver(bench), [a, f"{a}1", b, f"{b}1"], [a, f"{a}2", b, f"{b}2"]
    )
    await bench.sql(
        "UPDATE frontier_host SET ready_at = 1 + (CASE WHEN (SELECT origin FROM host WHERE number = host)"
        f" LIKE '%a.example' THEN 0 ELSE 1 END + crawl - {first}) % 2"
    )
    await assert_no_deadlock(
        bench,
        "reserve_slots",
        lambda tx: bench.frontier.take(tx, first, holders[0], 4, 0, SLOW),
        lambda tx: bench.frontier.take(tx, second, holders[1], 4, 0, SLOW),
    )


async def test_walkers_that_put_back_and_add_at_the_same_hosts_never_deadlock(postgres_bench: Bench) -> None:
    bench = postgres_bench
    a, b = "http://a.example/", "http://b.example/"
    crawl = await grown(SqlFrontierDriver(bench), a, b, workers=2)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    [one], [two] = await first.take(1), await second.take(1)
    assert one.host != two.host

    def turn(walker: Walker, task: FrontierTask, link: str) -> Any:
        async def work(tx: Tx) -> None:
            await bench.frontier.settle(
                tx, crawl.number, walker.fence, WalkerBatch([later(task, 1)], [walker.link(link)])
            )

        return work

    other = {one.url: f"{two.url}x", two.url: f"{one.url}y"}
    await assert_no_deadlock(bench, "wake_host", turn(first, one, other[one.url]), turn(second, two, other[two.url]))


@dataclass
class Within:
    """A database that is one open transaction."""

    tx: Tx

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await work(self.tx)

    read = run

    async def close(self) -> None:
        pass


def walker_within(bench: Bench, tx: Tx, walker: Walker) -> Walker:
    return Walker(bench.over(Within(tx)), walker.crawl, walker.lease)


async def test_a_walker_that_leaves_never_deadlocks_with_one_that_adds(postgres_bench: Bench) -> None:
    bench = postgres_bench
    crawl = await grown(SqlFrontierDriver(bench), "http://a.example/", "http://b.example/", workers=2)
    first = await bench.walker(crawl, "w1")
    _, high = sorted(await first.take(), key=lambda task: task.host)
    second = await bench.walker(crawl, "w2")
    found = [second.link("http://a.example/x"), second.link("http://b.example/x")]
    await assert_no_deadlock(
        bench,
        "lock_hosts",
        lambda tx: walker_within(bench, tx, first).commits.hand_back(WalkerBatch([fetched(high)]), "shutdown"),
        lambda tx: walker_within(bench, tx, second).commits.turn(WalkerBatch([], found), TurnRequest(0, 1)),
    )


async def test_a_release_never_deadlocks_with_a_walker_that_fills_the_trap(postgres_bench: Bench) -> None:
    bench = postgres_bench
    crawl = await grown(SqlFrontierDriver(bench), "/cal?m=1", "/cal?m=2", "/other")
    pattern = f"{SITE}/cal?m="
    await bench.database.run(lambda tx: bench.frontier.quarantine(tx, crawl.number, {pattern: Url(f"{pattern}1")}))
    walker = await bench.walker(crawl)
    one, two = [Settled(task, Fate.QUARANTINED) for task in await walker.take() if "cal" in task.url]
    await walker.turn(one, want=0)
    await assert_no_deadlock(
        bench,
        "lock_hosts",
        lambda tx: walker_within(bench, tx, walker).commits.turn(WalkerBatch([two]), TurnRequest(0, 1)),
        lambda tx: bench.over(Within(tx)).crawls.release(crawl.id, pattern),
    )


async def assert_no_deadlock(bench: Bench, query: str, *works: Any) -> None:
    """Run two commits that both stop after their first use of a query, the first one first, then continue together. The
    driver would hide a deadlock by running one of them again, a second later; so they run on connections of their
    own."""
    from shoal.base.database.postgres import AnswerWatch, PostgresTx

    points = [Breakpoint(query), Breakpoint(query)]

    async def commit(work: Any, point: Breakpoint) -> None:
        connection = await asyncpg.connect(bench.url)
        try:
            await connection.execute("SET deadlock_timeout = '20ms'")
            with AnswerWatch(connection, PATIENCE) as watch:
                async with connection.transaction():
                    tx = PostgresTx(connection, watch, PATIENCE)
                    await work(BreakpointTx(tx, point))  # type: ignore[arg-type]
        finally:
            point.reached.set()
            await connection.close()

    running = []
    # The second one may have to wait for the first, and then reaches its breakpoint only after the first has passed.
    for work, point, patience in zip(works, points, (PATIENCE, 0.3), strict=True):
        running.append(asyncio.create_task(commit(work, point)))
        with suppress(TimeoutError):
            await asyncio.wait_for(point.reached.wait(), patience)
    for point in points:
        point.resume()
    answers = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), PATIENCE)
    assert not [answer for answer in answers if isinstance(answer, Exception)]


# Size


async def test_a_take_reads_as_many_rows_as_it_gives_not_as_many_as_wait(sqlite_bench: Bench) -> None:
    """F24: measured in steps of SQLite's virtual machine, which do not depend on the hardware."""
    bench = sqlite_bench
    steps = {size: await steps_of_a_take(bench, size) for size in (300, 6000)}
    assert steps[6000] < 2 * steps[300]


async def steps_of_a_take(bench: Bench, size: int) -> int:
    crawl = await bench.submit(f"{SITE}/")
    await add(
        SqlFrontierDriver(bench),
        crawl,
        *[new_url(crawl, f"http://h{n % 20}.example/{n}", 1 + n % 3) for n in range(size)],
    )
    walker = await bench.walker(crawl)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def measured(tx: Tx) -> list[FrontierTask]:
        tx._connection.set_progress_handler(count, 10)  # type: ignore[attr-defined]
        try:
            return (await bench.frontier.take(tx, crawl.number, walker.fence, 40, 0, FREE)).tasks
        finally:
            tx._connection.set_progress_handler(None, 0)  # type: ignore[attr-defined]

    assert len(await bench.database.run(measured)) == 40
    await bench.crawls.stop(crawl.id)
    await bench.lose()
    return steps


async def test_a_release_while_a_walker_quarantines_loses_nothing(postgres_bench: Bench) -> None:
    """In either order: the walker sees the release, or the release sees the URLs that the walker quarantined."""
    bench, point = postgres_bench, Breakpoint("lock_traps")
    crawl = await grown(SqlFrontierDriver(bench), "/cal?m=1", "/other")
    pattern = f"{SITE}/cal?m="
    await bench.database.run(lambda tx: bench.frontier.quarantine(tx, crawl.number, {pattern: Url(f"{pattern}1")}))
    walker = await bench.walker(crawl)
    trapped = [Settled(task, Fate.QUARANTINED) for task in await walker.take() if "cal" in task.url]
    halting = Walker(bench.over(BreakpointDatabase(bench.database, point)), crawl, walker.lease)
    turning = asyncio.create_task(halting.commits.turn(WalkerBatch(trapped), TurnRequest(0, 1)))
    await point.wait_until_reached(turning)
    releasing = asyncio.create_task(bench.crawls.release(crawl.id, pattern))
    await until_blocked(bench)
    point.resume()
    await turning
    assert await releasing == 1
    assert await bench.fate(crawl, f"{pattern}1") is Fate.OPEN
