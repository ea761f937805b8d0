"""The crawl that a recrawl follows: what to say to servers so that they need not send again what has not changed, and
what was known of such a page.

Both crawls hash URLs with the same seed, so a page of the one is looked up by the key of the other. Whether a page may
be asked for under a condition depends on its links: those of an unchanged page are followed from what the earlier crawl
stored, and a link that it did not fetch it knows by its key alone.
"""

from collections.abc import Iterable

from msgspec import Struct

from shoal.base.database import Database, Tx
from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import Trap, TrapState
from shoal.crawl.frontier.values import FrontierTask, UrlKind
from shoal.crawl.states import CrawlState
from shoal.pages.links import unpack
from shoal.pages.page import Page
from shoal.pages.store import PageStore, Validators

BORDERS = (
    *("scope", "include", "exclude", "robots", "sitemap", "max_pages_per_host"),
    *("sort_query", "drop_params", "keep_params", "tracking_params", "session_params"),
)
"""What decides which links of a page are fetched, besides the seeds and the depth."""

READING = ("analyze", "rules", "hooks")
"""What is read from a page beyond its record: an unchanged page has it only if the earlier crawl read the same."""

MOST_URLS = 100_000  # remembered by key, since most links of a site are on most of its pages


class RecalledPage(Struct, frozen=True):
    """A page of the earlier crawl, and the URLs that its links are followed to."""

    page: Page
    urls: list[Url]


class PreviousCrawl:
    """One walker's view of it. It has ended, so nothing of it changes."""

    def __init__(
        self, database: Database, pages: PageStore, crawl: Crawl, config: CrawlConfig, *, is_whole: bool
    ) -> None:
        self._database = database
        self._pages = pages
        self._number = crawl.number
        self._depth = config.depth
        self._with_details = config.analyze
        same = all(getattr(config, name) == getattr(crawl.config, name) for name in READING)
        self._reads_the_same = same and config.keep_bodies <= crawl.config.keep_bodies
        self._same_borders = _same_borders(config, crawl.config)
        self._is_trusted = is_whole and self._same_borders and config.depth <= crawl.config.depth
        self._urls: dict[int, Url] = {}

    async def prepare(self, tx: Tx, tasks: list[FrontierTask]) -> None:
        """Give the tasks that were just taken what servers said about their pages last time, and their depth of then if
        that was smaller."""
        if not (self._reads_the_same or self._same_borders):
            return
        asked = {(task.key, task.chk): task for task in tasks if task.kind is UrlKind.PAGE and task.chain is None}
        found = await self._pages.validators(tx, self._number, [key for key, _ in asked]) if asked else []
        doubtful: list[tuple[FrontierTask, Validators, list[int]]] = []
        for row in found:
            task = asked.get((row.key, row.chk))
            if task is None:
                continue
            if self._same_borders:  # unchanged pages answer sooner than others, which makes other ways the first
                task.depth = min(task.depth, row.depth)
            if not (self._reads_the_same and row.is_condition):
                continue
            if task.depth >= self._depth or (self._is_trusted and task.depth >= row.depth):
                task.etag, task.last_modified = row.etag, row.last_modified
            elif self._same_borders and row.links is not None:
                doubtful.append((task, row, unpack(row.links).followed()))
        if doubtful:
            await self._judge(tx, doubtful)

    async def recall(self, tasks: list[FrontierTask]) -> dict[tuple[int, int], RecalledPage]:
        """What was known of these pages, by key and check; one that is gone with its crawl is not among them."""

        async def look(tx: Tx) -> dict[tuple[int, int], RecalledPage]:
            depths = {(task.key, task.chk): task.depth for task in tasks}
            keys = [key for key, _ in depths]
            rows = await self._pages.of_keys(tx, self._number, keys, details=self._with_details)
            pages = {(key, chk): page for key, chk, page in rows if (key, chk) in depths}
            links = {place: self._followed(page) for place, page in pages.items() if depths[place] < self._depth}
            await self._learn(tx, {key for followed in links.values() for key in followed})
            return {place: RecalledPage(page, self._known(links.get(place, []))) for place, page in pages.items()}

        return await self._database.read(look)

    async def _judge(self, tx: Tx, doubtful: list[tuple[FrontierTask, Validators, list[int]]]) -> None:
        """A page whose links lead to pages that were all fetched can be followed without being sent again."""
        await self._learn(tx, {key for _, _, followed in doubtful for key in followed})
        for task, row, followed in doubtful:
            if all(key in self._urls for key in followed):
                task.etag, task.last_modified = row.etag, row.last_modified

    async def _learn(self, tx: Tx, keys: set[int]) -> None:
        """Look up the URLs behind keys."""
        missing = sorted(keys - self._urls.keys())
        if missing:
            if len(self._urls) + len(missing) > MOST_URLS:
                self._urls = {}
                missing = sorted(keys)
            self._urls |= await self._pages.urls_of(tx, self._number, missing)

    def _known(self, keys: Iterable[int]) -> list[Url]:
        return [self._urls[key] for key in keys if key in self._urls]

    @staticmethod
    def _followed(page: Page) -> list[int]:
        return [] if page.links is None else unpack(page.links).followed()


def is_whole(crawl: Crawl, counts: Counts, traps: list[Trap]) -> bool:
    """Whether every link of the crawl was fetched, or skipped for a reason that still holds. One that is in
    quarantine, or waited at a host that gave all it may, was not: another crawl may come to fetch it."""
    drained = (crawl.state, crawl.state_reason) == (CrawlState.COMPLETED, "drained")
    held = any(trap.state is TrapState.QUARANTINED for trap in traps)
    return drained and not held and Fate.SKIPPED_HOST_BUDGET.word not in counts.skipped


def _same_borders(mine: CrawlConfig, theirs: CrawlConfig) -> bool:
    same = all(getattr(mine, name) == getattr(theirs, name) for name in BORDERS)
    return same and set(mine.seeds) == set(theirs.seeds)
