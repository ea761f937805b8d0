"""Known URLs: the URLs of the previous crawl, if this crawl repeats one, and the URLs that were committed."""

from collections.abc import Collection, Container, Sequence
from typing import cast

from msgspec import Struct

from shoal.base.database import Database, Tx
from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.frontier.fates import Fate, Trap, TrapState
from shoal.crawl.frontier.values import FrontierTask, UrlKind, digest_of, key_in
from shoal.crawl.states import DRAINED, CrawlState
from shoal.pages.links import unpack
from shoal.pages.page import Page
from shoal.pages.store import PageStore, Validators

BORDERS = (
    *("scope", "include", "exclude", "robots", "sitemap", "max_pages_per_host"),
    *("sort_query", "drop_params", "keep_params", "tracking_params", "session_params"),
)
"""The options that decide, together with the seeds and the depth, which links of a page are fetched."""

READING = ("analyze", "rules", "hooks")
"""Options that add data to a page record. An unchanged page has this data only if the previous crawl had the same
options."""

MOST_URLS = 100_000  # cached by key, because most links of a site appear on most of its pages


class RecalledPage(Struct, frozen=True):
    """A page of the previous crawl, and the target URLs of its followed links."""

    page: Page
    urls: list[Url]


class PreviousCrawl:
    """The previous crawl, read by one walker. The previous crawl has ended, so it does not change."""

    def __init__(self, database: Database, crawl: Crawl, config: CrawlConfig, *, is_whole: bool) -> None:
        self._database = database
        self._pages = PageStore()
        self._number = crawl.number
        self._depth = config.deepest
        self._with_details = config.analyze or config.links
        same = all(getattr(config, name) == getattr(crawl.config, name) for name in READING)
        same = same and config.links <= crawl.config.links
        self._reads_the_same = same and config.keep_bodies <= crawl.config.keep_bodies
        self._same_borders = _same_borders(config, crawl.config)
        self._is_trusted = is_whole and self._same_borders and config.deepest <= crawl.config.deepest
        self._urls: dict[int, Url] = {}

    async def prepare(self, tx: Tx, tasks: list[FrontierTask]) -> None:
        """Copy validators from the previous crawl to tasks that were just taken. If the previous depth of a task's page
        was smaller, copy that depth, too."""
        if not (self._reads_the_same or self._same_borders):
            return
        asked = {(task.key, task.chk): task for task in tasks if task.kind is UrlKind.PAGE and task.chain is None}
        found = await self._pages.validators(tx, self._number, [key for key, _ in asked]) if asked else []
        doubtful: list[tuple[FrontierTask, Validators, list[int]]] = []
        for row in found:
            task = asked.get((row.key, row.chk))
            if task is None:
                continue
            if self._same_borders:  # responses for unchanged pages arrive sooner, so longer paths may be found first
                task.depth = min(task.depth, row.depth)
            if not (self._reads_the_same and row.is_condition):
                continue
            if task.depth >= self._depth or (self._is_trusted and task.depth >= row.depth):
                task.etag, task.last_modified = row.etag, row.last_modified
            elif self._same_borders and row.links is not None:
                doubtful.append((task, row, unpack(row.links).followed()))
        if doubtful:
            await self._make_conditional(tx, doubtful)

    async def recall(self, tasks: list[FrontierTask]) -> dict[tuple[int, int], RecalledPage]:
        """Return the previous records of these pages, by key and check. If the previous crawl was deleted, its pages
        are missing."""

        async def look(tx: Tx) -> dict[tuple[int, int], RecalledPage]:
            depths = {(task.key, task.chk): task.depth for task in tasks}
            keys = [key for key, _ in depths]
            rows = await self._pages.of_keys(tx, self._number, keys, details=self._with_details)
            pages = {(key, chk): page for key, chk, page in rows if (key, chk) in depths}
            links = {place: self._followed(page) for place, page in pages.items() if depths[place] < self._depth}
            await self._learn(tx, {key for followed in links.values() for key in followed})
            urls = {place: [self._urls[key] for key in keys if key in self._urls] for place, keys in links.items()}
            return {place: RecalledPage(page, urls.get(place, [])) for place, page in pages.items()}

        return await self._database.read(look)

    async def _make_conditional(self, tx: Tx, doubtful: list[tuple[FrontierTask, Validators, list[int]]]) -> None:
        """Make the request for a page conditional if the previous crawl fetched all links of the page. Only then are
        their URLs known, and the links can be followed even if the page is unchanged."""
        await self._learn(tx, {key for _, _, followed in doubtful for key in followed})
        for task, row, followed in doubtful:
            if all(key in self._urls for key in followed):
                task.etag, task.last_modified = row.etag, row.last_modified

    async def _learn(self, tx: Tx, keys: set[int]) -> None:
        """Look up the URLs for these keys."""
        missing = sorted(keys - self._urls.keys())
        if missing:
            if len(self._urls) + len(missing) > MOST_URLS:
                self._urls = {}
                missing = sorted(keys)
            self._urls |= await self._pages.urls_of(tx, self._number, missing)

    @staticmethod
    def _followed(page: Page) -> list[int]:
        return [] if page.links is None else unpack(page.links).followed()


def is_whole(crawl: Crawl, counts: Counts, traps: list[Trap]) -> bool:
    """Return whether every link of the crawl was either fetched or skipped for a reason that still holds.

    Links in quarantine or over the page limit of their host do not count: the next crawl may fetch them.
    """
    drained = (crawl.state, crawl.state_reason) == (CrawlState.COMPLETED, DRAINED)
    held = any(trap.state is TrapState.QUARANTINED for trap in traps)
    return drained and not held and Fate.SKIPPED_HOST_BUDGET.word not in counts.skipped


def _same_borders(mine: CrawlConfig, theirs: CrawlConfig) -> bool:
    same = all(getattr(mine, name) == getattr(theirs, name) for name in BORDERS)
    return same and set(mine.seeds) == set(theirs.seeds) and not mine.more_seeds and not theirs.more_seeds


MOST_INSIDE = 50_000  # URLs per generation: about 10 MB
MOST_OUTSIDE = 10_000  # most of these URLs occur only once, the rest on every page
MOST_EACH = 200  # characters, on average: if URLs are longer, fewer are cached
PACKED = 8  # bytes at the start of a digest: its packed key

Key = tuple[int, int]


class Generations:
    """Two generations of URLs: when the young generation is full, it replaces the old generation."""

    __slots__ = ("_most", "length", "old", "young")

    def __init__(self, most: int) -> None:
        self._most = most
        self.length = 0  # total length of the young URLs, in characters
        self.young: dict[Url, bytes] = {}
        self.old: dict[Url, bytes] = {}

    def grow_old(self) -> None:
        """Start a new generation if the young generation is full."""
        if len(self.young) >= self._most or self.length >= self._most * MOST_EACH:
            self.old, self.young, self.length = self.young, {}, 0


class SeenCache:
    """Caches URLs in scope and URLs out of scope separately, so that the many out-of-scope URLs that occur only once do
    not evict URLs in scope.

    The cache holds only URLs that were sent to the store, so a hit is always right, and a miss only costs a query. Keys
    are stored packed, as in a page's link blob.
    """

    def __init__(self, key_seed: int, inside: int = MOST_INSIDE, outside: int = MOST_OUTSIDE) -> None:
        self._key_seed = key_seed
        self._inside = Generations(inside)
        self._outside = Generations(outside)

    @property
    def texts(self) -> Container[str]:
        """The texts that are known to be canonical URLs."""
        return self._inside.young

    def add(self, urls: Collection[Url], in_scope: Sequence[bool]) -> tuple[list[bytes], dict[Url, Key]]:
        """Add distinct URLs. Return the packed keys of all these URLs, and the keys of the URLs that were not in the
        cache."""
        keys = list(map(self._inside.young.get, urls))
        unknown = self._fill(urls, in_scope, keys) if None in keys else {}
        return cast("list[bytes]", keys), unknown

    def packed(self, url: Url) -> bytes:
        """Return the packed key of a URL without adding it."""
        return digest_of(url, self._key_seed)[:PACKED]

    def _fill(self, urls: Collection[Url], in_scope: Sequence[bool], keys: list[bytes | None]) -> dict[Url, Key]:
        sides, seed = (self._outside, self._inside), self._key_seed
        unknown: dict[Url, Key] = {}
        for place, url in enumerate(urls):
            if keys[place] is None:
                side = sides[in_scope[place]]
                packed = side.young.get(url) or side.old.get(url)
                if packed is None:
                    digest = digest_of(url, seed)
                    unknown[url] = key_in(digest)
                    packed = digest[:PACKED]
                side.young[url] = keys[place] = packed
                side.length += len(url)
        for side in sides:
            side.grow_old()
        return unknown
