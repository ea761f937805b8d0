"""The library: `async for page in shoal.crawl("https://…")`. The same crawl as `shoal crawl`, on the same store."""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from shoal.app import opened
from shoal.base.errors import Interrupted, InvalidInput, NothingCrawled
from shoal.crawl.crawl import Counts
from shoal.crawl.lifecycle.crawls import CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.local.crawl_request import CrawlRequest, read_config, read_id
from shoal.local.local_crawl import LocalCrawl
from shoal.pages.page import Page
from shoal.settings_loader import load


def crawl(
    *seeds: str,
    store: str | None = None,
    resume: str | None = None,
    id: str | None = None,  # noqa: A002 - the word that every other face of Shoal uses
    trust_seeds: bool = True,
    **options: Any,
) -> "CrawlRun":
    """Crawl from these seeds, in this process; gives the pages as they are committed.

    `options` are the fields of a crawl: `depth`, `max_pages`, `scope`, `include`, `speed`, and so on.
    `store` is an address as in `DATABASE_URL`; the default is the store of the command line, so that either can go on
    with what the other began.
    `resume` is the id of a crawl to go on with: its stored pages come first, then the new ones.
    `trust_seeds`: the seeds were named by you, which opens private addresses too; False crawls only public ones.
    """
    if resume is not None:
        if seeds or options or id is not None:
            raise InvalidInput("resume", "stands beside seeds or options", "give it alone: the stored ones apply")
        return CrawlRun(CrawlRequest(resume=resume), store)
    if not seeds:
        raise InvalidInput("seeds", "are missing", "name at least one URL")
    config = read_config({"seeds": list(seeds), **options})
    return CrawlRun(CrawlRequest(config, None if id is None else read_id(id, "id"), trusted=trust_seeds), store)


class CrawlRun:
    """A crawl under way in this process: an asynchronous iterator over its pages.

    The crawl runs ahead of the loop by a bounded number of pages, then waits for it. Breaking out of the loop pauses
    the crawl; `async with` and `aclose` also wait until it is paused. If something else ends it, that is raised.
    """

    def __init__(self, wish: CrawlRequest, store: str | None) -> None:
        self._keeper = _Keeper(wish, store)
        self._pages: Iterator[Page] = iter(())

    @property
    def id(self) -> str | None:
        """The crawl's id, once it has begun: with it `resume` goes on."""
        return self._keeper.here.crawl.id if self._keeper.here else None

    @property
    def state(self) -> str | None:
        """How it ended; None as long as it has not."""
        return self._keeper.seen.crawl.state.value if self._keeper.seen else None

    @property
    def counts(self) -> Counts | None:
        """What it did in all; None as long as it has not ended."""
        return self._keeper.seen.counts if self._keeper.seen else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Page:
        for page in self._pages:
            return page
        if self._keeper.seen is not None:
            raise StopAsyncIteration
        self._pages = iter(await self._keeper.next())
        for page in self._pages:
            return page
        _check(await self._keeper.end())
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        await self._keeper.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave: a crawl that has not ended is paused, and can be resumed."""
        self._pages = iter(())
        await self._keeper.end()

    def __del__(self) -> None:
        self._keeper.let_go()


class _Keeper:
    """Holds the crawl in a task of its own, which knows nothing of the iterator: however that goes away, by `break`, by
    an error, or with the whole event loop, the crawl is paused."""

    def __init__(self, wish: CrawlRequest, store: str | None) -> None:
        self._wish = wish
        self._store = store
        self.here: LocalCrawl | None = None
        self.seen: CrawlStatus | None = None
        self._begun = asyncio.Event()
        self._left = asyncio.Event()
        self._task: asyncio.Task[CrawlStatus] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def begin(self) -> LocalCrawl:
        """The crawl, ours; raises what kept it from beginning."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._keep())
            _KEPT.add(self._task)
            self._task.add_done_callback(_KEPT.discard)
        await self._begun.wait()
        if self.here is None:
            await self._task
        assert self.here is not None
        return self.here

    async def next(self) -> list[Page]:
        here = await self.begin()
        try:
            return await here.next()
        except Exception:
            await self.end()
            raise

    async def end(self) -> CrawlStatus | None:
        """Leave the crawl, paused if it has not ended; what it came to. None if it never began."""
        self._left.set()
        if self._task is not None and self.here is not None:
            self.seen = await asyncio.shield(self._task)
        return self.seen

    def let_go(self) -> None:
        """Leave without waiting, from wherever the iterator was collected."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._left.set)

    async def _keep(self) -> CrawlStatus:
        try:
            async with opened(load({"DATABASE_URL": self._store}).settings) as app:
                async with LocalCrawl(app, await self._wish.find(app)) as here:
                    self.here = here
                    self._begun.set()
                    await self._left.wait()
                return await here.seen()
        finally:
            self._begun.set()


_KEPT: set[asyncio.Task[CrawlStatus]] = set()  # asyncio itself holds its tasks only weakly


def _check(seen: CrawlStatus | None) -> None:
    """Raise unless the crawl came to its own end."""
    if seen is not None and seen.crawl.state is CrawlState.FAILED:
        raise NothingCrawled(seen.crawl.id, seen.error_message)
    if seen is not None and seen.crawl.state is CrawlState.PAUSED:
        raise Interrupted(f"crawl {seen.crawl.id}", f'go on with shoal.crawl(resume="{seen.crawl.id}")')
