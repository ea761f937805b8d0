"""The choice of the fetcher for a URL."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from shoal.base.url import Url
from shoal.crawl.engine.fetch_window import Fetchers
from shoal.crawl.frontier.values import FrontierTask, UrlKind
from shoal.egress import Cancellable
from shoal.web.page_fetcher import PageFetcher, RedirectChain, RedirectStep
from shoal.web.sitemap_fetcher import SitemapFetcher

HERE = Url("https://example.com/")
THERE = Url("https://example.net/")
SEND_BY = 7.5


class Handle:
    def cancel(self) -> None:
        return


class Recorder:
    """A fetcher that only records what it was asked to fetch."""

    def __init__(self) -> None:
        self.started: list[tuple[Any, ...]] = []
        self.resumed = 0

    def submit(self, url: Url, done: Callable[[Any], None], *rest: Any) -> Cancellable:
        self.started.append((url, *rest))
        return Handle()

    def go_on(self) -> None:
        self.resumed += 1


@pytest.fixture
def pages() -> Recorder:
    return Recorder()


@pytest.fixture
def sitemaps() -> Recorder:
    return Recorder()


@pytest.fixture
def fetchers(pages: Recorder, sitemaps: Recorder) -> Fetchers:
    return Fetchers(cast(PageFetcher, pages), cast(SitemapFetcher, sitemaps))


def task(**fields: Any) -> FrontierTask:
    return FrontierTask(1, 1, 1, 0, 1, HERE, None, 0, **fields)


def test_a_page_is_fetched_by_the_page_source(fetchers: Fetchers, pages: Recorder, sitemaps: Recorder) -> None:
    fetchers.start(task(), SEND_BY, lambda fetched: None)
    assert (pages.started, sitemaps.started) == ([(HERE, None, None, SEND_BY)], [])


def test_a_sitemap_is_fetched_by_the_sitemap_source(fetchers: Fetchers, pages: Recorder, sitemaps: Recorder) -> None:
    fetchers.start(task(kind=UrlKind.SITEMAP), SEND_BY, lambda fetched: None)
    assert (pages.started, sitemaps.started) == ([], [(HERE, SEND_BY)])


def test_a_page_with_a_validator_is_requested_conditionally(fetchers: Fetchers, pages: Recorder) -> None:
    fetchers.start(task(etag='"1"'), SEND_BY, lambda fetched: None)
    assert pages.started == [(HERE, ('"1"', None), None, SEND_BY)]


def test_a_redirected_page_is_fetched_at_the_target_of_the_redirect(fetchers: Fetchers, pages: Recorder) -> None:
    chain = RedirectChain((RedirectStep(HERE, 301, 7),))
    fetchers.start(task(target=THERE, chain=chain), SEND_BY, lambda fetched: None)
    assert pages.started == [(THERE, None, chain, SEND_BY)]


def test_the_next_large_sitemap_is_allowed_by_the_sitemap_source_alone(fetchers: Fetchers, sitemaps: Recorder) -> None:
    fetchers.resume_sitemaps()
    assert sitemaps.resumed == 1
