"""Redirects of pages: their targets are judged, paced, claimed and explained like any other URL."""

from typing import Any

import pytest

from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.crawls import Seen
from shoal.crawl.states import CrawlState
from tests.rooms.conftest import Answer, Crawler, ScriptedSite, html, serving


def to(place: str, status: int = 302, **headers: str) -> Answer:
    return status, {"Location": place, **headers}, ""


def site_of(pages: dict[str, Answer], **options: Any) -> ScriptedSite:
    return ScriptedSite(pages.get, **options)


def robots(text: str) -> Answer:
    return 200, {"Content-Type": "text/plain"}, text


async def explained(crawler: Crawler, seen: Seen, url: str) -> dict[str, Any]:
    said = await crawler.app.archivist().explain(seen.crawl.id, url, 2000)
    return said.answer()


async def crawl_both(crawler: Crawler, site: ScriptedSite, other: ScriptedSite, **config: Any) -> Seen:
    """Crawl a site that redirects to another one, which may be reached as well."""
    options = CrawlConfig(seeds=[f"{site.url}/"], **{"speed": "max", "sitemap": "off", **config})
    crawl = await crawler.app.crawls.submit(options, named=[f"{site.url}/", f"{other.url}/"])
    await crawler.walk(crawl)
    return await crawler.app.crawls.get(crawl.id)


def is_exact(seen: Seen) -> bool:
    counts = seen.counts
    return seen.crawl.state is CrawlState.COMPLETED and counts.drained and counts.opened == counts.settled


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
    assert is_exact(seen)


async def test_the_rules_of_the_targets_own_host_are_asked_for(crawler: Crawler) -> None:
    async with serving(
        site_of({"/deny": html("d"), "/ok": html("ok")}, robots=robots("User-agent: *\nDisallow: /deny"))
    ) as other:
        pages = {"/": html("home", "/a", "/b"), "/a": to(f"{other.url}/deny"), "/b": to(f"{other.url}/ok")}
        async with serving(site_of(pages)) as site:
            seen = await crawl_both(crawler, site, other, scope="any")
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
    assert is_exact(seen)


async def test_a_target_outside_the_scope_is_not_recorded(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a")}
    async with serving(site_of({"/x": html("x")})) as other, serving(site_of(pages)) as site:
        pages["/a"] = to(f"{other.url}/x")
        seen = await crawl_both(crawler, site, other, scope="host")
        said = await explained(crawler, seen, f"{other.url}/x")
    assert other.asked == []
    assert (await crawler.pages(seen))["a"].status == 302
    assert (said["state"], said["reason"]) == ("skipped", "scope")
    assert is_exact(seen)


async def test_a_seed_widens_the_scope_by_where_it_redirects(crawler: Crawler) -> None:
    pages: dict[str, Answer] = {}
    async with serving(site_of({"/x": html("x", "/y"), "/y": html("y")})) as other, serving(site_of(pages)) as site:
        pages["/"] = to(f"{other.url}/x", 301)
        seen = await crawl_both(crawler, site, other, scope="host")
    assert sorted(other.asked) == ["/robots.txt", "/x", "/y"]
    found = await crawler.pages(seen)
    assert (found["/"].status, found["/"].final_url) == (200, f"{other.url}/x")
    assert is_exact(seen)


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
    assert is_exact(seen)


async def test_a_target_that_was_fetched_is_not_fetched_again(crawler: Crawler) -> None:
    pages = {"/": html("home", "/b"), "/b": html("b", "/a"), "/a": to("/b")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
    assert site.times("/b") == 1
    found = await crawler.pages(seen)
    assert (found["b"].status, found["b"].redirects) == (200, [])
    assert (found["a"].status, found["a"].final_url) == (302, f"{site.url}/b")
    assert is_exact(seen)


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
    assert is_exact(seen)
    stats = await crawler.app.archivist().stats(seen.crawl.id)
    assert stats.settled == {"fetched": 152, "fetched_via": 1}


async def test_two_redirects_to_one_target_fetch_it_once(crawler: Crawler) -> None:
    pages = {"/": html("home", "/a", "/a2"), "/a": to("/b"), "/a2": to("/b"), "/b": html("b")}
    async with serving(site_of(pages)) as site:
        seen = await crawler.crawl(site)
    assert site.times("/b") == 1
    found = await crawler.pages(seen)
    assert sorted(page.status for path, page in found.items() if path in ("a", "a2")) == [200, 302]
    assert is_exact(seen)


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
    assert is_exact(seen)


async def test_a_target_that_fails_for_good_has_failed(crawler: Crawler) -> None:
    async with serving(site_of({})) as gone:
        pass
    async with serving(site_of({"/": html("home", "/a"), "/a": to(f"{gone.url}/x")})) as site:
        seen = await crawl_both(crawler, site, gone, scope="any", robots="ignore")
        said = await explained(crawler, seen, f"{gone.url}/x")
    page = (await crawler.pages(seen))["a"]
    assert (page.status, page.final_url) == (None, f"{gone.url}/x")
    assert page.error_code is not None
    assert (said["state"], said["via"]) == ("failed", f"{site.url}/a")
    assert is_exact(seen)
