"""The host store: slots, holds, back-off and latencies, in one row per host, shared by all processes."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest

from shoal.base.clock import SystemClock
from shoal.base.url import Url
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin
from shoal.crawl.frontier.values import Settled, UrlKind, WalkerBatch, key_of
from shoal.crawl.store import HostRate
from shoal.hosts.rate import HeldHost, HostState, SlotRequest, SlotsGranted
from shoal.hosts.robots import RobotsRecord, RobotsState
from shoal.hosts.throttle import HostUpdate
from tests.contract.conftest import SITE, Bench, Breakpoint, BreakpointDatabase, fetched, open_bench, suspected

SECOND = 1_000_000
CLOCK = SystemClock()
WATCH = SimpleNamespace(began_at=0.0)


async def host_of(bench: Bench, origin: str = SITE) -> int:
    return (await bench.database.run(lambda tx: bench.hosts.numbers(tx, [origin])))[origin]


async def reserve(bench: Bench, host: int, slots: int, delay: float) -> SlotsGranted | None:
    return (await bench.database.run(lambda tx: bench.hosts.reserve(tx, [SlotRequest(host, slots, delay)]))).get(host)


async def host_state(bench: Bench, host: int) -> HostState:
    return (await bench.database.read(lambda tx: bench.hosts.states(tx, [host])))[host]


async def record(bench: Bench, host: int, news: HostUpdate) -> float | None:
    return (await bench.database.run(lambda tx: bench.hosts.record(tx, {host: news}))).get(host)


def throttled(hold: float = 0, *, grows: bool = True) -> HostUpdate:
    return HostUpdate(SITE, 429, hold, 2.0, 60.0, grows=grows)


@pytest.fixture(autouse=True)
def _watch() -> None:
    WATCH.began_at = CLOCK.monotonic()


def about(seconds: float) -> object:
    """So many seconds, less the time that the test has taken: the store's clock goes on while the machine is busy."""
    return pytest.approx(seconds, abs=0.3 + CLOCK.monotonic() - WATCH.began_at)


async def test_slots_follow_each_other_and_reach_two_seconds_ahead(bench: Bench) -> None:
    host = await host_of(bench)
    assert await reserve(bench, host, 10, 0.5) == SlotsGranted(5, about(0))
    assert await reserve(bench, host, 10, 0.5) is None
    await bench.jump(1.0)
    assert await reserve(bench, host, 10, 0.5) == SlotsGranted(2, about(1.5))


async def test_at_least_one_slot_is_granted_however_long_the_delay(bench: Bench) -> None:
    host = await host_of(bench)
    assert await reserve(bench, host, 10, 30) == SlotsGranted(1, about(0))
    assert await reserve(bench, host, 1, 30) is None
    await bench.jump(28.5)
    assert await reserve(bench, host, 1, 30) == SlotsGranted(1, about(1.5))


async def test_several_hosts_are_reserved_at_once(bench: Bench) -> None:
    hosts = [await host_of(bench, f"http://{name}.example") for name in "cab"]
    wishes = [SlotRequest(host, place + 1, 1.0) for place, host in enumerate(hosts)]
    granted = await bench.database.run(lambda tx: bench.hosts.reserve(tx, wishes))
    assert {host: grant.slots for host, grant in granted.items()} == dict(zip(hosts, (1, 2, 3), strict=True))


async def test_a_slot_that_was_not_used_in_its_time_is_not_saved_up(bench: Bench) -> None:
    host = await host_of(bench)
    await reserve(bench, host, 1, 1.0)
    await bench.jump(100)
    assert await reserve(bench, host, 10, 1.0) == SlotsGranted(3, about(0))


async def test_another_commit_on_the_same_host_is_never_waited_for(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("reserve_slots")
    host = await host_of(bench)
    slow = asyncio.create_task(
        BreakpointDatabase(bench.database, point).run(lambda tx: bench.hosts.reserve(tx, [SlotRequest(host, 2, 1)]))
    )
    await point.wait_until_reached(slow)
    assert await reserve(bench, host, 2, 1) is None
    point.resume()
    await slow
    assert await reserve(bench, host, 2, 1) == SlotsGranted(1, about(2))


async def test_a_hold_without_a_retry_after_doubles_up_to_its_limit(bench: Bench) -> None:
    host = await host_of(bench)
    for seconds in (2, 4, 8, 16, 32, 60, 60):
        assert await record(bench, host, throttled()) == about(seconds)
        await bench.jump(seconds + 0.5)


async def test_many_refusals_during_one_hold_count_once(bench: Bench) -> None:
    host = await host_of(bench)
    await record(bench, host, throttled())
    await bench.jump(1)
    assert await record(bench, host, throttled()) == about(1)
    await bench.jump(2)
    assert await record(bench, host, throttled()) == about(4)


async def test_a_page_that_failed_before_does_not_make_its_host_wait_longer(bench: Bench) -> None:
    host = await host_of(bench)
    for _ in range(3):
        assert await record(bench, host, throttled(grows=False)) == about(2)
        await bench.jump(3)


async def test_retry_after_holds_a_host_and_a_longer_one_extends_the_hold(bench: Bench) -> None:
    host = await host_of(bench)
    assert await record(bench, host, throttled(600, grows=False)) == about(600)
    assert await record(bench, host, throttled(30, grows=False)) == about(600)
    assert await record(bench, host, throttled(900, grows=False)) == about(900)


@pytest.mark.parametrize("grows", [True, False])
async def test_the_first_back_off_after_a_retry_after_is_as_long_as_any_first(bench: Bench, grows: bool) -> None:
    host = await host_of(bench)
    for wish in (5, 5):
        await record(bench, host, throttled(wish))
        await bench.jump(wish + 0.5)
        assert (await host_state(bench, host)).is_recovering
    for seconds in (2, 4 if grows else 2):
        assert await record(bench, host, throttled(grows=grows)) == about(seconds)
        await bench.jump(seconds + 0.5)


def refused(*urls: int, hold: float = 0) -> HostUpdate:
    """Return the host update of a walker that received 503 for these URLs, given by their hashes."""
    return HostUpdate(SITE, 0, hold, 2.0, 60.0, grows=not hold, refused=list(urls))


async def test_one_url_that_is_refused_again_and_again_does_not_hold_its_host(bench: Bench) -> None:
    host = await host_of(bench)
    for _ in range(5):
        assert await record(bench, host, refused(1, hold=120)) is None
        await bench.jump(1)
    assert (await host_state(bench, host)).held_seconds == 0


async def test_three_urls_that_three_walkers_were_refused_within_a_minute_hold_their_host(bench: Bench) -> None:
    host, other = await host_of(bench), await host_of(bench, "http://other.example")
    assert await record(bench, host, refused(1)) is None
    await bench.jump(30)
    assert await record(bench, host, refused(2)) is None
    assert await record(bench, other, refused(3)) is None
    await bench.jump(29)
    assert await record(bench, host, refused(3, hold=120)) == about(120)
    assert (await host_state(bench, host)).held_seconds == about(120)
    assert (await host_state(bench, other)).held_seconds == 0
    [held] = await bench.sql(f"SELECT held_status FROM host WHERE number = {host}")
    assert held["held_status"] == 503


async def test_refusals_of_more_than_a_minute_ago_do_not_count(bench: Bench) -> None:
    host = await host_of(bench)
    for url in range(1, 8):
        assert await record(bench, host, refused(url)) is None
        await bench.jump(31)


async def test_a_host_that_goes_on_refusing_after_its_hold_is_held_for_longer(bench: Bench) -> None:
    host = await host_of(bench)
    assert await record(bench, host, refused(1, 2, 3)) == about(2)
    for seconds in (4, 8, 16):
        await bench.jump(seconds / 2 + 0.1)
        assert await record(bench, host, refused(seconds)) == about(seconds)


async def test_refusals_survive_a_restart(store_url: str) -> None:
    first = await open_bench(store_url)
    host = await host_of(first)
    await record(first, host, refused(1, 2))
    await first.close()
    second = await open_bench(store_url)
    assert await record(second, host, refused(3)) == about(2)
    await second.close()


async def test_walkers_that_are_refused_at_the_same_moment_all_count(bench: Bench) -> None:
    host = await host_of(bench)
    holds = await asyncio.gather(*[record(bench, host, refused(url)) for url in (1, 2, 3)])
    assert sorted(hold is not None for hold in holds) == [False, False, True]


async def test_a_held_host_grants_nothing_and_says_when(bench: Bench) -> None:
    host = await host_of(bench)
    await record(bench, host, throttled(60))
    assert await reserve(bench, host, 1, 1.0) is None
    state = await host_state(bench, host)
    assert (state.busy_seconds, state.held_seconds, state.is_recovering) == (about(60), about(60), True)
    await bench.jump(59)
    assert await reserve(bench, host, 5, 1.0) == SlotsGranted(2, about(1))


async def test_a_good_answer_ends_the_back_off(bench: Bench) -> None:
    host = await host_of(bench)
    for seconds in (2, 4):
        await record(bench, host, throttled())
        await bench.jump(seconds + 1)
    await record(bench, host, HostUpdate(SITE, recovered=True))
    assert await host_state(bench, host) == HostState()
    assert await record(bench, host, throttled()) == about(2)


async def test_a_good_answer_and_a_refusal_in_one_commit_restart_the_back_off(bench: Bench) -> None:
    host = await host_of(bench)
    for seconds in (2, 4):
        await record(bench, host, throttled())
        await bench.jump(seconds + 1)
    both = throttled()
    both.recovered = True
    assert await record(bench, host, both) == about(2)


async def test_a_good_answer_that_comes_late_does_not_end_a_hold(bench: Bench) -> None:
    """It was requested before the hold began, perhaps by another walker."""
    host = await host_of(bench)
    await record(bench, host, throttled(60))
    await record(bench, host, HostUpdate(SITE, recovered=True))
    assert (await host_state(bench, host)).held_seconds == about(60)


async def test_a_back_off_of_yesterday_is_forgotten(bench: Bench) -> None:
    host = await host_of(bench)
    for seconds in (2, 4, 8):
        await record(bench, host, throttled())
        await bench.jump(seconds + 1)
    await bench.jump(86_400)
    assert not (await host_state(bench, host)).is_recovering
    assert await record(bench, host, throttled()) == about(2)


async def test_holds_survive_a_restart(store_url: str) -> None:
    first = await open_bench(store_url)
    host = await host_of(first)
    await record(first, host, throttled(600))
    await first.close()
    second = await open_bench(store_url)
    assert (await host_state(second, host)).held_seconds == about(600)
    await second.close()


async def test_a_slow_host_is_known_to_all_processes_until_the_latency_is_outdated(bench: Bench) -> None:
    host = await host_of(bench)
    await record(bench, host, HostUpdate(SITE, latency_seconds=3.0))
    slow = await host_state(bench, host)
    assert slow.latency_seconds == about(3)
    pace = HostRate(1.0, latency_factor=1.0, longest_latency_delay_seconds=10.0)
    assert pace.effective_delay_seconds(slow) == about(3)
    await bench.jump(601)
    assert pace.effective_delay_seconds(await host_state(bench, host)) == 1
    await record(bench, host, HostUpdate(SITE, latency_seconds=60.0))
    assert pace.effective_delay_seconds(await host_state(bench, host)) == 10


async def test_updates_of_many_hosts_are_one_statement_and_never_deadlock(postgres_bench: Bench) -> None:
    bench = postgres_bench
    hosts = [await host_of(bench, f"http://{number}.example") for number in range(20)]
    rounds = [
        bench.database.run(lambda tx, order=order: bench.hosts.record(tx, dict.fromkeys(order, throttled())))
        for order in (hosts, hosts[::-1])
        for _ in range(5)
    ]
    for held in await asyncio.gather(*rounds):
        assert list(held.values()) == [about(2)] * 20


async def test_a_take_leaves_a_held_host_alone_whatever_the_speed(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/", f"{SITE}/a", "http://other.example/")
    walker = await bench.walker(crawl)
    host = await host_of(bench)
    await record(bench, host, throttled(60))
    assert [task.url for task in await walker.take()] == ["http://other.example/"]
    await bench.jump(59.2)
    await bench.queue.extend([walker.fence])
    [task] = await walker.take()  # one URL, to find out whether the host has recovered
    assert (task.host, task.is_recovering, task.start_in_seconds) == (host, True, about(0.8))


async def test_after_a_hold_one_url_is_under_way_until_it_was_answered(bench: Bench) -> None:
    """Only one URL is taken, however often walkers look: if the host has not recovered, each further URL would lose an
    attempt."""
    crawl = await bench.submit(*[f"{SITE}/{number}" for number in range(8)], workers=2)
    pace = HostRate(0.0, walkers=2)
    first, second = await bench.walker(crawl, "w1", pace=pace), await bench.walker(crawl, "w2", pace=pace)
    host = await host_of(bench)
    await record(bench, host, throttled())
    await bench.jump(2.5)
    [asks] = await first.take()
    for _ in range(2):
        assert await first.take() == []
        idle = await second.turn()
        assert idle.work == []
        assert idle.wait_seconds == about(1), "not in a busy loop"
        await bench.jump(1.5)
    report = WalkerBatch([fetched(asks)], hosts={host: HostUpdate(SITE, recovered=True)})
    answered = await first.commits.turn(report, TurnRequest(10, 0))
    assert len(answered.work) == 7, "its good answer is not waited for a second time"


async def test_an_untried_url_keeps_its_place_and_counts_no_attempt(bench: Bench) -> None:
    crawl = await bench.submit(*[f"{SITE}/{number}" for number in range(3)])
    walker = await bench.walker(crawl)
    first = await walker.take()
    await walker.turn(*[Settled(task, Fate.OPEN, untried=True) for task in first], want=0)
    again = await walker.take()
    assert [(task.url, task.attempts) for task in again] == [(task.url, 0) for task in first]
    [grant] = await bench.grants(walker.fence.job_id)
    assert not grant["settled"]  # nor is it progress


async def test_a_turn_reports_how_long_hosts_of_its_report_are_held(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/", f"{SITE}/a")
    walker = await bench.walker(crawl)
    [task, other] = await walker.take()
    report = WalkerBatch([Settled(task, Fate.OPEN, retry_in_seconds=1.0), Settled(other, Fate.OPEN, untried=True)])
    report.hosts = {task.host: throttled(30)}
    turn = await walker.commits.turn(report, TurnRequest(10, 0))
    assert (turn.work, turn.hold_seconds) == ([], {task.host: about(30)})
    assert turn.wait_seconds


async def test_a_suspect_at_a_held_host_does_not_block_other_urls(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/", "http://other.example/")
    walker = await bench.walker(crawl)
    await suspected(bench, f"host = {await host_of(bench)}")
    await record(bench, await host_of(bench), throttled(60))
    assert [task.url for task in await walker.take()] == ["http://other.example/"]


async def test_a_crawl_knows_the_hosts_that_it_waits_for(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/", "http://other.example/")
    elsewhere = await host_of(bench, "http://elsewhere.example")
    for host in (elsewhere, await host_of(bench)):
        await record(bench, host, throttled(60))
    [held] = await bench.crawls.held_hosts(crawl.id)
    assert (held.origin, held.status) == (SITE, 429)
    await bench.jump(61)
    assert await bench.crawls.held_hosts(crawl.id) == []


async def test_the_frontier_admin_reports_that_the_host_of_a_url_is_held(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a")
    await record(bench, await host_of(bench), throttled(60))
    admin_store = SqlFrontierAdmin(bench.dialect)
    url = Url(f"{SITE}/a")
    key = key_of(url, crawl.key_seed)

    async def held() -> HeldHost | None:
        facts = await bench.database.read(lambda tx: admin_store.fate_of(tx, crawl.number, url, UrlKind.PAGE, key))
        assert facts is not None
        assert facts.waiting is not None
        return facts.waiting.held

    told = await held()
    assert told is not None
    assert (told.origin, told.status) == (SITE, 429)
    await bench.jump(61)
    assert await held() is None


async def test_a_robots_file_that_says_the_same_is_only_dated(bench: Bench) -> None:
    """The hash shows that it has not changed, so half a megabyte is not written again."""

    async def kept() -> RobotsRecord:
        found = await bench.database.read(lambda tx: bench.hosts.robots(tx, SITE))
        assert found is not None
        return found

    before = RobotsRecord(RobotsState.FOUND, "User-agent: *")
    await bench.database.run(lambda tx: bench.hosts.keep_robots(tx, SITE, before, timedelta(0)))
    await bench.sql("UPDATE host SET robots = 'as it was'")
    await bench.jump(3600)
    assert 3600 <= (await kept()).age.total_seconds() < 3660
    again = RobotsRecord(RobotsState.FOUND, "User-agent: *")
    await bench.database.run(lambda tx: bench.hosts.keep_robots(tx, SITE, again, timedelta(seconds=5)))
    assert ((await kept()).body, (await kept()).age < timedelta(minutes=1)) == ("as it was", True)
    other = RobotsRecord(RobotsState.FOUND, "User-agent: shoal")
    await bench.database.run(lambda tx: bench.hosts.keep_robots(tx, SITE, other, timedelta(0)))
    assert (await kept()).body == other.body
