"""The carrier: takes a crawl with its frontier and its pages from one store to another, as JSON lines."""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from shoal.base.clock import to_micros
from shoal.base.database import Database, Tx
from shoal.base.errors import AlreadyExists, InvalidInput, StateConflict
from shoal.base.ids import CrawlId
from shoal.base.url import Url, origin
from shoal.crawl.credentials import hides
from shoal.crawl.dump import records
from shoal.crawl.dump.records import FIX, End, Head, Item, Line
from shoal.crawl.frontier.admin import AT_REST, FrontierAdmin
from shoal.crawl.frontier.admin_store import (
    LOADING,
    FrontierAdminStore,
    FrontierPosition,
    KeptUrl,
    Key,
    KnownKey,
    Place,
)
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import Trap
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord, UrlKind, key_of
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import FrontierStore
from shoal.pages.page import Page
from shoal.pages.store import PageStore

T = TypeVar("T")
P = TypeVar("P")
Lines = AsyncIterable[bytes] | Iterable[bytes]

BATCH = 1000  # lines of one commit, or of one reading


class CrawlDump:
    """Dumps and loads crawls."""

    def __init__(
        self,
        database: Database,
        crawls: Crawls,
        frontier: FrontierStore,
        archive: FrontierAdminStore,
        pages: PageStore,
        archivist: FrontierAdmin,
    ) -> None:
        self._database = database
        self._crawls = crawls
        self._frontier = frontier
        self._archive = archive
        self._pages = pages
        self._archivist = archivist

    async def dump(self, crawl_id: str, *, secrets: bool = False) -> AsyncIterator[bytes]:
        """The crawl as JSON lines. It must rest meanwhile: if it was changed, an error stands in for the last line,
        and `load` refuses what was written. `secrets`: also its headers, cookies and proxy as they are, without which
        a crawl that has any cannot go on elsewhere."""
        before = await self._archivist.at_rest(crawl_id, "be dumped")
        number = before.crawl.number
        yield records.head_record(before.crawl, before.counts, secrets=secrets)
        told: Counter[type] = Counter()
        async for item in self._items(number):
            told[type(item)] += 1
            yield records.record_of(item)
        if await self._archivist.at_rest(crawl_id, "be dumped") != before:
            raise StateConflict("crawl", crawl_id, "not what it was a moment ago", "be dumped", "dump it again")
        yield records.end_record(End.of(told))

    async def load(self, given: Lines, *, crawl_id: str | None = None, trust_named: bool = False) -> CrawlId:
        """Take in a dumped crawl: it stands here where it stood there. Of lines that are not whole, none stays.

        `trust_named`: hosts that somebody named on the other machine's command line may be reached from this one.
        """
        source = _read(given)
        head = await _head_of(source)
        wanted = CrawlId(crawl_id or head.crawl.id)
        number = await self._receive(wanted, head, trust_named)
        try:
            await self._keep_all(partial(self._keep, wanted, number, head.seed), head, source)
            await self._admit(wanted, number, head)
        except BaseException:
            await self._abandon(wanted, number)
            raise
        return wanted

    async def _items(self, crawl: int) -> AsyncIterator[Item]:
        async def urls(at: Place | None, tx: Tx) -> list[tuple[Place, KeptUrl]]:
            return await self._archive.urls_after(tx, crawl, at, BATCH)

        async def keys(at: Key | None, tx: Tx) -> list[tuple[Key, KnownKey]]:
            return [((known.key, known.chk), known) for known in await self._archive.keys_after(tx, crawl, at, BATCH)]

        async def pages(at: int | None, tx: Tx) -> list[tuple[int, Page]]:
            found = await self._pages.after(tx, crawl, at or 0, BATCH)
            details = dict(await self._pages.details_after(tx, crawl, at or 0, BATCH))
            for number, page in found:
                page.detail = details.get(number)
            return found

        async for url in self._all(urls):
            yield url
        async for known in self._all(keys):
            yield known
        for trap in await self._database.read(lambda tx: self._frontier.traps(tx, crawl)):
            yield trap
        async for one in self._around(crawl):
            yield one
        async for page in self._all(pages):
            yield page

    async def _around(self, crawl: int) -> AsyncIterator[Item]:
        """Sitemaps, and which URLs redirect to which."""
        for read in (partial(self._sitemaps, crawl), partial(self._targets, crawl)):
            async for one in self._all(read):
                yield one

    async def _sitemaps(self, crawl: int, at: Key | None, tx: Tx) -> list[tuple[Key, Item]]:
        return [*await self._archive.sitemaps_after(tx, crawl, at, BATCH)]

    async def _targets(self, crawl: int, at: Key | None, tx: Tx) -> list[tuple[Key, Item]]:
        return [*await self._archive.targets_after(tx, crawl, at, BATCH)]

    async def _all(self, read: Callable[[P | None, Tx], Awaitable[list[tuple[P, T]]]]) -> AsyncIterator[T]:
        """Every line, one reading after the other, each from where the last one stopped."""
        at = None
        while found := await self._database.read(partial(read, at)):
            at = found[-1][0]
            for _, one in found:
                yield one

    async def _receive(self, wanted: CrawlId, head: Head, trust_named: bool) -> int:
        there = await self._database.read(lambda tx: self._crawls.store.get(tx, wanted))
        if there is not None and there.state_reason == LOADING:
            await self._archivist.erase(wanted)  # what a load that was killed left behind
        named = head.crawl.named if trust_named else []
        number = await self._database.run(
            lambda tx: self._archive.receive(tx, wanted, head.crawl.config, named, head.seed)
        )
        if number is None:
            raise AlreadyExists("crawl", wanted, "load it under another id, or remove that one first")
        return number

    async def _keep_all(
        self, keep: Callable[[list[Item]], Awaitable[None]], head: Head, source: AsyncIterator[tuple[int, Line]]
    ) -> None:
        told: Counter[type] = Counter()
        end, batch, opened = None, [], 0
        async for place, line in source:
            if end is not None or isinstance(line, Head):
                raise InvalidInput(f"line {place}", "stands where none of its kind may", FIX)
            if isinstance(line, End):
                end = line
                continue
            told[type(line)] += 1
            opened += isinstance(line, KeptUrl) and line.fate is Fate.OPEN
            batch.append(line)
            if len(batch) == BATCH:
                await keep(batch)
                batch = []
        await keep(batch)
        if end != End.of(told) or head.counts.queued != opened:
            raise InvalidInput("the dump", "is not whole", FIX)

    async def _keep(self, wanted: CrawlId, number: int, seed: int, batch: list[Item]) -> None:
        urls = [(key_of(one.url, seed, one.kind), one) for one in batch if isinstance(one, KeptUrl)]
        keys = [one for one in batch if isinstance(one, KnownKey)]
        traps = [one for one in batch if isinstance(one, Trap)]
        sitemaps = [
            (key_of(Url(one.url), seed, UrlKind.SITEMAP), one) for one in batch if isinstance(one, SitemapRecord)
        ]
        pages = [(*key_of(Url(one.url), seed), one) for one in batch if isinstance(one, Page)]
        targets = [(key_of(Url(one.url), seed), one) for one in batch if isinstance(one, RedirectTarget)]
        answered = Counter(origin(Url(page.answered_at)) for _, _, page in pages if page.status is not None)

        async def commit(tx: Tx) -> None:
            await self._check_ours(tx, wanted, number)
            kept = await self._archive.keep_urls(tx, number, urls)
            kept += await self._archive.keep_keys(tx, number, keys)
            kept += await self._archive.keep_traps(tx, number, traps)
            kept += await self._archive.keep_sitemaps(tx, number, sitemaps)
            kept += await self._archive.keep_targets(tx, number, targets)
            kept += await self._pages.insert(tx, number, pages)
            await self._archive.keep_pages_of(tx, number, answered)
            if kept != len(batch):
                raise InvalidInput("the dump", "has some line twice", FIX)

        await self._database.run(commit)

    async def _admit(self, wanted: CrawlId, number: int, head: Head) -> None:
        run = head.crawl
        times = [None if at is None else to_micros(at) for at in (run.created_at, run.started_at, run.finished_at)]
        standing = FrontierPosition(run.state, run.state_reason, times[0] or 0, times[1], times[2])

        async def commit(tx: Tx) -> None:
            await self._check_ours(tx, wanted, number)
            await self._archive.keep_counts(tx, number, head.counts)
            await self._archive.admit(tx, number, standing)

        await self._database.run(commit)

    async def _abandon(self, wanted: CrawlId, number: int) -> None:
        crawl = await self._database.read(lambda tx: self._crawls.store.get(tx, wanted))
        if crawl is not None and (crawl.number, crawl.state_reason) == (number, LOADING):
            await self._archivist.erase(wanted)

    async def _check_ours(self, tx: Tx, wanted: CrawlId, number: int) -> None:
        crawl = await self._crawls.store.lock(tx, wanted)
        if crawl is None or (crawl.number, crawl.state_reason) != (number, LOADING):
            raise StateConflict("crawl", wanted, "loaded by somebody else, too", "be loaded", "let one load at a time")


async def _read(given: Lines) -> AsyncIterator[tuple[int, Line]]:
    place = 0
    async for line in _each(given):
        place += 1
        yield place, records.read(line, place)


async def _each(given: Lines) -> AsyncIterator[bytes]:
    if isinstance(given, AsyncIterable):
        async for line in given:
            yield line
    else:
        for line in given:
            yield line


async def _head_of(source: AsyncIterator[tuple[int, Line]]) -> Head:
    async for _, line in source:
        if isinstance(line, Head):
            return _checked(line)
        break
    raise InvalidInput("line 1", "is not the first line of a dump", FIX)


def _checked(head: Head) -> Head:
    run = head.crawl
    ended = run.state in TERMINAL
    begun = run.started_at is not None or run.state is not CrawlState.COMPLETED
    if run.state not in AT_REST or ended != (run.finished_at is not None) or not begun:
        raise InvalidInput("line 1", f"has a crawl that cannot be {run.state}", FIX)
    if not ended and hides(run.config.plain()):
        raise InvalidInput("line 1", "lacks the secrets that the crawl goes on with", "dump it with its secrets")
    return head
