"""Rate limits of hosts that ask a crawl to wait, or are slow: the real engine on both stores."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from shoal.app import App, opened
from shoal.base.database import Tx, Work
from shoal.base.errors import BackendUnavailable
from shoal.base.settings_loader import load
from shoal.base.signals import Signal, Signals
from shoal.crawl.states import CrawlState
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import HostHeld, HostUpdate
from shoal.process.runners import make_walker
from tests.packages.conftest import CLOCK, Answer, Crawler, ScriptedSite, altered, html, serving
from tests.support.recorder import Told

T = TypeVar("T")

BACKOFF = 0.3
IN_THE_WIRE = 0.4  # seconds: requests that were in flight when the host asked us to wait may still arrive
TENTH = {
    "SHOAL_HOST_BACKOFF": "300ms",
    "SHOAL_HOST_BACKOFF_MAX": "2s",
    "SHOAL_PAGE_BACKOFF": "100ms",
    "SHOAL_PAGE_ATTEMPTS": "3",
}


class Heard(Told[Signal]):
    """Signals, and a way to wait for one."""

    def holds(self) -> list[HostHeld]:
        return [signal for signal in self if isinstance(signal, HostHeld)]

    async def until(self, kind: type[Signal], walking: "asyncio.Task[Any]") -> None:
        while not any(isinstance(signal, kind) for signal in self):
            await self.at_least(len(self) + 1, walking)


@pytest.fixture
async def told() -> Heard:
    return Heard()


@pytest.fixture
async def polite(store_url: str, told: Heard) -> AsyncIterator[Crawler]:
    signals = Signals()
    signals.subscribe(told)
    async with opened(load({"DATABASE_URL": store_url, **TENTH}, env={}).settings, signals) as app:
        yield Crawler(app)


class Throttle:
    """A site with many pages that refuses some requests, and records when."""

    def __init__(
        self, refuses: Callable[[str, int], bool], retry_after: str | None = None, pages: int = 40, status: int = 429
    ) -> None:
        self._refuses = refuses
        self._status = status
        self._headers = {"Retry-After": retry_after} if retry_after else {}
        self._home = html("home", *(f"/{number}" for number in range(pages)))
        self.refused: list[float] = []

    def __call__(self, path: str) -> Answer:
        if self._refuses(path, len(self.refused)):
            self.refused.append(CLOCK.monotonic())
            return self._status, self._headers, ""
        return self._home if path == "/" else html(path)


class Overseen:
    """A database that does something before the first commit after a refusal, and counts those that follow."""

    def __init__(self, app: App, throttle: Throttle, first: Callable[[], Awaitable[None]]) -> None:
        self._database = app.database
        self._throttle = throttle
        self._first: Callable[[], Awaitable[None]] | None = first
        self.commits = 0
        self.stalled: Callable[[], float] = lambda: 0.0
        self.longest_stall = 0.0

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        if self._throttle.refused:
            self.commits += 1
            self.longest_stall = max(self.longest_stall, self.stalled())
            first, self._first = self._first, None
            if first is not None:
                await first()
        return await self._database.run(work, within=within)

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work, within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.read(work)


async def oversee(
    crawler: Crawler, site: ScriptedSite, throttle: Throttle, first: Callable[[], Awaitable[None]]
) -> Overseen:
    """Crawl the site, and return the requests after its first 503."""
    crawl = await crawler.submit(site)
    [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
    overseen = Overseen(crawler.app, throttle, first)
    app = altered(crawler.app, database=overseen)
    walker = make_walker(app, crawl, lease.fence, lambda: True)
    overseen.stalled = walker.stalled_seconds
    assert await walker.run() == "drained"
    return overseen


def silence(site: ScriptedSite, since: float, seconds: float) -> bool:
    return not [at for at in site.moments if since + IN_THE_WIRE < at < since + seconds]


async def test_a_host_that_asks_us_to_wait_is_left_alone_until_then(polite: Crawler, told: Heard) -> None:
    throttle = Throttle(lambda path, refused: path == "/20" and not refused, retry_after="1")
    async with serving(ScriptedSite(throttle)) as site:
        seen = await polite.crawl(site)
    assert seen.counts.pages == 41
    assert silence(site, throttle.refused[0], 1.0)
    pages = await polite.pages(seen)
    assert {page.status for page in pages.values()} == {200}
    assert [path for path, page in pages.items() if page.attempt > 1] == ["20"]  # others count no attempt
    [held] = told.holds()
    assert (held.origin, held.status, held.why, held.seconds) == (
        site.url,
        429,
        "retry_after",
        pytest.approx(1, abs=0.5),
    )


@pytest.mark.exhaustive
async def test_a_host_that_refuses_everything_for_a_while_costs_no_page(polite: Crawler, told: Heard) -> None:
    """Each refusal doubles the wait; one URL at a time is requested to check whether the host has recovered."""
    throttle = Throttle(lambda path, refused: 0 < refused < 6 or (path == "/7" and not refused))
    async with serving(ScriptedSite(throttle)) as site:
        seen = await polite.crawl(site, concurrency=3)
    assert seen.counts.pages == 41
    assert {page.status for page in (await polite.pages(seen)).values()} == {200}
    holds = [hold.seconds for hold in told.holds()]
    assert all(later > earlier - 0.25 for earlier, later in pairwise(holds))
    assert holds[-1] > 1.5 * BACKOFF


async def test_the_wait_is_ended_by_a_good_answer(polite: Crawler, told: Heard) -> None:
    refused_at = {"/10", "/20", "/30"}
    throttle = Throttle(lambda path, refused: path in refused_at and not refused_at.discard(path))
    async with serving(ScriptedSite(throttle)) as site:
        seen = await polite.crawl(site, concurrency=1)
    assert seen.counts.pages == 41
    assert [hold.seconds for hold in told.holds()] == [pytest.approx(BACKOFF, abs=0.25)] * 3


async def test_a_page_that_always_refuses_is_reported_and_the_others_are_there(polite: Crawler) -> None:
    throttle = Throttle(lambda path, refused: path in ("/3", "/4"), pages=10)
    async with serving(ScriptedSite(throttle)) as site:
        seen = await polite.crawl(site)
    assert seen.crawl.state is CrawlState.COMPLETED
    pages = await polite.pages(seen)
    attempts = polite.app.settings.crawl.page_attempts
    assert {path: (page.status, page.attempt) for path, page in pages.items() if page.status != 200} == {
        "3": (429, attempts),
        "4": (429, attempts),
    }
    assert throttle.refused[-1] - throttle.refused[0] >= (attempts - 1) * BACKOFF  # never tried again without a wait


async def test_a_page_that_answers_503_holds_nobody_else(polite: Crawler, told: Heard) -> None:
    throttle = Throttle(lambda path, refused: path == "/3" and refused < 2, retry_after="1", status=503)
    async with serving(ScriptedSite(throttle)) as site:
        seen = await polite.crawl(site, concurrency=3)
    assert seen.counts.pages == 41
    assert told.holds() == []
    first, second = throttle.refused
    last = site.moments[len(site.asked) - 1 - site.asked[::-1].index("/3")]
    assert (second - first >= 1.0, last - second >= 1.0) == (True, True)
    others = [at for path, at in zip(site.asked, site.moments, strict=True) if path != "/3"]
    assert max(others) < second, "everything else was crawled while the page waited"


async def test_three_pages_that_answer_503_hold_their_host(polite: Crawler, told: Heard) -> None:
    bad = {"/3", "/4", "/5"}
    throttle = Throttle(lambda path, refused: path in bad and refused < 3, retry_after="1", status=503)
    async with serving(ScriptedSite(throttle)) as site:
        seen = await polite.crawl(site, concurrency=3)
    assert seen.counts.pages == 41
    [held] = told.holds()
    assert (held.status, held.why, held.seconds) == (503, "retry_after", pytest.approx(1, abs=0.5))
    assert silence(site, throttle.refused[2], 1.0)


async def test_pages_of_several_crawls_that_answer_503_hold_their_host_together(polite: Crawler, told: Heard) -> None:
    """Each crawl has one bad page: none of them knows enough by itself."""
    bad = {"/a", "/b", "/c"}
    throttle = Throttle(lambda path, refused: path in bad and refused < 3, retry_after="60", status=503)
    async with serving(ScriptedSite(throttle)) as site:
        for path in sorted(bad):
            crawl = await polite.submit(site, path, robots="ignore")
            walking = asyncio.create_task(polite.walk(crawl))
            await site.until(lambda path=path: path in site.asked, walking)  # type: ignore[misc]
            await polite.app.crawls.pause(crawl.id)
            await walking
    assert [(held.status, held.why) for held in told.holds()] == [(503, "retry_after")]


async def test_a_hold_survives_the_walker_that_caused_it(polite: Crawler) -> None:
    throttle = Throttle(lambda path, refused: path == "/1" and not refused, retry_after="2")
    async with serving(ScriptedSite(throttle)) as site:
        crawl = await polite.submit(site)
        walking = asyncio.create_task(polite.walk(crawl))
        await site.until(lambda: bool(throttle.refused), walking)
        await polite.app.crawls.pause(crawl.id)
        assert await walking == "paused"
        await polite.app.crawls.resume(crawl.id)
        await polite.walk(crawl)
    assert silence(site, throttle.refused[0], 2.0)


async def test_another_crawl_of_the_same_host_waits_too(polite: Crawler, told: Heard) -> None:
    throttle = Throttle(lambda path, refused: path == "/" and not refused, retry_after="1")
    async with serving(ScriptedSite(throttle)) as site:
        first, second = await polite.submit(site), await polite.submit(site, max_pages=3)
        walking = asyncio.create_task(polite.walk(first))
        await told.until(HostHeld, walking)
        await asyncio.gather(walking, polite.walk(second))
    assert silence(site, throttle.refused[0], 1.0)


async def test_the_delay_of_robots_holds_at_every_speed(polite: Crawler) -> None:
    robots = (200, {}, "User-agent: *\nCrawl-delay: 0.3\n")
    async with serving(ScriptedSite(Throttle(lambda path, refused: False, pages=5), robots=robots)) as site:
        await polite.crawl(site, speed="max")
    paced = site.moments[2:]
    assert paced[-1] - paced[0] > 0.3 * (len(paced) - 1) - 0.5  # the first one may have been late, none is early


async def test_a_slow_host_is_asked_less_often(polite: Crawler) -> None:
    """One connection, and 0.2 s for each answer: the host rests as long as it works."""

    async def slowly(site: ScriptedSite) -> list[float]:
        await polite.crawl(site, speed="normal", concurrency=1, delay_seconds=0.05, robots="ignore")
        return [later - earlier for earlier, later in pairwise(site.moments)]

    async with serving(ScriptedSite(Throttle(lambda path, refused: False, pages=6), seconds=0.2)) as site:
        gaps = await slowly(site)
    assert sum(gaps[-3:]) / 3 > 0.3


async def test_speed_max_takes_no_notice_of_slowness(polite: Crawler) -> None:
    async with serving(ScriptedSite(Throttle(lambda path, refused: False, pages=4), seconds=0.4)) as site:
        await polite.crawl(site, speed="max", concurrency=1, robots="ignore")
    gaps = [later - earlier for earlier, later in pairwise(site.moments)]
    assert sum(gaps) / len(gaps) < 0.75


async def test_a_sitemap_can_ask_us_to_wait_as_long_as_it_likes(polite: Crawler, told: Heard) -> None:
    throttle = Throttle(lambda path, refused: path == "/sitemap.xml" and not refused, retry_after="1")
    async with serving(ScriptedSite(throttle)) as site:
        await polite.crawl(site, sitemap="on")
    assert [held.why for held in told.holds()] == ["retry_after"]
    assert silence(site, throttle.refused[0], 1.0)


async def test_a_wait_is_reported_again_when_the_store_was_away(polite: Crawler, told: Heard) -> None:
    throttle = Throttle(lambda path, refused: path == "/20" and not refused, retry_after="2")

    async def cut() -> None:
        raise BackendUnavailable("the store", "the cable was cut", "plug it in")

    async with serving(ScriptedSite(throttle)) as site:
        overseen = await oversee(polite, site, throttle, cut)
    assert [(held.why, held.seconds) for held in told.holds()] == [("retry_after", pytest.approx(2, abs=0.5))]
    assert silence(site, throttle.refused[0], 2.0)
    assert overseen.commits < 30


async def test_a_host_that_others_may_ask_sooner_does_not_make_us_take_it_again_and_again(crawler: Crawler) -> None:
    """The store has a hold of another process, which ends sooner than our own back-off."""
    throttle = Throttle(lambda path, refused: path == "/20" and not refused)

    async def hold() -> None:
        async def commit(tx: Tx) -> None:
            [host] = (await HostStore().numbers(tx, [site.url])).values()
            await HostStore().record(
                tx,
                {
                    host: HostUpdate(
                        site.url,
                        429,
                        hold_seconds=0.3,
                        shortest_backoff_seconds=1e-6,
                        longest_backoff_seconds=1e-6,
                    )
                },
            )

        await crawler.app.database.run(commit)

    async with serving(ScriptedSite(throttle)) as site:
        overseen = await oversee(crawler, site, throttle, hold)
    assert silence(site, throttle.refused[0], 1.9)
    assert overseen.commits < 30
    assert overseen.longest_stall > 0.7  # URLs that are only put back are not progress
