"""A crawl that runs in this process. It returns its pages in batches, and each page exactly once.

The crawl is stored like all crawls: leaving early pauses it, and after a kill, a different process can resume it.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from shoal.app import App
from shoal.app.connect import SCHEMA_EVERY, SchemaWatch
from shoal.base.errors import LeaseLost, OperatorError, SchemaMismatch, ShoalError, StateConflict
from shoal.base.service import Service
from shoal.crawl.crawl import Counts, Crawl
from shoal.crawl.engine.walker import Walker
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import Settled
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import MAX_LISTED, FailedSeed
from shoal.crawl.states import CrawlState
from shoal.hosts.rate import HeldHost
from shoal.observe.stats import EVERY as HOURLY_STATS_EVERY
from shoal.pages.bodies import CapturedExchange
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.process.runners import extra_walkers, make_walker, storage_of
from shoal.queue.job import Lease
from shoal.work.leases import LeaseRenewer, LocalLease

PAGES_AT_ONCE = 500  # number of pages per read from the store
# time limit for writing the last hourly statistics at the end; a warning is logged if writing fails
LAST_PASS_SECONDS = 1.0


@dataclass(slots=True)
class CrawlTally:
    """The counts of a crawl so far, updated with each commit."""

    pages: int = 0
    errors: int = 0
    bytes: int = 0
    depth: int = 0
    hosts: set[int] = field(default_factory=set)  # hosts to which this process sent requests
    again: int = 0  # number of pages that failed in this process and wait for a retry
    retried_after: str | None = None  # the status or error that caused the last retry
    failed_seeds: list[FailedSeed] = field(default_factory=list)  # the first failures, up to one more than are listed

    @classmethod
    def of(cls, counts: Counts) -> Self:
        return cls(counts.pages, counts.errors, counts.bytes, counts.depth_reached)

    def count(self, page: Page) -> None:
        self.bytes += page.received
        if page.error_code is not None:
            self.errors += 1
        if page.status is not None:
            self.pages += 1
            if page.depth > self.depth:
                self.depth = page.depth

    def count_try(self, done: Settled) -> None:
        """Update the number of pages that wait for a retry: subtract a finished retry, and add a new failure."""
        failed_before = done.task.attempts > 0
        self.retried_after = done.retried_after or self.retried_after
        if failed_before or done.page is None:
            tried = done.fate is Fate.OPEN and not done.untried
            self.again = max(0, self.again + tried - (failed_before and not done.untried))

    def covers(self, counts: Counts) -> bool:
        """Return whether every stored page was counted. Each page has a status, an error, or both."""
        return (self.pages, self.errors) == (counts.pages, counts.errors)


class CrawledPage(NamedTuple):
    """A page. It includes the response if the page was just fetched in this process and the reader asked for
    responses."""

    page: Page
    captured: CapturedExchange | None = None


class LocalCrawl:
    """A crawl leased by this process while the block runs. Leaving the block before the crawl has ended pauses it. With
    `with_responses`, the reader also gets the responses of pages that are fetched in this process."""

    def __init__(self, app: App, crawl: Crawl, *, with_responses: bool = False) -> None:
        self.crawl = crawl
        self.tally = CrawlTally()
        self._app = app
        self._with_responses = with_responses
        self._stream = PageStream(self._caught_up)
        self._delivered = array("q")  # hashes of the URLs whose pages the walker delivered: eight bytes per page
        self._last_read = 0  # number of the last page read from the store
        self._lease: Lease | None = None
        self._renewer: LeaseRenewer | None = None
        self._watched = AsyncExitStack()  # on exit, stops the hourly statistics and the lease renewal
        self._walker: Walker | None = None
        self._pausing: str | None = None
        self._working: asyncio.Task[None] | None = None
        self._raised = False  # whether the reader has received the exception
        self._schema = SchemaWatch(app.database, self._leave_upgraded)

    async def __aenter__(self) -> Self:
        """Lease the crawl; raise if a different process holds it. A completed crawl is only read."""
        work = self._walk_all if await self._take() else self._read_all
        try:
            self.tally = CrawlTally.of((await self.status()).counts)
        except BaseException:
            await self._watched.aclose()
            raise
        self._working = asyncio.create_task(self._ending(work()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._working is not None
        self._stream.abandon()
        async with self._watched:
            if not self._working.done():
                await self.pause(error.code if isinstance(error, ShoalError) else "interrupted")
                await asyncio.wait({self._working})
            await self._leave_clean()
        if error is None and not self._working.cancelled() and not self._raised:
            self._working.result()

    async def _take(self) -> bool:
        """Lease the crawl; return False if it is completed and there is nothing to crawl."""
        taking = LocalLease(self._app.database, self._app.queue, self._app.crawls, self._app.clock)
        lease = None
        while lease is None:
            if self.crawl.state is CrawlState.COMPLETED:
                return False
            # taken over from workers: this process must also be allowed to reach the crawl's hosts
            if not self.crawl.named:
                self._app.crawls.check(self.crawl.config)
            await taking.reopen(self.crawl)
            try:
                lease = await taking.take(self.crawl)
            except StateConflict:
                await self._look_again()
        self._lease = lease
        self._renewer = await self._watched.enter_async_context(LeaseRenewer(self._app.queue, lease, self._app.clock))
        for chore, every in ((self._app.chores.hourly_stats, HOURLY_STATS_EVERY), (self._schema, SCHEMA_EVERY)):
            service = Service(chore, every, self._app.clock, self._app.signals)
            service.start()
            self._watched.push_async_callback(service.stop, LAST_PASS_SECONDS)
        return True

    async def _look_again(self) -> None:
        """Reload a crawl that had no job to lease. Continue if its state has changed, e.g. to paused because its
        process died while pausing; otherwise raise."""
        before, self.crawl = self.crawl, (await self.status()).crawl
        if self.crawl.state is before.state:
            raise StateConflict("crawl", self.crawl.id, self.crawl.state, "be resumed", "try again in a moment")

    async def next(self) -> list[Page]:
        """Return the next pages without their responses; see `next_crawled`."""
        return [page for page, _ in await self.next_crawled()]

    async def next_crawled(self) -> list[CrawledPage]:
        """Return the next pages; the list is empty at the end. Every page is returned exactly once: first the stored
        pages in their order, then new pages when they are committed. Raise the error that ended the crawl, if there was
        one, or `SchemaMismatch` if the crawl was paused because a newer version of Shoal has upgraded the store."""
        assert self._working is not None
        pages = await self._stream.next()
        if not pages:
            await asyncio.wait({self._working})
            self._raised = True
            await self._check_schema(self._working)
            self._working.result()
        return pages

    async def status(self) -> CrawlStatus:
        return await self._app.crawls.get(self.crawl.id)

    @property
    def waits_for(self) -> str | None:
        """The reason why the next fetch of this process waits; None if it waits for a response."""
        return None if self._walker is None else self._walker.waits_for

    async def held(self) -> list[HeldHost]:
        """Return the hosts on hold that have waiting URLs of the crawl."""
        return await self._app.crawls.held_hosts(self.crawl.id)

    async def pause(self, reason: str) -> None:
        """Request a pause; the batches end once the crawl is paused. A crawl that has ended is not changed."""
        self._pausing = reason
        self._stream.unbind()
        if self._walker is None:
            return  # stored pages are still being read: the reason is checked before the walker takes any URL
        try:
            await self._app.crawls.pause(self.crawl.id, reason)
            self._walker.nudge()
        except StateConflict:  # the crawl has ended, or is not running yet
            self._walker.leave(reason)

    def _leave_upgraded(self) -> None:
        """Pause the crawl with the next commit, which is the last one."""
        self._pausing = SchemaMismatch.code
        self._stream.unbind()
        if self._walker is not None:
            self._walker.leave(self._pausing)

    async def _check_schema(self, work: asyncio.Task[None]) -> None:
        if self._schema.error is None:
            return
        if work.cancelled() or work.exception() is not None or (await self.status()).crawl.state is CrawlState.PAUSED:
            raise self._schema.error

    async def _ending(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._stream.end()

    async def _walk_all(self) -> None:
        if self.tally.pages or self.tally.errors:
            await self._read_all()
        await self._walk()
        if self._pausing is None:
            await self._read_missed()
        else:
            await self._ensure_paused(self._pausing)

    async def _walk(self) -> None:
        assert self._lease is not None
        assert self._renewer is not None
        self._walker = make_walker(
            self._app,
            self.crawl,
            self._lease.fence,
            self._renewer.trusted,
            settled=self._settled,
            has_capacity=lambda: self._stream.has_capacity,
            renew=self._renewer.renew,
            with_responses=self._with_responses,
        )
        if self._pausing is not None:
            self._walker.leave(self._pausing)
        async with self._extra_walkers():
            await self._walker.run()

    @asynccontextmanager
    async def _extra_walkers(self) -> AsyncIterator[None]:
        """Run the crawl's other walkers, each in a child process, while this process runs one itself."""
        others = self.crawl.config.workers - 1
        if not others:
            yield
            return
        storage = storage_of(self._app)
        worker = extra_walkers(self._app, self.crawl, others, storage)
        working = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await working
            storage.close()

    def _caught_up(self) -> None:
        if self._walker is not None:
            self._walker.nudge()

    def _settled(self, settled: list[Settled]) -> None:
        pages = []
        for done in settled:
            self.tally.count_try(done)
            is_seed, failed = done.task.depth == 0, self.tally.failed_seeds
            if is_seed and len(failed) <= MAX_LISTED and (seed := FailedSeed.settled(done)) is not None:
                failed.append(seed)
            if done.page is not None:
                pages.append(CrawledPage(done.page, done.captured))
                self._delivered.append(hash(done.page.url))
                self.tally.count(done.page)
                self.tally.hosts.add(done.task.host)
        self._stream.add(pages)

    async def _read_all(self) -> None:
        async for pages in self._stored():
            self._stream.add([CrawledPage(page) for page in pages])
            if self._pausing is not None:
                return

    async def _read_missed(self) -> None:
        """Deliver stored pages that the walker did not deliver: pages of a commit whose response was lost, and pages of
        other walkers."""
        if self.tally.covers((await self.status()).counts):
            return
        delivered = set(self._delivered)
        async for pages in self._stored():
            missed = [page for page in pages if hash(page.url) not in delivered]
            for page in missed:
                self.tally.count(page)
            self._stream.add([CrawledPage(page) for page in missed])

    async def _stored(self) -> AsyncIterator[list[Page]]:
        """Yield the stored pages that have not been read yet, in order."""
        store, number = PageStore(), self.crawl.number
        while rows := await self._app.database.read(lambda tx: store.after(tx, number, self._last_read, PAGES_AT_ONCE)):
            self._last_read = rows[-1][0]
            yield [page for _, page in rows]
            await self._stream.wait_for_capacity()

    async def _ensure_paused(self, reason: str) -> None:
        """Pause the crawl in one commit, unless it has ended or is already paused. The walker of this process has left,
        so no process holds the crawl."""
        with suppress(StateConflict):
            await self._app.crawls.pause(self.crawl.id, reason)

    async def _leave_clean(self) -> None:
        """Clean up after a walker that was cut off: return its URLs to the frontier and pause the crawl."""
        assert self._working is not None
        failure = None if self._working.cancelled() else self._working.exception()
        if self._lease is None or not (self._working.cancelled() or isinstance(failure, OperatorError)):
            return
        self._pausing = failure.code if isinstance(failure, OperatorError) else "interrupted"
        # after an error, the next process takes the crawl over in its current state
        with suppress(OperatorError, LeaseLost):
            await self._walk()
            await self._ensure_paused(self._pausing)


MOST_WAITING = 500  # number of unread pages at which the walker stops taking URLs
MOST_BYTES = 32_000_000  # limit for unread responses; two commits of the walker may add as much again


class PageStream:
    """A bounded buffer of pages for a reader that may be slower than the walker. The responses of the last returned
    pages count as unread until the reader asks for the next pages."""

    def __init__(self, caught_up: Callable[[], None] = lambda: None, most: int = MOST_WAITING) -> None:
        self._caught_up = caught_up
        self._most = most
        self._pages: list[CrawledPage] = []
        self._bytes = 0  # size of the responses of these pages
        self._handed_bytes = 0  # size of the responses that were last returned to the reader
        self._ended = False
        self._abandoned = False
        self._bounded = True
        self._news = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def add(self, pages: list[CrawledPage]) -> None:
        """Add pages. This never blocks, because the pages are already committed; the walker must wait for capacity
        before the next commit."""
        if not pages or self._abandoned:
            return
        self._pages += pages
        self._bytes += sum([captured.size for _, captured in pages if captured is not None])
        self._news.set()
        if self._bounded and self._is_full:
            self._has_capacity.clear()

    @property
    def _is_full(self) -> bool:
        return len(self._pages) >= self._most or self._bytes + self._handed_bytes >= MOST_BYTES

    @property
    def has_capacity(self) -> bool:
        return self._has_capacity.is_set()

    async def wait_for_capacity(self) -> None:
        """Wait until the reader has caught up."""
        await self._has_capacity.wait()

    async def next(self) -> list[CrawledPage]:
        """Return the pages added since the last call; the list is empty at the end."""
        self._handed_bytes = 0
        self._reopen()
        while not self._pages and not self._ended:
            self._news.clear()
            await self._news.wait()
        pages, self._pages = self._pages, []
        self._handed_bytes, self._bytes = self._bytes, 0
        self._reopen()
        return pages

    def _reopen(self) -> None:
        if not self._has_capacity.is_set() and not self._is_full:
            self._has_capacity.set()
            self._caught_up()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def unbind(self) -> None:
        """Remove the bound, so that the rest is added without waiting."""
        self._bounded = False
        self._has_capacity.set()

    def abandon(self) -> None:
        """Discard all present and future pages, because the reader has left, and wake all waiting tasks."""
        self._abandoned = True
        self._pages, self._bytes = [], 0
        self.unbind()
        self.end()
