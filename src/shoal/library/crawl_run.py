"""The Python API: `async for page in shoal.crawl("https://…")`. The same crawl as `shoal crawl`, on the same store."""

import asyncio
import shlex
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from shoal.app import App, opened
from shoal.base.errors import Interrupted, InvalidInput, NothingCrawled
from shoal.crawl.crawl import Counts
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.library.page import MOST_BODIES, Page, origin_of, pages_of, settings_of
from shoal.pages.bodies import within
from shoal.pages.store import PageStore
from shoal.process.crawl_request import CrawlRequest, read_config, read_id
from shoal.process.local_crawl import PAGES_AT_ONCE, CrawledPage, LocalCrawl


def crawl(
    *seeds: str,
    store: str | None = None,
    resume: str | None = None,
    id: str | None = None,  # noqa: A002 - the parameter has this name in all interfaces of Shoal
    trust_seeds: bool = True,
    **options: Any,
) -> "CrawlRun":
    """Crawl from these seeds, in this process, and yield the pages as they are committed.

    `options` are crawl options: `depth`, `max_pages`, `scope`, `include`, `speed`, and so on. `store` is a URL as in
    `DATABASE_URL`; the default is the store of the command line, so that crawls can be resumed from both interfaces.
    `resume` is the id of a crawl to resume, or `last`: its stored pages come first, then the new pages. With `resume`,
    `options` may contain only options that can be changed while a crawl runs, such as `speed` and `max_pages`; they
    change the crawl. `trust_seeds` allows seeds at private addresses; pass False to crawl public addresses only.
    """
    if resume is not None:
        if seeds or id is not None:
            raise InvalidInput(
                "resume", "cannot be combined with seeds or an id", "leave them out; the crawl to resume has its own"
            )
        return CrawlRun(CrawlRequest(resume=resume, change=CrawlChange.read(options) if options else None), store)
    if not seeds:
        raise InvalidInput("seeds", "are missing", "pass at least one URL")
    config = read_config({"seeds": list(seeds), **options})
    return CrawlRun(CrawlRequest(config, None if id is None else read_id(id, "id"), trusted=trust_seeds), store)


async def open(crawl_id: str, *, store: str | None = None) -> AsyncIterator[Page]:  # noqa: A001 - `shoal.open`
    """Iterate over the stored pages of a crawl, in storage order, without crawling.

    `crawl_id` is the id of the crawl, a unique prefix of the id, or `last`. For a running crawl, only the pages stored
    so far are returned.
    Pages have content if the crawl keeps bodies (`keep_bodies`).
    """
    async with opened(settings_of(store), existing=True) as app:
        crawl = (await app.crawls.get(await app.crawls.whole_id(crawl_id))).crawl
        origin, last = origin_of(app, crawl, crawl.id), 0
        while rows := await app.database.read(
            lambda tx: PageStore().after(tx, crawl.number, last, PAGES_AT_ONCE)  # noqa: B023 - awaited here
        ):
            last = rows[-1][0]
            for part in _parts([CrawledPage(page) for _, page in rows]):
                pages = deque(await pages_of(part, origin, app.bodies))
                while pages:
                    yield pages.popleft()


class CrawlRun:
    """A crawl running in this process: an asynchronous iterator over its pages.

    Back-pressure: the crawl runs ahead of the loop by a bounded number of pages, and then waits. Breaking out of the
    loop pauses the crawl; `async with` and `aclose` also wait until the crawl is paused. If the crawl fails or is
    paused for a different reason, the iterator raises an error.
    """

    def __init__(self, request: CrawlRequest, store: str | None) -> None:
        self._crawl_task = _CrawlTask(request, store)
        self._pages: deque[Page] = deque()  # a page is removed when it is yielded, so that its body can be freed

    @property
    def id(self) -> str | None:
        """The crawl's id, for `resume`; None until the crawl has started."""
        return self._crawl_task.local_crawl.crawl.id if self._crawl_task.local_crawl else None

    @property
    def state(self) -> str | None:
        """The final state; None until the crawl has ended."""
        return self._crawl_task.status.crawl.state.value if self._crawl_task.status else None

    @property
    def state_reason(self) -> str | None:
        """The reason for the final state: `drained` if no URL was waiting, `drained_partly` if URLs in quarantine were
        left out (`counts.skipped["trap"]`), or the limit that was reached; None until the crawl has ended."""
        return self._crawl_task.status.crawl.state_reason if self._crawl_task.status else None

    @property
    def cut_off(self) -> list[str] | None:
        """Sentences about URLs that were not crawled, as in the summary of `shoal crawl`: one for each limit, and one
        for the quarantine; None until the crawl has ended."""
        task = self._crawl_task
        if task.status is None:
            return None
        store = [] if task.store is None else ["--store", task.store]
        return task.status.cut_off(
            lambda name, value: f"{name}={value}", lambda *words: shlex.join(["shoal", *words, *store])
        )

    @property
    def counts(self) -> Counts | None:
        """The final counts; None until the crawl has ended."""
        return self._crawl_task.status.counts if self._crawl_task.status else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Page:
        if not self._pages and self._crawl_task.status is None:
            self._pages.extend(await self._crawl_task.next())
        if self._pages:
            return self._pages.popleft()
        if self._crawl_task.status is None:
            _check(await self._crawl_task.end())
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        await self._crawl_task.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop iterating. If the crawl has not ended, it is paused and can be resumed."""
        self._pages.clear()
        await self._crawl_task.end()

    def __del__(self) -> None:
        self._crawl_task.stop_soon()


class _CrawlTask:
    """Runs the crawl in a separate task without a reference to the iterator. Therefore the crawl is paused in every
    case in which the iterator is dropped: by `break`, by an error, or with the whole event loop."""

    def __init__(self, request: CrawlRequest, store: str | None) -> None:
        self._request = request
        self.store = store
        self.local_crawl: LocalCrawl | None = None
        self.status: CrawlStatus | None = None
        self._app: App | None = None
        self._parts: Iterator[list[CrawledPage]] = iter(())
        self._begun = asyncio.Event()
        self._left = asyncio.Event()
        self._task: asyncio.Task[CrawlStatus] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def begin(self) -> LocalCrawl:
        """Start the crawl if needed and return it; raise the error that prevented it from starting."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._run())
            _CRAWL_TASKS.add(self._task)
            self._task.add_done_callback(_CRAWL_TASKS.discard)
        await self._begun.wait()
        if self.local_crawl is None:
            await self._task
        assert self.local_crawl is not None
        return self.local_crawl

    async def next(self) -> list[Page]:
        """Return the next pages, as many as fit into the memory limit with their bodies; the list is empty at the
        end."""
        local_crawl = await self.begin()
        assert self._app is not None
        try:
            part = next(self._parts, None)
            if part is None:
                self._parts = _parts(await local_crawl.next_crawled())
                part = next(self._parts, [])
            return await pages_of(part, origin_of(self._app, local_crawl.crawl, local_crawl.crawl.id), self._app.bodies)
        except Exception:
            await self.end()
            raise

    async def end(self) -> CrawlStatus | None:
        """Stop the crawl and return its status, or None if it never started. A crawl that has not ended is paused."""
        self._left.set()
        if self._task is not None and self.local_crawl is not None:
            self.status = await asyncio.shield(self._task)
        return self.status

    def stop_soon(self) -> None:
        """Stop the crawl without waiting. This may be called from any thread, because the iterator may be
        garbage-collected in any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._left.set)

    async def _run(self) -> CrawlStatus:
        try:
            async with opened(settings_of(self.store)) as app:
                crawl = await self._request.find(app)
                async with LocalCrawl(app, crawl, with_responses=True) as local_crawl:
                    self._app, self.local_crawl = app, local_crawl
                    self._begun.set()
                    await self._left.wait()
                return await local_crawl.status()
        finally:
            self._begun.set()


def _parts(crawled: Sequence[CrawledPage]) -> Iterator[list[CrawledPage]]:
    return within(crawled, MOST_BODIES, lambda one: one.page)


_CRAWL_TASKS: set[asyncio.Task[CrawlStatus]] = set()  # asyncio keeps only weak references to tasks


def _check(status: CrawlStatus | None) -> None:
    """Raise an error if the crawl failed or was paused."""
    if status is not None and status.crawl.state is CrawlState.FAILED:
        raise NothingCrawled(status.crawl.id, status.error_message)
    if status is not None and status.crawl.state is CrawlState.PAUSED:
        raise Interrupted(f"crawl {status.crawl.id}", f'resume with shoal.crawl(resume="{status.crawl.id}")')
