"""The window of fetches: which of a walker's URLs are in flight, and what the others wait for.

A URL that was taken waits for its slot (a timer), then for the robots.txt of its host (parked), then in the queue of
its host, and is then fetched. If the crawl renders, its page may then wait for a browser. All of this runs on
callbacks, without a task per page: when a fetch ends, its response is read on the spot, and the next fetch starts.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from shoal.base.url import Url, origin
from shoal.crawl.engine.admission import Admission, Admitted
from shoal.crawl.engine.results import BatchBuilder, ResponseReader
from shoal.crawl.engine.walker_context import WalkerRequests
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, UrlKind
from shoal.egress import Cancellable
from shoal.hosts.rate import FetchRate
from shoal.hosts.throttle import THROTTLED, HostAnswer, ThrottleTracker
from shoal.web.page_fetcher import Fetched, RedirectChain
from shoal.web.sitemap_fetcher import FetchedSitemap

if TYPE_CHECKING:
    from shoal.web.rendering import RenderStage


class HostQueues:
    """Hosts take turns, and none has more fetches in flight than its limit."""

    def __init__(self, per_host: int) -> None:
        self.per_host = per_host
        self._queues: dict[int, deque[FrontierTask]] = {}
        self._turns: deque[int] = deque()  # hosts with a queue, some of which may be at their limit
        self._in_flight: Counter[int] = Counter()

    def join(self, task: FrontierTask) -> None:
        """Put a task at the end of its host's queue."""
        queue = self._queues.setdefault(task.host, deque())
        queue.append(task)
        if len(queue) == 1:
            self._turns.append(task.host)

    def next(self) -> FrontierTask | None:
        """Return the next task that may start, and count it as in flight; None if every host is at its limit."""
        while self._turns:
            host = self._turns.popleft()
            queue = self._queues.get(host)
            if not queue or self._in_flight[host] >= self.per_host:
                continue
            task = queue.popleft()
            self._in_flight[host] += 1
            if queue:
                self._turns.append(host)
            else:
                del self._queues[host]
            return task
        return None

    def ended(self, host: int) -> None:
        """Count the end of a fetch from this host."""
        self._in_flight[host] -= 1
        if host in self._queues:
            self._turns.append(host)
        elif not self._in_flight[host]:
            del self._in_flight[host]

    def dissolve(self, host: int) -> Iterable[FrontierTask]:
        """Remove the queue of a host and return its tasks."""
        return self._queues.pop(host, ())

    def dissolve_all(self) -> list[FrontierTask]:
        """Remove all queues and return their tasks. Fetches in flight still count."""
        queues, self._queues = self._queues, {}
        self._turns.clear()
        return [task for queue in queues.values() for task in queue]

    def clear(self) -> None:
        """Remove all queues, and count nothing as in flight."""
        self.dissolve_all()
        self._in_flight.clear()


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


class WindowSize(Struct, frozen=True):
    """The maximum number of fetches in flight, in total and per host."""

    total: int
    per_host: int


class FetchWindow:
    """Keeps as many fetches in flight as the window, the hosts and the batch for the next commit allow."""

    def __init__(
        self,
        size: WindowSize,
        fetchers: Fetchers,
        admission: Admission,
        throttle: ThrottleTracker,
        responses: ResponseReader,
        batch: BatchBuilder,
        control: WalkerRequests,
        rendering: "RenderStage | None" = None,
    ) -> None:
        self._total = size.total
        self._fetchers = fetchers
        self._admission = admission
        self._throttle = throttle
        self._responses = responses
        self._batch = batch
        self._control = control
        self._rendering = rendering  # its pages are not counted in the window: they have one of their own
        self._queues = HostQueues(size.per_host)
        self._timers: dict[int, tuple[asyncio.TimerHandle, FrontierTask]] = {}  # tasks that wait for their slot
        self._parked: dict[str, list[FrontierTask]] = {}  # per origin, tasks that wait for its robots.txt
        self._fetching: dict[int, Cancellable] = {}
        self._in_browser: dict[int, Cancellable] = {}
        self._continuation: asyncio.Handle | None = None  # reads the rest of a large sitemap
        self._rate: FetchRate | None = None
        self._start_timer: asyncio.TimerHandle | None = None  # until the rate limit allows the next fetch

    @property
    def waiting_for_slots(self) -> int:
        """Return how many tasks wait for their slot."""
        return len(self._timers)

    @property
    def waits_for_rate(self) -> bool:
        """Return whether nothing is in flight because of the rate limit."""
        return self._start_timer is not None and not self._fetching and not self._in_browser

    @property
    def waits_for_renderer(self) -> bool:
        """Return whether pages wait because the renderer refuses them, or cannot be reached."""
        return bool(self._in_browser) and self._rendering is not None and self._rendering.waits_for_renderer

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for; None if that is the response to an earlier one, or nothing."""
        if self.waits_for_renderer or (self._rendering is not None and self._rendering.is_full):
            return "the renderer"
        if self._start_timer is not None or (self._timers and len(self._fetching) < self._queues.per_host):
            return "the rate limit"
        return "robots.txt" if self._parked and not self._fetching else None

    def limit_rate(self, rate: FetchRate | None) -> None:
        """Start fetches only at this rate; None: as soon as possible."""
        self._rate = rate
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        self._fill()

    def accept(self, tasks: list[FrontierTask]) -> None:
        """Take over tasks from the frontier, and start what may start."""
        loop = asyncio.get_running_loop()
        self._batch.take(tasks)
        for task in tasks:
            if task.is_recovering:
                self._throttle.expect_recovery(task.host)
            if task.skip_fate is not None:
                self._batch.add(Settled(task, task.skip_fate))
            elif task.is_killer:
                self._responses.give_up(task)
            elif task.start_in_seconds > 0 and not self._admission.is_out_of_reach:
                self._timers[task.seq] = loop.call_later(task.start_in_seconds, self._slot_came, task), task
            else:
                self._admit(task)
        self._fill()

    def catch_up(self) -> None:
        """Read responses that waited, then start more fetches."""
        if self._continuation is None and self._responses.read():
            self._continuation = asyncio.get_running_loop().call_soon(self._continue)
        self._fill()

    def resume_sitemaps(self) -> None:
        """Allow the next large sitemap, unless responses still wait to be read."""
        if not self._responses.has_waiting and not self._batch.is_heavy:
            self._fetchers.resume_sitemaps()

    def change(self, size: WindowSize) -> None:
        """Apply changed options of the crawl, including to tasks that wait in the queues of their hosts."""
        self._total = size.total
        self._queues.per_host = size.per_host
        self._admission.rejudges = True
        for task in self._queues.dissolve_all():
            self._admit(task)

    def put_back(self, host: int) -> None:
        """Return the queue of a host that is held to the frontier.

        If it waited here, all of it would start at once when the hold ends, and other walkers could not take it.
        """
        for waiting in self._queues.dissolve(host):
            self._batch.add(Settled(waiting, Fate.OPEN, untried=True))

    def drop(self) -> None:
        """Cancel what is in flight and forget what waits: the frontier gets it back."""
        for timer, _ in self._timers.values():
            timer.cancel()
        for fetch in [*self._fetching.values(), *self._in_browser.values()]:
            fetch.cancel()
        self._timers.clear()
        self._fetching.clear()
        self._in_browser.clear()
        self._responses.clear()
        if self._continuation is not None:
            self._continuation.cancel()
            self._continuation = None
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        self._queues.clear()
        self._parked.clear()

    def close(self) -> None:
        """Cancel everything, robots.txt requests included."""
        self.drop()
        self._admission.close()

    def _slot_came(self, task: FrontierTask) -> None:
        self._timers.pop(task.seq, None)
        try:
            self._admit(task)
            self._fill()
        except Exception as error:
            self._control.fail(error)

    def _admit(self, task: FrontierTask) -> None:
        """Queue a task, settle it without a fetch, or park it until the robots.txt of its host is known."""
        admitted = self._admission.check(task, self._batch.pending)
        if admitted is Admitted.NOW:
            self._queues.join(task)
        elif isinstance(admitted, Settled):
            self._batch.add(admitted)
        else:
            host_origin = origin(task.at)
            parked = self._parked.setdefault(host_origin, [])
            parked.append(task)
            if len(parked) == 1:
                self._admission.ask_robots(task.at, partial(self._unpark, host_origin))

    def _unpark(self, host_origin: str) -> None:
        try:
            for task in self._parked.pop(host_origin, []):
                self._admit(task)
            self._fill()
        except Exception as error:
            self._control.fail(error)

    def _fill(self) -> None:
        if self._timers and self._admission.is_out_of_reach:
            # The host of the only seed cannot be reached: what waits for a slot there fails now, and the crawl ends.
            waiting, self._timers = self._timers, {}
            for timer, task in waiting.values():
                timer.cancel()
                self._admit(task)
        if self._batch.is_closed or (self._rendering is not None and self._rendering.is_full):
            return
        while len(self._fetching) < self._total:
            if self._rate is not None and (wait_seconds := self._rate.seconds_left()) > 0:
                if self._start_timer is None:
                    self._start_timer = asyncio.get_running_loop().call_later(wait_seconds, self._rate_allows)
                return
            if (next_task := self._queues.next()) is None:
                return
            if self._rate is not None:
                self._rate.spend()
            self._fetching[next_task.seq] = self._fetchers.start(next_task, partial(self._fetched, next_task))

    def _rate_allows(self) -> None:
        self._start_timer = None
        try:
            self._fill()
        except Exception as error:
            self._control.fail(error)

    def _fetched(self, task: FrontierTask, fetched: Fetched) -> None:
        if self._fetching.pop(task.seq, None) is None:
            return  # cancelled: the frontier has it back
        self._queues.ended(task.host)
        try:
            if fetched.status in THROTTLED or self._throttle.counts_successes:
                self._record(task, fetched)
            if self._rendering is not None and task.kind is not UrlKind.SITEMAP:
                in_browser = self._rendering.start(task.at, fetched, partial(self._rendered, task))
                if in_browser is not None:
                    self._in_browser[task.seq] = in_browser
                    self._fill()
                    return
            self._read(task, fetched)
        except Exception as error:
            self._control.fail(error)

    def _rendered(self, task: FrontierTask, fetched: Fetched) -> None:
        if self._in_browser.pop(task.seq, None) is None:
            return  # cancelled: the frontier has it back
        try:
            self._read(task, fetched)
        except Exception as error:
            self._control.fail(error)

    def _read(self, task: FrontierTask, fetched: Fetched) -> None:
        must_wait = self._continuation is not None or self._batch.is_heavy
        self._responses.add(task, fetched)
        if not must_wait:
            self.catch_up()

    def _continue(self) -> None:
        self._continuation = None
        try:
            self.catch_up()
        except Exception as error:
            self._control.fail(error)

    def _record(self, task: FrontierTask, fetched: Fetched) -> None:
        """Record what a response says about its host."""
        host_origin = origin(task.at)
        if task.kind is UrlKind.SITEMAP and fetched.redirects and not fetched.final_url.startswith(f"{host_origin}/"):
            return  # another host responded
        error = fetched.failure.code if fetched.failure is not None else None
        page = xxh3_64_intdigest(task.url.encode())
        answer = HostAnswer(
            host_origin, task.host, page, task.attempts, fetched.status, fetched.seconds, error, fetched.retry_after
        )
        if self._throttle.record(answer):
            self.put_back(task.host)
