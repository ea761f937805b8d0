"""Counts over the pages of a crawl, for charts: by depth and status class, response time, content type and folder.

A summary is built once from all pages and then continued with the new ones, so watching a crawl costs only what it
adds. It is kept in memory; another controller builds its own.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Final

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.pages.page import NOT_MODIFIED
from shoal.pages.response_counts import UNCHANGED, ResponseClass, response_class
from shoal.pages.store import ChartFacts, PageStore

BATCH: Final = 2_000
SECONDS: Final = 0.05  # time spent on one request
MOST_KEPT: Final = 30  # crawls
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
        self.times: Counter[int] = Counter()  # by the index of the first limit that is not exceeded
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
            self.times[_bucket(page.duration_ms)] += 1
            self.slowest_ms = max(self.slowest_ms, page.duration_ms)
        if page.content_type:
            self.types[page.content_type.partition(";")[0].strip().lower()[:100]] += 1
        folder = self.folders[self._folder(page.url)]
        folder["pages"] += 1
        folder["bytes"] += page.bytes
        folder["bad"] += kind in ("4xx", "5xx", "none")

    def median_ms(self) -> float | None:
        """Return an upper bound of the median response time: the limit of the bucket that has it."""
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


def _bucket(milliseconds: float) -> int:
    return next((place for place, limit in enumerate(LIMITS_MS) if milliseconds <= limit), len(LIMITS_MS))


class PageSummaries:
    """The summaries of the crawls that somebody looked at lately."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._store = PageStore()
        self._clock = clock
        self._kept: OrderedDict[int, PageSummary] = OrderedDict()

    async def of(self, crawl: int, responses: Mapping[ResponseClass, int], seconds: float = SECONDS) -> PageSummary:
        """Return the summary of a crawl, continued for a while. `responses`: the counters of the crawl; if they are
        lower, pages were removed to be fetched again, and counting starts over."""
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
                lambda tx: self._store.facts_after(tx, crawl, after, BATCH)  # noqa: B023 - awaited at once
            )
            for page in facts:
                if page.number > summary.last:  # another request may have continued meanwhile
                    summary.add(page)
            summary.is_complete = len(facts) < BATCH
        return summary
