"""Blocked addresses (SSRF protection): the page record says that the request was blocked, operators see the address,
and no connection is made."""

import pytest

from shoal.app import opened
from shoal.base.errors import InvalidInput
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.engine.walker_context import FetchBlocked
from shoal.pages.store import PageStore
from tests.packages.conftest import Crawler, ScriptedSite, html, serving
from tests.support.recorder import Told


async def test_a_link_inside_is_blocked_and_only_operators_learn_where_it_led(crawler: Crawler) -> None:
    told: Told[FetchBlocked] = Told()
    crawler.app.signals.subscribe(lambda signal: told(signal) if isinstance(signal, FetchBlocked) else None)
    async with serving(ScriptedSite(lambda path: html("inside"))) as inside:
        inward = f"http://localhost:{inside.port}/"
        async with serving(ScriptedSite(lambda path: html("home", inward))) as site:
            seen = await crawler.crawl(site, scope="any")
    rows = await crawler.app.database.read(lambda tx: PageStore().after(tx, seen.crawl.number, 1, 10))
    [record] = [record for _, record in rows]  # the record after the first, which is that of the linking page
    assert (record.url, record.status, record.error_code) == (inward, None, "address_not_public")
    assert "127.0.0.1" not in (record.error_message or "")
    assert [(signal.url, signal.code, signal.crawl_id) for signal in told] == [
        (inward, "address_not_public", seen.crawl.id)
    ]
    assert "127.0.0.1" in told[0].detail
    assert inside.asked == []


async def test_a_crawl_of_the_controller_itself_is_refused_when_it_is_submitted(sqlite_url: str) -> None:
    names = {"DATABASE_URL": sqlite_url, "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8", "SHOAL_LISTEN": "127.0.0.1:18700"}
    async with opened(load(names, env={}).settings, Signals()) as app:
        with pytest.raises(InvalidInput, match="is this controller itself"):
            await app.crawls.submit(CrawlConfig(seeds=["http://127.0.0.1:18700/"]))
        with pytest.raises(InvalidInput, match="proxy"):
            await app.crawls.submit(CrawlConfig(seeds=["http://127.0.0.1/"], proxy="http://127.0.0.1:18700"))
        assert await app.crawls.submit(CrawlConfig(seeds=["http://127.0.0.1:18701/"]))


async def test_a_local_user_may_crawl_loopback_addresses(store_url: str) -> None:
    """Without a controller, something else may have its port."""
    async with serving(ScriptedSite(lambda path: html("mine"))) as site:
        names = {"DATABASE_URL": store_url, "SHOAL_LISTEN": f"127.0.0.1:{site.port}"}
        async with opened(load(names, env={}).settings, Signals()) as app:
            seen = await Crawler(app).crawl(site)
    assert seen.counts.pages == 1


async def test_the_controllers_own_address_is_not_crawled_even_in_an_allowed_network(store_url: str) -> None:
    async with serving(ScriptedSite(lambda path: html("controller"))) as controller:
        names = {"DATABASE_URL": store_url, "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
        settings = load({**names, "SHOAL_LISTEN": f"127.0.0.1:{controller.port}"}, env={}).settings
        async with opened(settings, Signals()) as app, serving(ScriptedSite(lambda path: html("x"))) as site:
            site.script = lambda path: html("home", f"{controller.url}/api/v1/crawls")
            seen = await Crawler(app).crawl(site, scope="any")
            rows = await app.database.read(lambda tx: PageStore().after(tx, seen.crawl.number, 0, 10))
    codes = {page.url: page.error_code for _, page in rows}
    assert codes == {f"{site.url}/": None, f"{controller.url}/api/v1/crawls": "self_connection"}
    assert controller.asked == []
