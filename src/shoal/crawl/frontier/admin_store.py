"""The contract of frontier administration: read, dump, load and remove the frontier of a crawl as a whole. Walkers use
`crawl/store.py`.

Nothing here is fenced: the caller makes sure, in the same transaction, that no walker has the crawl.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord, UrlKind
from shoal.crawl.states import CrawlState
from shoal.hosts.rate import HeldHost, HostState
from shoal.hosts.robots import RobotsRecord
from shoal.pages.page import Page
from shoal.queue.job import Fence
from shoal.web.page_fetcher import RedirectChain

Key = tuple[int, int]
"""The key and the check of a URL."""

Place = tuple[int, ...]
"""A cursor; only the driver knows what it means."""

LOADING = "loading"
"""The state reason of a crawl that is still being loaded."""


class KnownKey(Struct, frozen=True):
    """The hash of a URL and what became of it."""

    key: int
    chk: int
    fate: Fate


class KeptUrl(Struct, frozen=True):
    """A URL that the frontier keeps in full: open, or in quarantine. `due` is 0 if it may be fetched immediately;
    `parent` is the key of the page that linked to it."""

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

    @property
    def awaits_target(self) -> bool:
        """Return whether its redirects lead to a URL that another one has."""
        return self.chain is not None and self.chain.page is not None

    @property
    def redirects_to(self) -> str | None:
        return self.target if self.chain is None or self.chain.page is None else self.chain.page.final_url


class Waiting(Struct, frozen=True):
    """A kept URL with its context: the walker that has it, the page that linked to it, when its host may be asked."""

    kept: KeptUrl
    taken_by: Fence | None = None
    parent_url: str | None = None
    host_ready_at: int | None = None
    held: HeldHost | None = None  # its host, if the host is on hold


class UrlFacts(Struct, frozen=True):
    """Everything that the store knows about one URL."""

    fate: Fate
    waiting: Waiting | None = None
    page: Page | None = None
    sitemap: SitemapRecord | None = None
    target: RedirectTarget | None = None  # if another URL redirects to it
    source: "UrlFacts | None" = None  # what is known about that other URL
    trap: str | None = None  # the pattern that holds it in quarantine

    @property
    def parent(self) -> str | None:
        """The URL of the page or sitemap that led there."""
        if self.page is not None:
            return self.page.parent
        return None if self.waiting is None else self.waiting.parent_url


class FrontierPosition(Struct, frozen=True):
    """The state of a loaded crawl in the store that it comes from."""

    state: CrawlState
    state_reason: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None


class CrawlHost(Struct, frozen=True):
    """A host of a crawl: its pages so far, and its state, which all crawls share. Times are microseconds."""

    origin: str
    pages: int
    ready_at: int | None  # when its next URL is due; None if none waits
    state: HostState
    held_until: int
    held_status: int | None
    robots: RobotsRecord | None
    robots_hash: str | None
    robots_at: int | None


class FrontierAdminStore(Protocol):
    """The administration that differs by the driver of a frontier. Dumps are loaded into SQL (`SqlFrontierAdmin`)."""

    async def hosts(self, tx: Tx, crawl: int, limit: int) -> list[CrawlHost]:
        """Return the hosts of a crawl, those with most pages first. Reads every host of the crawl."""
        ...

    async def taken(self, tx: Tx, crawl: int) -> int:
        """Count the URLs that live or dead walkers have, from an index."""
        ...

    async def taken_urls(self, tx: Tx, crawl: int, limit: int) -> list[Waiting]:
        """Return URLs that walkers have, without the context of their hosts. When they were taken is not stored."""
        ...

    async def fate_of(self, tx: Tx, crawl: int, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        """Return what became of a URL; None if the crawl never saw it."""
        ...

    async def fates_of(self, tx: Tx, crawl: int, keys: Sequence[Key]) -> dict[Key, Fate]:
        """Return the fates of URLs that were skipped or have failed, and perhaps those of others; keys that the crawl
        never saw are omitted."""
        ...

    async def urls_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, KeptUrl]]:
        """Return kept URLs, including taken ones, by host and then in the order of taking; empty at the end."""
        ...

    async def keys_after(self, tx: Tx, crawl: int, after: Key | None, limit: int) -> list[KnownKey]:
        """Return the other URLs, by key; empty at the end."""
        ...

    async def targets_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, RedirectTarget]]:
        """Return URLs that others redirect to, by key; empty at the end."""
        ...

    async def forget(self, tx: Tx, crawl: int, limit: int) -> int:
        """Drop up to `limit` URLs, kept ones first; return how many. Open ones count as settled from then on; pages and
        counters stay. 0: nothing is left, and traps and hosts are gone too."""
        ...

    async def remove(self, tx: Tx, crawl: Crawl, limit: int) -> int:
        """Drop up to `limit` pages; return how many. 0: no page was left, and the crawl and its jobs are gone too."""
        ...

    async def unclaim(self, tx: Tx, crawl: int, fence: Fence) -> None:
        """Let others take from the hosts that this walker claimed; it keeps the URLs it has taken."""
        ...
