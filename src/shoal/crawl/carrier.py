"""The carrier: takes a crawl with its frontier and its pages from one store to another, as JSON lines."""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from shoal.base.clock import to_micros
from shoal.base.database import Database, Tx
from shoal.base.errors import AlreadyExists, InvalidInput, StateConflict
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.crawl import lines
from shoal.crawl.archive import LOADING, FrontierArchive, Key, OpenUrl, Place, SeenKey, Standing
from shoal.crawl.archivist import AT_REST, Archivist
from shoal.crawl.crawls import Crawls
from shoal.crawl.frontier import key_of
from shoal.crawl.lines import FIX, End, Head, Thing
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.pages.page import Page
from shoal.pages.store import PageStore

T = TypeVar("T")
P = TypeVar("P")
Lines = AsyncIterable[bytes] | Iterable[bytes]

BATCH = 1000  # lines of one commit, or of one reading


@dataclass(slots=True)
class Batch:
    """Things on their way into one commit."""

    opened: list[OpenUrl] = field(default_factory=list)
    seen: list[SeenKey] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.opened) + len(self.seen) + len(self.pages)

    def add(self, thing: OpenUrl | SeenKey | Page) -> None:
        match thing:
            case OpenUrl():
                self.opened.append(thing)
            case SeenKey():
                self.seen.append(thing)
            case Page():
                self.pages.append(thing)


class Carrier:
    """Dumps and loads crawls."""

    def __init__(
        self, database: Database, crawls: Crawls, archivist: Archivist, archive: FrontierArchive, pages: PageStore
    ) -> None:
        self._database = database
        self._crawls = crawls
        self._archivist = archivist
        self._archive = archive
        self._pages = pages

    async def dump(self, crawl_id: str) -> AsyncIterator[bytes]:
        """The crawl as JSON lines. It must rest meanwhile: if it was changed, an error stands in for the last line,
        and `load` refuses what was written."""
        before = await self._archivist.at_rest(crawl_id, "be dumped")
        number = before.crawl.number
        seed = await self._database.read(lambda tx: self._archive.seed_of(tx, number))
        yield lines.head_line(before.crawl, seed, before.counts)
        told: Counter[type] = Counter()
        async for thing in self._things(number):
            told[type(thing)] += 1
            yield lines.line_of(thing)
        if await self._archivist.at_rest(crawl_id, "be dumped") != before:
            raise StateConflict("crawl", crawl_id, "not what it was a moment ago", "be dumped", "dump it again")
        yield lines.end_line(End.of(told))

    async def load(self, given: Lines, *, crawl_id: str | None = None, trust_named: bool = False) -> CrawlId:
        """Take in a dumped crawl: it stands here where it stood there. Of lines that are not whole, nothing stays.

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
            await self._archivist.erase(wanted)
            raise
        return wanted

    async def _things(self, crawl: int) -> AsyncIterator[OpenUrl | SeenKey | Page]:
        async def opened(at: Place | None, tx: Tx) -> list[tuple[Place, OpenUrl]]:
            return await self._archive.open_after(tx, crawl, at, BATCH)

        async def seen(at: Key | None, tx: Tx) -> list[tuple[Key, SeenKey]]:
            return [((one.key, one.chk), one) for one in await self._archive.seen_after(tx, crawl, at, BATCH)]

        async def pages(at: int | None, tx: Tx) -> list[tuple[int, Page]]:
            return await self._pages.after(tx, crawl, at or 0, BATCH)

        async for url in self._all(opened):
            yield url
        async for key in self._all(seen):
            yield key
        async for page in self._all(pages):
            yield page

    async def _all(self, read: Callable[[P | None, Tx], Awaitable[list[tuple[P, T]]]]) -> AsyncIterator[T]:
        """Everything, one reading after the other, each from where the last one stopped."""
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
        self, keep: Callable[[Batch], Awaitable[None]], head: Head, source: AsyncIterator[tuple[int, Thing]]
    ) -> None:
        told: Counter[type] = Counter()
        end, batch = None, Batch()
        async for place, thing in source:
            if end is not None or isinstance(thing, Head):
                raise InvalidInput(f"line {place}", "stands where none of its kind may", FIX)
            if isinstance(thing, End):
                end = thing
                continue
            told[type(thing)] += 1
            batch.add(thing)
            if len(batch) == BATCH:
                await keep(batch)
                batch = Batch()
        await keep(batch)
        if end != End.of(told) or head.tally().queued != end.open:
            raise InvalidInput("the dump", "is not whole", FIX)

    async def _keep(self, wanted: CrawlId, number: int, seed: int, batch: Batch) -> None:
        opened = [(key_of(one.url, seed), one) for one in batch.opened]
        pages = [(*key_of(Url(page.url), seed), page) for page in batch.pages]

        async def commit(tx: Tx) -> None:
            await self._check_ours(tx, wanted, number)
            kept = await self._archive.keep_open(tx, number, opened)
            kept += await self._archive.keep_seen(tx, number, batch.seen)
            kept += await self._pages.insert(tx, number, pages)
            if kept != len(batch):
                raise InvalidInput("the dump", "has a URL twice", FIX)

        await self._database.run(commit)

    async def _admit(self, wanted: CrawlId, number: int, head: Head) -> None:
        run = head.crawl
        times = [None if at is None else to_micros(at) for at in (run.created_at, run.started_at, run.finished_at)]
        standing = Standing(run.state, run.state_reason, times[0] or 0, times[1], times[2])

        async def commit(tx: Tx) -> None:
            await self._check_ours(tx, wanted, number)
            await self._archive.keep_counts(tx, number, head.tally())
            await self._archive.admit(tx, number, standing)

        await self._database.run(commit)

    async def _check_ours(self, tx: Tx, wanted: CrawlId, number: int) -> None:
        crawl = await self._crawls.store.lock(tx, wanted)
        if crawl is None or (crawl.number, crawl.state_reason) != (number, LOADING):
            raise StateConflict("crawl", wanted, "loaded by somebody else, too", "be loaded", "let one load at a time")


async def _read(given: Lines) -> AsyncIterator[tuple[int, Thing]]:
    place = 0
    async for line in _each(given):
        place += 1
        yield place, lines.read(line, place)


async def _each(given: Lines) -> AsyncIterator[bytes]:
    if isinstance(given, AsyncIterable):
        async for line in given:
            yield line
    else:
        for line in given:
            yield line


async def _head_of(source: AsyncIterator[tuple[int, Thing]]) -> Head:
    async for _, thing in source:
        if isinstance(thing, Head):
            return _checked(thing)
        break
    raise InvalidInput("line 1", "is not the first line of a dump", FIX)


def _checked(head: Head) -> Head:
    run = head.crawl
    ended = run.state in TERMINAL
    begun = run.started_at is not None or run.state is not CrawlState.COMPLETED
    if run.state not in AT_REST or ended != (run.finished_at is not None) or not begun:
        raise InvalidInput("line 1", f"has a crawl that cannot be {run.state}", FIX)
    return head
