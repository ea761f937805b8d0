"""A Redis frontier that is lost while a crawl runs: it ends with the pages that it has without the loss."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.app import opened
from shoal.base.database import Tx
from shoal.base.settings import Settings
from shoal.base.signals import Signals
from shoal.base.url import Url
from shoal.crawl.frontier.traps import pattern_of
from shoal.crawl.frontier.values import Settlement, WalkerBatch
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.crawl.states import CrawlState
from shoal.crawl.store import FrontierStore
from shoal.observe.log_messages import log_line
from shoal.queue.job import Fence
from tests.packages.conftest import Answer, Crawler, ScriptedSite, altered, html, serving, settings_for
from tests.packages.test_recrawl import again, conditional_site
from tests.support.effort import times
from tests.support.script_site import script_site
from tests.support.servers import ask_redis


@pytest.fixture
async def crawler(sqlite_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Crawler]:
    async with opened(on_redis(sqlite_url, redis_url, tmp_path), Signals()) as app:
        yield Crawler(app)


def on_redis(store_url: str, redis_url: str, folder: Path, **more: str) -> Settings:
    redis = {"REDIS_URL": redis_url, "SHOAL_FRONTIER": "redis", "SHOAL_LANES": "sql"}
    return settings_for(store_url, folder, **redis, **more)


def to(place: str) -> Answer:
    return 302, {"Location": place}, ""


def sitemap(*urls: str, tag: str = "url") -> Answer:
    outer = {"url": "urlset", "sitemap": "sitemapindex"}[tag]
    entries = "".join(f"<{tag}><loc>{url}</loc></{tag}>" for url in urls)
    return 200, {"Content-Type": "application/xml"}, f"<{outer}>{entries}</{outer}>"


def in_head(title: str, tag: str) -> Answer:
    return 200, {"Content-Type": "text/html"}, f"<!doctype html><head>{tag}<title>{title}</title></head><p>{title}"


@dataclass
class EveryFate(ScriptedSite):
    """A site whose URLs meet every fate, with further pages behind each. The seed, on another host, redirects here.
    `lost_at`: the requests at which Redis loses everything."""

    script: Any = None
    redis_url: str = ""
    lost_at: frozenset[int] = frozenset()
    failures: int = 2  # of one page, before it answers

    def __post_init__(self) -> None:
        self.script = self.answer

    def answer(self, path: str) -> Answer | None:
        if len(self.asked) in self.lost_at:
            ask_redis(self.redis_url, "FLUSHDB")
        if path == "/flaky" and self.failures:
            self.failures -= 1
            return 503, {}, ""
        name, _, number = path.removeprefix("/").rpartition("-")
        if number in ("1", "2"):  # behind a page are two more, one after the other
            return html(path, *([f"/{name}-2", "/shared"] if number == "1" else []))
        return self._pages().get(path)

    def _pages(self) -> dict[str, Answer]:
        names = ("plain", "moved", "moved_too", "refresh", "canonical", "flaky", "empty", "away", "to_maze", "maze?n=1")
        names += ("round_1", "round_2")
        return {
            "/home": html("home", *(f"/{name}" for name in names), "/denied", "http://elsewhere.example/"),
            "/plain": html("plain", "/plain-1", "/moved", "/maze?n=2"),
            "/moved": to("/moving"),
            "/moving": to("/target"),
            "/moved_too": to("/target"),
            "/target": html("target", "/target-1"),
            "/round_1": to("/round_2"),
            "/round_2": to("/round_3"),
            "/round_3": to("/round_1"),
            "/refresh": in_head("refresh", '<meta http-equiv="refresh" content="9; url=/refresh-1">'),
            "/canonical": in_head(
                "canonical", '<link rel="canonical" href="/plain"><link rel="next" href="/canonical-1">'
            ),
            "/flaky": html("flaky", "/flaky-1"),
            "/away": to("http://elsewhere.example/away"),
            "/to_maze": to("/maze?n=3"),
            "/shared": html("shared", "/moved", "/moved_too"),
            "/sitemap.xml": sitemap(f"{self.url}/index.xml", tag="sitemap"),
            "/index.xml": sitemap(f"{self.url}/guessed-1"),
            "/named.xml": sitemap(f"{self.url}/named-1"),
        }


EXPECTED = {
    *("/", "plain", "plain-1", "plain-2", "moved", "moved_too", "target-1", "target-2", "away", "to_maze", "empty"),
    *("refresh", "refresh-1", "refresh-2", "canonical", "canonical-1", "canonical-2", "flaky", "flaky-1", "flaky-2"),
    *("shared", "guessed-1", "guessed-2", "named-1", "named-2"),
}
LOOPED = {"round_1", "round_2"}
HELD = 3  # URLs of the maze


@asynccontextmanager
async def site_of_every_fate(redis_url: str) -> AsyncIterator[tuple[ScriptedSite, EveryFate]]:
    """Serve the host of the seed and the host that it redirects to."""
    async with (
        serving(EveryFate(redis_url=redis_url)) as site,
        serving(ScriptedSite(lambda _: to(f"{site.url}/home"))) as first,
    ):
        rules = f"User-agent: *\nDisallow: /denied\nSitemap: {site.url}/named.xml"
        site.robots = (200, {"Content-Type": "text/plain"}, rules)
        yield first, site


async def crawl_it(crawler: Crawler, first: ScriptedSite, site: EveryFate, **config: Any) -> CrawlStatus:
    """Crawl a site one of whose patterns is in quarantine from the beginning."""
    crawl = await crawler.submit(first, named=[site], sitemap="on", depth=10, concurrency=2, **config)
    maze = Url(f"{site.url}/maze?n=1")
    traps = {pattern_of(maze): maze}
    await crawler.app.database.run(lambda tx: crawler.app.stores.frontiers.sql.quarantine(tx, crawl.number, traps))
    await crawler.walk(crawl)
    return await crawler.app.crawls.get(crawl.id)


@pytest.mark.parametrize("seed", range(times(4)))
async def test_a_frontier_lost_at_any_moment_costs_no_page_whatever_the_fate_of_its_urls(
    crawler: Crawler, redis_url: str, seed: int
) -> None:
    dice = random.Random(seed)
    async with site_of_every_fate(redis_url) as (first, site):
        site.lost_at = frozenset(dice.sample(range(1, 40), 2))
        seen = await crawl_it(crawler, first, site)
        held = await crawler.app.crawls.traps(seen.crawl.id)
    assert seen.crawl.state is CrawlState.COMPLETED
    pages = await crawler.pages(seen)
    assert set(pages) == EXPECTED | LOOPED, f"lost at requests {sorted(site.lost_at)}"
    assert {path for path, page in pages.items() if page.error_code == "redirect_loop"} == LOOPED
    assert seen.counts.pages == len(EXPECTED)
    assert [trap.count for trap in held] == [HELD]
    assert site.times("/maze?n=1") == 0


async def test_a_damaged_frontier_is_rebuilt_with_one_line_in_the_log(crawler: Crawler, redis_url: str) -> None:
    """F69: a key is of another type in the middle of a crawl, and no call of an attaching walker uses it."""
    pages = {"/": html("home", "/1"), **{f"/{n}": html(f"{n}", f"/{n + 1}") for n in range(1, 9)}, "/9": html("9")}
    lines: list[str] = []
    crawler.app.signals.subscribe(lambda signal: lines.append(log_line(signal).message))
    async with serving(ScriptedSite(pages.get)) as site:
        crawl = await crawler.submit(site, depth=100)
        answer, seen_urls = site.script, f"scan:{{{crawl.id}}}:seen_urls"

        def damage(path: str) -> Answer | None:
            if path == "/4" and site.times(path) == 1:
                ask_redis(redis_url, "DEL", seen_urls)
                ask_redis(redis_url, "RPUSH", seen_urls, "x")
            return answer(path)

        site.script = damage
        async with asyncio.timeout(20):
            await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    assert (seen.crawl.state, seen.counts.pages) == (CrawlState.COMPLETED, 10)
    [line] = [line for line in lines if "interrupted" in line]
    assert crawl.id in line
    assert "one of its keys in Redis has the wrong type" in line


async def test_a_pattern_that_is_released_after_the_loss_is_crawled(crawler: Crawler, redis_url: str) -> None:
    async with site_of_every_fate(redis_url) as (first, site):
        seen = await crawl_it(crawler, first, site)
        ask_redis(redis_url, "FLUSHDB")
        pattern = pattern_of(Url(f"{site.url}/maze?n=1"))
        assert await crawler.app.crawls.release(seen.crawl.id, pattern) == HELD
        assert (await crawler.app.crawls.get(seen.crawl.id)).crawl.state is CrawlState.QUEUED
        await crawler.walk(seen.crawl)
        seen = await crawler.app.crawls.get(seen.crawl.id)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "drained")
    assert set(await crawler.pages(seen)) == EXPECTED | LOOPED | {"maze?n=1", "maze?n=2"}, (
        "the third is the target of a redirect"
    )
    assert [site.times(f"/maze?n={number}") for number in (1, 2, 3)] == [1, 1, 1]


async def test_failed_urls_that_are_retried_after_the_loss_are_requested_again(
    crawler: Crawler, redis_url: str
) -> None:
    pages = {"/": html("home", "/a"), "/a": html("a", "/gone"), "/gone": (404, {}, "")}
    async with serving(ScriptedSite(pages.get)) as site:
        seen = await crawler.crawl(site)
        ask_redis(redis_url, "FLUSHDB")
        pages["/gone"] = html("back", "/new")
        pages["/new"] = html("new")
        assert await crawler.app.crawls.retry_these(seen.crawl.id, FailedUrls(status=["4xx"])) == 1
        await crawler.walk(seen.crawl)
        seen = await crawler.app.crawls.get(seen.crawl.id)
    assert seen.crawl.state is CrawlState.COMPLETED
    assert {path: page.status for path, page in (await crawler.pages(seen)).items()} == dict.fromkeys(
        ("/", "a", "gone", "new"), 200
    )
    assert (seen.counts.pages, seen.counts.queued) == (4, 0)


def lost_once(site: ScriptedSite, path: str, redis_url: str) -> None:
    """Let Redis lose everything when a path is requested for the first time."""
    answer = site.script

    def script(asked: str) -> Answer | None:
        if asked == path and site.times(path) == 1:
            ask_redis(redis_url, "FLUSHDB")
        return answer(asked)

    site.script = script


async def test_the_target_of_a_redirect_is_fetched_again_only_by_the_page_that_has_it(
    crawler: Crawler, redis_url: str
) -> None:
    pages = {
        "/": html("home", "/a", "/b"),
        "/a": to("/hop"),
        "/hop": to("/t"),
        "/t": html("t", "/t1"),
        "/b": html("b", "/b1"),
        "/b1": html("b1", "/hop", "/t", "/b2"),
        "/b2": html("b2"),
        "/t1": html("t1", "/t2"),
        "/t2": html("t2"),
    }
    async with serving(ScriptedSite(pages.get)) as site:
        lost_once(site, "/t1", redis_url)
        seen = await crawler.crawl(site, concurrency=1)
        explained = await crawler.app.frontier_admin.explain(seen.crawl.id, f"{site.url}/t", 2000)
    assert set(await crawler.pages(seen)) == {"/", "a", "b", "b1", "b2", "t1", "t2"}
    assert f"{site.url}/a" in str(explained.sentence)


async def test_pages_that_a_host_gave_before_the_loss_count_towards_its_limit(crawler: Crawler, redis_url: str) -> None:
    pages = {"/": html("home", "/1"), **{f"/{n}": html(str(n), *(f"/{n}{m}" for m in range(5))) for n in range(1, 20)}}
    async with serving(ScriptedSite(pages.get)) as site:
        lost_once(site, "/10", redis_url)
        seen = await crawler.crawl(site, max_pages_per_host=4)
    assert len(await crawler.pages(seen)) == 4


async def test_unchanged_pages_lead_to_the_same_pages_after_a_loss(crawler: Crawler, redis_url: str) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site)
        lost_once(site, "/a/1", redis_url)
        second = await again(crawler, site, first)
    assert set(await crawler.pages(second)) == set(await crawler.pages(first))
    assert {page.status for page in (await crawler.pages(second)).values()} == {304}


async def test_links_of_rendered_pages_are_found_again(
    sqlite_url: str, redis_url: str, chromium: str, tmp_path: Path
) -> None:
    settings = on_redis(sqlite_url, redis_url, tmp_path, SHOAL_CHROMIUM=chromium)
    async with opened(settings, Signals()) as app, serving(ScriptedSite(partial(script_site, pages=5))) as site:
        crawler = Crawler(app)
        lost_once(site, "/page/2", redis_url)
        seen = await crawler.crawl(site, render="always")
        found = await crawler.pages(seen)
    assert set(found) == {"/", "page/1", "page/2", "page/3", "page/4"}


class LostAtLoop:
    """A frontier that is lost once, when the first member of a loop has its record and is about to be settled."""

    def __init__(self, frontier: FrontierStore, redis_url: str) -> None:
        self._frontier = frontier
        self._redis_url: str | None = redis_url

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool) -> Settlement:
        codes = {done.page.error_code for done in batch.settled if done.page is not None}
        if "redirect_loop" in codes and self._redis_url is not None:
            ask_redis(self._redis_url, "FLUSHDB")
            self._redis_url = None
        return await self._frontier.settle(tx, crawl, fence, batch, leaves=leaves)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)


async def test_a_member_of_a_loop_that_waits_when_the_frontier_is_lost_has_its_record_in_the_end(
    crawler: Crawler, redis_url: str
) -> None:
    """The record of the other member names both, and no page is fetched again for another URL: all others are seeds."""
    others = [f"/{number}" for number in range(500)]
    pages = {"/": html("home", "/b"), "/a": to("/b"), "/b": to("/a")} | {path: html(path) for path in others}
    seeds = ["/", *others[:120], "/a", *others[120:]]  # at first a few hundred are taken, of which `/b` is none
    losing = LostAtLoop(crawler.app.stores.frontiers.redis, redis_url)
    async with serving(ScriptedSite(pages.get)) as site:
        seen = await Crawler(altered(crawler.app, frontier=losing)).crawl(site, *seeds, concurrency=1)
    found = await crawler.pages(seen)
    told = {path: [hop["url"][-1] for hop in page.redirects] for path, page in found.items() if page.error_code}
    assert told == {"a": ["a", "b"], "b": ["b", "a"]}
    assert (len(found), seen.crawl.state) == (503, CrawlState.COMPLETED)
