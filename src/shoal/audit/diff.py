"""Compares two crawls: which pages and findings are new, gone or changed."""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from shoal.audit.analysis import Analysis
from shoal.audit.diff_formats import Change, CodeDiff, DiffRow, DiffSummary, FindingDiff
from shoal.audit.finding import RANKS, Finding, FindingCount
from shoal.audit.site_store import COMPARED_COLUMNS, SiteStore
from shoal.audit.states import AnalysisState
from shoal.audit.store import AnalysisStore, FindingPlace
from shoal.base.database import MOST_READ, Database, Tx
from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.crawl.crawl import Crawl
from shoal.crawl.states import SETTLED
from shoal.crawl.store import CrawlStore
from shoal.pages.page import NOT_MODIFIED
from shoal.pages.pages import PageData

FIELDS: Final = (
    *("status", "error_code", "final_url", "content_type", "title", "description", "canonical", "robots"),
    *("lang", "h1", "word_count", "content_hash"),
)
"""The fields that are compared: the content and the response of a page, but not when or how fast it was fetched, or on
which path it was found. The fields of `data` are compared as well, each under its own name."""
NAMES: Final = {"error_code": "error"}
"""Fields whose public name differs."""

_NUMBER, _URL, _HAS_DATA = (COMPARED_COLUMNS.index(name) for name in ("number", "url", "has_data"))
_PLACES: Final = tuple(COMPARED_COLUMNS.index(name) for name in FIELDS)
_STATUS: Final = FIELDS.index("status")
_CONFIRMED: Final = 200  # only pages with this status are requested with a condition
_DIGEST = np.dtype("S16")
NO_DATA: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class PageDigests:
    """The pages of a crawl in storage order: page numbers, a digest of each URL, and a digest of each page's compared
    fields."""

    numbers: NDArray[np.int64]
    urls: NDArray[np.bytes_]
    contents: NDArray[np.uint64]

    @classmethod
    def joined(cls, parts: "Sequence[PageDigests]") -> "PageDigests":
        empty = digest([], 0)
        parts = [empty, *parts]
        return cls(
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.urls for part in parts]),
            np.concatenate([part.contents for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class PagePairs:
    """Page numbers: `added` from the later crawl, `removed` from the earlier crawl, and `changed` as pairs with one
    number from each."""

    added: NDArray[np.int64]
    removed: NDArray[np.int64]
    changed: tuple[NDArray[np.int64], NDArray[np.int64]]
    unchanged: int


def digest(rows: Sequence[Sequence[Any]], seed: int, data: Mapping[int, int] = NO_DATA) -> PageDigests:
    """Return the digests of rows of `COMPARED_COLUMNS`. `data`: the digests of their data by page number. A secret
    `seed` keeps sites from constructing hash collisions."""
    count = len(rows)
    return PageDigests(
        np.fromiter((row[_NUMBER] for row in rows), np.int64, count),
        np.fromiter((xxh3_128_digest(row[_URL].encode("utf-8", "replace"), seed) for row in rows), _DIGEST, count),
        np.fromiter(
            (xxh3_64_intdigest(orjson.dumps([values_of(row), data.get(row[_NUMBER])]), seed) for row in rows),
            np.uint64,
            count,
        ),
    )


def digest_data(numbers: Sequence[int], data: Sequence[str | None], seed: int) -> dict[int, int]:
    """Return digests of extracted data by page number; pages without values are omitted. The order of the fields does
    not matter."""
    return {
        number: xxh3_64_intdigest(orjson.dumps(values, option=orjson.OPT_SORT_KEYS), seed)
        for number, text in zip(numbers, data, strict=True)
        if (values := data_of(text))
    }


def compare(before: PageDigests, after: PageDigests) -> PagePairs:
    """Join the pages of two crawls on their URLs."""
    order = np.argsort(before.urls, kind="stable")
    if not len(order):
        return PagePairs(after.numbers, before.numbers, (after.numbers[:0], after.numbers[:0]), 0)
    places = np.minimum(np.searchsorted(before.urls, after.urls, sorter=order), len(order) - 1)
    matches = order[places]
    found = before.urls[matches] == after.urls
    gone = np.ones(len(order), bool)
    gone[matches[found]] = False
    differs = found & (before.contents[matches] != after.contents)
    changed = (before.numbers[matches[differs]], after.numbers[differs])
    return PagePairs(after.numbers[~found], before.numbers[gone], changed, int(np.count_nonzero(found & ~differs)))


def values_of(row: Sequence[Any]) -> list[Any]:
    """Return the compared fields of a row of `COMPARED_COLUMNS`. A 304 counts as the status of the page that it
    confirms."""
    values = [row[place] for place in _PLACES]
    if values[_STATUS] == NOT_MODIFIED:
        values[_STATUS] = _CONFIRMED
    return values


def data_of(text: str | None) -> dict[str, Any]:
    """Return the extracted data of a page by field."""
    return orjson.loads(text) if text else {}


def in_text(value: Any) -> str | int | None:
    """Return a value of `data` as a diff shows it: lists, objects and fractions as JSON."""
    return value if value is None or isinstance(value, str | int) else orjson.dumps(value).decode()


def url_of(row: Sequence[Any]) -> str:
    return str(row[_URL])


def number_of(row: Sequence[Any]) -> int:
    return int(row[_NUMBER])


_Rows = Mapping[int, Sequence[Any]]
BATCH: Final = 5_000
LARGEST_KEY: Final = (1 << 63) - 1


class CrawlDiff:
    """The differences between two crawls that have ended; made by `CrawlDiffs.open`."""

    def __init__(
        self,
        database: Database,
        sites: SiteStore,
        analyses: AnalysisStore,
        crawls: tuple[Crawl, Crawl],
        pairs: PagePairs,
        summary: DiffSummary,
    ) -> None:
        self._database = database
        self._sites = sites
        self._data = PageData(database)
        self._analyses = analyses
        self._before, self._after = crawls
        self._pairs = pairs
        self.summary = summary
        """The summary: complete once all rows have been read; its page counts are known immediately."""

    async def rows(self) -> AsyncIterator[list[DiffRow]]:
        """Yield all differences in batches: pages added, removed, changed, then findings by code."""
        fields: Counter[str] = Counter()
        async for rows in self._listed(self._after, self._pairs.added.tolist(), Change.ADDED):
            yield rows
        async for rows in self._listed(self._before, self._pairs.removed.tolist(), Change.REMOVED):
            yield rows
        async for rows in self._changed():
            yield rows
            # Not on the event loop, which also gets its turn between the batches this way: a part of the data may make
            # many of them.
            fields.update(await asyncio.to_thread(Counter, [row.field for row in rows if row.field is not None]))
        names = [NAMES.get(one, one) for one in FIELDS]
        in_order = [*names, *sorted(fields.keys() - set(names))]
        self.summary.fields = {name: fields[name] for name in in_order if fields[name]}
        async for rows in self._findings():
            yield rows

    async def _listed(self, crawl: Crawl, numbers: list[int], change: Change) -> AsyncIterator[list[DiffRow]]:
        for start in range(0, len(numbers), BATCH):
            rows = await self._read(crawl, numbers[start : start + BATCH])
            yield [DiffRow(change, url_of(row)) for row in rows.values()]

    async def _changed(self) -> AsyncIterator[list[DiffRow]]:
        numbers_before, numbers_after = (numbers.tolist() for numbers in self._pairs.changed)
        for start in range(0, len(numbers_after), BATCH):
            some = numbers_before[start : start + BATCH], numbers_after[start : start + BATCH]
            earlier, later = await self._read(self._before, some[0]), await self._read(self._after, some[1])
            async for pairs, data in self._with_data(earlier, later, list(zip(*some, strict=True))):
                rows = await asyncio.to_thread(_changes, earlier, later, pairs, data)
                for first in range(0, len(rows), BATCH):
                    yield rows[first : first + BATCH]

    async def _with_data(
        self, earlier: _Rows, later: _Rows, pairs: list[tuple[int, int]]
    ) -> AsyncIterator[tuple[list[tuple[int, int]], Sequence[tuple[str | None, ...]]]]:
        """Yield the pages with these numbers in their order, with their data, as many as may be read together; pages of
        a crawl that was removed meanwhile are left out."""
        pairs = [(old, new) for old, new in pairs if old in earlier and new in later]
        if not any(earlier[old][_HAS_DATA] or later[new][_HAS_DATA] for old, new in pairs):
            yield pairs, [(None, None)] * len(pairs)
            return
        read = 0
        async for data in self._data.parts((self._before.number, self._after.number), pairs):
            yield pairs[read : read + len(data)], data
            read += len(data)

    async def _read(self, crawl: Crawl, numbers: Sequence[int]) -> dict[int, Sequence[Any]]:
        rows = await self._database.read(lambda tx: self._sites.pages_numbered(tx, crawl.number, numbers))
        return {number_of(row): row for row in rows}

    async def _findings(self) -> AsyncIterator[list[DiffRow]]:
        missing: set[str] = set()  # analyzers that failed or were skipped, so their findings are unknown

        async def read(tx: Tx) -> list[tuple[Analysis, list[FindingCount]]]:
            found = []
            for crawl in (self._before, self._after):
                for one in await self._analyses.page_of(tx, None, 1, AnalysisState.SUCCESS, crawl.id):
                    found.append((one, await self._analyses.counts(tx, one)))
                    outcomes = await self._analyses.outcomes(tx, one)
                    missing.update(outcome.analyzer for outcome in outcomes if outcome.missing is not None)
            return found

        analyzed = await self._database.read(read)
        if len(analyzed) < 2:
            return
        (before, counts_before), (after, counts_after) = analyzed
        known = {count.code: count for count in [*counts_before, *counts_after]}
        result = self.summary.findings = FindingDiff(before.id, after.id, [])
        for code in sorted(known, key=lambda code: (RANKS[known[code].severity], code)):
            compared = CodeDiff(code, known[code].severity)
            result.codes.append(compared)
            if known[code].analyzer in missing:
                compared.complete = False
                continue
            earlier = await self._keys(before, code, counts_before)
            later = await self._keys(after, code, counts_after)
            limit = min(earlier.limit, later.limit)
            compared.complete = limit == LARGEST_KEY
            async for batch in self._of_code(after, code):
                yield _finding_rows(batch, earlier.keys, (Change.OPEN, Change.NEW), limit, compared)
            async for batch in self._of_code(before, code):
                yield _finding_rows(batch, later.keys, (None, Change.FIXED), limit, compared)

    async def _keys(self, analysis: Analysis, code: str, counts: list[FindingCount]) -> "_Keys":
        keys = {one.key for batch in [part async for part in self._of_code(analysis, code)] for one in batch}
        whole = all(count.stored == count.count for count in counts if count.code == code)
        return _Keys(keys, LARGEST_KEY if whole else max(keys, default=-LARGEST_KEY))

    async def _of_code(self, analysis: Analysis, code: str) -> AsyncIterator[list[Finding]]:
        after: FindingPlace | None = None
        while True:
            place = after
            found = await self._database.read(
                lambda tx, place=place: self._analyses.findings(tx, analysis, place, BATCH, code)  # type: ignore[misc]
            )
            if not found:
                return
            yield [finding for _, finding in found]
            after = found[-1][0]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The stored keys of a code. `limit`: all keys up to this one are stored."""

    keys: set[int]
    limit: int


def _finding_rows(
    batch: list[Finding], other: set[int], meaning: tuple[Change | None, Change], limit: int, counts: CodeDiff
) -> list[DiffRow]:
    """Return a row for each finding of one analysis; `meaning`: first the kind of change for findings that the other
    analysis also has, then the kind for findings that it lacks."""
    rows = []
    for finding in batch:
        change = meaning[0] if finding.key in other else meaning[1]
        if change is None or finding.key > limit:
            continue
        name = change.removeprefix("finding_")
        setattr(counts, name, getattr(counts, name) + 1)
        rows.append(DiffRow(change, finding.page, code=finding.code, severity=finding.severity.value))
    return rows


def _changes(
    earlier: _Rows, later: _Rows, pairs: Sequence[tuple[int, int]], data: Sequence[tuple[str | None, ...]]
) -> list[DiffRow]:
    """Return the changes of the pages with these numbers and this data."""
    return [
        change
        for (old, new), both in zip(pairs, data, strict=True)
        for change in _field_changes(earlier[old], later[new], *map(data_of, both))
    ]


def _field_changes(
    before: Sequence[Any], after: Sequence[Any], earlier: Mapping[str, Any], later: Mapping[str, Any]
) -> list[DiffRow]:
    pairs = zip(FIELDS, values_of(before), values_of(after), strict=True)
    changes = [(NAMES.get(name, name), old, new) for name, old, new in pairs if old != new]
    changes += [
        (f"data.{name}", in_text(earlier.get(name)), in_text(later.get(name)))
        for name in sorted(earlier.keys() | later.keys())
        if earlier.get(name) != later.get(name)
    ]
    return [DiffRow(Change.CHANGED, url_of(after), *change) for change in changes]


class CrawlDiffs:
    """Makes diffs. Only one diff at a time reads the pages of its crawls, because two would slow each other down."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sites = SiteStore()
        self._data = PageData(database)
        self._analyses = AnalysisStore()
        self._crawls = CrawlStore()
        self._reading = asyncio.Semaphore(1)

    async def open(self, before: str, after: str) -> CrawlDiff:
        """Compare the pages of two crawls that have ended; raise if one is missing or still running."""
        if before == after:
            raise InvalidInput("against", f'is "{before}", the same crawl', "name two crawls")
        crawls = (await self._find(before), await self._find(after))
        seed = secrets.randbits(63)
        async with self._reading:
            earlier, later = [await self._columns(crawl, seed) for crawl in crawls]
            pairs = await asyncio.to_thread(compare, earlier, later)
        summary = DiffSummary(
            before=before,
            after=after,
            pages_before=len(earlier.numbers),
            pages_after=len(later.numbers),
            added=len(pairs.added),
            removed=len(pairs.removed),
            changed=len(pairs.changed[0]),
            unchanged=pairs.unchanged,
        )
        return CrawlDiff(self._database, self._sites, self._analyses, crawls, pairs, summary)

    async def _find(self, crawl_id: str) -> Crawl:
        found = await self._database.read(lambda tx: self._crawls.get(tx, crawl_id))
        if found is None:
            raise NotFound("crawl", crawl_id)
        if found.state not in SETTLED:
            raise StateConflict("crawl", crawl_id, found.state, "be compared", "wait until it has ended")
        return found

    async def _columns(self, crawl: Crawl, seed: int) -> PageDigests:
        parts: list[PageDigests] = []
        number = 0
        while True:
            after = number
            rows = await self._database.read(
                lambda tx, after=after: self._sites.compared_after(tx, crawl.number, after, BATCH)  # type: ignore[misc]
            )
            if not rows:
                return PageDigests.joined(parts)
            numbers, data, read = [number_of(row) for row in rows if row[_HAS_DATA]], dict[int, int](), 0
            async for part in self._data.parts((crawl.number,), [(one,) for one in numbers]):
                some = numbers[read : read + len(part)]
                data |= await asyncio.to_thread(digest_data, some, [text for (text,) in part], seed)
                read += len(part)
            parts.append(await asyncio.to_thread(digest, rows, seed, data))
            number = number_of(rows[-1])


async def first_rows(diff: CrawlDiff, limit: int) -> list[DiffRow]:
    """Read all rows, which completes the summary; return the first ones of each kind, fewer than `limit` if their
    values are large."""
    kept: dict[Change, list[DiffRow]] = {change: [] for change in Change}
    room = dict.fromkeys(Change, MOST_READ)
    async for rows in diff.rows():
        for row in rows:
            if len(kept[row.change]) < limit and room[row.change] > 0:
                kept[row.change].append(row)
                room[row.change] -= sum(len(value) for value in (row.before, row.after) if isinstance(value, str))
    return [row for rows in kept.values() for row in rows]
