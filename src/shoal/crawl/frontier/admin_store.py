"""The archive contract: the frontier of one crawl looked at and moved as a whole. What walkers do to it is `store.py`.

Nothing here is fenced: whoever calls makes sure, in the same transaction, that no walker holds the crawl.
"""

from dataclasses import dataclass, field
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import Trap
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord, UrlKind
from shoal.crawl.states import CrawlState
from shoal.fetch.redirect_chain import RedirectChain
from shoal.hosts.rate import HeldHost
from shoal.pages.page import Page
from shoal.queue.job import Fence

Key = tuple[int, int]
"""What a URL is known by: its key and its check."""

Place = tuple[int, ...]
"""Where a reading stopped; what is in it is the driver's business."""

LOADING = "loading"
"""Why a crawl is stopped that is still being received."""


@dataclass(frozen=True, slots=True)
class FrontierStats:
    """A recount of one frontier."""

    waiting: int = 0  # due now, and nobody has it
    later: int = 0  # not before a moment to come
    taken: int = 0
    hosts: int = 0  # that have something waiting, due or not
    settled: dict[str, int] = field(default_factory=dict)  # by the word of their fate

    @property
    def open(self) -> int:
        return self.waiting + self.later + self.taken

    @property
    def seen(self) -> int:
        return self.open + sum(self.settled.values())


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A URL of which only the hash is known, and what became of it."""

    key: int
    chk: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class KeptUrl:
    """A URL that the frontier keeps whole: open, or in quarantine. `due` is 0 if it may be fetched at once, `parent`
    the key of the page that linked to it."""

    url: Url
    depth: int
    fate: Fate = Fate.OPEN
    due: int = 0
    parent: int | None = None
    attempts: int = 0
    crashes: int = 0
    kind: UrlKind = UrlKind.PAGE
    target: Url | None = None  # where its redirects have led so far
    chain: RedirectChain | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of a kept URL besides itself: who has it, who linked to it, when its host may be asked."""

    kept: KeptUrl
    taken_by: Fence | None = None
    parent_url: str | None = None
    host_ready_at: int | None = None
    held: HeldHost | None = None  # its host, if that is held just now


@dataclass(frozen=True, slots=True)
class UrlFacts:
    """Everything that the store knows of one URL."""

    fate: Fate
    waiting: Waiting | None = None
    page: Page | None = None
    sitemap: SitemapRecord | None = None
    target: RedirectTarget | None = None  # if another URL redirects to it
    source: "UrlFacts | None" = None  # what is known of that other URL

    @property
    def parent(self) -> str | None:
        """The page, or the sitemap, that led there."""
        if self.page is not None:
            return self.page.parent
        return None if self.waiting is None else self.waiting.parent_url


@dataclass(frozen=True, slots=True)
class FrontierPosition:
    """Where a crawl stood in the store that it comes from."""

    state: CrawlState
    state_reason: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None


class FrontierAdminStore(Protocol):
    async def stats(self, tx: Tx, crawl: int) -> FrontierStats:
        """Count everything anew: as long as the frontier is large. Counters that never lie are `CrawlStore.counts`."""
        ...

    async def taken(self, tx: Tx, crawl: int) -> int:
        """How many URLs are taken just now, by living holders or dead ones; read from an index."""
        ...

    async def fate_of(self, tx: Tx, crawl: int, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        """What became of a URL; None if the crawl never saw it."""
        ...

    async def sitemap(self, tx: Tx, crawl: int, key: Key) -> SitemapRecord | None:
        """What is kept of a sitemap; None if there is none of this key, or it was not asked for yet."""
        ...

    async def urls_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, KeptUrl]]:
        """Kept URLs, taken ones too, in the order in which each host's would be taken. An empty answer is the end."""
        ...

    async def keys_after(self, tx: Tx, crawl: int, after: Key | None, limit: int) -> list[KnownKey]:
        """The other URLs, by key. An empty answer is the end."""
        ...

    async def receive(
        self, tx: Tx, crawl_id: CrawlId, config: CrawlConfig, named: list[str], key_seed: int
    ) -> int | None:
        """Make room for a crawl of another store, stopped for `LOADING`, so that nothing can happen to it; its number
        here. None if the id is taken."""
        ...

    async def keep_urls(self, tx: Tx, crawl: int, urls: list[tuple[Key, KeptUrl]]) -> int:
        """Add kept URLs, behind each other as given; how many were not known. Nothing is counted: see `keep_counts`."""
        ...

    async def keep_keys(self, tx: Tx, crawl: int, keys: list[KnownKey]) -> int:
        """Add known keys; how many were not known here. Nothing is counted."""
        ...

    async def keep_traps(self, tx: Tx, crawl: int, traps: list[Trap]) -> int:
        """Add patterns, as they were decided; how many were not known."""
        ...

    async def sitemaps_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, SitemapRecord]]:
        """Sitemaps in the order of their keys. An empty answer is the end."""
        ...

    async def keep_sitemaps(self, tx: Tx, crawl: int, sitemaps: list[tuple[Key, SitemapRecord]]) -> int:
        """Keep what another store knew of sitemaps; how many were new."""
        ...

    async def targets_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, RedirectTarget]]:
        """URLs that others redirect to, in the order of their keys. An empty answer is the end."""
        ...

    async def keep_targets(self, tx: Tx, crawl: int, targets: list[tuple[Key, RedirectTarget]]) -> int:
        """Keep which URLs redirect to which, as another store knew it; how many were new."""
        ...

    async def keep_pages_of(self, tx: Tx, crawl: int, pages: dict[str, int]) -> None:
        """Raise how many pages each origin has given to this crawl."""
        ...

    async def keep_counts(self, tx: Tx, crawl: int, counts: Counts) -> None:
        """Add what the crawl had done where it comes from."""
        ...

    async def admit(self, tx: Tx, crawl: int, standing: FrontierPosition) -> bool:
        """A received crawl is whole: it stands where it stood. False if it is not one that is being received."""
        ...

    async def forget(self, tx: Tx, crawl: int, limit: int) -> int:
        """Drop up to `limit` URLs, kept ones first; how many. Open ones count as settled from then on, pages and
        counters stay. 0: nothing is left, patterns and hosts are gone too."""
        ...

    async def remove(self, tx: Tx, crawl: Crawl, limit: int) -> int:
        """Drop up to `limit` pages; how many. 0: no page was left, and the crawl with its jobs is gone too."""
        ...

    async def unclaim(self, tx: Tx, crawl: int, holder: Fence) -> None:
        """Let others take from the hosts that this holder claimed; what it has taken stays its own."""
        ...
