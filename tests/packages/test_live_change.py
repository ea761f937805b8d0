"""Options that are changed while a crawl runs apply at once, even to URLs that already wait."""

import asyncio
from typing import Any
from unittest.mock import patch

from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.engine import Engine
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.process.runners import make_walker
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

PAGES = 30
FIRST = "/keep/0"


def hub(path: str) -> Answer:
    links = [f"/{kind}/{n}" for kind in ("keep", "drop") for n in range(PAGES)]
    return html(path, *links) if path == "/" else html(path, f"{path}/below")


async def changed_between(crawler: Crawler, site: ScriptedSite, change: CrawlChange, **config: Any) -> CrawlStatus:
    """Crawl one page at a time; the first that the hub links to is answered after the change."""
    site.late[FIRST] = "/the change"
    crawl = await crawler.submit(site, concurrency=1, **config)
    [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
    walker = make_walker(crawler.app, crawl, lease.fence, lambda: True)
    change_options = Engine.change_options

    def applied(engine: Engine, changed: Crawl) -> None:
        site.asked.append("/the change")
        site.news.set()
        change_options(engine, changed)

    with patch.object(Engine, "change_options", applied):
        walking = asyncio.create_task(walker.run())
        await site.until(lambda: FIRST in site.asked, walking)
        await crawler.app.crawls.change(crawl.id, change)
        walker.nudge()
        await walking
    return await crawler.app.crawls.get(crawl.id)


async def test_waiting_urls_that_are_excluded_by_a_change_are_skipped(crawler: Crawler) -> None:
    async with serving(ScriptedSite(hub)) as site:
        seen = await changed_between(crawler, site, CrawlChange(exclude=["/drop/"]), depth=1)
    assert seen.crawl.state is CrawlState.COMPLETED
    assert not [path for path in site.asked if path.startswith("/drop/")]
    assert (seen.counts.pages, seen.counts.skipped["excluded"], seen.counts.queued) == (PAGES + 1, PAGES, 0)


async def test_a_lower_depth_skips_deeper_urls_that_wait_and_a_higher_one_continues(crawler: Crawler) -> None:
    async with serving(ScriptedSite(hub)) as site:
        seen = await changed_between(crawler, site, CrawlChange(depth=2, exclude=["/drop/"]), depth=1)
        assert site.times("/keep/7/below") == 1
    assert seen.counts.depth_reached == 2
    async with serving(ScriptedSite(hub)) as site:
        seen = await changed_between(crawler, site, CrawlChange(depth=0), depth=1)
    # The page in flight is stored; the waiting one and its link are not fetched.
    assert (seen.counts.pages, seen.counts.skipped["depth"]) == (2, 2 * PAGES)


async def test_a_new_page_limit_ends_a_crawl_that_had_none(crawler: Crawler) -> None:
    async with serving(ScriptedSite(hub)) as site:
        seen = await changed_between(crawler, site, CrawlChange(max_pages=5), depth=1)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "max_pages")
    assert seen.counts.pages == 5


async def test_a_removed_page_limit_no_longer_applies(crawler: Crawler) -> None:
    async with serving(ScriptedSite(hub)) as site:
        seen = await changed_between(crawler, site, CrawlChange(max_pages=None), depth=1, max_pages=5)
    assert (seen.crawl.state_reason, seen.counts.pages) == ("drained", 2 * PAGES + 1)


async def test_a_higher_concurrency_applies_at_once(crawler: Crawler) -> None:
    """With more than one fetch in flight, a slow page no longer delays the others."""
    async with serving(ScriptedSite(hub)) as site:
        site.late["/keep/1"] = "/drop/29"
        seen = await changed_between(crawler, site, CrawlChange(concurrency=4), depth=1)
    assert seen.counts.pages == 2 * PAGES + 1


async def test_a_walker_that_takes_over_a_changed_crawl_judges_waiting_urls_by_the_new_options(
    crawler: Crawler,
) -> None:
    async with serving(ScriptedSite(hub)) as site:
        crawl = await crawler.submit(site, depth=1, max_pages=1)
        assert await crawler.walk(crawl) == "budget"
        paused = await crawler.submit(site, depth=1)
        await crawler.app.crawls.pause(paused.id)
        await crawler.app.crawls.change(paused.id, CrawlChange(include=["/keep/"]))
        await crawler.app.crawls.resume(paused.id)
        site.asked.clear()
        await crawler.walk((await crawler.app.crawls.get(paused.id)).crawl)
    assert site.times("/") == 1, "a seed is crawled whatever the filters say"
    assert not [path for path in site.asked if path.startswith("/drop/")]
