"""Credentials of a crawl (headers, cookies, proxy), and which hosts receive them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from shoal.app import opened
from shoal.base.errors import InvalidInput
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.states import CrawlState
from shoal.serve.resources.crawl import Crawl
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

SECRET = {"Authorization": "Bearer hunter2", "X-Mine": "hunter2"}


async def test_secrets_go_to_the_seeds_origin_and_to_no_other(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html("other"))) as other:

        def script(path: str) -> Answer | None:
            away = (302, {"Location": f"{other.url}/redirected"}, "")
            return (
                html("home", "/away", "/own", f"{other.url}/linked")
                if path == "/"
                else away
                if "away" in path
                else html("")
            )

        async with serving(ScriptedSite(script)) as site:
            await crawler.crawl(
                site, named=[other], scope="any", sitemap="on", headers={**SECRET, "Accept-Language": "de"}
            )
    for path in ("/", "/own", "/away"):
        assert site.told(path, "authorization") == ["Bearer hunter2"]
        assert site.told(path, "x-mine") == ["hunter2"]
    assert sorted(set(other.asked)) == ["/linked", "/redirected", "/robots.txt"]
    assert not any("hunter2" in value for heard in other.heard for value in heard.values())
    assert other.told("/linked", "accept-language") == other.told("/redirected", "accept-language") == ["de"]


async def test_robots_are_the_same_for_everybody_and_see_no_secret(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html("home"))) as site:
        await crawler.crawl(site, headers=SECRET, cookies=[{"name": "sid", "value": "hunter2"}])
    assert site.told("/robots.txt", "authorization") == [None]
    assert site.told("/robots.txt", "cookie") == [None]
    assert site.told("/", "cookie") == ["sid=hunter2"]


async def test_a_site_that_wants_its_cookie_back_is_crawled(crawler: Crawler) -> None:
    """Sets a cookie and sends the visitor in a circle until it comes back with it."""
    async with serving(ScriptedSite(lambda path: None)) as site:

        def script(path: str) -> Answer | None:
            if "pass=1" in (site.heard[-1].get("cookie") or ""):
                return html(path, "/a", "/b")
            return 302, {"Location": path, "Set-Cookie": "pass=1; Path=/; HttpOnly"}, ""

        site.script = script
        seen = await crawler.crawl(site, depth=1)
    pages = await crawler.pages(seen)
    assert {path: page.status for path, page in pages.items()} == {"/": 200, "a": 200, "b": 200}
    assert site.told("/", "cookie") == [None, "pass=1"]
    assert site.told("/a", "cookie") == ["pass=1"]


async def test_a_cookie_of_one_host_is_not_told_to_another(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html("other"))) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        home = html("home", f"{elsewhere}/x")
        async with serving(ScriptedSite(lambda path: (200, home[1] | {"Set-Cookie": "sid=1"}, home[2]))) as site:
            config = CrawlConfig(seeds=[f"{site.url}/"], speed="max", scope="any", robots="ignore")
            crawl = await crawler.app.crawls.submit(config, named=[f"{site.url}/", f"{elsewhere}/"])
            await crawler.walk(crawl)
    assert other.told("/x", "cookie") == [None]


async def test_a_crawl_goes_through_its_proxy(crawler: Crawler) -> None:
    async with (
        serving(ScriptedSite(lambda path: html("never asked"))) as site,
        serving(ScriptedSite(lambda path: None)) as proxy,
    ):
        proxy.script = lambda path: html("by proxy") if path == f"{site.url}/" else None
        seen = await crawler.crawl(site, proxy=f"http://me:hunter2@127.0.0.1:{proxy.port}", headers=SECRET)
        pages = await crawler.pages(seen)
    assert pages["/"].title == "by proxy"
    assert site.asked == []
    assert proxy.told(f"{site.url}/", "proxy-authorization") == ["Basic bWU6aHVudGVyMg=="]
    assert proxy.told(f"{site.url}/", "authorization") == ["Bearer hunter2"]


async def test_a_proxy_inside_is_not_for_a_crawl_that_came_from_outside(crawler: Crawler) -> None:
    config = CrawlConfig(seeds=["http://example.com/"], proxy="http://127.0.0.1:3128")
    with pytest.raises(InvalidInput, match="proxy has an address or port that is not allowed"):
        await crawler.app.crawls.submit(config)
    crawl = await crawler.app.crawls.submit(replace(config, proxy="http://8.8.8.8:3128"))
    assert crawl.state is CrawlState.QUEUED


async def test_a_crawl_goes_through_the_operators_proxy_by_its_label(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        serving(ScriptedSite(lambda path: html("never asked"))) as site,
        serving(ScriptedSite(lambda path: None)) as proxy,
    ):
        proxy.script = lambda path: html("by proxy") if path == f"{site.url}/" else None
        env = {"SHOAL_DATA_DIR": str(tmp_path), "SHOAL_PROXIES": f"eu=http://127.0.0.1:{proxy.port}"}
        async with opened(load({"DATABASE_URL": sqlite_url}, env=env).settings, Signals()) as app:
            crawler = Crawler(app)
            seen = await crawler.crawl(site, proxy="eu")
            pages = await crawler.pages(seen)
            assert Crawl.of(seen).config["proxy"] == "eu"
            with pytest.raises(InvalidInput, match="proxy 'us' is not the label of a configured proxy; use eu, or"):
                await crawler.submit(site, proxy="us")
    assert pages["/"].title == "by proxy"
    assert site.asked == []
