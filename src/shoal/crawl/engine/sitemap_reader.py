"""What a fetched sitemap means for its crawl: its record, its fate, and the URLs it lists."""

from collections.abc import Iterable

from shoal.base.clock import Clock
from shoal.base.url import Canonicalizer, Url, UrlRefusal, origin
from shoal.crawl.engine.page_reader import ROBOTS_RETRY, PageReader
from shoal.crawl.engine.retries import Retries
from shoal.crawl.engine.robots_check import RobotsUnavailable
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, SitemapRecord, WalkerBatch
from shoal.crawl.scope.scope import CrawlScope
from shoal.crawl.scope.sitemap_guesses import FIRST_DEPTH, PAGE_DEPTH, is_first_guess, new_sitemap
from shoal.fetch.sitemap_fetcher import FetchedSitemap

DEEPEST = FIRST_DEPTH + 3  # indexes of indexes
MOST_AT_ONCE = 5_000  # entries: the URLs of a large sitemap go into several commits


class SitemapReader:
    """Reads the sitemaps of one walker."""

    def __init__(
        self, key_seed: int, scope: CrawlScope, urls: Canonicalizer, clock: Clock, pages: PageReader, retries: Retries
    ) -> None:
        self._key_seed = key_seed
        self._scope = scope
        self._urls = urls
        self._clock = clock
        self._pages = pages
        self._retries = retries
        self._named: set[Url] = set()  # that we had guessed, and a robots.txt names

    def add_named(self, named: Iterable[str], report: WalkerBatch) -> None:
        """The sitemaps that a host's robots.txt names, on whatever host: their URLs are judged when they are read."""
        for written in named:
            url = self._urls.canonical(written)
            if not isinstance(url, UrlRefusal):
                new = new_sitemap(url, FIRST_DEPTH, self._key_seed)
                report.found.append(new)
                if is_first_guess(new):
                    self._named.add(url)

    def is_guess(self, task: FrontierTask) -> bool:
        """Whether nobody but us said that there is a sitemap."""
        return is_first_guess(task) and task.url not in self._named

    def read(self, task: FrontierTask, fetched: FetchedSitemap, report: WalkerBatch) -> Settled | None:
        """What the sitemap lists next is added to the report. With the last of it the task is settled; until then it is
        ours, and if we are killed, whoever comes next reads the sitemap again."""
        fetched.open()
        retry_in = None if self._pages.is_out_of_reach else self._retries.again_in(task.attempts, fetched)
        if retry_in is not None:
            return Settled(task, Fate.OPEN, retry_in=retry_in)
        listed = fetched.sitemap
        if listed is None or listed.kind is None:
            return self._failed(task, fetched.problem or "", fetched.status)
        found = self._urls.resolve(task.url, fetched.take(MOST_AT_ONCE))
        urls = dict.fromkeys([url for url in found if not isinstance(url, UrlRefusal)])
        if listed.kind == "index":
            self._add_listed(urls, task, fetched, report)
        else:
            self._pages.find(urls, PAGE_DEPTH, task.key, report)
        if fetched.has_more:
            return None
        record = self._record(task, fetched.problem, fetched.status, fetched.listed)
        return Settled(task, Fate.FETCHED, sitemap=record)

    def killer(self, task: FrontierTask) -> Settled:
        """A sitemap that was alone in flight each time the worker died."""
        return self._failed(task, "could not be read (the worker died each time it tried)")

    def unexpected(self, task: FrontierTask, error: Exception) -> Settled:
        """Reading raised what nobody foresaw."""
        return self._failed(task, f"could not be read ({type(error).__name__}: {error})"[:500])

    def without_robots(self, task: FrontierTask, why: RobotsUnavailable) -> Settled:
        """The host's robots.txt cannot be had: try again later, then give up."""
        if not self._pages.is_out_of_reach and task.attempts + 1 < self._retries.attempts:
            return Settled(task, Fate.OPEN, retry_in=ROBOTS_RETRY)
        return self._failed(task, f"could not be had ({why.message.rstrip('.')})")

    def _add_listed(
        self, urls: Iterable[Url], task: FrontierTask, fetched: FetchedSitemap, report: WalkerBatch
    ) -> None:
        """The sitemaps of an index: those of its own host, as the protocol says, or of the crawl's."""
        homes = (origin(task.url) + "/", fetched.final_url[: fetched.final_url.find("/", 8) + 1])
        for url in urls:
            new = new_sitemap(url, task.depth + 1, self._key_seed, task.key)
            if not url.startswith(homes) and not self._scope.inside(url):
                new.fate = Fate.SKIPPED_SCOPE
            elif new.depth > DEEPEST:
                new.fate = Fate.SKIPPED_DEPTH
            if new.fate is Fate.OPEN:
                report.found.append(new)
            else:
                report.skipped.append((new.key, new.chk, new.fate))

    def _failed(self, task: FrontierTask, problem: str, status: int | None = None) -> Settled:
        return Settled(task, Fate.FAILED, sitemap=self._record(task, problem, status))

    def _record(self, task: FrontierTask, problem: str | None, status: int | None, listed: int = 0) -> SitemapRecord:
        return SitemapRecord(task.url, self._clock.micros(), status, listed, problem)
