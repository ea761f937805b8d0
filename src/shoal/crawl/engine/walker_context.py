"""The context of a walker: stores, services, callbacks, requests to the walker, and the signals that it emits."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.errors import ShoalError
from shoal.base.settings import Settings
from shoal.base.signals import Signal, Signals
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, SitemapRecord
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.store import ByDriver, FrontierStore
from shoal.egress import Egress, Failure
from shoal.hosts.throttle import HostUpdate, emit_holds
from shoal.pages.bodies import BodyStore
from shoal.pages.page import UNCHANGED, PagesSettled, status_class
from shoal.queue.queue import Queue

if TYPE_CHECKING:
    from shoal.extract.optional_facts import Hook
    from shoal.web.renderer import Renderer


class WalkerStores(Struct, frozen=True, kw_only=True):
    """The stores that a walker reads and writes."""

    database: Database
    crawls: Crawls
    frontiers: ByDriver[FrontierStore]
    queue: Queue
    bodies: BodyStore


class WalkerRuntime(Struct, frozen=True, kw_only=True):
    """The services of the process that a walker uses. The egress and the renderer belong to the walker and are closed
    with it."""

    egress: Egress
    settings: Settings
    clock: Clock
    signals: Signals
    renderer: "Renderer | None" = None  # set if the crawl renders


async def never() -> bool:
    """Return False instead of renewing a lease. The process that holds the lease for the walker renews it, or has given
    it up."""
    return False


class WalkerCallbacks(Struct, frozen=True, kw_only=True):
    """Callbacks through which a walker queries and notifies the code that runs it."""

    alive: Callable[[], bool]  # False once the lease may have expired
    renew: Callable[[], Awaitable[bool]] = never  # renews the lease; returns whether it is still ours
    settled: Callable[[list[Settled]], None] = lambda settled: None  # receives the results of each commit
    has_capacity: Callable[[], bool] = lambda: True  # False while the consumer of the results is too slow
    with_responses: bool = False  # whether `settled` gets each page with its response


class WalkerRequests:
    """Requests to one walker: return its job, commit soon, or end with an error.

    This object exists before the engine does, so a request that arrives while a walker starts is not lost. All methods
    are called in the walker's event loop.
    """

    def __init__(self) -> None:
        self.hand_back_reason: str | None = None  # if set: settle finished URLs, leave the rest to another walker
        self.is_nudged = False  # if True, commit now, because the crawl may have been paused, stopped or changed
        self.error: Exception | None = None  # the first error of a callback; the engine's own task raises it
        self._event = asyncio.Event()

    def hand_back(self, reason: str) -> None:
        """Ask the walker to settle its finished URLs and to return its job."""
        self.hand_back_reason = reason
        self._event.set()

    def nudge(self) -> None:
        """Ask for a commit, because its result contains the crawl's current state."""
        self.is_nudged = True
        self._event.set()

    def fail(self, error: Exception) -> None:
        """End the walker with this error.

        Event-loop callbacks report their errors here. If they raised an error instead, a URL might never be settled.
        """
        self.error = self.error or error
        self._event.set()

    def wake(self) -> None:
        """Make the commit loop check whether the next commit is due."""
        self._event.set()

    async def wait(self, longest_seconds: float) -> None:
        """Wait until the commit loop is woken, but no longer than `longest_seconds`."""
        self._event.clear()
        timer = asyncio.get_running_loop().call_later(longest_seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()


class FetchBlocked(Signal, frozen=True, kw_only=True):
    """An address rule blocked a fetch. The `detail` is for operators: the page record does not name the address."""

    crawl_id: str
    url: str
    code: str
    detail: str


class HookRan(Signal, frozen=True, kw_only=True):
    """The cost of a hook in one walker."""

    crawl_id: str
    hook: str
    calls: int
    failures: int
    seconds: float


class SitemapSettled(Signal, frozen=True, kw_only=True):
    """A sitemap was fetched. `how` is `read`, `partly` or `failed`, or `absent` if there is no sitemap at a guessed
    address."""

    crawl_id: str
    url: str
    how: str
    listed: int
    problem: str | None


class RobotsOutOfReach(Signal, frozen=True, kw_only=True):
    """The store could not load or save the robots.txt of a host, so for now nothing is fetched from that host."""

    crawl_id: str
    origin: str
    error: str


class CrawlInterrupted(Signal, frozen=True, kw_only=True):
    """The store was not available to a walker. The walker starts over once the store is available again. Emitted at
    most once per minute and walker."""

    crawl_id: str
    error: str


class RenderingImpossible(Signal, frozen=True, kw_only=True):
    """A crawl has pages that need a browser, and there is no browser. These pages are read as they were fetched."""

    crawl_id: str
    error: str


class RendererRefused(Signal, frozen=True, kw_only=True):
    """The renderer is busy or cannot be reached; the pages wait, and no attempt is counted."""

    crawl_id: str
    error: str
    retry_in_seconds: float


class WalkerSignals:
    """Emits the signals of one walker."""

    def __init__(self, signals: Signals, crawl_id: str) -> None:
        self._signals = signals
        self._crawl_id = crawl_id

    def fetch_blocked(self, failure: Failure) -> None:
        detail = failure.operator_detail or failure.message
        self._signals.emit(FetchBlocked(crawl_id=self._crawl_id, url=failure.url, code=failure.code, detail=detail))

    def robots_out_of_reach(self, host_origin: str, error: ShoalError) -> None:
        self._signals.emit(RobotsOutOfReach(crawl_id=self._crawl_id, origin=host_origin, error=str(error)))

    def interrupted(self, error: ShoalError) -> None:
        self._signals.emit(CrawlInterrupted(crawl_id=self._crawl_id, error=error.message))

    def rendering_impossible(self, error: ShoalError) -> None:
        self._signals.emit(RenderingImpossible(crawl_id=self._crawl_id, error=error.message))

    def renderer_refused(self, error: ShoalError, wait_seconds: float) -> None:
        self._signals.emit(RendererRefused(crawl_id=self._crawl_id, error=error.message, retry_in_seconds=wait_seconds))

    def hosts_held(self, updates: dict[int, HostUpdate], hold_seconds: dict[int, float]) -> None:
        emit_holds(self._signals, updates, hold_seconds, self._crawl_id)

    def hooks_ran(self, hooks: "Iterable[Hook]") -> None:
        for hook in hooks:
            ran = HookRan(
                crawl_id=self._crawl_id,
                hook=hook.name,
                calls=hook.calls,
                failures=hook.failures,
                seconds=hook.seconds,
            )
            self._signals.emit(ran)

    def settled(self, settled: list[Settled], is_guess: Callable[[FrontierTask], bool]) -> None:
        """Count the pages of a commit by status class, and emit a signal for each sitemap in the commit."""
        pages: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for done in settled:
            page = done.page
            if page is not None:
                status = UNCHANGED if done.is_unchanged else status_class(page.status)
                pages[status] += 1
                sizes[status] += page.received
            elif done.sitemap is not None:
                self._sitemap_settled(done, done.sitemap, is_guess)
        if pages:
            self._signals.emit(PagesSettled(pages=dict(pages), bytes=dict(sizes)))

    def _sitemap_settled(self, done: Settled, record: SitemapRecord, is_guess: Callable[[FrontierTask], bool]) -> None:
        how = "read" if record.problem is None else "partly"
        if done.fate is Fate.FAILED:
            how = "absent" if is_guess(done.task) else "failed"
        self._signals.emit(
            SitemapSettled(
                crawl_id=self._crawl_id, url=record.url, how=how, listed=record.listed, problem=record.problem
            )
        )
