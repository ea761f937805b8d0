"""Redirects of pages: their targets are judged, paced, claimed and explained like any other URL."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import pytest

from shoal.app import opened
from shoal.base.signals import Signals
from shoal.crawl.crawl import Crawl
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.crawl.states import CrawlState
from shoal.pages import warc
from shoal.pages.bodies import place_of
from shoal.pages.export.output import ExportFilter
from shoal.pages.page import Page
from shoal.pages.pages import Pages
from shoal.pages.store import PageFilter
from shoal.process.runners import make_walker
from shoal.queue.states import GrantEnd, give_back
from shoal.serve.resources.page import UrlExplained
from tests.packages.conftest import CLOCK, Answer, Crawler, ScriptedSite, html, serving, settings_for
from tests.support import ledger
from tests.support.effort import times
from tests.support.patience import PATIENCE_SECONDS, with_load


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def crawler(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Crawler]:
    """Crawls on each frontier in turn; Redis beside SQLite."""
    more = {}
    if request.param == "redis":
        more = {"REDIS_URL": request.getfixturevalue("redis_url"), "SHOAL_FRONTIER": "redis", "SHOAL_LANES": "sql"}
    name = "sqlite" if request.param == "redis" else request.param
    store_url = request.getfixturevalue(f"{name}_url")
    async with opened(settings_for(store_url, tmp_path, **more), Signals()) as app:
        yield Crawler(app)


LEAST_SHARE = 0.5  # of a delay: a loaded machine reads some requests late, and the gap after those is shorter


def to(place: str, status: int = 302, **headers: str) -> Answer:
    return status, {"Location": place, **headers}, ""


def site_of(pages: dict[str, Answer], **options: Any) -> ScriptedSite:
    return ScriptedSite(pages.get, **options)


def robots(text: str) -> Answer:
    return 200, {"Content-Type": "text/plain"}, text


async def explained(crawler: Crawler, seen: CrawlStatus, url: str) -> dict[str, Any]:
    found = await crawler.app.frontier_admin.explain(seen.crawl.id, url, 2000)
    return UrlExplained.with_facts(seen.crawl.id, found)


def is_exact(crawler: Crawler, seen: CrawlStatus) -> bool:
    """Return whether the crawl is complete and its rows are consistent."""
    settings = crawler.app.settings
    books = ledger.read(str(settings.database.url), seen.crawl.id, settings.redis.url)
    failed = [page["url"] for page in books.pages]
    assert ledger.violations(books, ledger.Expected(failed=failed, state="whatever")) == []
    return seen.crawl.state is CrawlState.COMPLETED and seen.counts.drained


async def test_a_target_that_robots_txt_forbids_is_not_fetched(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a"), "/a": to("/deny"), "/deny": html("deny")}
    async with serving(site_of(pages, robots=robots("User-agent: *\nDisallow: /deny"))) as site:
        seen = await crawler.crawl(site)
        said = await explained(crawler, seen, f"{site.url}/deny")
    assert site.times("/deny") == 0
    page = (await crawler.pages(seen))["a"]
    assert (page.status, page.final_url) == (302, f"{site.url}/deny")
    assert page.redirects == [{"url": f"{site.url}/a", "status": 302}]
    assert page.error_code is None
    assert (said["state"], said["reason"]) == ("skipped", "robots")
    assert seen.counts.skipped == {"robots": 1}
    assert is_exact(crawler, seen)


async def test_the_rules_of_the_targets_own_host_are_asked_for(crawler: Crawler) -> None:
    async with serving(
        site_of({"/deny": html("d"), "/ok": html("ok")}, robots=robots("User-agent: *\nDisallow: /deny"))
    ) as other:
        pages = {"/": html("home", "/a", "/b"), "/a": to(f"{other.url}/deny"), "/b": to(f"{other.url}/ok")}
        async with serving(site_of(pages)) as site:
            seen = await crawler.crawl(site, named=[other], scope="any")
            denied = await explained(crawler, seen, f"{other.url}/deny")
            fetched = await explained(crawler, seen, f"{other.url}/ok")
    assert sorted(other.asked) == ["/ok", "/robots.txt"]
    found = await crawler.pages(seen)
    assert (found["a"].status, found["a"].final_url) == (302, f"{other.url}/deny")
    assert (found["b"].status, found["b"].final_url, found["b"].title) == (200, f"{other.url}/ok", "ok")
    assert (denied["state"], denied["reason"], denied["via"]) == ("skipped", "robots", f"{site.url}/a")
    assert (fetched["state"], fetched["reason"], fetched["via"]) == ("fetched", "redirect", f"{site.url}/b")
    assert f"fetched via {site.url}/b" in fetched["explanation"]
    assert seen.counts.skipped == {"robots": 1}
    assert is_exact(crawler, seen)


async def test_a_target_outside_the_scope_is_not_recorded(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a")}
    async with serving(site_of({"/x": html("x")})) as other, serving(site_of(pages)) as site:
        pages["/a"] = to(f"{other.url}/x")
        seen = await crawler.crawl(site, named=[other], scope="host")
        said = await explained(crawler, seen, f"{other.url}/x")
    assert other.asked == []
    assert (await crawler.pages(seen))["a"].status == 302
    assert (said["state"], said["reason"]) == ("skipped", "scope")
    assert is_exact(crawler, seen)


async def test_a_seed_widens_the_scope_by_where_it_redirects(crawler: Crawler) -> None:
    pages: dict[str, Answer] = {}
    async with serving(site_of({"/x": html("x", "/y"), "/y": html("y")})) as other, serving(site_of(pages)) as site:
        pages["/"] = to(f"{other.url}/x", 301)
        seen = await crawler.crawl(site, named=[other], scope="host")
    assert sorted(other.asked) == ["/robots.txt", "/x", "/y"]
    found = await crawler.pages(seen)
    assert (found["/"].status, found["/"].final_url) == (200, f"{other.url}/x")
    assert is_exact(crawler, seen)


async def test_a_target_is_not_fetched_again_when_it_is_linked(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a"), "/a": to("/b"), "/b": html("b", "/c"), "/c": html("c", "/b", "/a")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
        said = await explained(crawler, seen, f"{site.url}/b")
        first = await explained(crawler, seen, f"{site.url}/a")
    assert site.times("/b") == 1
    assert sorted(await crawler.pages(seen)) == ["/", "a", "c"]
    assert (said["state"], said["via"], said["status"]) == ("fetched", f"{site.url}/a", 200)
    assert first["final_url"] == f"{site.url}/b"
    assert is_exact(crawler, seen)


async def test_a_target_that_was_fetched_is_not_fetched_again(crawler: Crawler) -> None:
    pages = {"/": html("home", "/b"), "/b": html("b", "/a"), "/a": to("/b")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
    assert site.times("/b") == 1
    found = await crawler.pages(seen)
    assert (found["b"].status, found["b"].redirects) == (200, [])
    assert (found["a"].status, found["a"].final_url) == (302, f"{site.url}/b")
    assert is_exact(crawler, seen)


async def test_a_target_that_waits_in_line_leaves_it_without_a_request(crawler: Crawler) -> None:
    """With one fetch at a time, what the home page links to waits while the redirect is met."""
    others = [f"/{number}" for number in range(150)]
    pages = {"/": html("home", "/a", *others, "/b"), "/a": to("/b"), "/b": html("b")} | {
        path: html(path) for path in others
    }
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site, concurrency=1)
        said = await explained(crawler, seen, f"{site.url}/b")
    assert site.times("/b") == 1
    assert said["via"] == f"{site.url}/a"
    assert "b" not in await crawler.pages(seen)
    assert seen.counts.opened == 153
    assert is_exact(crawler, seen)
    settings = crawler.app.settings
    fates = ledger.read(str(settings.database.url), seen.crawl.id, settings.redis.url).fates
    assert Counter(row["fate"] for row in fates) == {ledger.FETCHED: 152, ledger.FETCHED_VIA: 1}


async def test_two_redirects_to_one_target_fetch_it_once(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a", "/a2"), "/a": to("/b"), "/a2": to("/b"), "/b": html("b")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
    assert site.times("/b") == 1
    found = await crawler.pages(seen)
    assert sorted(page.status for path, page in found.items() if path in ("a", "a2")) == [200, 302]
    assert is_exact(crawler, seen)


@pytest.mark.parametrize(
    ("pages", "code", "hops"),
    [
        ({"/": to("/x"), "/x": to("/")}, "redirect_loop", 2),
        (
            {
                "/": to("/"),
            },
            "redirect_loop",
            1,
        ),
        ({"/": to("mailto:x@y.z")}, "redirect_scheme", 1),
        ({"/": to("/1"), **{f"/{n}": to(f"/{n + 1}") for n in range(1, 30)}}, "too_many_redirects", 11),
    ],
)
async def test_chains_that_lead_nowhere_fail_by_their_codes(
    crawler: Crawler, pages: dict[str, Answer], code: str, hops: int
) -> None:
    async with serving(site_of(pages)) as site:
        crawl = await crawler.submit(site)
        await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    [page] = (await crawler.pages(seen)).values()
    assert (page.error_code, page.status, len(page.redirects)) == (code, None, hops)
    assert seen.counts.drained


LOOPS = {
    "only one of two is linked": ({"a": "b", "b": "a"}, ["a"]),
    "both of two are linked": ({"a": "b", "b": "a"}, ["a", "b"]),
    "all of three are linked": ({"a": "b", "b": "c", "c": "a"}, ["a", "b", "c"]),
    "all of three are linked in reverse": ({"a": "b", "b": "c", "c": "a"}, ["c", "b", "a"]),
    "a chain leads into a loop": ({"c": "a", "a": "b", "b": "a"}, ["c"]),
    "a chain leads into a loop that is linked": ({"c": "a", "a": "b", "b": "a"}, ["a", "b", "c"]),
    "a page redirects to itself": ({"a": "a"}, ["a"]),
    "a chain leads to a page that redirects to itself": ({"c": "a", "a": "a"}, ["c", "a"]),
}


def hops_of(page: Page) -> list[str]:
    return [hop["url"] for hop in page.redirects]


def chain_from(start: str, moves: dict[str, str]) -> list[str]:
    """The pages that are requested from `start` on, until one leads to a page that was requested before."""
    chain = [start]
    while moves[chain[-1]] not in chain:
        chain.append(moves[chain[-1]])
    return chain


@pytest.mark.parametrize("concurrency", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("found", ["linked", "seeds"])
@pytest.mark.parametrize("loop", LOOPS)
async def test_each_page_that_leads_into_a_loop_says_so_and_how(
    crawler: Crawler, loop: str, found: str, concurrency: int
) -> None:
    moves, named = LOOPS[loop]
    pages = {f"/{path}": to(f"/{target}") for path, target in moves.items()}
    links = [f"/{path}" for path in named]
    pages["/"] = html("home", *(links if found == "linked" else ()))
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site, "/", *(links if found == "seeds" else ()), concurrency=concurrency)
    records = await crawler.pages(seen)
    told = {path: (page.error_code, page.status, hops_of(page)) for path, page in records.items()}
    looped = {path: [f"{site.url}/{hop}" for hop in chain_from(path, moves)] for path in named}
    expected = {path: ("redirect_loop", None, chain) for path, chain in looped.items()}
    assert told == {"/": (None, 200, [])} | expected
    assert is_exact(crawler, seen)


@pytest.mark.exhaustive
async def test_several_walkers_agree_on_a_loop_over_several_hosts(crawler: Crawler) -> None:
    """Four pages redirect in a circle, each to the other host, and as many lead into it."""
    async with serving(site_of({})) as other, serving(site_of({})) as site:
        circle = [f"{site.url}/a", f"{other.url}/b", f"{site.url}/c", f"{other.url}/d"]
        moves = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
        moves |= {f"{site.url}/to-{url[-1]}": url for url in circle}
        answers = {url: to(target) for url, target in moves.items()} | {f"{site.url}/": html("home", *moves)}
        site.script = lambda path: answers.get(site.url + path)
        other.script = lambda path: answers.get(other.url + path)
        crawl = await crawler.submit(site, named=[other], scope="any", workers=3, concurrency=3)
        leases = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 3)
        walkers = [make_walker(crawler.app, crawl, lease.fence, lambda: True) for lease in leases]
        await asyncio.gather(*[walker.run() for walker in walkers])
        seen = await crawler.app.crawls.get(crawl.id)
    records = (await crawler.pages(seen)).values()
    told = {page.url: (page.error_code, hops_of(page)) for page in records if page.url in moves}
    assert told == {url: ("redirect_loop", chain_from(url, moves)) for url in moves}
    assert is_exact(crawler, seen)


@pytest.mark.parametrize("seed", range(times(3)))
async def test_loops_are_told_and_pages_requested_once_whatever_redirects_where(crawler: Crawler, seed: int) -> None:
    dice = random.Random(seed)
    names = [f"/{number}" for number in range(dice.choice([4, 7, 10]))]
    moves = {path: dice.choice(names) for path in names if dice.random() < 0.8}
    linked = dice.sample(names, dice.randint(2, len(names)))
    pages = {path: html(path) for path in names} | {path: to(target) for path, target in moves.items()}
    async with serving(site_of(pages | {"/": html("home", *linked)})) as site:
        concurrency = dice.choice([1, 2, 4, 16])
        if concurrency > len(linked):  # all of them are in flight at the same time
            late, others = linked[: len(linked) // 2], linked[len(linked) // 2 :]
            site.late = {path: dice.choice(others) for path in late if dice.random() < 0.5}
        seen = await crawler.crawl(site, concurrency=concurrency)
    told = {f"/{path}": (page.error_code, hops_of(page)) for path, page in (await crawler.pages(seen)).items()}
    looped = {}
    for path in linked:
        chain = [path]
        while (target := moves.get(chain[-1])) is not None and target not in chain:
            chain.append(target)
        if target is not None:
            looped[path] = "redirect_loop", [site.url + hop for hop in chain]
    assert {path: one for path, one in told.items() if one[0] is not None} == looped
    assert {path: site.times(path) for path in names if path not in moves and site.times(path) > 1} == {}
    assert is_exact(crawler, seen)


async def test_a_chain_that_leads_into_one_with_too_many_redirects_has_too_many(crawler: Crawler) -> None:
    pages = {"/": html("home", "/1", "/c"), "/c": to("/1"), **{f"/{n}": to(f"/{n + 1}") for n in range(1, 30)}}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site, concurrency=1)
    page = (await crawler.pages(seen))["c"]
    assert (page.error_code, page.status) == ("too_many_redirects", None)
    assert hops_of(page) == [f"{site.url}/{path}" for path in ["c", *range(1, 11)]]
    assert is_exact(crawler, seen)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_pages_that_lead_back_with_a_cookie_are_no_loop(crawler: Crawler, concurrency: int) -> None:
    site = ScriptedSite(lambda path: None)

    def script(path: str) -> Answer | None:
        if path == "/a" and "seen=1" not in (site.heard[-1].get("cookie") or ""):
            return to("/b", **{"Set-Cookie": "seen=1"})
        return {"/": html("home", "/a", "/b"), "/a": html("in"), "/b": to("/a")}.get(path)

    site.script = script
    async with serving(site):
        seen = await crawler.crawl(site, concurrency=concurrency)
    found = await crawler.pages(seen)
    assert [page.error_code for page in found.values() if page.error_code] == []
    assert (found["a"].title, hops_of(found["a"])) == ("in", [f"{site.url}/a", f"{site.url}/b"])
    assert is_exact(crawler, seen)


async def late_target(crawler: Crawler, site: ScriptedSite, **config: Any) -> tuple[Crawl, asyncio.Task[str]]:
    """Crawl a site until a page waits for the URL that it redirects to, which its server does not answer."""
    site.late["/b"] = "/answer"
    crawl = await crawler.submit(site, concurrency=2, **config)
    walking = asyncio.create_task(crawler.walk(crawl))
    await site.until(lambda: {"/a", "/b"} <= set(site.asked), walking)
    async with asyncio.timeout(with_load(PATIENCE_SECONDS)):
        while True:
            said = await explained(crawler, await crawler.app.crawls.get(crawl.id), f"{site.url}/a")
            if said.get("redirects_to"):
                break
            await CLOCK.sleep(0.02)
    assert said["redirects_to"] == f"{site.url}/b"
    assert "which another URL is already requesting" in said["explanation"]
    return crawl, walking


def answer_late(site: ScriptedSite) -> None:
    site.late.clear()
    site.asked.append("/answer")
    site.news.set()


WAITING = {"/": html("home", "/a", "/b"), "/a": to("/b", **{"Content-Type": "text/plain"}), "/b": html("b")}


async def test_a_page_waits_for_its_target_without_requests_and_keeps_its_body(crawler: Crawler) -> None:
    async with serving(site_of(WAITING)) as site:
        crawl, walking = await late_target(crawler, site, keep_bodies=True)
        await CLOCK.sleep(0.5)
        assert "a" not in await crawler.pages(await crawler.app.crawls.get(crawl.id))
        answer_late(site)
        await walking
        seen = await crawler.app.crawls.get(crawl.id)
    assert (site.times("/a"), site.times("/b")) == (1, 1)
    page = (await crawler.pages(seen))["a"]
    assert (page.status, page.final_url, page.content_type) == (302, f"{site.url}/b", "text/plain")
    assert (hops_of(page), page.attempt, page.error_code) == ([f"{site.url}/a"], 1, None)
    place = place_of(page)
    assert place is not None
    assert b"302 X" in warc.read_member(await crawler.app.bodies.read(place)).block
    assert is_exact(crawler, seen)


async def test_a_page_that_waits_for_its_target_is_not_requested_again_after_a_crash(crawler: Crawler) -> None:
    async with serving(site_of(WAITING)) as site:
        crawl, walking = await late_target(crawler, site)
        walking.cancel()
        await asyncio.gather(walking, return_exceptions=True)
        answer_late(site)
        [job] = await crawler.app.database.read(lambda tx: crawler.app.queue.jobs.jobs_of_run(tx, crawl.id))
        lost = give_back(job.id, job.lease_epoch, GrantEnd.CRASHED, "died")
        await crawler.app.database.run(lambda tx: crawler.app.queue.moves.move_in(tx, lost, "crawl", crawl.id))
        await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    assert (site.times("/a"), site.times("/b")) == (1, 2)
    found = await crawler.pages(seen)
    assert (found["a"].status, found["a"].final_url, found["b"].status) == (302, f"{site.url}/b", 200)
    assert is_exact(crawler, seen)


async def test_a_page_that_waits_for_its_target_is_requested_again_in_another_store(crawler: Crawler) -> None:
    async with serving(site_of(WAITING)) as site:
        crawl, walking = await late_target(crawler, site)
        await crawler.app.crawls.pause(crawl.id)
        assert await walking == "paused"
        answer_late(site)
        dumps = crawler.app.crawl_dump
        dumped = [line async for line in dumps.dump(crawl.id)]
        copy = await dumps.load(dumped, crawl_id="copy", trust_named=True)
        again = [line async for line in dumps.dump(copy)]
        await crawler.app.crawls.resume(copy)
        await crawler.walk((await crawler.app.crawls.get(copy)).crawl)
        seen = await crawler.app.crawls.get(copy)
    assert sorted(again[1:]) == sorted(dumped[1:])
    assert site.times("/a") == 2
    assert {path: page.status for path, page in (await crawler.pages(seen)).items()} in (
        {"/": 200, "a": 302, "b": 200},
        {"/": 200, "a": 200},  # it claimed its target this time
    )
    assert is_exact(crawler, seen)


@pytest.mark.parametrize("limit", ["max_pages", "max_pages_per_host"])
async def test_pages_that_waited_for_their_targets_count_as_pages(crawler: Crawler, limit: str) -> None:
    pages = {"/": html("home", "/b", *(f"/a{n}" for n in range(20))), "/b": html("b")}
    pages |= {f"/a{n}": to("/b") for n in range(20)}
    async with serving(site_of(pages, late={"/b": "/a9"})) as site:
        seen = await crawler.crawl(site, concurrency=12, **{limit: 7})
    assert seen.counts.pages == len(await crawler.pages(seen)) == 7
    assert seen.crawl.state is CrawlState.COMPLETED


async def test_pages_of_a_loop_are_tried_again_by_themselves(crawler: Crawler) -> None:
    pages = {"/": html("home", "/c", "/a", "/b"), "/c": to("/a"), "/a": to("/b"), "/b": to("/a")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site, concurrency=1)
        assert seen.counts.errors == 3
        asked = Counter(site.asked)
        pages |= {"/a": html("a"), "/b": html("b")}
        assert await crawler.app.crawls.retry_these(seen.crawl.id, FailedUrls(like="/[ab]$")) == 2
        await crawler.walk(seen.crawl)
        seen = await crawler.app.crawls.get(seen.crawl.id)
    assert Counter(site.asked) - asked == Counter(["/a", "/b"])
    found = await crawler.pages(seen)
    assert (found["a"].title, found["b"].title, found["c"].error_code) == ("a", "b", "redirect_loop")
    assert seen.counts.drained


async def test_a_page_that_asks_for_a_cookie_is_asked_for_again_with_it(crawler: Crawler) -> None:
    site = ScriptedSite(lambda path: None)

    def script(path: str) -> Answer:
        if "seen=1" in (site.heard[-1].get("cookie") or ""):
            return html("in")
        return to("/", **{"Set-Cookie": "seen=1"})

    site.script = script
    async with serving(site):
        seen = await crawler.crawl(site)
    [page] = (await crawler.pages(seen)).values()
    assert (page.status, page.title, len(page.redirects)) == (200, "in", 1)
    assert is_exact(crawler, seen)


async def test_a_target_that_fails_for_good_has_failed(crawler: Crawler) -> None:
    gone = site_of({})
    with socket.socket() as closed:  # a port at which nobody listens, and that nobody else gets
        closed.bind(("127.0.0.1", 0))
        gone.port = closed.getsockname()[1]
        async with serving(site_of({"/": html("home", "/a"), "/a": to(f"{gone.url}/x")})) as site:
            seen = await crawler.crawl(site, named=[gone], scope="any", robots="ignore")
            said = await explained(crawler, seen, f"{gone.url}/x")
    page = (await crawler.pages(seen))["a"]
    assert (page.status, page.final_url) == (None, f"{gone.url}/x")
    assert page.error_code is not None
    assert (said["state"], said["via"]) == ("failed", f"{site.url}/a")
    assert is_exact(crawler, seen)


def gaps(site: ScriptedSite, *paths: str) -> list[float]:
    """Seconds between requests for these paths."""
    moments = [at for path, at in zip(site.asked, site.moments, strict=True) if path in paths]
    return [later - earlier for earlier, later in pairwise(moments)]


async def test_hops_keep_the_pace_of_their_host(crawler: Crawler) -> None:
    pages = {"/": to("/1"), "/1": to("/2"), "/2": to("/3"), "/3": html("there")}
    async with serving(site_of(pages)) as site:
        # A robots.txt would use the slot of the first page, and delay that page until shortly before the next one.
        seen = await crawler.crawl(site, delay_seconds=0.2, robots="ignore")
    assert (await crawler.pages(seen))["/"].title == "there"
    assert min(gaps(site, *pages)) >= 0.2 * LEAST_SHARE


async def test_hops_to_another_host_keep_the_delay_that_it_asks_for(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a", "/b", "/c")}
    there = {"/a": html("a"), "/b": html("b"), "/c": html("c")}
    slow = site_of(there, robots=robots("User-agent: *\nCrawl-delay: 0.3"))
    async with serving(slow) as other, serving(site_of(pages)) as site:
        pages |= {path: to(other.url + path) for path in there}
        seen = await crawler.crawl(site, named=[other], scope="any")
    assert {page.title for page in (await crawler.pages(seen)).values()} == {"home", "a", "b", "c"}
    assert other.times("/robots.txt") == 1
    assert min(gaps(other, *there)) >= 0.3 * LEAST_SHARE


async def test_a_walker_that_dies_between_two_hops_loses_nothing(crawler: Crawler) -> None:
    """The next one continues at the last redirect target, with the cookies that were set on the way."""
    pages: dict[str, Answer] = {
        "/": to("/1", **{"Set-Cookie": "way=1"}),
        "/1": to("/2"),
        "/2": html("there", "/2", "/1"),
    }
    async with serving(site_of(pages)) as site:
        crawl = await crawler.submit(site)
        walking = asyncio.create_task(crawler.walk(crawl))
        site.late["/1"] = "never"
        await site.until(lambda: "/1" in site.asked, walking)
        walking.cancel()
        await asyncio.gather(walking, return_exceptions=True)
        site.late.clear()
        [job] = await crawler.app.database.read(lambda tx: crawler.app.queue.jobs.jobs_of_run(tx, crawl.id))
        lost = give_back(job.id, job.lease_epoch, GrantEnd.CRASHED, "died")
        await crawler.app.database.run(lambda tx: crawler.app.queue.moves.move_in(tx, lost, "crawl", crawl.id))
        await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    assert (site.times("/"), site.times("/1"), site.times("/2")) == (1, 2, 1)
    assert site.told("/2", "cookie") == ["way=1"]
    [page] = (await crawler.pages(seen)).values()
    assert (page.title, [hop["url"] for hop in page.redirects]) == ("there", [f"{site.url}/", f"{site.url}/1"])
    assert is_exact(crawler, seen)


async def test_several_walkers_fetch_each_target_once(crawler: Crawler) -> None:
    sources = [f"/{way}{number}" for number in range(20) for way in "ab"]
    pages = {"/": html("home", *sources)} | {path: to(f"/t{path[2:]}") for path in sources}
    pages |= {f"/t{number}": html(f"t{number}", *sources) for number in range(20)}
    async with serving(site_of(pages)) as site:
        crawl = await crawler.submit(site, workers=3, concurrency=3)
        leases = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 3)
        walkers = [make_walker(crawler.app, crawl, lease.fence, lambda: True) for lease in leases]
        await asyncio.gather(*[walker.run() for walker in walkers])
        seen = await crawler.app.crawls.get(crawl.id)
    assert {path: site.times(path) for path in pages} == dict.fromkeys(pages, 1)
    found = await crawler.pages(seen)
    titles = [page.title for page in found.values() if page.title and page.title != "home"]
    assert sorted(titles) == sorted(f"t{number}" for number in range(20))
    assert len(found) == 41
    assert is_exact(crawler, seen)


async def test_a_crawl_that_waits_between_hops_goes_on_in_another_store(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a"), "/a": to("/b", **{"Set-Cookie": "secret=1"}), "/b": html("b", "/b")}
    async with serving(site_of(pages)) as site:
        crawl = await crawler.submit(site)
        walking = asyncio.create_task(crawler.walk(crawl))
        site.late["/b"] = "never"
        await site.until(lambda: "/b" in site.asked, walking)
        waiting = await explained(crawler, await crawler.app.crawls.get(crawl.id), f"{site.url}/b")
        first = await explained(crawler, await crawler.app.crawls.get(crawl.id), f"{site.url}/a")
        await crawler.app.crawls.pause(crawl.id)
        assert await walking == "paused"
        site.late.clear()
        dumps = crawler.app.crawl_dump
        dumped = [line async for line in dumps.dump(crawl.id)]
        copy = await dumps.load(dumped, crawl_id="copy", trust_named=True)
        again = [line async for line in dumps.dump(copy)]
        await crawler.app.crawls.resume(copy)
        loaded = (await crawler.app.crawls.get(copy)).crawl
        await crawler.walk(loaded)
        seen = await crawler.app.crawls.get(copy)
    assert (waiting["state"], waiting["reason"], waiting["via"]) == ("taken", "redirect", f"{site.url}/a")
    assert (first["state"], first["redirects_to"]) == ("taken", f"{site.url}/b")
    assert b"secret" not in b"".join(dumped)
    assert sorted(again[1:]) == sorted(dumped[1:])
    page = (await crawler.pages(seen))["a"]
    assert (page.title, page.final_url, len(page.redirects)) == ("b", f"{site.url}/b", 1)
    assert site.times("/a") == 1
    assert is_exact(crawler, seen)


async def test_kept_bodies_have_every_answer_on_the_way(crawler: Crawler) -> None:
    pages = {"/": to("/1"), "/1": to("/2"), "/2": html("there")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site, keep_bodies=True)
    [page] = (await crawler.pages(seen)).values()
    place = place_of(page)
    assert place is not None
    kept = await crawler.app.bodies.read(place)
    records = [warc.read_member(kept[piece.offset : piece.offset + piece.length]) for piece in warc.pieces(kept)]
    answers = [record.fields["warc-target-uri"] for record in records if record.fields["warc-type"] == "response"]
    assert answers == [f"{site.url}/2", f"{site.url}/1", f"{site.url}/"]


async def test_a_failed_page_is_tried_again_through_its_redirects(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a"), "/a": to("/b"), "/b": (404, {}, "")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
        pages["/b"] = html("b")
        await crawler.app.crawls.retry_these(seen.crawl.id, FailedUrls())
        await crawler.walk(seen.crawl)
        seen = await crawler.app.crawls.get(seen.crawl.id)
    page = (await crawler.pages(seen))["a"]
    assert (page.status, page.title, page.final_url) == (200, "b", f"{site.url}/b")
    assert seen.counts.drained


async def test_a_url_that_robots_txt_forbids_uses_up_no_slot(crawler: Crawler) -> None:
    """Links of a host whose rules are known are judged when they are found; those found before, when they are taken."""
    denied, allowed = [f"/deny/{n}" for n in range(30)], [f"/{n}" for n in range(5)]
    links = [path for pair in zip_longest(denied, allowed) for path in pair if path]
    rules = robots("User-agent: *\nDisallow: /deny/")
    pages = {"/": html("home", "/hub"), "/hub": html("hub", *links)} | {path: html(path) for path in allowed}
    seeds = ["/", *(f"/deny/seed{n}" for n in range(30))]
    async with serving(site_of(pages, robots=rules)) as site:
        seen = await crawler.crawl(site, *seeds, delay_seconds=0.1)
        said = await explained(crawler, seen, f"{site.url}/deny/7")
    moments = [at for path, at in zip(site.asked, site.moments, strict=True) if path != "/robots.txt"]
    assert len(moments) == 7
    assert seen.counts.skipped == {"robots": 60}
    assert said["reason"] == "robots"
    slots = (moments[-1] - moments[0]) / 0.1
    assert slots < 30  # 66 if each of them had a slot
    assert is_exact(crawler, seen)


async def test_a_304_that_nobody_asked_for_is_an_answer_like_any_other(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a"), "/a": (304, {"ETag": '"1"'}, "")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
    page = (await crawler.pages(seen))["a"]
    assert (page.status, page.etag, page.error_code) == (304, None, None)
    assert (seen.counts.not_modified, seen.counts.pages) == (0, 2)


async def test_every_hop_of_a_chain_is_explained_and_found_by_its_status(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a"), "/a": to("/b", 301), "/b": to("/c", 307), "/c": html("c"), "/d": html("d")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
        said = {name: await explained(crawler, seen, f"{site.url}/{name}") for name in "abc"}
        home = site.url
    first, hop, last = said["a"], said["b"], said["c"]
    assert first["redirects"] == [{"url": f"{home}/a", "status": 301}, {"url": f"{home}/b", "status": 307}]
    assert f"{home}/a (301) → {home}/b (307) → {home}/c (200)" in first["explanation"]
    assert (hop["state"], hop["reason"], hop["status"]) == ("fetched", "redirect", 307)
    assert hop["redirects_to"] == f"{home}/c"
    assert hop["explanation"].startswith(f"It answered 307 and redirects to {home}/c.")
    assert (last["state"], last["status"]) == ("fetched", 200)
    for statuses, expected in ((range(300, 400), 1), (range(301, 302), 1), (range(307, 308), 1), (range(302, 303), 0)):
        found = [page async for some in Pages(crawler.app.database).all(seen.crawl.number, PageFilter(statuses))
                 for page in some]  # fmt: skip
        assert [page.url for page in found] == [f"{home}/a"] * expected
    [redirected] = [page for page in (await crawler.pages(seen)).values() if page.redirects]
    assert [ExportFilter([word])(redirected) for word in ("3xx", "301", "307", "200", "302", "4xx")] == [
        *(True, True, True, True, False, False)
    ]
