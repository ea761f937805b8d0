"""The fetches of one walker: hands its URLs to the fetch pool, and what comes back to the readers and the batch."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from shoal.base.url import Url
from shoal.crawl.engine.admission import Admission
from shoal.crawl.engine.results import ResponseReader
from shoal.crawl.engine.walker_context import WalkerRequests
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, UrlKind
from shoal.egress import Cancellable
from shoal.hosts.rate import FetchRate
from shoal.hosts.robots_cache import RobotsRules
from shoal.web.fetch_pool import Admitted, FetchPool, WindowSize
from shoal.web.page_fetcher import Fetched, RedirectChain
from shoal.web.sitemap_fetcher import FetchedSitemap

if TYPE_CHECKING:
    from shoal.web.rendering import RenderStage


class PageSource(Protocol):
    """Fetches pages over HTTP, as `shoal.web.page_fetcher.PageFetcher` does. A browser may render them afterwards."""

    def submit(
        self,
        url: Url,
        done: Callable[[Fetched], None],
        condition: tuple[str | None, str | None] | None = None,
        chain: RedirectChain | None = None,
        send_by: float = ...,
    ) -> Cancellable:
        """Start a fetch and call `done` once with its result, unless the handle is cancelled first.

        `condition` is the ETag and the Last-Modified of a conditional request; `chain` holds the redirects that led to
        this URL; `send_by` is when its slot ends. Failures are results, not exceptions.
        """
        ...


class SitemapSource(Protocol):
    """Fetches sitemaps; large ones one at a time, each after the one before has been read."""

    def submit(self, url: Url, done: Callable[[FetchedSitemap], None], send_by: float = ...) -> Cancellable: ...

    def go_on(self) -> None:
        """Allow the next large sitemap: the last one has been read."""
        ...


class Fetchers:
    """Starts each fetch with the fetcher that serves its URL; this is the only place that chooses one."""

    def __init__(self, pages: PageSource, sitemaps: SitemapSource) -> None:
        self._pages = pages
        self._sitemaps = sitemaps

    def start(self, task: FrontierTask, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        """Fetch the URL of a task, or the redirect target that it has reached."""
        if task.kind is UrlKind.SITEMAP:
            return self._sitemaps.submit(task.url, done, send_by)
        condition = (task.etag, task.last_modified) if task.is_conditional else None
        return self._pages.submit(task.at, done, condition, task.chain, send_by)

    def resume_sitemaps(self) -> None:
        """Allow the next large sitemap: the last one has been read."""
        self._sitemaps.go_on()


class FetchWindow:
    """Implements `shoal.web.fetch_pool.PoolCaller` for the URLs of one walker. What may not be fetched now goes back to
    the frontier, whose next take gives it another slot. Pages in a browser have their own window."""

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
        self._has_capacity = has_capacity  # of the consumer of the results
        self._rendering = rendering
        self._pool: FetchPool[FrontierTask] = FetchPool(size, self, self._throttle)
        self._in_browser: dict[int, Cancellable] = {}
        self._continuation: asyncio.Handle | None = None  # reads the rest of a large sitemap

    @property
    def waiting_for_slots(self) -> int:
        """Return how many tasks wait for their slot."""
        return self._pool.waiting_for_slots

    @property
    def waits_for_rate(self) -> bool:
        """Return whether nothing is in flight because of the rate limit."""
        return self._pool.waits_for_rate and not self._in_browser

    @property
    def waits_for_renderer(self) -> bool:
        """Return whether pages wait because the renderer refuses them, or cannot be reached."""
        return bool(self._in_browser) and self._rendering is not None and self._rendering.waits_for_renderer

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for; None if that is the response to an earlier one, or nothing."""
        if self.waits_for_renderer or (self._rendering is not None and self._rendering.is_full):
            return "the renderer"
        return self._pool.waits_for

    def limit_rate(self, rate: FetchRate | None) -> None:
        """Start fetches only at this rate; None: as soon as possible."""
        self._pool.limit_rate(rate)

    def accept(self, tasks: list[FrontierTask]) -> None:
        """Take over tasks from the frontier, and start what may start."""
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
        self._pool.accept(wanted)

    def catch_up(self) -> None:
        """Read responses that waited, then start more fetches."""
        self._read_waiting()
        self._pool.fill()

    def resume_sitemaps(self) -> None:
        """Allow the next large sitemap, unless responses still wait to be read."""
        if not self._responses.has_waiting and not self._batch.is_heavy:
            self._fetchers.resume_sitemaps()

    def change(self, size: WindowSize) -> None:
        """Apply changed options of the crawl, including to tasks that wait in the queues of their hosts."""
        self._admission.rejudges = True
        self._pool.resize(size)

    def put_back(self, host: int) -> None:
        """Return the queue of a host that is held to the frontier."""
        self._pool.put_back(host)

    def drop(self) -> None:
        """Cancel what is in flight and forget what waits: the frontier gets it back."""
        self._pool.drop()
        for page in self._in_browser.values():
            page.cancel()
        self._in_browser.clear()
        self._responses.clear()
        if self._continuation is not None:
            self._continuation.cancel()
            self._continuation = None

    def close(self) -> None:
        """Cancel everything, robots.txt requests included."""
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
        return self._admission.is_out_of_reach

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
            return  # cancelled: the frontier has it back
        try:
            self._read(task, fetched)
            self._pool.fill()
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
