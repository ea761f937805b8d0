"""Turns a fetched sitemap into its record, its fate and the URLs it lists."""

from collections.abc import Iterable

from shoal.base.url import Url, UrlRefusal, origin
from shoal.crawl.engine.page_reader import ROBOTS_RETRY_SECONDS, PageReader
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, SitemapRecord, WalkerBatch, key_of
from shoal.crawl.scope import FIRST_DEPTH, PAGE_DEPTH, is_first_guess, new_sitemap
from shoal.hosts.robots_cache import RobotsUnavailable
from shoal.pages.links import pack_key
from shoal.web.sitemap_fetcher import FetchedSitemap

DEEPEST = FIRST_DEPTH + 3  # indexes of indexes
MOST_AT_ONCE = 5_000  # entries: the URLs of a large sitemap go into several commits


class SitemapReader:
    """Reads the sitemaps of one walker."""

    def __init__(self, pages: PageReader, *, keeps_entries: bool = False) -> None:
        self._pages = pages
        self._key_seed = pages.key_seed
        self._scope = pages.scope
        self._urls = pages.urls
        self._clock = pages.clock
        self._retries = pages.retries
        self._entries: dict[int, bytearray] | None = {} if keeps_entries else None  # only while a sitemap is being read
        self._named: set[Url] = set()  # guessed addresses that are also named in a robots.txt

    def add_named(self, named: Iterable[str], batch: WalkerBatch) -> None:
        """Add the sitemaps that a robots.txt names, even on other hosts. The URLs in a sitemap are checked when it is
        read."""
        for written in named:
            url = self._urls.canonical(written)
            if not isinstance(url, UrlRefusal):
                new = new_sitemap(url, FIRST_DEPTH, self._key_seed)
                batch.found.append(new)
                if is_first_guess(new):
                    self._named.add(url)

    def is_guess(self, task: FrontierTask) -> bool:
        """Return whether we have only guessed the address of the sitemap."""
        return is_first_guess(task) and task.url not in self._named

    def read(self, task: FrontierTask, fetched: FetchedSitemap, batch: WalkerBatch) -> Settled | None:
        """Add the next entries of the sitemap to the batch. After the last entry, settle the task.

        Until the task is settled, the walker holds it. If the walker is killed, the next walker reads the sitemap
        again.
        """
        fetched.open()
        wait = None if self._pages.is_out_of_reach else self._retries.retry_in_seconds(task.attempts, fetched)
        if wait is not None:
            return Settled(task, Fate.OPEN, retry_in_seconds=wait)
        listed = fetched.sitemap
        if listed is None or listed.kind is None:
            return self._failed(task, fetched.problem or "", fetched.status)
        found = self._urls.resolve(task.url, fetched.take(MOST_AT_ONCE))
        urls = dict.fromkeys([url for url in found if not isinstance(url, UrlRefusal)])
        if listed.kind == "index":
            self._add_listed(urls, task, fetched, batch)
        else:
            self._pages.find(urls, PAGE_DEPTH, task.key, batch)
            if self._entries is not None:
                packed = b"".join([pack_key(key_of(url, self._key_seed)[0]) for url in urls])
                self._entries.setdefault(task.key, bytearray()).extend(packed)
        if fetched.has_more:
            return None
        record = self._record(task, fetched.problem, fetched.status, fetched.listed)
        return Settled(task, Fate.FETCHED, sitemap=record)

    def killer(self, task: FrontierTask) -> Settled:
        """Fail a sitemap that was the only URL in flight each time the worker died."""
        return self._failed(task, "could not be read (the worker died each time it tried)")

    def unexpected(self, task: FrontierTask, error: Exception) -> Settled:
        """Fail a sitemap because reading it raised an unexpected error."""
        return self._failed(task, f"could not be read ({type(error).__name__}: {error})"[:500])

    def without_robots(self, task: FrontierTask, why: RobotsUnavailable) -> Settled:
        """Schedule a retry for a sitemap if the robots.txt of its host could not be reached. After the last attempt,
        fail the sitemap."""
        if not self._pages.is_out_of_reach and task.attempts + 1 < self._retries.attempts:
            return Settled(task, Fate.OPEN, retry_in_seconds=ROBOTS_RETRY_SECONDS)
        return self._failed(task, f"could not be fetched ({why.message.rstrip('.')})")

    def _add_listed(self, urls: Iterable[Url], task: FrontierTask, fetched: FetchedSitemap, batch: WalkerBatch) -> None:
        """Add those sitemaps of an index that are on the index's own host, as the protocol demands, or in the crawl's
        scope."""
        origins = (origin(task.url) + "/", fetched.final_url[: fetched.final_url.find("/", 8) + 1])
        for url in urls:
            new = new_sitemap(url, task.depth + 1, self._key_seed, task.key)
            if not url.startswith(origins) and not self._scope.inside(url):
                new.fate = Fate.SKIPPED_SCOPE
            elif new.depth > DEEPEST:
                new.fate = Fate.SKIPPED_DEPTH
            if new.fate is Fate.OPEN:
                batch.found.append(new)
            else:
                batch.skipped.append((new.key, new.chk, new.fate))

    def _failed(self, task: FrontierTask, problem: str, status: int | None = None) -> Settled:
        return Settled(task, Fate.FAILED, sitemap=self._record(task, problem, status))

    def _record(self, task: FrontierTask, problem: str | None, status: int | None, listed: int = 0) -> SitemapRecord:
        entries = None if self._entries is None else self._entries.pop(task.key, None)
        return SitemapRecord(
            task.url, self._clock.micros(), status, listed, problem, None if entries is None else bytes(entries)
        )
