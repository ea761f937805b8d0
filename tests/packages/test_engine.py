"""Crawls of small sites with the real engine on both stores: scope, depth, robots.txt, retries, budgets, traps."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TypeVar

import pytest

from shoal.app import App, opened
from shoal.base.clock import FakeClock
from shoal.base.database import Work
from shoal.base.errors import BackendUnavailable, LeaseLost
from shoal.base.query_params import SESSION
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.base.url import Url
from shoal.crawl.engine.engine import LONGEST_SILENCE_SECONDS, silence_seconds
from shoal.crawl.engine.results import MOST_URLS, STARVING_SECONDS
from shoal.crawl.frontier.explain import UrlState
from shoal.crawl.frontier.fates import TrapState
from shoal.crawl.frontier.traps import pattern_of
from shoal.crawl.frontier.values import Control, Turn
from shoal.crawl.states import CrawlState
from shoal.process.runners import make_walker
from shoal.work.leases import LeaseRenewer
from tests.packages.conftest import Answer, Crawler, ScriptedSite, Weighing, altered, calendar, html, serving

T = TypeVar("T")


def tree(path: str) -> Answer | None:
    """A small tree, four links deep, one branch per page."""
    deep = path.count("/") if path != "/" else 0
    return html(f"at {path}", f"{path.rstrip('/')}/a", "/", "http://elsewhere.example/") if deep < 6 else html("leaf")


async def test_a_crawl_stops_at_its_depth(crawler: Crawler) -> None:
    async with serving(ScriptedSite(tree)) as site:
        seen = await crawler.crawl(site, depth=2)
    assert seen.crawl.state is CrawlState.COMPLETED
    assert set(await crawler.pages(seen)) == {"/", "a", "a/a"}
    assert seen.counts.depth_reached == 2
    assert seen.counts.skipped == {"depth": 1, "scope": 1}
    assert site.times("/") == 1


async def test_the_record_says_where_a_page_was_found(crawler: Crawler) -> None:
    async with serving(ScriptedSite(tree)) as site:
        pages = await crawler.pages(await crawler.crawl(site, depth=1))
    page = pages["a"]
    assert (page.parent, page.title, page.depth, page.status, page.attempt) == (f"{site.url}/", "at /a", 1, 200, 1)
    assert page.word_count is not None
    assert page.links_internal == 2
    assert page.links_external == 1


async def test_a_page_under_many_addresses_is_fetched_once_by_the_crawls_own_rules(crawler: Crawler) -> None:
    links = ["/p?b=2&a=1", "/p?a=1&b=2", "/p?a=1&b=2&ref=3", "/p?a=1&b=2&utm_x=4", "/p?sid=5"]
    async with serving(ScriptedSite(lambda path: html(path, *links))) as site:
        rules = {"sort_query": True, "drop_params": ["ref"], "keep_params": ["sid"]}
        seen = await crawler.crawl(site, "/?ref=seed", depth=1, **rules)
        said = await crawler.app.frontier_admin.explain(seen.crawl.id, f"{site.url}/p?ref=9&b=2&a=1", 2083)
    assert sorted(site.asked) == ["/", "/p?a=1&b=2", "/p?sid=5", "/robots.txt"]
    assert (said.state, said.url) == (UrlState.FETCHED, f"{site.url}/p?a=1&b=2")


async def test_the_operators_lists_are_stored_with_the_crawl(store_url: str) -> None:
    def links(path: str) -> Answer:
        return html(path, "/p?ref=1", "/p?utm_a=1", "/q;visit=1", "/q")

    lists = {"SHOAL_TRACKING_PARAMS": "ref", "SHOAL_SESSION_PARAMS": "+visit"}
    theirs = load({"DATABASE_URL": store_url, **lists}, env={}).settings
    ours = load({"DATABASE_URL": store_url}, env={}).settings
    async with serving(ScriptedSite(links)) as site:
        async with opened(theirs, Signals()) as app:
            crawl = await Crawler(app).submit(site, depth=1)
        async with opened(ours, Signals()) as app:
            assert await Crawler(app).walk(crawl) == "drained"
    assert (crawl.config.tracking_params, crawl.config.session_params) == (["ref"], [*SESSION, "visit"])
    assert sorted(site.asked) == ["/", "/p", "/p?utm_a=1", "/q", "/robots.txt"]


async def test_robots_txt_is_obeyed_and_requests_carry_the_user_agent(crawler: Crawler) -> None:
    robots = (200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow: /private\n")
    site = ScriptedSite(lambda path: html(path, "/private/x", "/open"), robots=robots)
    async with serving(site):
        seen = await crawler.crawl(site)
    assert set(await crawler.pages(seen)) == {"/", "open"}
    assert seen.counts.skipped["robots"] == 1
    assert not [path for path in site.asked if path.startswith("/private")]
    assert site.times("/robots.txt") == 1
    assert all(agent.startswith("Shoal/") for agent in site.agents)


async def test_robots_txt_is_fetched_before_the_first_page_and_cached_for_the_next_crawl(crawler: Crawler) -> None:
    async with serving(ScriptedSite(tree)) as site:
        await crawler.crawl(site, depth=1)
        await crawler.crawl(site, depth=1)
    assert site.asked[0] == "/robots.txt"
    assert site.times("/robots.txt") == 1


async def test_an_unreachable_robots_txt_blocks_the_site(crawler: Crawler) -> None:
    async with serving(ScriptedSite(tree, robots=(503, {}, ""))) as site:
        crawl = await crawler.submit(site)
        walking = asyncio.create_task(crawler.walk(crawl))
        await site.until(lambda: site.times("/robots.txt") > 0, walking)
        await crawler.app.crawls.stop(crawl.id)
        await walking
    assert site.times("/") == 0


async def test_a_crawl_can_ignore_robots_txt(crawler: Crawler) -> None:
    robots = (200, {}, "User-agent: *\nDisallow: /\n")
    async with serving(ScriptedSite(tree, robots=robots)) as site:
        seen = await crawler.crawl(site, depth=1, robots="ignore")
    assert seen.counts.pages == 2
    assert site.times("/robots.txt") == 0


async def test_a_crawl_without_any_page_fails(crawler: Crawler) -> None:
    async with serving(ScriptedSite(tree, robots=(200, {}, "User-agent: *\nDisallow: /\n"))) as site:
        seen = await crawler.crawl(site)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.FAILED, "no_seed_gave_a_page")


async def test_a_missing_page_is_recorded_with_its_status(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html("home", "/gone") if path == "/" else None)) as site:
        seen = await crawler.crawl(site)
    page = (await crawler.pages(seen))["gone"]
    assert (page.status, page.error_code) == (404, None)
    assert seen.crawl.state is CrawlState.COMPLETED


async def test_a_redirect_is_followed_and_recorded(crawler: Crawler) -> None:
    def moved(path: str) -> Answer | None:
        return {"/": html("home", "/old"), "/new": html("new"), "/old": (301, {"Location": "/new"}, "")}.get(path)

    async with serving(ScriptedSite(moved)) as site:
        page = (await crawler.pages(await crawler.crawl(site)))["old"]
    assert (page.final_url, page.status, page.title) == (f"{site.url}/new", 200, "new")
    assert page.redirects == [{"url": f"{site.url}/old", "status": 301}]


async def test_a_redirect_to_another_port_of_this_machine_is_refused(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html("secret"))) as inside:
        away = (302, {"Location": f"{inside.url}/admin"}, "")
        async with serving(ScriptedSite(lambda path: html("home", "/out") if path == "/" else away)) as site:
            page = (await crawler.pages(await crawler.crawl(site, scope="any")))["out"]
    assert page.error_code == "address_not_public"
    assert inside.asked == []


@pytest.mark.parametrize(("budget", "limit"), [("max_pages", 3), ("max_bytes", 200)])
async def test_a_spent_budget_completes_the_crawl_with_its_name(crawler: Crawler, budget: str, limit: int) -> None:
    def endless(path: str) -> Answer:
        number = int(path.strip("/") or 0)
        return html(f"page {number}", f"/{number + 1}")

    async with serving(ScriptedSite(endless)) as site:
        seen = await crawler.crawl(site, depth=1000, **{budget: limit})
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, budget)
    assert seen.counts.pages <= 3


async def test_the_page_limit_is_never_exceeded(crawler: Crawler) -> None:
    wide = html("home", *(f"/{number}" for number in range(50)))
    async with serving(ScriptedSite(lambda path: wide if path == "/" else html(path))) as site:
        seen = await crawler.crawl(site, max_pages=10)
    assert seen.counts.pages == 10
    assert len(site.asked) == 11


async def test_the_page_limit_per_host_is_never_exceeded(crawler: Crawler) -> None:
    wide = html("home", *(f"/{number}" for number in range(50)))
    async with serving(ScriptedSite(lambda path: wide if path == "/" else html(path))) as site:
        seen = await crawler.crawl(site, max_pages_per_host=7)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "drained")
    assert seen.counts.pages == 7
    assert seen.counts.skipped["host_budget"] == 44


async def test_a_crawl_ends_when_its_time_is_up(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html(path, path + "a"))) as site:
        seen = await crawler.crawl(site, depth=10_000, max_seconds=0.3)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "max_seconds")


async def test_an_endless_calendar_is_quarantined_and_real_pages_are_not(crawler: Crawler) -> None:
    site = ScriptedSite(lambda path: html("real", "/cal?month=1") if path == "/real" else calendar(path))
    async with serving(site):
        seen = await crawler.crawl(site, depth=10_000)
    assert seen.crawl.state is CrawlState.COMPLETED
    assert 100 < seen.counts.pages < 400
    [trap] = await crawler.app.database.read(lambda tx: crawler.app.stores.frontiers.sql.traps(tx, seen.crawl.number))
    assert (trap.pattern, trap.state) == (f"{site.url}/cal?month=", TrapState.QUARANTINED)
    assert trap.count > 0
    assert "real" in await crawler.pages(seen)


async def test_many_distinct_pages_are_not_a_trap(crawler: Crawler) -> None:
    def shop(path: str) -> Answer:
        return html("shop", *(f"/item?id={n}" for n in range(300))) if path == "/" else html(f"item {path}")

    async with serving(ScriptedSite(shop)) as site:
        seen = await crawler.crawl(site)
    assert seen.counts.pages == 301


async def test_equal_not_found_pages_are_not_a_trap(crawler: Crawler) -> None:
    def shop(path: str) -> Answer:
        if path == "/":
            return html("shop", *(f"/item?id={n}" for n in range(400)))
        gone = int(path.partition("id=")[2]) < 300
        return (404, {"Content-Type": "text/html"}, "<p>not found</p>") if gone else html(f"item {path}")

    async with serving(ScriptedSite(shop)) as site:
        seen = await crawler.crawl(site)
    assert seen.counts.pages == 401


async def test_a_released_pattern_is_crawled_and_not_quarantined_again(crawler: Crawler) -> None:
    async with serving(ScriptedSite(calendar)) as site:
        crawl = await crawler.submit(site, depth=10_000, max_pages=150)
        trapped = f"{site.url}/cal?month="
        await crawler.app.database.run(
            lambda tx: crawler.app.stores.frontiers.sql.quarantine(tx, crawl.number, {trapped: Url(f"{trapped}1")})
        )
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        await crawler.app.queue.release(lease, "not yet")
        assert await crawler.app.crawls.release(crawl.id, trapped) == 0
        await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    assert seen.counts.pages == 150


def test_a_pattern_forgets_digits_and_values() -> None:
    assert pattern_of(Url("http://h/a12/b?x=1&y=zz")) == pattern_of(Url("http://h/a7/b?x=&y=2"))
    assert pattern_of(Url("http://h/a/b")) != pattern_of(Url("http://h/a/c"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/x/y/x/y/x/y/x/y/x", "repeating_path"), ("/" + "/".join(map(str, range(60))), "too_many_segments")],
)
async def test_generated_paths_are_skipped(crawler: Crawler, path: str, reason: str) -> None:
    async with serving(ScriptedSite(lambda asked: html("home", path))) as site:
        seen = await crawler.crawl(site)
    assert seen.counts.skipped == {reason: 1}


async def test_a_server_error_is_retried_and_then_recorded(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html("home", "/bad") if path == "/" else (500, {}, ""))) as site:
        page = (await crawler.pages(await crawler.crawl(site)))["bad"]
    assert (page.status, page.attempt) == (500, 4)
    assert site.times("/bad") == 4


async def test_a_paused_and_resumed_crawl_fetches_no_page_twice(crawler: Crawler) -> None:
    wide = html("home", *(f"/{number}" for number in range(40)))
    async with serving(ScriptedSite(lambda path: wide if path == "/" else html(path))) as site:
        site.late["/20"] = "never"
        crawl = await crawler.submit(site, concurrency=2)
        walking = asyncio.create_task(crawler.walk(crawl))
        await site.until(lambda: "/20" in site.asked, walking)
        await crawler.app.crawls.pause(crawl.id)
        assert await walking == "paused"
        site.late.clear()
        assert (await crawler.app.crawls.get(crawl.id)).crawl.state is CrawlState.PAUSED
        fetched = set(await crawler.pages(await crawler.app.crawls.get(crawl.id)))
        await crawler.app.crawls.resume(crawl.id)
        site.asked.clear()
        await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    assert seen.counts.pages == 41
    assert not fetched & {path.strip("/") or "/" for path in site.asked}


@pytest.mark.parametrize("link", ["/?next=https://a.b/c/d/", "//////", "/a//b///c////", "/?a=" + "/" * 50])
async def test_links_with_odd_slashes_are_resolved(crawler: Crawler, link: str) -> None:
    async with serving(ScriptedSite(lambda path: html("home", link))) as site:
        seen = await crawler.crawl(site, depth=1)
    assert seen.crawl.state is CrawlState.COMPLETED


async def test_a_page_first_found_too_deep_is_crawled_when_a_shorter_path_is_found(crawler: Crawler) -> None:
    """The long path is crawled while the short one answers 503 and is retried."""
    ways = {"/": ["/late", "/a"], "/late": ["/x"], "/a": ["/b"], "/b": ["/c"], "/c": ["/x"], "/x": []}
    refused: list[str] = []

    def script(path: str) -> Answer:
        if path == "/late" and not refused:
            refused.append(path)
            return 503, {}, ""
        return html(path, *ways[path])

    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site, depth=3)
    assert "x" in await crawler.pages(seen)
    assert seen.counts.skipped.get("depth", 0) == 0
    assert seen.counts.drained


async def test_an_invalid_link_is_counted_once_with_its_reason(crawler: Crawler) -> None:
    links = {
        "mailto:me@example.org": "scheme",
        "javascript:alert(1)": "scheme",
        "http://user:secret@example.org/": "credentials",
        "http://127.0.0.1\\@example.org/": "backslash",
        "/a&#1;b": "control_characters",
        "/" + "a" * 3000: "url_too_long",
        "http:///x": "invalid_url",
        "http://example.org:99999/": "invalid_url",
    }
    async with serving(ScriptedSite(lambda path: html("x", "/two", *links))) as site:
        seen = await crawler.crawl(site)
    counted = {reason: count for reason, count in seen.counts.skipped.items() if reason in links.values()}
    assert counted == Counter(links.values())
    assert seen.counts.pages == 2


class Deaf:
    """A store that executes everything, but whose responses are lost sometimes, and always once a crawl has ended."""

    def __init__(self, app: App, crawl_id: str, lost: set[int]) -> None:
        self._app = app
        self._crawl_id = crawl_id
        self._lost = lost
        self.commits = 0

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        answer = await self._app.database.run(work, within=within)
        self.commits += 1
        ended = (await self._app.crawls.get(self._crawl_id)).crawl.state is CrawlState.COMPLETED
        if self.commits in self._lost or ended:
            raise BackendUnavailable("the store", "the cable was cut after the commit", "plug it in")
        return answer

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work, within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._app.database.read(work)


async def test_a_commit_whose_response_was_lost_is_neither_lost_nor_repeated(crawler: Crawler) -> None:
    wide = html("home", *(f"/{number}" for number in range(40)))
    async with serving(ScriptedSite(lambda path: wide if path == "/" else html(path))) as site:
        crawl = await crawler.submit(site)
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        deaf = Deaf(crawler.app, crawl.id, {2, 4})
        walker = make_walker(altered(crawler.app, database=deaf), crawl, lease.fence, lambda: True)
        with pytest.raises(LeaseLost):  # the job has ended, so there is nothing more to commit
            await walker.run()
    seen = await crawler.app.crawls.get(crawl.id)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "drained")
    assert seen.counts.pages == len(await crawler.pages(seen)) == 41
    assert deaf.commits > 4


async def test_a_walker_that_is_asked_to_hand_back_does_not_wait_for_the_end_of_an_outage(crawler: Crawler) -> None:
    async with serving(ScriptedSite(html)) as site:
        crawl = await crawler.submit(site)
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        away = Deaf(crawler.app, crawl.id, set(range(1, 1000)))
        walker = make_walker(altered(crawler.app, database=away), crawl, lease.fence, lambda: True)
        walker.leave("shutdown")
        with pytest.raises(BackendUnavailable):
            await asyncio.wait_for(walker.run(), 30)


async def test_a_walker_suspended_past_its_lease_continues_if_nobody_took_the_job(crawler: Crawler) -> None:
    """For example a laptop that was closed."""
    async with serving(ScriptedSite(lambda path: html(path, "/next"))) as site:
        crawl = await crawler.submit(site)
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        clock = FakeClock()
        renewer = LeaseRenewer(crawler.app.queue, lease, clock)
        clock.jump(3600)
        assert not renewer.trusted()
        walker = make_walker(crawler.app, crawl, lease.fence, renewer.trusted, renew=renewer.renew)
        assert await walker.run() == "drained"
        assert renewer.trusted()


async def test_a_walker_suspended_past_its_lease_ends_if_another_has_the_job(crawler: Crawler) -> None:
    async with serving(ScriptedSite(html)) as site:
        crawl = await crawler.submit(site)
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        clock = FakeClock()
        renewer = LeaseRenewer(crawler.app.queue, lease, clock)
        clock.jump(3600)
        await crawler.app.queue.release(lease, "another has it")
        with pytest.raises(LeaseLost):
            await make_walker(crawler.app, crawl, lease.fence, renewer.trusted, renew=renewer.renew).run()
    assert site.asked == []


async def test_the_number_of_urls_in_a_commit_is_limited(crawler: Crawler) -> None:
    """Ten pages that each link to 7,000 others come at once: they go into several commits, and none is lost."""

    def heavy(path: str) -> Answer:
        return html("home", *map(str, range(10))) if path == "/" else html(path, *(f"{path}/{n}" for n in range(7000)))

    async with serving(ScriptedSite(heavy, seconds=0.3)) as site:
        crawl = await crawler.submit(site, depth=1)
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        weighing = Weighing(crawler.app.stores.frontiers.sql)
        app = altered(crawler.app, frontier=weighing)
        assert await make_walker(app, crawl, lease.fence, lambda: True).run() == "drained"
    seen = await crawler.app.crawls.get(crawl.id)
    assert (seen.counts.pages, seen.counts.skipped) == (11, {"depth": 70_000})
    assert max(weighing.weights) < MOST_URLS + 7000


@pytest.mark.parametrize(
    ("answered", "seconds"),
    [(None, LONGEST_SILENCE_SECONDS), (0.0, STARVING_SECONDS), (0.3, 0.3), (0.001, STARVING_SECONDS)],
)
def test_a_walker_without_work_asks_again_when_the_store_says(answered: float | None, seconds: float) -> None:
    assert silence_seconds(Turn(Control.GO, wait_seconds=answered)) == seconds
