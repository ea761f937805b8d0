"""A crawl that runs in this process and returns its pages in batches, each page exactly once.

It is stored like any other: leaving early pauses the crawl, and after a kill another process can take it over.
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

PAGES_AT_ONCE = 500  # pages per read from the store
LAST_PASS_SECONDS = 1.0  # how long the end waits for the last hourly statistics; a warning is logged if they fail


@dataclass(slots=True)
class CrawlTally:
    """The counts of a crawl so far, updated with each commit."""

    pages: int = 0
    errors: int = 0
    bytes: int = 0
    depth: int = 0
    hosts: set[int] = field(default_factory=set)  # hosts this process sent requests to
    again: int = 0  # pages that failed here and wait for a retry
    retried_after: str | None = None  # the last status or error after which a page is retried
    failed_seeds: list[FailedSeed] = field(default_factory=list)  # the first, and one more

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
        """Count a retry as done, and a new failure as waiting for a retry."""
        failed_before = done.task.attempts > 0
        self.retried_after = done.retried_after or self.retried_after
        if failed_before or done.page is None:
            tried = done.fate is Fate.OPEN and not done.untried
            self.again = max(0, self.again + tried - (failed_before and not done.untried))

    def covers(self, counts: Counts) -> bool:
        """Return whether every stored page was counted: each has a status, an error, or both."""
        return (self.pages, self.errors) == (counts.pages, counts.errors)


class CrawledPage(NamedTuple):
    """A page, and its response if it was just fetched in this process and the reader asked for it."""

    page: Page
    captured: CapturedExchange | None = None


class LocalCrawl:
    """A crawl leased by this process while the block runs. Leaving the block before the crawl has ended pauses it.
    `with_responses`: the reader gets the responses of the pages that are fetched here, too."""

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
        self._watched = AsyncExitStack()  # ends the hourly statistics and the lease renewal
        self._walker: Walker | None = None
        self._pausing: str | None = None
        self._working: asyncio.Task[None] | None = None
        self._raised = False  # the reader has received the exception
        self._schema = SchemaWatch(app.database, self._leave_upgraded)

    async def __aenter__(self) -> Self:
        """Lease the crawl; raise if another process has it. A completed crawl is only read."""
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
            if not self.crawl.named:  # taken over from workers: this process must be allowed to reach its hosts, too
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
        """Return the next pages; empty at the end. Every page comes exactly once: first the stored pages in their
        order, then each page as it is committed. Raise the error that ended the crawl, if any; `SchemaMismatch` if it
        was paused because a newer version of Shoal has upgraded the store."""
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
        """What the next fetch of this process waits for; None if for a response."""
        return None if self._walker is None else self._walker.waits_for

    async def held(self) -> list[HeldHost]:
        """Return hosts on hold for which URLs of the crawl wait."""
        return await self._app.crawls.held_hosts(self.crawl.id)

    async def pause(self, reason: str) -> None:
        """Request a pause; the batches end once the crawl is paused. A crawl that has ended stays so."""
        self._pausing = reason
        self._stream.unbind()
        if self._walker is None:
            return  # still reading: the walker checks this before it takes anything
        try:
            await self._app.crawls.pause(self.crawl.id, reason)
            self._walker.nudge()
        except StateConflict:  # ended, or not running yet
            self._walker.leave(reason)

    def _leave_upgraded(self) -> None:
        """Pause the crawl with the next commit, and make no more."""
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
        """Deliver stored pages that the walker did not: those of a commit whose response was lost, or of
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
        """Yield stored pages in their order, after those already read."""
        store, number = PageStore(), self.crawl.number
        while rows := await self._app.database.read(lambda tx: store.after(tx, number, self._last_read, PAGES_AT_ONCE)):
            self._last_read = rows[-1][0]
            yield [page for _, page in rows]
            await self._stream.wait_for_capacity()

    async def _ensure_paused(self, reason: str) -> None:
        """Pause the crawl in one commit if it is neither ended nor paused: our walker has left, so nobody holds it."""
        with suppress(StateConflict):
            await self._app.crawls.pause(self.crawl.id, reason)

    async def _leave_clean(self) -> None:
        """Clean up after a walker that was cut off: return its URLs to the frontier and pause the crawl."""
        assert self._working is not None
        failure = None if self._working.cancelled() else self._working.exception()
        if self._lease is None or not (self._working.cancelled() or isinstance(failure, OperatorError)):
            return
        self._pausing = failure.code if isinstance(failure, OperatorError) else "interrupted"
        with suppress(OperatorError, LeaseLost):  # then the next process takes the crawl over as it is
            await self._walk()
            await self._ensure_paused(self._pausing)


MOST_WAITING = 500  # unread pages at which the walker stops taking more
MOST_BYTES = 32_000_000  # of unread responses; two commits of the walker may have as many again


class PageStream:
    """A bounded buffer of pages for a reader that may be slower than the walker. Responses that the reader has got with
    the last pages count as unread until it asks for the next ones."""

    def __init__(self, caught_up: Callable[[], None] = lambda: None, most: int = MOST_WAITING) -> None:
        self._caught_up = caught_up
        self._most = most
        self._pages: list[CrawledPage] = []
        self._bytes = 0  # of the responses of these pages
        self._handed_bytes = 0  # of those that the reader got last
        self._ended = False
        self._abandoned = False
        self._bounded = True
        self._news = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def add(self, pages: list[CrawledPage]) -> None:
        """Add pages. Never blocks, since they are already committed; wait for capacity before the next
        commit."""
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
        """Return the pages since the last call; empty at the end."""
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
        """Discard all pages, now and later, since the reader has left; wake everybody who waits."""
        self._abandoned = True
        self._pages, self._bytes = [], 0
        self.unbind()
        self.end()
