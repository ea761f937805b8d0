"""The interface of frontier administration, which reads, dumps, loads and removes whole frontiers. Walkers use
`crawl/store.py`.

No call of this interface is fenced: the caller makes sure, in the same transaction, that no walker works on the crawl.
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
"""A cursor, which only the driver can interpret."""

LOADING = "loading"
"""The state reason of a crawl that is still being loaded."""


class KnownKey(Struct, frozen=True):
    """The hash of a URL, and the URL's fate."""

    key: int
    chk: int
    fate: Fate


class KeptUrl(Struct, frozen=True):
    """A URL whose text the frontier keeps, because it is open or in quarantine. `due` is 0 if the URL may be fetched
    immediately; `parent` is the key of the page that linked to it."""

    url: Url
    depth: int
    fate: Fate = Fate.OPEN
    due: int = 0
    parent: int | None = None
    attempts: int = 0
    crashes: int = 0
    kind: UrlKind = UrlKind.PAGE
    target: Url | None = None  # the URL that its redirects have reached so far
    chain: RedirectChain | None = None

    @property
    def awaits_target(self) -> bool:
        """Return whether its redirects lead to a target that belongs to a different URL."""
        return self.chain is not None and self.chain.page is not None

    @property
    def redirects_to(self) -> str | None:
        return self.target if self.chain is None or self.chain.page is None else self.chain.page.final_url


class Waiting(Struct, frozen=True):
    """A kept URL with its context: the walker that has taken it, the page that linked to it, and the time when its host
    may be requested."""

    kept: KeptUrl
    taken_by: Fence | None = None
    parent_url: str | None = None
    host_ready_at: int | None = None
    held: HeldHost | None = None  # the URL's host, if that host is on hold


class UrlFacts(Struct, frozen=True):
    """Everything that the store knows about one URL."""

    fate: Fate
    waiting: Waiting | None = None
    page: Page | None = None
    sitemap: SitemapRecord | None = None
    target: RedirectTarget | None = None  # set if a different URL redirects to this URL
    source: "UrlFacts | None" = None  # the stored data of the URL that redirects here
    trap: str | None = None  # the pattern that keeps this URL in quarantine

    @property
    def parent(self) -> str | None:
        """The URL of the page or sitemap that led to this URL."""
        if self.page is not None:
            return self.page.parent
        return None if self.waiting is None else self.waiting.parent_url


class FrontierPosition(Struct, frozen=True):
    """The state of a crawl in the store from which it was dumped."""

    state: CrawlState
    state_reason: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None


class CrawlHost(Struct, frozen=True):
    """A host of a crawl: its pages so far, and its state, which all crawls share. Times are microseconds."""

    origin: str
    pages: int
    ready_at: int | None  # time when the host's next URL is due; None if no URL waits
    state: HostState
    held_until: int
    held_status: int | None
    robots: RobotsRecord | None
    robots_hash: str | None
    robots_at: int | None


class FrontierAdminStore(Protocol):
    """The administration calls that each frontier driver implements. Dumps are always loaded into SQL
    (`SqlFrontierAdmin`)."""

    async def hosts(self, tx: Tx, crawl: int, limit: int) -> list[CrawlHost]:
        """Return the hosts of a crawl, those with most pages first. Reads every host of the crawl."""
        ...

    async def taken(self, tx: Tx, crawl: int) -> int:
        """Count the URLs that live or dead walkers have taken, by reading an index."""
        ...

    async def taken_urls(self, tx: Tx, crawl: int, limit: int) -> list[Waiting]:
        """Return URLs that walkers have taken, without the context of their hosts. The time of taking is not stored."""
        ...

    async def fate_of(self, tx: Tx, crawl: int, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        """Return the stored data of a URL; None if the crawl never saw the URL."""
        ...

    async def fates_of(self, tx: Tx, crawl: int, keys: Sequence[Key]) -> dict[Key, Fate]:
        """Return the fates of URLs that were skipped or have failed. The result may also contain given URLs that have
        other fates. Keys that the crawl never saw are omitted."""
        ...

    async def urls_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, KeptUrl]]:
        """Return kept URLs, including taken URLs, by host and then in the order in which they are taken; empty at the
        end."""
        ...

    async def keys_after(self, tx: Tx, crawl: int, after: Key | None, limit: int) -> list[KnownKey]:
        """Return the URLs that are not kept in full, by key; empty at the end."""
        ...

    async def targets_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, RedirectTarget]]:
        """Return redirect targets, by key; empty at the end."""
        ...

    async def forget(self, tx: Tx, crawl: int, limit: int) -> int:
        """Drop up to `limit` URLs, kept URLs first; return the number of dropped URLs. Open URLs that are dropped count
        as settled. Pages and counters stay. If the result is 0, no URL is left, and the traps and hosts are gone,
        too."""
        ...

    async def remove(self, tx: Tx, crawl: Crawl, limit: int) -> int:
        """Drop up to `limit` pages; return the number of dropped pages. If the result is 0, no page was left, and the
        crawl and its jobs are gone, too."""
        ...

    async def unclaim(self, tx: Tx, crawl: int, fence: Fence) -> None:
        """Let other walkers take from the hosts that this walker claimed. This walker keeps the URLs it has taken."""
        ...
