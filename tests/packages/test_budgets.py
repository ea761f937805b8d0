"""Budgets of crawls with several walkers: real engines in one process, on both stores."""

import asyncio

from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlState
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

SIZE = 1000


def wide(path: str) -> Answer:
    """An endless site; each page has thirty links and the same size."""
    name = path.strip("/")
    status, headers, body = html("page", *(f"/{name}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123"))
    return status, headers, body.ljust(SIZE)


async def crawl_by(
    crawler: Crawler, walkers: int, asked_for: int, **options: float
) -> tuple[CrawlStatus, ScriptedSite]:
    """Run a crawl with several walkers, of which some may be missing."""
    async with serving(ScriptedSite(wide)) as site:
        crawl = await crawler.submit(site, depth=100, workers=asked_for, concurrency=8, **options)
        async with asyncio.timeout(60):
            await asyncio.gather(*(crawler.walk(crawl) for _ in range(walkers)))
        return await crawler.app.crawls.get(crawl.id), site


async def test_several_walkers_fetch_exactly_the_page_limit(crawler: Crawler) -> None:
    seen, site = await crawl_by(crawler, 3, 3, max_pages=137)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "max_pages")
    assert seen.counts.pages == len(await crawler.pages(seen)) == 137
    assert len(site.asked) == 138  # and robots.txt


async def test_errors_without_an_answer_are_records_beside_the_pages_of_the_limit(crawler: Crawler) -> None:
    def holed(path: str) -> Answer:
        """The endless site, with links to a private address on each page, which is refused."""
        status, headers, body = wide(path)
        return status, headers, body.replace("<p>", f'<a href="http://127.0.0.1:1/refused/{len(path)}">x</a><p>', 1)

    async with serving(ScriptedSite(holed)) as site:
        seen = await crawler.crawl(site, scope="any", depth=100, max_pages=50)
    pages = (await crawler.pages(seen)).values()
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "max_pages")
    assert sum(page.status is not None for page in pages) == seen.counts.pages == 50
    assert seen.counts.unanswered == sum(page.status is None for page in pages) >= 1
    assert seen.counts.records == len(pages)


async def test_several_walkers_exceed_the_byte_limit_by_at_most_one_page_each(crawler: Crawler) -> None:
    seen, _ = await crawl_by(crawler, 3, 3, max_bytes=100 * SIZE + 1)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "max_bytes")
    assert 100 < seen.counts.bytes / SIZE <= 103


async def test_one_walker_exceeds_the_byte_limit_only_by_the_page_that_reached_it(crawler: Crawler) -> None:
    seen, _ = await crawl_by(crawler, 1, 1, max_bytes=100 * SIZE + 1)
    assert seen.counts.bytes == 101 * SIZE


async def test_the_time_limit_ends_a_crawl_with_any_number_of_walkers(crawler: Crawler) -> None:
    for walkers in (1, 2):
        seen, _ = await crawl_by(crawler, walkers, 60, max_seconds=0.4)
        assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "max_seconds")
        assert seen.crawl.started_at is not None
        assert seen.crawl.finished_at is not None
        assert 0.3 < (seen.crawl.finished_at - seen.crawl.started_at) / 1e6 < 10  # not sixty times as long
