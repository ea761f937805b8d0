"""Reads stored pages for the API and the console: lists, summaries, comparisons of two crawls."""

import asyncio
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from typing import Final, TypeVar

import orjson

from shoal.base.clock import Clock, SystemClock
from shoal.base.database import Database, Tx, readable
from shoal.base.url import Url
from shoal.pages.links import pack_key, unpack
from shoal.pages.page import NOT_MODIFIED, UNCHANGED, Page, ResponseClass, response_class
from shoal.pages.store import SCAN, ChartFacts, PageFilter, PageOutline, PageRank, PageStore

T = TypeVar("T")
BLOBS: Final = 2_000  # pages whose links one query reads
RANK_SECONDS: Final = 2.0  # after this time, only the pages read so far are sorted
QUICK: Final = 0.05  # seconds after which a search reports how far it got


@dataclass(frozen=True, slots=True)
class FoundPages:
    """Pages that match a filter. `next`: where the search continues; None if the whole crawl was searched."""

    pages: list[tuple[int, Page]]
    next: int | None


@dataclass(slots=True)
class Referrers:
    """The pages that link to some URLs, by the key of the target; incomplete if the time was up."""

    sources: dict[int, list[Url]] = field(default_factory=dict)
    is_complete: bool = False
    searched: int = 0  # number of pages that were searched


@dataclass(slots=True)
class RankedPages:
    """The first matching pages in some order, among the searched pages; if the time was up, not all pages were
    searched."""

    numbers: list[int]
    searched: int = 0
    is_complete: bool = False


class Pages:
    """The stored pages of crawls."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self._database = database
        self._store = PageStore()
        self._clock = clock or SystemClock()

    async def search(
        self, crawl: int, number: int, limit: int, which: PageFilter, seconds: float = QUICK
    ) -> FoundPages:
        """Return the next matching pages. If few pages match, the search stops after a while, however large the crawl
        is, and returns where to continue."""
        until = self._clock.monotonic() + seconds
        found: list[tuple[int, Page]] = []
        while True:
            start, room = number, limit - len(found)
            some, last = await self._database.read(
                lambda tx: self._store.search(tx, crawl, start, room, which, SCAN)  # noqa: B023 - awaited here
            )
            found += some
            if len(found) >= limit:
                return FoundPages(found, found[-1][0])
            if last is None:
                return FoundPages(found, None)
            number = last
            if self._clock.monotonic() > until:
                return FoundPages(found, number)

    async def ranked(self, crawl: int, which: PageFilter, by: Callable[[PageRank], float], last: int) -> RankedPages:
        """Return the numbers of the matching pages with the smallest values, at most `last`, smallest first. A large
        crawl is read only in part."""
        until, found, number = self._clock.monotonic() + RANK_SECONDS, RankedPages([]), 0
        best: list[tuple[float, int]] = []
        while True:
            start = number
            ranks, following = await self._database.read(
                lambda tx: self._store.ranks(tx, crawl, start, which, SCAN)  # noqa: B023 - awaited here
            )
            best = await asyncio.to_thread(
                lambda: nsmallest(last, chain(best, ((by(one), one.number) for one in ranks)))  # noqa: B023
            )
            found.searched += len(ranks)
            if following is None:
                found.is_complete = True
            if following is None or self._clock.monotonic() > until:
                found.numbers = [page for _, page in best]
                return found
            number = following

    async def numbered(self, crawl: int, numbers: Sequence[int]) -> list[tuple[int, Page]]:
        """Return the pages with these numbers, in their order."""

        async def look(tx: Tx) -> list[tuple[int, Page]]:
            found = [(number, await self._store.numbered(tx, crawl, number)) for number in numbers]
            return [(number, page) for number, page in found if page is not None]

        return await self._database.read(look)

    async def all(self, crawl: int, which: PageFilter) -> AsyncIterator[list[Page]]:
        """Yield every matching page, in batches."""
        number: int | None = 0
        while number is not None:
            found = await self.search(crawl, number, 500, which)
            if found.pages:
                yield [page for _, page in found.pages]
            number = found.next

    async def get(self, crawl: int, number: int) -> Page | None:
        return await self._database.read(lambda tx: self._store.numbered(tx, crawl, number))

    async def number_of(self, crawl: int, key: tuple[int, int]) -> int | None:
        """Return the number of the page with this key and check; None if there is none."""
        return await self._database.read(lambda tx: self._store.number_of(tx, crawl, *key))

    async def of_keys(self, crawl: int, keys: list[int]) -> list[Page]:
        """Return the pages with these keys."""
        found = await self._database.read(lambda tx: self._store.of_keys(tx, crawl, keys))
        return [page for _, _, page in found]

    async def urls_of(self, crawl: int, keys: list[int]) -> dict[int, Url]:
        """Return the URLs of the pages with these keys; keys without a page are omitted."""
        return await self._database.read(lambda tx: self._store.urls_of(tx, crawl, keys))

    async def referrers(self, crawl: int, keys: Collection[int], most: int, seconds: float) -> Referrers:
        """Return pages that link to the pages with these keys, a limited number for each. Links are stored with their
        source, so this reads the links of the whole crawl, or as many links as it can read in the given time."""
        until, found, number = self._clock.monotonic() + seconds, Referrers(), 0
        wanted = {key: pack_key(key) for key in keys}
        sources: dict[int, list[int]] = {key: [] for key in wanted}
        while wanted and self._clock.monotonic() < until:
            start = number
            blobs, last = await self._database.read(
                lambda tx: self._store.links_after(tx, crawl, start, BLOBS)  # noqa: B023 - awaited at once
            )
            for source, key in await asyncio.to_thread(_links_to, wanted, blobs):
                if len(sources[key]) < most:
                    sources[key].append(source)
            wanted = {key: packed for key, packed in wanted.items() if len(sources[key]) < most}
            found.searched += len(blobs)
            if last is None:
                found.is_complete = True
                break
            number = last
        found.is_complete = found.is_complete or not wanted  # enough pages were found for the list
        urls = await self.urls_of(crawl, sorted({source for some in sources.values() for source in some}))
        found.sources = {key: [urls[one] for one in some if one in urls] for key, some in sources.items()}
        return found


def _links_to(wanted: Mapping[int, bytes], blobs: Iterable[tuple[int, int, bytes]]) -> list[tuple[int, int]]:
    """Return source and target of the links to the wanted keys. Searching for the bytes of a key is several times as
    fast as reading all keys, but they may also match across two neighbouring keys."""
    found = []
    for _, source, blob in blobs:
        near = [key for key, packed in wanted.items() if packed in blob]
        found += [(source, key) for key in near and set(near).intersection(unpack(blob).keys)]
    return found


SIZED: Final = 200  # pages whose data is measured in one step; SQLite reads the data to measure it


class PageData:
    """The extracted data of pages, read in parts: the data of one page may be 1 MB."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = PageStore()

    async def parts(
        self, crawls: Sequence[int], pages: Sequence[tuple[int, ...]]
    ) -> AsyncIterator[list[tuple[str | None, ...]]]:
        """Yield the data of pages, as JSON, in their order. Each item of `pages` has one page number for each crawl,
        and the data of these pages is returned together: None for a page that has no data, or that is gone. A part is
        as long as may be decoded in one step."""
        for start in range(0, len(pages), SIZED):
            some = pages[start : start + SIZED]
            sizes = await self._read(self._store.data_sizes, crawls, some)
            rows = [
                {
                    "pages": numbers,
                    "size": sum(size.get(number, 0) for size, number in zip(sizes, numbers, strict=True)),
                }
                for numbers in some
            ]
            while rows:
                part = [row["pages"] for row in readable(rows, decoded=True)]
                rows = rows[len(part) :]
                found = await self._read(self._store.data_of, crawls, part)
                yield [tuple(data.get(number) for data, number in zip(found, one, strict=True)) for one in part]

    async def _read(
        self,
        read: Callable[[Tx, int, Sequence[int]], Awaitable[dict[int, T]]],
        crawls: Sequence[int],
        pages: Sequence[tuple[int, ...]],
    ) -> list[dict[int, T]]:
        columns = list(zip(crawls, zip(*pages, strict=True), strict=True))

        async def work(tx: Tx) -> list[dict[int, T]]:
            return [await read(tx, crawl, numbers) for crawl, numbers in columns]

        return await self._database.read(work)


BATCH: Final = 2_000
MOST_PAGES: Final = 200_000  # pages per crawl that are compared; the pages of one crawl are held in memory
SHOWN: Final = 100  # examples of each kind
MOST_DATA: Final = 400_000_000  # characters of extracted data that are read: 1,000 for each page
MOST_FIELDS: Final = 400  # names of fields that are counted separately: those of two rule sets
LONGEST_NAME: Final = 200
LONGEST_VALUE: Final = 1_000  # characters of a value that are kept; the console shows fewer
FIELDS: Final = ("robots", "canonical", "title")
DATA: Final = "data."  # prefix of the name of a field of the extracted data
OTHER_DATA: Final = "data"  # all fields beyond MOST_FIELDS


@dataclass(frozen=True, slots=True)
class PageChange:
    """A page with the value that changed. If the page is new or missing, or if its content changed, the value is its
    title. Of a long value, only the beginning is kept. For OTHER_DATA, `after` has the names of the fields."""

    url: str
    before: str | int | None
    after: str | int | None


@dataclass(slots=True)
class ChangeList:
    """The number of pages that changed in one way, and the first of these pages."""

    count: int = 0
    first: list[PageChange] = field(default_factory=list)

    def add(self, url: str, before: str | int | None, after: str | int | None) -> None:
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(PageChange(url, before, after))


@dataclass(slots=True)
class Comparison:
    """The differences between two crawls, by kind: `status`, `new`, `missing`, the FIELDS, `data.` with the name of a
    field of the extracted data, `data` for the fields beyond MOST_FIELDS, and `content`. A page whose status changed is
    in no other list. A page is in `content` only if nothing else explains the change. Status 304 confirms the page of
    an earlier crawl, so it counts as 200. If the comparison is not complete, `new` and `missing` are empty."""

    changes: defaultdict[str, ChangeList] = field(default_factory=lambda: defaultdict(ChangeList))
    same: int = 0
    is_complete: bool = True

    def add(self, pairs: Iterable[tuple[PageOutline, PageOutline]], data: Mapping[int, tuple[str | None, ...]]) -> None:
        """Add pages of both crawls. `data`: the extracted data of some pages in both crawls, by the number of the page
        in the later crawl."""
        for before, after in pairs:
            if is_same_status(before, after):
                self._add(before, after, *data.get(after.number, (None, None)))
            else:
                self.changes["status"].add(after.url, before.status, after.status)

    def _add(self, before: PageOutline, after: PageOutline, earlier: str | None, later: str | None) -> None:
        changed = False
        for name in FIELDS:
            if (old := getattr(before, name)) != (new := getattr(after, name)):
                self.changes[name].add(after.url, old, new)
                changed = True
        if earlier != later:
            changed |= self._add_data(after.url, _fields_of(earlier), _fields_of(later))
        if changed:
            return
        if before.content_hash != after.content_hash:
            self.changes["content"].add(after.url, before.title, after.title)
        else:
            self.same += 1

    def _add_data(self, url: str, earlier: Mapping[str, str], later: Mapping[str, str]) -> bool:
        changed = [name for name in {**earlier, **later} if earlier.get(name) != later.get(name)]
        others = []
        for name in changed:
            if self._is_listed(name):
                old, new = (fields[name][:LONGEST_VALUE] if name in fields else None for fields in (earlier, later))
                self.changes[f"{DATA}{name}"].add(url, old, new)
            else:
                others.append(name[:LONGEST_NAME])
        if others:
            self.changes[OTHER_DATA].add(url, None, ", ".join(others)[:LONGEST_VALUE])
        return bool(changed)

    def _is_listed(self, name: str) -> bool:
        return f"{DATA}{name}" in self.changes or (len(self.changes) < MOST_FIELDS and len(name) <= LONGEST_NAME)


def is_same_status(before: PageOutline, after: PageOutline) -> bool:
    return _confirmed(before.status) == _confirmed(after.status)


def _fields_of(data: str | None) -> dict[str, str]:
    """Return the fields of extracted data that have a value, as text. Other values are written as JSON."""
    found = {name: value for name, value in (orjson.loads(data) if data else {}).items() if value is not None}
    return {name: value if isinstance(value, str) else orjson.dumps(value).decode() for name, value in found.items()}


def _confirmed(status: int | None) -> int | None:
    return 200 if status == NOT_MODIFIED else status


class PageComparer:
    """Compares two crawls for the console."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = PageStore()
        self._data = PageData(database)

    async def compare(self, before: int, after: int, most: int = MOST_PAGES) -> Comparison:
        """Compare two crawls, reading at most `most` pages of each, and at most MOST_DATA characters of the data of the
        pages that both have."""
        found, old, count, room = Comparison(), dict[str, PageOutline](), 0, MOST_DATA
        async for batch in self._outlines(before):
            found.is_complete = len(old) + len(batch) <= most
            old.update((page.url, page) for page in batch[: most - len(old)])
            if not found.is_complete:
                break
        async for batch in self._outlines(after):
            pairs = []
            for page in batch[: most - count]:
                if (earlier := old.pop(page.url, None)) is not None:
                    pairs.append((earlier, page))
                else:
                    found.changes["new"].add(page.url, None, page.title)
            count += len(batch)
            room = await self._add(found, (before, after), pairs, room)
            if count > most or room < 0:
                found.is_complete = False
                break
        if found.is_complete:
            for page in old.values():
                found.changes["missing"].add(page.url, page.title, None)
        else:  # a page of one crawl may be among the unread pages of the other one
            found.changes.pop("new", None)
        return found

    async def _add(
        self, found: Comparison, crawls: tuple[int, int], pairs: list[tuple[PageOutline, PageOutline]], room: int
    ) -> int:
        """Add pages of both crawls to a comparison. Stop when more than `room` characters of data were read; return how
        many may still be read, negative if it stopped."""
        places = [
            place
            for place, (earlier, later) in enumerate(pairs)
            if (earlier.has_data or later.has_data) and is_same_status(earlier, later)
        ]
        numbers = [(pairs[place][0].number, pairs[place][1].number) for place in places]
        added = read = 0
        async for part in self._data.parts(crawls, numbers):
            data = {later: both for (_, later), both in zip(numbers[read : read + len(part)], part, strict=True)}
            read += len(part)
            upto = places[read - 1] + 1
            await asyncio.to_thread(found.add, pairs[added:upto], data)
            added = upto
            room -= sum(len(text or "") for both in part for text in both)
            if room < 0:
                return room
        await asyncio.to_thread(found.add, pairs[added:], {})
        return room

    async def _outlines(self, crawl: int) -> AsyncIterator[list[PageOutline]]:
        number = 0
        while True:
            start = number
            batch = await self._database.read(
                lambda tx: self._store.outlines_after(tx, crawl, start, BATCH)  # noqa: B023 - awaited at the same time
            )
            yield batch
            if len(batch) < BATCH:
                return
            number = batch[-1].number


SECONDS: Final = 0.05  # time spent on one request
MOST_KEPT: Final = 30  # crawls whose summaries are kept
MOST_FOLDERS: Final = 5_000
LIMITS_MS: Final = (25, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400)
OTHER: Final = ""


class PageSummary:
    """The counts of one crawl so far."""

    def __init__(self) -> None:
        self.last = 0
        self.pages = 0
        self.is_complete = False  # every stored page is counted
        self.responses: Counter[ResponseClass] = Counter()
        self.depths: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.times: Counter[int] = Counter()  # pages by the index of the first limit that they do not exceed
        self.slowest_ms = 0.0
        self.types: Counter[str] = Counter()
        self.folders: defaultdict[tuple[str, str], Counter[str]] = defaultdict(
            Counter
        )  # host, folder: pages, bad, bytes

    def add(self, page: ChartFacts) -> None:
        kind = response_class(page.status)
        self.last = page.number
        self.pages += 1
        self.responses[kind] += 1
        self.depths[page.depth][UNCHANGED if page.status == NOT_MODIFIED else kind] += 1
        if page.duration_ms is not None and page.status is not None:
            self.times[bisect_left(LIMITS_MS, page.duration_ms)] += 1
            self.slowest_ms = max(self.slowest_ms, page.duration_ms)
        if page.content_type:
            self.types[page.content_type.partition(";")[0].strip().lower()[:100]] += 1
        folder = self.folders[self._folder(page.url)]
        folder["pages"] += 1
        folder["bytes"] += page.bytes
        folder["bad"] += kind in ("4xx", "5xx", "none")

    def median_ms(self) -> float | None:
        """Return an upper bound of the median response time: the limit of the bucket with the median."""
        total, seen = sum(self.times.values()), 0
        for bucket in range(len(LIMITS_MS) + 1):
            seen += self.times[bucket]
            if total and seen * 2 >= total:
                return float(LIMITS_MS[bucket]) if bucket < len(LIMITS_MS) else self.slowest_ms
        return None

    def _folder(self, url: str) -> tuple[str, str]:
        """Return the host and the folder of a URL, two levels deep; if there are too many, one level, then none."""
        host, _, path = url.partition("://")[2].partition("/")
        parts = path.partition("?")[0].split("/", 2)
        for depth in (len(parts) - 1, min(len(parts) - 1, 1)):
            place = (host, "/" + "".join(f"{part}/" for part in parts[:depth]))
            if place in self.folders or len(self.folders) < MOST_FOLDERS:
                return place
        return host, OTHER


class PageSummaries:
    """The summaries of crawls that were viewed recently."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._store = PageStore()
        self._clock = clock
        self._kept: OrderedDict[int, PageSummary] = OrderedDict()

    async def of(self, crawl: int, responses: Mapping[ResponseClass, int], seconds: float = SECONDS) -> PageSummary:
        """Return the summary of a crawl after counting further pages for a while. `responses`: the counters of the
        crawl; if they are lower than the summary, pages were removed to be fetched again, and counting starts over."""
        summary = self._kept.pop(crawl, None) or PageSummary()
        if any(count > responses.get(kind, 0) for kind, count in summary.responses.items()):
            summary = PageSummary()
        self._kept[crawl] = summary
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        until = self._clock.monotonic() + seconds
        summary.is_complete = False
        while not summary.is_complete and self._clock.monotonic() <= until:
            after = summary.last
            facts = await self._database.read(
                lambda tx: self._store.facts_after(tx, crawl, after, BATCH)  # noqa: B023 - awaited at the same time
            )
            for page in facts:
                if page.number > summary.last:  # a different request may have counted these pages meanwhile
                    summary.add(page)
            summary.is_complete = len(facts) < BATCH
        return summary


MOST_TARGETS: Final = 1_000_000  # URLs per crawl whose links are counted, and URLs of all crawls that are kept
MOST_COUNTED: Final = 10  # crawls whose counts are kept


class LinkCounts:
    """How many pages link to each URL of a crawl, by its key, as far as it was counted."""

    def __init__(self) -> None:
        self.last = 0
        self.pages: Counter[int] = Counter()
        self.is_complete = False
        self.adding: asyncio.Task[None] | None = None

    def add(self, blobs: list[tuple[int, int, bytes]], last: int | None) -> None:
        self.pages.update(key for _, source, blob in blobs for key in unpack(blob).keys if key != source)
        self.last = self.last if last is None else last
        self.is_complete = last is None


class LinkCounters:
    """The link counts of ended crawls that were viewed recently."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._store = PageStore()
        self._clock = clock
        self._kept: OrderedDict[tuple[int, int], LinkCounts] = OrderedDict()

    async def of(self, crawl: int, ended_at: int, seconds: float) -> LinkCounts:
        """Return the link counts of a crawl that ended at `ended_at`, after counting for a while. If the crawl is
        retried and ends again, counting starts over."""
        counts = self._kept[crawl, ended_at] = self._kept.pop((crawl, ended_at), LinkCounts())
        until = self._clock.monotonic() + seconds
        while not counts.is_complete and len(counts.pages) < MOST_TARGETS and self._clock.monotonic() <= until:
            if counts.adding is None or counts.adding.done():
                counts.adding = asyncio.create_task(self._add(crawl, counts))
            await asyncio.shield(counts.adding)  # shielded: if the client leaves, these links must not be counted twice
        while len(self._kept) > 1 and (len(self._kept) > MOST_COUNTED or self._targets > MOST_TARGETS):
            self._kept.popitem(last=False)
        return counts

    async def _add(self, crawl: int, counts: LinkCounts) -> None:
        found = await self._database.read(lambda tx: self._store.links_after(tx, crawl, counts.last, BLOBS))
        await asyncio.to_thread(counts.add, *found)

    @property
    def _targets(self) -> int:
        return sum(len(counts.pages) for counts in self._kept.values())
