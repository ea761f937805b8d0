"""The records of pages that could not be fetched, and links that robots.txt forbids."""

import pytest

from shoal.base.clock import SystemClock
from shoal.base.ids import CrawlId
from shoal.base.url import Canonicalizer, Url, UrlRules
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, WalkerBatch
from shoal.crawl.states import CrawlState
from shoal.hosts.robots_cache import RobotsUnavailable
from shoal.web.page_fetcher import RedirectChain, RedirectStep, Retries

HERE, THERE = Url("http://here.example/a"), Url("http://there.example/b")
CONFIG = CrawlConfig(seeds=[HERE])
CRAWL = Crawl(1, 1, CrawlId("crl_1"), CrawlState.RUNNING, None, "default", CONFIG, frozenset(), 50, 0, None, None)


@pytest.fixture
def reader() -> PageReader:
    return PageReader(CRAWL, Canonicalizer(UrlRules()), SystemClock(), retries=Retries(1))


def test_a_page_without_a_reachable_robots_txt_has_its_own_url_as_final_url(reader: PageReader) -> None:
    done = reader.without_robots(
        FrontierTask(1, 1, 1, 0, 1, HERE, None, 0), RobotsUnavailable("robots_unreachable", "Gone.")
    )
    assert done.page is not None
    assert (done.fate, done.page.final_url, done.page.redirects) == (Fate.FAILED, HERE, [])


def test_a_redirected_page_without_a_reachable_robots_txt_has_the_target_as_final_url(reader: PageReader) -> None:
    task = FrontierTask(1, 1, 1, 0, 1, HERE, None, 0, target=THERE, chain=RedirectChain((RedirectStep(HERE, 301, 7),)))
    done = reader.without_robots(task, RobotsUnavailable("robots_unreachable", "Gone."))
    assert done.page is not None
    assert done.page.final_url == THERE
    assert done.page.redirects == [{"url": HERE, "status": 301}]
    assert reader.killer(task).page.final_url == THERE  # type: ignore[union-attr]


@pytest.mark.parametrize(("checks_links", "found", "skipped"), [(True, [], [Fate.SKIPPED_ROBOTS]), (False, [HERE], [])])
def test_a_link_that_robots_txt_forbids_is_stored_only_if_links_are_not_checked(
    checks_links: bool, found: list[Url], skipped: list[Fate]
) -> None:
    reader = PageReader(
        CRAWL,
        Canonicalizer(UrlRules()),
        SystemClock(),
        retries=Retries(1),
        denies=lambda url: True,
        checks_links=checks_links,
    )
    batch = WalkerBatch()
    reader.find({HERE: None}, 1, 1, batch)
    assert [one.url for one in batch.found] == found
    assert [fate for _, _, fate in batch.skipped] == skipped
