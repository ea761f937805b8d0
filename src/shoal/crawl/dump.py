"""Dump a crawl with its frontier and its pages as JSON lines, and load it into another store."""

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TypeVar, cast

from shoal.base.clock import to_micros
from shoal.base.database import Database, Tx
from shoal.base.errors import AlreadyExists, InvalidInput, NotAllowed, NotFound, ShoalError, StateConflict, UsageError
from shoal.base.ids import CrawlId
from shoal.base.url import Url, origin
from shoal.crawl import dump_records as records
from shoal.crawl.crawl import Crawl
from shoal.crawl.credentials import hidden, hides
from shoal.crawl.dump_records import FIX, End, Head, Item, Line
from shoal.crawl.frontier.admin import AT_REST, FrontierAdmin
from shoal.crawl.frontier.admin_store import LOADING, FrontierAdminStore, FrontierPosition, KeptUrl, Key, KnownKey
from shoal.crawl.frontier.fates import Fate, Trap
from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord, UrlKind, key_of
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import ByDriver
from shoal.pages.export.part_file import PartFile, ends_of, translated, unusable
from shoal.pages.page import Page
from shoal.pages.store import PageStore

T = TypeVar("T")
P = TypeVar("P")
Lines = AsyncIterable[bytes] | Iterable[bytes]

BATCH = 1000  # lines per commit, and rows per read


class CrawlDump:
    """Dumps and loads crawls. The crawl must be at rest: paused, ended, or not started yet."""

    def __init__(
        self,
        database: Database,
        crawls: Crawls,
        frontiers: ByDriver[FrontierAdminStore],
        loaded: SqlFrontierAdmin,
        admin: FrontierAdmin,
    ) -> None:
        """`loaded`: the frontier into which dumps are loaded, regardless of the dumped frontier's driver."""
        self._database = database
        self._crawls = crawls
        self._frontiers = frontiers
        self._loaded = loaded
        self._pages = PageStore()
        self._admin = admin

    async def dump(self, crawl_id: str, *, secrets: bool = False) -> AsyncIterator[bytes]:
        """Yield the crawl as JSON lines. If the crawl changed during the dump, raise StateConflict instead of yielding
        the last line; `load` then rejects the lines written so far.

        With `secrets`, the dump includes header values, cookie values and the proxy password. Without `secrets`, these
        values are left out, and a crawl that needs them to continue is rejected."""
        before = await self._admin.at_rest(crawl_id, "be dumped")
        crawl = before.crawl
        config = crawl.config.plain()
        if not secrets and crawl.state not in TERMINAL and hidden(config) != config:
            raise NotAllowed(
                f'crawl "{crawl_id}" has header values, cookies or a proxy password, and cannot continue elsewhere'
                " without them",
                "add --with-secrets, and keep the file private",
            )
        yield records.head_record(crawl, before.counts, secrets=secrets)
        written: Counter[type] = Counter()
        async for item in self._items(crawl):
            written[type(item)] += 1
            yield records.record_of(item)
        if await self._admin.at_rest(crawl_id, "be dumped") != before:
            raise StateConflict(
                "crawl", crawl_id, "no longer as it was when the dump began", "be dumped", "dump it again"
            )
        yield records.end_record(End.of(written))

    async def load(self, lines: Lines, *, crawl_id: str | None = None, trust_named: bool = False) -> CrawlId:
        """Store a dumped crawl, in the state it had, under `crawl_id` or under the id in the dump. If the lines are
        incomplete or invalid, store nothing.

        `trust_named` lets the crawl request the private hosts that were named on the other machine's command line.
        """
        source = _read(lines)
        head = await _head_of(source)
        wanted = CrawlId(crawl_id or head.crawl.id)
        number = await self._receive(wanted, head, trust_named)
        try:
            await self._keep_all(partial(self._keep, wanted, number, head.seed), head, source)
            await self._admit(wanted, number, head)
        except BaseException:
            # A store that has just failed may fail again here. Show the first error: the rows that remain are marked as
            # loading, and the next load removes them.
            with suppress(ShoalError):
                await self._abandon(wanted, number)
            raise
        return wanted

    async def _items(self, crawl: Crawl) -> AsyncIterator[Item]:
        frontier, number = self._frontiers.of(crawl), crawl.number

        async def keys_after(tx: Tx, crawl: int, at: Key | None, limit: int) -> list[tuple[Key, KnownKey]]:
            return [((known.key, known.chk), known) for known in await frontier.keys_after(tx, crawl, at, limit)]

        async for url in self._all(frontier.urls_after, number):
            yield url
        async for known in self._all(keys_after, number):
            yield known
        for trap in await self._crawls.traps(crawl.id):
            yield trap
        async for sitemap in self._all(self._loaded.sitemaps_after, number):
            yield sitemap
        async for target in self._all(frontier.targets_after, number):
            yield target
        async for page in self._all(self._pages_after, number):
            yield page

    async def _pages_after(self, tx: Tx, crawl: int, at: int | None, limit: int) -> list[tuple[int, Page]]:
        found = await self._pages.after(tx, crawl, at or 0, limit)
        details = dict((await self._pages.details_after(tx, crawl, at or 0, limit))[0])
        links = dict((await self._pages.outlinks_after(tx, crawl, at or 0, limit))[0])
        for number, page in found:
            page.detail, page.outlinks = details.get(number), links.get(number)
        return found

    async def _all(
        self, read: Callable[[Tx, int, P | None, int], Awaitable[list[tuple[P, T]]]], crawl: int
    ) -> AsyncIterator[T]:
        """Yield every row, read in batches; each batch starts where the previous batch ended."""
        at: P | None = None

        async def read_batch(tx: Tx) -> list[tuple[P, T]]:
            return await read(tx, crawl, at, BATCH)

        while found := await self._database.read(read_batch):
            at = found[-1][0]
            for _, one in found:
                yield one

    async def _receive(self, wanted: CrawlId, head: Head, trust_named: bool) -> int:
        """Create the crawl and mark it as loading; return its number."""
        existing = await self._database.read(lambda tx: self._crawls.store.get(tx, wanted))
        if existing is not None and existing.state_reason == LOADING:
            await self._admin.erase(wanted)  # an earlier load was killed and left this crawl behind
        named = head.crawl.named if trust_named else []
        number = await self._database.run(
            lambda tx: self._loaded.receive(tx, wanted, head.crawl.config, named, head.seed, head.crawl.policy_id)
        )
        if number is None:
            raise AlreadyExists("crawl", wanted, "load it under another id with --id, or remove that crawl first")
        return number

    async def _keep_all(
        self, keep: Callable[[list[Item]], Awaitable[None]], head: Head, source: AsyncIterator[tuple[int, Line]]
    ) -> None:
        """Store every line, in batches, and check that none is missing."""
        stored: Counter[type] = Counter()
        end, batch, opened = None, [], 0
        async for place, line in source:
            if end is not None or isinstance(line, Head):
                raise InvalidInput(
                    f"line {place}", "is in the wrong place: a dump has one header line and one final line", FIX
                )
            if isinstance(line, End):
                end = line
                continue
            stored[type(line)] += 1
            opened += isinstance(line, KeptUrl) and line.fate is Fate.OPEN
            batch.append(line)
            if len(batch) == BATCH:
                await keep(batch)
                batch = []
        await keep(batch)
        if end != End.of(stored) or head.counts.queued != opened:
            raise InvalidInput("the dump", "is incomplete", FIX)

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
            await self._check_loading(tx, wanted, number)
            kept = await self._loaded.keep_urls(tx, number, urls)
            kept += await self._loaded.keep_keys(tx, number, keys)
            kept += await self._loaded.keep_traps(tx, number, traps)
            kept += await self._loaded.keep_sitemaps(tx, number, sitemaps)
            kept += await self._loaded.keep_targets(tx, number, targets)
            kept += await self._pages.insert(tx, number, pages)
            await self._loaded.keep_pages_of(tx, number, answered)
            if kept != len(batch):
                raise InvalidInput("the dump", "contains a line twice", FIX)

        await self._database.run(commit)

    async def _admit(self, wanted: CrawlId, number: int, head: Head) -> None:
        """Give the loaded crawl the counts, the times and the state that it had when it was dumped."""
        run = head.crawl
        position = FrontierPosition(
            run.state,
            run.state_reason,
            to_micros(run.created_at),
            None if run.started_at is None else to_micros(run.started_at),
            None if run.finished_at is None else to_micros(run.finished_at),
        )

        async def commit(tx: Tx) -> None:
            await self._check_loading(tx, wanted, number)
            await self._loaded.keep_counts(tx, number, head.counts)
            await self._loaded.admit(tx, number, position)

        await self._database.run(commit)

    async def _abandon(self, wanted: CrawlId, number: int) -> None:
        """Remove a crawl that was not loaded completely."""
        crawl = await self._database.read(lambda tx: self._crawls.store.get(tx, wanted))
        if crawl is not None and (crawl.number, crawl.state_reason) == (number, LOADING):
            await self._admin.erase(wanted)

    async def _check_loading(self, tx: Tx, wanted: CrawlId, number: int) -> None:
        """Lock the crawl; raise if another load has replaced it in the meantime."""
        crawl = await self._crawls.store.lock(tx, wanted)
        if crawl is None or (crawl.number, crawl.state_reason) != (number, LOADING):
            raise StateConflict(
                "crawl", wanted, "being loaded by another process", "be loaded", "run one load at a time"
            )


async def _read(lines: Lines) -> AsyncIterator[tuple[int, Line]]:
    place = 0
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            place += 1
            yield place, records.read(line, place)
    else:
        for line in lines:
            place += 1
            yield place, records.read(line, place)


async def _head_of(source: AsyncIterator[tuple[int, Line]]) -> Head:
    async for _, line in source:
        if isinstance(line, Head):
            return _checked(line)
        break
    raise InvalidInput("line 1", "is not the first line of a dump", FIX)


def _checked(head: Head) -> Head:
    run = head.crawl
    ended = run.state in TERMINAL
    started = run.started_at is not None or run.state is not CrawlState.COMPLETED
    if run.state not in AT_REST or ended != (run.finished_at is not None) or not started:
        raise InvalidInput("line 1", f"describes a {run.state} crawl, which cannot be dumped", FIX)
    if not ended and hides(run.config.plain()):
        raise InvalidInput(
            "line 1", "lacks the secrets that the crawl needs to continue", "dump it with --with-secrets"
        )
    return head


STANDARD = "-"
BUFFER = 1 << 18
LONGEST_LINE = 64_000_000  # bytes; the line of a page with its links and details is far shorter
GZIP_FORMAT = 16 + zlib.MAX_WBITS
GZIP_MAGIC = b"\x1f\x8b"
BEGIN = b'{"shoal_frontier":'


class DumpFile:
    """A dump that is being written. The file is called FILE.part until the dump is complete. If `complete` is never
    called, the file is removed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = PartFile(name, private=True)  # a dump may hold credentials and private page data
        self._gzip = zlib.compressobj(wbits=GZIP_FORMAT) if name.endswith(".gz") else None
        if Path(name).exists() and not Path(name).is_file():
            raise unusable(name, "it is not a regular file")

    def open(self) -> None:
        self._file.begin()

    def write(self, line: bytes) -> None:
        if self._gzip is None:
            self._file.write((line, b"\n"))
        else:
            self._file.write((self._gzip.compress(line + b"\n"),))

    def complete(self) -> None:
        """Flush everything to disk, then rename the file."""
        if self._gzip is not None:
            self._file.write((self._gzip.flush(),))
        self._file.complete()

    def close(self) -> None:
        """Remove the file unless it is complete."""
        self._file.discard()


class DumpToStdout:
    """A dump that is written to standard output instead of a file."""

    name = STANDARD

    def open(self) -> None:
        if sys.stdout.isatty():
            raise UsageError("a dump cannot be written to a terminal", "use --output FILE, or redirect standard output")

    def write(self, line: bytes) -> None:
        try:
            sys.stdout.buffer.write(line + b"\n")
        except OSError as error:
            raise translated("stdout", error) from error

    def complete(self) -> None:
        try:
            sys.stdout.buffer.flush()
        except OSError as error:
            raise translated("stdout", error) from error

    def close(self) -> None: ...


def is_dump(name: str) -> bool:
    """Return whether a file begins like a dump."""
    begin = ends_of(name)
    if begin.startswith(GZIP_MAGIC):
        try:
            begin = zlib.decompressobj(wbits=GZIP_FORMAT).decompress(begin, len(BEGIN))
        except zlib.error:
            return False
    return begin.startswith(BEGIN)


def dump_lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a dump file, or of standard input for `-`. Compression is detected from the content."""
    if name == STANDARD and sys.stdin.isatty():
        raise UsageError("there is no dump on standard input", "pass a file, or redirect standard input")
    try:
        with nullcontext(sys.stdin.buffer) if name == STANDARD else Path(name).open("rb", buffering=BUFFER) as file:
            source = cast(BufferedReader, file)
            packed = source.peek(2)[:2] == GZIP_MAGIC
            lines = gzip.GzipFile(fileobj=source, mode="rb") if packed else source
            while line := lines.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise InvalidInput("the dump", f"has a line longer than {LONGEST_LINE:,} bytes", FIX)
                yield line
    except FileNotFoundError:
        raise NotFound("file", name, "use a file that `shoal crawls dump` wrote") from None
    except (EOFError, zlib.error) as error:
        raise InvalidInput("the dump", f"is cut off or damaged ({error})", FIX) from None
    except gzip.BadGzipFile as error:
        raise InvalidInput("the dump", f"is damaged ({error})", FIX) from None
    except OSError as error:
        raise UsageError(f"{name!r} cannot be read ({error.strerror})", "use a file that you can read") from None
