"""Rebuilds a frontier that its store lost, from the pages of the crawl.

A page stores the hashes of its links, not their URLs. So pages with links to URLs that have no page are fetched again,
as few as it takes to find each of these URLs once; all other pages are recorded as settled. Seeds and sitemaps are
added again. A page that is fetched again keeps its record.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from shoal.base.database import Database, Tx
from shoal.base.errors import BackendUnavailable, FrontierLost, StateConflict
from shoal.base.url import Url, UrlRefusal, canonical
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, key_of
from shoal.crawl.journal import messages
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.scope.seeds import first_urls, seeds_of
from shoal.crawl.store import FrontierStore
from shoal.pages.links import unpack
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue.job import Fence
from shoal.queue.queue import Queue

PAGES_AT_ONCE = 500


@contextmanager
def lost_is_an_outage() -> Iterator[None]:
    """Report a frontier that turns out to be lost as an outage: the walker attaches again, which rebuilds it."""
    try:
        yield
    except FrontierLost as error:
        raise BackendUnavailable("the frontier", "its store lost it", "it is rebuilt from the pages") from error


@runtime_checkable
class LosableFrontier(FrontierStore, Protocol):
    """A frontier whose store may lose it."""

    async def restart(self, tx: Tx, crawl: int, fence: Fence, generation: str) -> None:
        """Begin a lost frontier again, empty, and let nobody but this walker use it until `finish_rebuild`."""
        ...

    async def keep_known(self, tx: Tx, crawl: int, fate: Fate, keys: list[tuple[int, int]]) -> None:
        """Record URLs that were settled before the frontier was lost. Idempotent."""
        ...

    async def finish_rebuild(self, tx: Tx, crawl: int) -> None: ...


class FrontierRebuild:
    """The rebuilding of one crawl's frontier by one of its walkers."""

    def __init__(
        self, database: Database, crawls: Crawls, frontier: FrontierStore, pages: PageStore, queue: Queue
    ) -> None:
        assert isinstance(frontier, LosableFrontier)
        self._database = database
        self._crawls = crawls
        self._frontier = frontier
        self._pages = pages
        self._queue = queue
        self._known: set[int] = set()  # keys of URLs that need not be found again

    async def run(self, crawl: Crawl, fence: Fence) -> int:
        """Rebuild the frontier, in many commits; return how many pages are fetched again. If the walker dies or the
        store loses the frontier meanwhile, the next attempt starts over."""
        generation = secrets.token_hex(8)

        async def begin(tx: Tx) -> None:
            await self._crawls.lock(tx, crawl.id)
            await self._queue.fence(tx, fence)
            try:
                await self._frontier.restart(tx, crawl.number, fence, generation)
            except StateConflict as error:
                raise FrontierLost(crawl.id, "Redis holds a frontier of another store under this crawl id") from error

        await self._database.run(begin)
        with lost_is_an_outage():
            return await self._fill(crawl, fence)

    async def _fill(self, crawl: Crawl, fence: Fence) -> int:
        await self._read_keys(crawl)
        again = await self._add_pages(crawl, fence)

        async def end(tx: Tx) -> None:
            await self._queue.fence(tx, fence)
            seeds = first_urls(seeds_of(crawl.config), crawl.key_seed, crawl.config)
            await self._frontier.reopen(tx, crawl.number, [url for url in seeds if url.key not in self._known], [])
            await self._frontier.finish_rebuild(tx, crawl.number)
            await self._crawls.journal.write(tx, crawl.number, [messages.frontier_rebuilt(again)])

        await self._database.run(end)
        return again

    async def _read_keys(self, crawl: Crawl) -> None:
        after = 0
        while found := await self._pages_after(crawl, after):
            after = found[-1][0]
            for _, page in found:
                self._known.update(key for key, _ in _keys_of(crawl, page))

    async def _add_pages(self, crawl: Crawl, fence: Fence) -> int:
        after, again = 0, 0
        while found := await self._pages_after(crawl, after):
            after = found[-1][0]
            settled: dict[Fate, list[tuple[int, int]]] = {}
            reopened: list[NewUrl] = []
            for _, page in found:
                own, *via = _keys_of(crawl, page)
                if page.status is None:
                    settled.setdefault(Fate.FAILED, []).append(own)
                elif self._leads_on(crawl, page):
                    reopened.append(NewUrl(*own, Url(page.url), page.depth, Fate.OPEN))
                else:
                    settled.setdefault(Fate.FETCHED, []).append(own)
                settled.setdefault(Fate.FETCHED_VIA, []).extend(via)
            again += len(reopened)
            await self._keep(crawl, fence, settled, reopened)
        return again

    async def _keep(
        self, crawl: Crawl, fence: Fence, settled: dict[Fate, list[tuple[int, int]]], reopened: list[NewUrl]
    ) -> None:
        async def commit(tx: Tx) -> None:
            await self._queue.fence(tx, fence)
            await self._frontier.reopen(tx, crawl.number, reopened, [])
            for fate, keys in settled.items():
                await self._frontier.keep_known(tx, crawl.number, fate, keys)

        await self._database.run(commit)

    def _leads_on(self, crawl: Crawl, page: Page) -> bool:
        """Return whether a page has links to URLs that nobody knows any more; they count as known from then on."""
        if page.links is None or page.depth >= crawl.config.depth:
            return False
        unknown = set(unpack(page.links).followed()) - self._known
        self._known |= unknown
        return bool(unknown)

    async def _pages_after(self, crawl: Crawl, after: int) -> list[tuple[int, Page]]:
        return await self._database.read(lambda tx: self._pages.after(tx, crawl.number, after, PAGES_AT_ONCE))


def _keys_of(crawl: Crawl, page: Page) -> list[tuple[int, int]]:
    """Return the key of a page, and that of the URL it redirected to."""
    keys = [key_of(Url(page.url), crawl.key_seed)]
    if page.final_url is not None and page.final_url != page.url:
        final = canonical(page.final_url, crawl.config.url_rules())
        if not isinstance(final, UrlRefusal):
            keys.append(key_of(final, crawl.key_seed))
    return keys
