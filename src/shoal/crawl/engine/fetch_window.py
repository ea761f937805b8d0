"""The fetches of one walker. The window decides which URLs may be fetched, passes these URLs to the fetch pool, and
passes the responses to the readers and the results to the batch."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from shoal.base.settings import Settings
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.results import ResponseReader
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.engine.walker_context import WalkerRequests
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, UrlKind, WalkerBatch
from shoal.crawl.scope import is_first_guess
from shoal.crawl.store import HostRate
from shoal.egress import Cancellable
from shoal.hosts.rate import SlotTiming
from shoal.hosts.robots_cache import RobotsAnswer, RobotsRules
from shoal.web.fetch_pool import Admitted, FetchPool, WindowSize
from shoal.web.page_fetcher import Fetched, PageFetcher
from shoal.web.sitemap_fetcher import SitemapFetcher

if TYPE_CHECKING:
    from shoal.web.rendering import RenderStage


class Admission:
    """Decides whether and how the URLs of one walker are fetched.

    The frontier calls it, too (`shoal.crawl.store.AdmissionChecks`), so that no slot of a host is reserved for a URL
    that will not be fetched.
    """

    def __init__(self, robots: RobotsRules, pages: PageReader, sitemaps: SitemapReader, *, rejudges: bool) -> None:
        self.robots = robots
        self.pages = pages
        self._sitemaps = sitemaps
        self.rejudges = rejudges  # options were changed, so some waiting URLs may no longer belong to the crawl

    def skip_fate(self, task: FrontierTask) -> Fate | None:
        """Return the fate of a URL that must not be fetched; None if it may be fetched."""
        if task.chain is not None or task.kind is UrlKind.SITEMAP:
            return None
        if self.rejudges and (fate := self.pages.judge_again(task)) is not Fate.OPEN:
            return fate
        if self.pages.traps.holds(task.url):
            return Fate.QUARANTINED
        return Fate.SKIPPED_ROBOTS if self.robots.denies(task.url) else None

    def knows(self, origin: str) -> bool:
        """Return whether the robots.txt of a host has been read."""
        return self.robots.knows(origin)

    def check(self, task: FrontierTask, batch: WalkerBatch) -> Admitted | Settled:
        """Return how to fetch a task whose slot has come, or the task's outcome if no fetch is needed.

        Sitemaps that a robots.txt names are added to `batch`.
        """
        if task.awaited is not None:
            return self.pages.end_redirects(task, task.awaited)
        if task.kind is UrlKind.SITEMAP:
            return self._check_sitemap(task, batch)
        if task.chain is not None:
            return self._check_redirected(task)
        if self.rejudges and (fate := self.pages.judge_again(task)) is not Fate.OPEN:
            return Settled(task, fate)
        if self.pages.traps.holds(task.url):
            return Settled(task, Fate.QUARANTINED)
        match self.robots.judge(task.url):
            case RobotsAnswer.ALLOWED:
                return Admitted.NOW
            case RobotsAnswer.UNKNOWN:
                return Admitted.AFTER_ROBOTS
            case RobotsAnswer.DENIED:
                return Settled(task, Fate.SKIPPED_ROBOTS)
            case RobotsAnswer.UNREACHABLE:
                return self.pages.without_robots(task, self.robots.why(task.url))

    def _check_redirected(self, task: FrontierTask) -> Admitted | Settled:
        """Check the target of a redirect by the rules of its own host."""
        fate = self.pages.judge_target_again(task) if self.rejudges else Fate.OPEN
        if fate is Fate.OPEN:
            match self.robots.judge(task.at):
                case RobotsAnswer.ALLOWED:
                    return Admitted.NOW
                case RobotsAnswer.UNKNOWN:
                    return Admitted.AFTER_ROBOTS
                case RobotsAnswer.UNREACHABLE:
                    return self.pages.without_robots(task, self.robots.why(task.at))
                case RobotsAnswer.DENIED:
                    fate = Fate.SKIPPED_ROBOTS
        return self.pages.turned_away(task, fate)

    def _check_sitemap(self, task: FrontierTask, batch: WalkerBatch) -> Admitted | Settled:
        """Check a sitemap. A sitemap waits for the robots.txt of its host, which may name other sitemaps.

        Only a sitemap whose address was guessed can be forbidden by robots.txt. A sitemap that somebody named is meant
        to be read.
        """
        answer = self.robots.judge(task.url)
        if answer is RobotsAnswer.UNKNOWN:
            return Admitted.AFTER_ROBOTS
        if answer is RobotsAnswer.UNREACHABLE:
            return self._sitemaps.without_robots(task, self.robots.why(task.url))
        if is_first_guess(task):
            self._sitemaps.add_named(self.robots.sitemaps(task.url), batch)
        if answer is RobotsAnswer.DENIED and self._sitemaps.is_guess(task):
            return Settled(task, Fate.SKIPPED_ROBOTS)
        return Admitted.NOW


class Fetchers:
    """Starts each fetch with the fetcher for its URL. Fetchers are chosen only here."""

    def __init__(self, pages: PageFetcher, sitemaps: SitemapFetcher) -> None:
        self._pages = pages
        self._sitemaps = sitemaps

    def start(self, task: FrontierTask, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        """Fetch the URL of a task, or, if the task was redirected, its redirect target."""
        if task.kind is UrlKind.SITEMAP:
            return self._sitemaps.submit(task.url, done, send_by)
        condition = (task.etag, task.last_modified) if task.is_conditional else None
        return self._pages.submit(task.at, done, condition, task.chain, send_by)

    def resume_sitemaps(self) -> None:
        """Allow the next large sitemap, because the previous one has been read."""
        self._sitemaps.go_on()


class FetchWindow:
    """Implements `shoal.web.fetch_pool.PoolCaller` for the URLs of one walker. URLs that may not be fetched now go back
    to the frontier, whose next take gives them new slots. Pages that are being rendered in a browser do not count:
    their number is limited separately."""

    def __init__(
        self,
        size: WindowSize,
        fetchers: Fetchers,
        admission: Admission,
        responses: ResponseReader,
        control: WalkerRequests,
        has_capacity: Callable[[], bool],
        rendering: "RenderStage | None" = None,
    ) -> None:
        self._fetchers = fetchers
        self._admission = admission
        self._responses = responses
        self._batch = responses.batch
        self._throttle = responses.batch.throttle
        self._control = control
        self._has_capacity = has_capacity  # whether the consumer of the results has capacity
        self._rendering = rendering
        self.pool: FetchPool[FrontierTask] = FetchPool(size, self, self._throttle)
        self._in_browser: dict[int, Cancellable] = {}
        self._continuation: asyncio.Handle | None = None  # reads the rest of a large sitemap

    @property
    def waits_for_rate(self) -> bool:
        """Return whether nothing is in flight, because the next fetch has to wait for the rate limit."""
        return self.pool.waits_for_rate and not self._in_browser

    @property
    def waits_for_renderer(self) -> bool:
        """Return whether pages wait because the renderer refuses them or cannot be reached."""
        return bool(self._in_browser) and self._rendering is not None and self._rendering.waits_for_renderer

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for; None if it waits only for the response to an earlier fetch, or for
        nothing."""
        if self.waits_for_renderer or (self._rendering is not None and self._rendering.is_full):
            return "the renderer"
        return self.pool.waits_for

    def accept(self, tasks: list[FrontierTask]) -> None:
        """Accept tasks from the frontier, and start the fetches that may start now."""
        self._batch.take(tasks)
        wanted = []
        for task in tasks:
            if task.is_recovering:
                self._throttle.expect_recovery(task.host)
            if task.skip_fate is not None:
                self._batch.add(Settled(task, task.skip_fate))
            elif task.is_killer:
                self._responses.give_up(task)
            else:
                wanted.append(task)
        self.pool.accept(wanted)

    def catch_up(self) -> None:
        """Read the waiting responses, then start more fetches."""
        self._read_waiting()
        self.pool.fill()

    def resume_sitemaps(self) -> None:
        """Allow the next large sitemap, unless responses still wait to be read."""
        if not self._responses.waiting and not self._batch.is_heavy:
            self._fetchers.resume_sitemaps()

    def change(self, size: WindowSize) -> None:
        """Apply changed options of the crawl. They also apply to tasks that wait in the queues of their hosts."""
        self._admission.rejudges = True
        self.pool.resize(size)

    def drop(self) -> None:
        """Cancel the fetches in flight and forget the waiting tasks: the frontier gets all their URLs back."""
        self.pool.drop()
        for page in self._in_browser.values():
            page.cancel()
        self._in_browser.clear()
        self._responses.clear()
        if self._continuation is not None:
            self._continuation.cancel()
            self._continuation = None

    def close(self) -> None:
        """Cancel everything, including robots.txt requests."""
        self.drop()
        self._admission.robots.close()

    # Called by the pool

    @property
    def is_closed(self) -> bool:
        if self._batch.is_closed or not self._has_capacity():
            return True
        return self._rendering is not None and self._rendering.is_full

    @property
    def is_out_of_reach(self) -> bool:
        return self._admission.pages.is_out_of_reach

    def admit(self, task: FrontierTask) -> Admitted | None:
        admitted = self._admission.check(task, self._batch.pending)
        if isinstance(admitted, Admitted):
            return admitted
        self._batch.add(admitted)
        return None

    def robots_of(self, task: FrontierTask) -> RobotsRules:
        return self._admission.robots

    def start(self, task: FrontierTask, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        return self._fetchers.start(task, send_by, done)

    def hand_back(self, task: FrontierTask, wait_seconds: float) -> None:
        self._batch.add(Settled(task, Fate.OPEN, untried=True))

    def failed(self, task: FrontierTask | None, error: Exception) -> None:
        self._control.fail(error)

    def fetched(self, task: FrontierTask, fetched: Fetched) -> None:
        if self._rendering is not None and task.kind is not UrlKind.SITEMAP:
            in_browser = self._rendering.start(task.at, fetched, partial(self._rendered, task))
            if in_browser is not None:
                self._in_browser[task.seq] = in_browser
                return
        self._read(task, fetched)

    def _rendered(self, task: FrontierTask, fetched: Fetched) -> None:
        if self._in_browser.pop(task.seq, None) is None:
            return  # cancelled: the frontier has the URL back
        try:
            self._read(task, fetched)
            self.pool.fill()
        except Exception as error:
            self._control.fail(error)

    def _read(self, task: FrontierTask, fetched: Fetched) -> None:
        must_wait = self._continuation is not None or self._batch.is_heavy
        self._responses.add(task, fetched)
        if not must_wait:
            self._read_waiting()

    def _read_waiting(self) -> None:
        if self._continuation is None and self._responses.read():
            self._continuation = asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._continuation = None
        try:
            self.catch_up()
        except Exception as error:
            self._control.fail(error)


def window_and_rate(crawl: Crawl, settings: Settings, timing: SlotTiming | None = None) -> tuple[WindowSize, HostRate]:
    """Return the maximum number of fetches in flight, and the rate limit per host. Explicit options override the speed
    profile."""
    config = crawl.config
    speed = config.speed or "normal"
    profile = settings.crawl.speed_profile(speed, config.concurrency)
    total = config.concurrency or settings.crawl.max_concurrent_curl
    delay_seconds = profile.delay.total_seconds()
    if config.delay_seconds is not None:
        delay_seconds = round(config.delay_seconds, 6)  # stores count microseconds, so a shorter delay is no delay
    connections = min(total, profile.connections)
    rate = HostRate(
        delay_seconds,
        probe=config.robots == "obey",
        per_host=config.max_pages_per_host,
        walkers=config.workers,
        # If a host is too slow for the delay, half of the connections are enough to keep it busy.
        latency_factor=0.0 if speed == "max" else 2 / connections,
        longest_latency_delay_seconds=settings.hosts.longest_slow_delay.total_seconds(),
        timing=timing,
    )
    return WindowSize(total, connections), rate
