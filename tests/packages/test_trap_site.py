"""Crawls without any limit: traps end, and pages that only look like traps are all fetched."""

import asyncio
import re

import pytest

from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.extract.flags import PageFlag
from tests.packages.conftest import Answer, Crawler, ScriptedSite, serving
from tests.support.trap_site import PARTS, SHELLS, answer, maze

OTHERS = sorted(PARTS.keys() - {"/gallery/1", "/maze/"})


def script(path: str) -> Answer | None:
    found = answer(path)
    return None if found is None else (200, {"Content-Type": "text/html; charset=utf-8"}, found)


async def traps_of(crawler: Crawler, seen: CrawlStatus) -> set[str]:
    return {trap.pattern for trap in await crawler.app.crawls.traps(seen.crawl.id)}


@pytest.mark.parametrize(
    "start", ["/gallery/1", "/maze/", *(pytest.param(part, marks=pytest.mark.exhaustive) for part in OTHERS)]
)
async def test_a_part_has_as_many_pages_as_expected(crawler: Crawler, start: str) -> None:
    _, least, most = PARTS[start]
    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site, start)
    assert seen.crawl.state is CrawlState.COMPLETED
    assert least <= seen.counts.pages <= most
    assert (seen.crawl.state_reason == "drained_partly") is (least < most)
    assert bool(await traps_of(crawler, seen)) is (least < most)


@pytest.mark.exhaustive
async def test_a_site_with_all_parts_is_crawled_up_to_its_traps(crawler: Crawler) -> None:
    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site)
    least, most = (sum(part[place] for part in PARTS.values()) for place in (1, 2))
    assert least < seen.counts.pages <= most + 1
    kinds = {pattern.removeprefix(site.url) for pattern in await traps_of(crawler, seen)}
    assert kinds == {"/calendar/0/0", "/calendar/0/0/0", "/sessions?page=&visit=", "/maze/*"}


async def test_shells_are_counted_as_pages_that_need_a_browser(crawler: Crawler) -> None:
    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site, "/app/")
    pages = (await crawler.pages(seen)).values()
    assert sum(bool(page.flags & PageFlag.NOT_RENDERED) for page in pages) == SHELLS


@pytest.mark.exhaustive
async def test_a_resumed_crawl_has_the_points_of_the_walker_before(crawler: Crawler) -> None:
    _, least, most = PARTS["/maze/"]
    async with serving(ScriptedSite(script)) as site:
        crawl = await crawler.submit(site, "/maze/")
        for stops in (300, 600):
            walking = asyncio.create_task(crawler.walk(crawl))
            await site.until(lambda: len(site.asked) >= stops, walking)  # noqa: B023 - awaited in the same pass
            await crawler.app.crawls.pause(crawl.id)
            assert await walking == "paused"
            await crawler.app.crawls.resume(crawl.id)
        await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    assert least <= seen.counts.pages <= most
    assert await traps_of(crawler, seen) == {f"{site.url}/maze/*"}


async def test_a_part_of_a_site_can_be_released(crawler: Crawler) -> None:
    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site, "/maze/")
        held, [trap] = seen.counts.held, await crawler.app.crawls.traps(seen.crawl.id)
        assert (trap.pattern, trap.count) == (f"{site.url}/maze/*", held)
        links = re.findall(r'href="(/maze/[^"]+/[^"]+)"', maze(trap.sample.removeprefix(site.url)))
        explained = await crawler.app.frontier_admin.explain(seen.crawl.id, site.url + links[0], 2083)
        assert (explained.reason, explained.facts["pattern"]) == ("trap", trap.pattern)
        assert str(explained.sentence).endswith(f"{trap.pattern} only lead to ever more pages.")
        assert await crawler.app.crawls.release(seen.crawl.id, trap.pattern) == held
        await crawler.app.crawls.stop(seen.crawl.id)
        seen = await crawler.app.crawls.get(seen.crawl.id)
    assert seen.counts.held == 0
    assert seen.counts.queued == held
