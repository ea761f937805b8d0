"""The choice of the fetcher that serves a URL, and the contracts of fetchers."""

from collections.abc import Callable
from typing import Protocol

from shoal.base.url import Url
from shoal.crawl.frontier.values import FrontierTask, UrlKind
from shoal.egress import Cancellable
from shoal.web.page_fetcher import Fetched, RedirectChain
from shoal.web.sitemap_fetcher import FetchedSitemap


class PageSource(Protocol):
    """Fetches pages over HTTP, as `shoal.web.page_fetcher.PageFetcher` does. A browser may render them afterwards."""

    def submit(
        self,
        url: Url,
        done: Callable[[Fetched], None],
        condition: tuple[str | None, str | None] | None = None,
        chain: RedirectChain | None = None,
    ) -> Cancellable:
        """Start a fetch and call `done` once with its result, unless the handle is cancelled first.

        `condition` is the ETag and the Last-Modified of a conditional request; `chain` holds the redirects that led to
        this URL. Failures are results, not exceptions.
        """
        ...


class SitemapSource(Protocol):
    """Fetches sitemaps; large ones one at a time, each after the one before has been read."""

    def submit(self, url: Url, done: Callable[[FetchedSitemap], None]) -> Cancellable: ...

    def go_on(self) -> None:
        """Allow the next large sitemap: the last one has been read."""
        ...


class Fetchers:
    """Starts each fetch with the fetcher that serves its URL; this is the only place that chooses one."""

    def __init__(self, pages: PageSource, sitemaps: SitemapSource) -> None:
        self._pages = pages
        self._sitemaps = sitemaps

    def start(self, task: FrontierTask, done: Callable[[Fetched], None]) -> Cancellable:
        """Fetch the URL of a task, or the redirect target that it has reached."""
        if task.kind is UrlKind.SITEMAP:
            return self._sitemaps.submit(task.url, done)
        condition = (task.etag, task.last_modified) if task.is_conditional else None
        return self._pages.submit(task.at, done, condition, task.chain)

    def resume_sitemaps(self) -> None:
        """Allow the next large sitemap: the last one has been read."""
        self._sitemaps.go_on()
