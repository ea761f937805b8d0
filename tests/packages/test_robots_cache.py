"""Fetching robots.txt: the meaning of each response, how long it is cached, and what applies without one."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest

from shoal.base.clock import FakeClock
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.errors import BackendUnavailable
from shoal.base.settings import HostSettings
from shoal.base.signals import Signal, Signals
from shoal.base.url import Url, origin
from shoal.egress import AddressRule, Egress
from shoal.hosts.robots import MAX_BYTES, RobotsState, Rules
from shoal.hosts.robots_cache import ASK_AGAIN, KEEP_OLD, CrawlDelayCut, RobotsAnswer, RobotsCache, RobotsRules
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import HostHeld
from tests.packages.conftest import Answer, ScriptedSite, serving
from tests.support.patience import PATIENCE_SECONDS
from tests.support.recorder import Told

NOTHING = "User-agent: *\nDisallow: /\n"
LOOPBACK = AddressRule(allow=(ip_network("127.0.0.0/8"),))


@dataclass
class Bench:
    database: SqliteDatabase
    cache: RobotsCache
    clock: FakeClock
    told: Told[Signal]

    async def rules(self, site: ScriptedSite) -> Rules:
        return await self.cache.rules_of(site.url)

    async def allows(self, site: ScriptedSite, path: str = "/x") -> bool:
        return (await self.rules(site)).allows(Url(site.url + path))


@pytest.fixture
async def bench(sqlite_url: str) -> AsyncIterator[Bench]:
    clock, told = FakeClock(), Told[Signal]()
    database = SqliteDatabase(Path(sqlite_url.removeprefix("sqlite:///")), clock)
    await database.open()
    signals = Signals()
    signals.subscribe(told)
    egress = Egress(LOOPBACK)
    yield Bench(database, RobotsCache(database, egress, "Shoal/1", HostSettings(), clock, signals), clock, told)
    egress.close()
    await database.close()


def site(robots: Answer, script: Callable[[str], Answer | None] = lambda path: None) -> ScriptedSite:
    return ScriptedSite(script, robots=robots)


@pytest.mark.parametrize(
    ("status", "body", "state", "may"),
    [
        (200, NOTHING, RobotsState.FOUND, False),
        (206, NOTHING, RobotsState.FOUND, False),
        (200, "", RobotsState.FOUND, True),
        (204, "", RobotsState.FOUND, True),
        (200, "<html><p>Welcome, robots", RobotsState.FOUND, True),
        (300, NOTHING, RobotsState.ABSENT, True),
        (304, "", RobotsState.ABSENT, True),
        *((status, NOTHING, RobotsState.ABSENT, True) for status in (400, 401, 403, 404, 410, 418, 451, 499)),
        *((status, NOTHING, RobotsState.UNREACHABLE, False) for status in (429, 500, 502, 503, 504, 599)),
    ],
)
async def test_the_status_of_robots_txt_decides_what_may_be_fetched(
    bench: Bench, status: int, body: str, state: RobotsState, may: bool
) -> None:
    async with serving(site((status, {}, body))) as host:
        rules = await bench.rules(host)
        assert (rules.state, rules.allows(Url(f"{host.url}/x"))) == (state, may)


async def test_a_host_that_does_not_answer_is_closed(bench: Bench) -> None:
    async with serving(site((200, {}, ""))) as host:
        pass
    rules = await bench.rules(host)
    assert (rules.state, rules.why_none) == (RobotsState.UNREACHABLE, "The server refused the connection.")
    assert rules.failure_code == "connect_error"
    assert not rules.allows(Url(f"{host.url}/x"))


@asynccontextmanager
async def chain(length: int) -> AsyncIterator[list[ScriptedSite]]:
    """Hosts of which each redirects to the next; the last one has the file."""
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(serving(site((200, {}, NOTHING)))) for _ in range(length + 1)]
        for here, there in itertools.pairwise(hosts):
            here.robots = (302, {"Location": f"{there.url}/robots.txt"}, "")
        yield hosts


@pytest.mark.parametrize(("hops", "state"), [(1, RobotsState.FOUND), (5, RobotsState.FOUND), (6, RobotsState.ABSENT)])
async def test_five_redirects_are_followed_to_whatever_host(bench: Bench, hops: int, state: RobotsState) -> None:
    async with chain(hops) as hosts:
        rules = await bench.rules(hosts[0])
        assert rules.state is state
        assert rules.allows(Url(f"{hosts[0].url}/x")) is (state is RobotsState.ABSENT)
        assert hosts[-1].times("/robots.txt") == (state is RobotsState.FOUND)


async def test_a_redirect_within_the_host_is_followed(bench: Bench) -> None:
    moved = (301, {"Location": "/files/robots.txt"}, "")
    async with serving(site(moved, lambda path: (200, {}, NOTHING) if path == "/files/robots.txt" else None)) as host:
        assert not await bench.allows(host)


@pytest.mark.parametrize("location", ["/robots.txt", "ftp://example.org/robots.txt", "http://10.0.0.1/robots.txt", ""])
async def test_redirects_that_lead_nowhere_mean_that_there_is_no_file(bench: Bench, location: str) -> None:
    async with serving(site((302, {"Location": location}, ""))) as host:
        assert (await bench.rules(host)).state is RobotsState.ABSENT


async def test_a_redirect_to_a_host_that_is_down_closes_the_host(bench: Bench) -> None:
    async with serving(site((200, {}, ""))) as down:
        pass
    async with serving(site((302, {"Location": f"{down.url}/robots.txt"}, ""))) as host:
        assert (await bench.rules(host)).state is RobotsState.UNREACHABLE


async def test_of_a_huge_file_the_first_500_kib_are_read_and_no_more_are_fetched(bench: Bench) -> None:
    huge = NOTHING + "# padding\n" * MAX_BYTES
    async with serving(site((200, {}, huge))) as host:
        rules = await bench.rules(host)
        assert (rules.state, rules.allows(Url(f"{host.url}/x"))) == (RobotsState.FOUND, False)


async def test_a_file_is_asked_for_once_a_day(bench: Bench) -> None:
    async with serving(site((200, {}, NOTHING))) as host:
        assert not await bench.allows(host)
        host.robots = (200, {}, "")
        bench.clock.jump(timedelta(hours=23, minutes=59).total_seconds())
        assert not await bench.allows(host)
        assert host.times("/robots.txt") == 1
        bench.clock.jump(61)
        assert await bench.allows(host)
        assert host.times("/robots.txt") == 2


async def test_a_host_without_an_answer_is_left_alone_for_a_moment_and_then_asked_again(bench: Bench) -> None:
    async with serving(site((503, {}, ""))) as host:
        assert not await bench.allows(host)
        host.robots = (200, {}, "")
        bench.clock.jump(ASK_AGAIN.total_seconds() - 0.1)
        assert not await bench.allows(host)
        assert host.times("/robots.txt") == 1
        bench.clock.jump(0.2)
        assert await bench.allows(host)


@pytest.mark.parametrize("kept", [NOTHING, "User-agent: *\nDisallow: /private\n"])
async def test_an_old_file_is_used_while_a_new_one_cannot_be_fetched(bench: Bench, kept: str) -> None:
    async with serving(site((200, {}, kept))) as host:
        before = await bench.allows(host)
        host.robots = (500, {}, "")
        bench.clock.jump(timedelta(days=2).total_seconds())
        assert await bench.allows(host) is before
        bench.clock.jump(KEEP_OLD.total_seconds())
        assert (await bench.rules(host)).state is RobotsState.UNREACHABLE


async def test_a_delay_that_was_cut_is_reported(bench: Bench) -> None:
    async with serving(site((200, {}, "User-agent: *\nCrawl-delay: 100\n"))) as host:
        for _ in range(2):  # fetched once, then cached
            rules = await bench.rules(host)
            assert (rules.asked_delay_seconds, rules.delay) == (100, timedelta(seconds=30))
        cuts = [told for told in bench.told if isinstance(told, CrawlDelayCut)]
        assert cuts == [CrawlDelayCut(origin=host.url, asked_seconds=100, delay_seconds=30)] * 2


async def test_a_host_that_asks_us_to_wait_with_its_robots_is_held(bench: Bench) -> None:
    async with serving(site((503, {"Retry-After": "600"}, ""))) as host:
        assert (await bench.rules(host)).state is RobotsState.UNREACHABLE
        numbers = await bench.database.run(lambda tx: HostStore().numbers(tx, [host.url]))
        standings = await bench.database.read(lambda tx: HostStore().states(tx, numbers.values()))
    assert [stands.held_seconds for stands in standings.values()] == [pytest.approx(600, abs=5)]
    [held] = [told for told in bench.told if isinstance(told, HostHeld)]
    assert (held.origin, held.status, held.why) == (host.url, 503, "retry_after")


async def test_the_request_names_us_and_wants_plain_text(bench: Bench) -> None:
    async with serving(site((200, {}, ""))) as host:
        await bench.rules(host)
        assert host.agents == {"Shoal/1"}


async def learned(robots: RobotsRules, url: Url) -> RobotsAnswer:
    told: asyncio.Future[RobotsAnswer] = asyncio.get_running_loop().create_future()
    robots.ask(origin(url), lambda: told.set_result(robots.judge(url)))
    return await asyncio.wait_for(told, PATIENCE_SECONDS)


async def test_the_rules_of_a_process_are_limited_in_number(bench: Bench) -> None:
    robots = RobotsRules(bench.cache, capacity=5)
    two_rules = (200, {}, "User-agent: *\nDisallow: /a\nDisallow: /b\n")
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(serving(site(two_rules))) for _ in range(3)]
        urls = [Url(f"{host.url}/a") for host in hosts]
        assert [await learned(robots, url) for url in urls] == [RobotsAnswer.DENIED] * 3
        assert [robots.judge(url) for url in urls] == [RobotsAnswer.UNKNOWN, RobotsAnswer.UNKNOWN, RobotsAnswer.DENIED]
        assert await learned(robots, urls[0]) is RobotsAnswer.DENIED
        assert [host.times("/robots.txt") for host in hosts] == [1, 1, 1]  # it was loaded from the store
    robots.close()


async def test_old_rules_are_loaded_again(bench: Bench) -> None:
    robots = RobotsRules(bench.cache)
    async with serving(site((200, {}, NOTHING))) as host:
        url = Url(f"{host.url}/x")
        assert await learned(robots, url) is RobotsAnswer.DENIED
        robots.forget()
        assert robots.judge(url) is RobotsAnswer.UNKNOWN
        host.robots = (200, {}, "")
        bench.clock.jump(timedelta(days=1).total_seconds())
        assert await learned(robots, url) is RobotsAnswer.ALLOWED
    robots.close()


async def test_rules_that_could_not_be_fetched_are_not_remembered(bench: Bench) -> None:
    robots = RobotsRules(bench.cache)
    async with serving(site((503, {}, ""))) as host:
        url = Url(f"{host.url}/x")
        assert await learned(robots, url) is RobotsAnswer.UNREACHABLE
        assert robots.judge(url) is RobotsAnswer.UNKNOWN
        assert not (await robots.rules_of(host.url)).reachable
        assert robots.known(host.url) is None
    robots.close()


async def test_a_caller_that_gives_up_keeps_no_other_from_the_rules(bench: Bench) -> None:
    may_answer = asyncio.Event()

    class Slow:
        async def rules_of(self, origin: str) -> Rules:
            await may_answer.wait()
            return await bench.cache.rules_of(origin)

    robots = RobotsRules(Slow())
    async with serving(site((200, {}, NOTHING))) as host:
        first, second = (asyncio.create_task(robots.rules_of(host.url)) for _ in range(2))
        await asyncio.wait({first}, timeout=0)
        first.cancel()
        may_answer.set()
        assert await asyncio.wait_for(second, PATIENCE_SECONDS) is robots.known(host.url)
    robots.close()


async def test_two_requests_for_the_same_robots_txt_share_one_load(bench: Bench) -> None:
    asked: list[str] = []

    class Slow:
        async def rules_of(self, origin: str) -> Rules:
            asked.append(origin)
            return await bench.cache.rules_of(origin)

    robots, told = RobotsRules(Slow()), [asyncio.Event(), asyncio.Event()]
    async with serving(site((200, {}, NOTHING))) as host:
        for event in told:
            robots.ask(host.url, event.set)
        for event in told:
            await asyncio.wait_for(event.wait(), PATIENCE_SECONDS)
        assert asked == [host.url]
        assert robots.judge(Url(f"{host.url}/x")) is RobotsAnswer.DENIED
    robots.close()


async def test_who_asks_for_rules_learns_that_the_store_is_unavailable() -> None:
    class Away:
        async def rules_of(self, origin: str) -> Rules:
            raise BackendUnavailable("the store", "the cable was cut", "plug it in")

    told: list[tuple[str, str]] = []
    robots = RobotsRules(Away(), on_store_error=lambda home, error: told.append((home, error.code)))
    assert await learned(robots, Url("http://example.org/x")) is RobotsAnswer.UNREACHABLE
    assert told == [("http://example.org", BackendUnavailable.code)]
    robots.close()
