"""The journal of a real crawl: the engine writes it in the commits that it makes anyway."""

from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from tests.packages.conftest import Answer, Crawler, ScriptedSite, calendar, html, serving


def tree(path: str) -> Answer:
    """Three links on each page, two links deep."""
    below = [f"{path.rstrip('/')}/{name}" for name in "abc"] if path.count("/") < 3 else []
    return html(path, *below)


async def said(crawler: Crawler, seen: CrawlStatus) -> list[str]:
    return [written.entry.message for written in await crawler.app.crawls.journal.entries(seen.crawl.id)]


async def test_a_crawl_reports_what_it_found_and_which_depths_are_finished(crawler: Crawler) -> None:
    async with serving(ScriptedSite(tree)) as site:
        seen = await crawler.crawl(site, depth=2)
    lines = await said(crawler, seen)
    assert lines[:3] == ["Waiting for a worker", "Started", "Found 4 URLs"]
    found = [line for line in lines if line.startswith("Found")]
    assert len(found) == len(set(found)), "the same number is not told twice"
    assert [line for line in lines if line.startswith("Depth")] == [f"Depth {depth} finished" for depth in range(3)]
    assert lines[-1].startswith(f"Completed: {seen.counts.pages} pages, 0 errors")


async def test_a_host_that_asks_us_to_wait_is_reported_once(crawler: Crawler) -> None:
    asked: list[str] = []

    def busy(path: str) -> Answer:
        asked.append(path)
        return (429, {"Retry-After": "1"}, "") if len(asked) == 1 else html(path)

    async with serving(ScriptedSite(busy)) as site:
        seen = await crawler.crawl(site)
    held = [line for line in await said(crawler, seen) if "answered 429" in line]
    assert len(held) == 1
    assert held[0].startswith(f"{site.url} answered 429: no requests for ")


async def test_a_pattern_that_repeats_itself_is_reported(crawler: Crawler) -> None:
    async with serving(ScriptedSite(calendar)) as site:
        seen = await crawler.crawl(site, depth=200)
    assert any(
        line.endswith("its pages repeat each other, or lead to ever more pages") for line in await said(crawler, seen)
    )
