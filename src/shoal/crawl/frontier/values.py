"""The values that pass between a walker and the frontier of its crawl."""

import struct
from collections import Counter
from collections.abc import Callable
from enum import Enum, IntEnum

from msgspec import Struct, field
from xxhash import xxh3_128_digest

from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import TrapState
from shoal.fetch.redirect_chain import RedirectChain
from shoal.hosts.throttle import HostNews
from shoal.pages.page import NOT_MODIFIED, Page
from shoal.pages.response_counts import count_responses
from shoal.queue.job import Fence

SUSPECT_FROM = 2  # crashes in company
CRASHES_ALONE = 3  # after that many more, alone in flight, the URL fails


class UrlKind(IntEnum):
    """What a URL is asked for. Numbers are stored: never reuse or renumber one."""

    PAGE = 0
    SITEMAP = 1  # its links open; its depth counts the indexes that led to it


def key_of(url: Url, key_seed: int, kind: UrlKind = UrlKind.PAGE) -> tuple[int, int]:
    """96 bits of the URL's hash, seeded per crawl, as two signed numbers that SQL can index. A sitemap has a key of its
    own, so that the same URL may also be a page."""
    text = f"sitemap:{url}" if kind else url
    return key_in(digest_of(text, key_seed))


def digest_of(text: str, key_seed: int) -> bytes:
    """The hash of which a key is made."""
    return xxh3_128_digest(text.encode(), key_seed)


key_in: Callable[[bytes], tuple[int, int]] = struct.Struct("<qi4x").unpack
"""The key that begins a digest: 64 bits, and 32 more as its check."""


SkippedUrl = tuple[int, int, Fate]
"""A URL that was found and will not be fetched: its key, its check, and why. Pages are full of them, so no more than
that is carried."""


class NewUrl(Struct):
    """A URL to add: open if its fate is OPEN, else recorded as skipped or held in quarantine."""

    key: int
    chk: int
    url: Url
    depth: int
    fate: Fate
    parent_key: int | None = None
    kind: UrlKind = UrlKind.PAGE


class FrontierTask(Struct):
    """A URL that was taken: this holder, and nobody else, fetches it."""

    key: int
    chk: int
    host: int
    depth: int
    seq: int  # where it stands in the line of its host; no other URL of the crawl has the same
    url: Url
    parent: str | None
    attempts: int
    crashes: int = 0
    kind: UrlKind = UrlKind.PAGE
    start_in: float = 0.0  # seconds from the take: this URL's slot with its host
    etag: str | None = None  # of the earlier crawl's page: if it still holds, the page is not sent again
    last_modified: str | None = None
    is_wary: bool = False  # its host was held: what it answers now tells whether it is well
    target: Url | None = None  # where its redirects have led so far; `host` is the host of that
    chain: RedirectChain | None = None  # the redirects that led there
    verdict: Fate | None = None  # it is not to be fetched, and no slot was reserved for it

    @property
    def at(self) -> Url:
        """The URL to ask for next: its own, or the one it redirects to."""
        return self.target or self.url

    @property
    def is_conditional(self) -> bool:
        return self.etag is not None or self.last_modified is not None

    @property
    def is_suspect(self) -> bool:
        """It was in flight when workers died, and is fetched alone until it is known whether it kills them."""
        return self.crashes >= SUSPECT_FROM

    @property
    def is_killer(self) -> bool:
        return self.crashes >= SUSPECT_FROM + CRASHES_ALONE


class SitemapRecord(Struct, frozen=True):
    """What is kept of one sitemap: what it listed, and what was wrong with it, to follow its name."""

    url: str
    fetched_at: int
    status: int | None = None
    listed: int = 0
    problem: str | None = None


class Onward(Struct, frozen=True):
    """A redirect that may be followed. The commit decides: if nobody else has fetched the target or is about to, the
    task waits for a slot of the target's host; if somebody has, it ends here with `page` as its record."""

    url: Url  # as the redirect wrote it: that is what will be asked for
    target: Url  # the same in the crawl's canonical form: that is what it is known by
    chain: RedirectChain
    page: Page
    is_new: bool = True  # not one of the URLs that this very task was at already


class RedirectTarget(Struct, frozen=True):
    """A URL that another one redirects to, and what becomes of it: its own fate is OPEN while it also waits in line."""

    url: str
    via: str
    fate: Fate


class Settled(Struct):
    """What became of a taken URL. A retry is a settle back to waiting, for `retry_in` microseconds at least. One that
    was not fetched at all (`untried`) waits in its old place again, and no attempt is counted. A redirect (`onward`) is
    FETCHED if it ended, OPEN if it goes on; the commit says which."""

    task: FrontierTask
    fate: Fate
    page: Page | None = None
    retry_in: int = 0
    untried: bool = False
    sitemap: SitemapRecord | None = None  # a sitemap has this, and never a page
    onward: Onward | None = None
    target_fate: Fate | None = None  # of the URL that its redirects led to, if that was not fetched

    @property
    def url(self) -> Url:
        return self.task.url

    @property
    def is_unchanged(self) -> bool:
        """Whether the server said that the page is as the earlier crawl knew it. A 304 that nobody asked for is not."""
        return self.page is not None and self.page.status == NOT_MODIFIED and self.task.is_conditional


class FrontierChange(Struct, kw_only=True):
    """What a call changed in the frontier. Whoever calls adds it to the crawl's counters in the same transaction."""

    opened: int = 0
    settled: int = 0
    skips: Counter[Fate] = field(default_factory=Counter)  # negative for URLs that had been skipped and are open again

    def counts(self) -> Counts:
        skipped = {fate.word: count for fate, count in self.skips.items() if count}
        return Counts(opened=self.opened, settled=self.settled, skipped=skipped)


class Added(FrontierChange, kw_only=True):
    """What became of URLs that were added."""

    new: int = 0  # URLs that were not known, skipped ones included


class Taken(FrontierChange, kw_only=True):
    """What a take gave, and what it closed because a host has given all the pages it may."""

    tasks: list[FrontierTask] = field(default_factory=list)


class Settlement(FrontierChange, kw_only=True):
    """What a walker's batch came to. `closed`: the URLs that were still the walker's and that this commit closed; their
    pages and sitemap records are to be stored beside it."""

    closed: list[Settled] = field(default_factory=list)

    @property
    def pages(self) -> list[tuple[int, int, Page]]:
        """The pages to store, each with its key and check."""
        return [(done.task.key, done.task.chk, done.page) for done in self.closed if done.page is not None]

    @property
    def sitemaps(self) -> list[tuple[tuple[int, int], SitemapRecord]]:
        """The sitemap records to store, each with its key and check."""
        return [((done.task.key, done.task.chk), done.sitemap) for done in self.closed if done.sitemap is not None]

    def counts(self, walked: int = 0) -> Counts:
        """What the crawl's counters go up by; `walked`: microseconds of work."""
        pages = [done.page for done in self.closed if done.page is not None]
        return Counts(
            opened=self.opened,
            settled=self.settled,
            pages=sum(page.status is not None for page in pages),
            errors=sum(page.error_code is not None for page in pages),
            responses=count_responses(page.status for page in pages),
            bytes=sum(page.received for page in pages),
            not_modified=sum(done.is_unchanged for done in self.closed),
            bytes_saved=sum(page.saved for page in pages),
            depth_reached=max((page.depth for page in pages if page.status is not None), default=0),
            walked=walked,
            skipped={fate.word: count for fate, count in self.skips.items() if count},
        )


class Control(Enum):
    """What the run wants of its walkers, answered by every commit."""

    GO = "go"
    PAUSE = "pause"
    STOP = "stop"


class WalkerBatch(Struct):
    """What a walker brings to one commit."""

    settled: list[Settled] = field(default_factory=list)
    found: list[NewUrl] = field(default_factory=list)
    traps: dict[str, Url] = field(default_factory=dict)  # patterns that became traps, with the URL that showed it
    walked: int = 0  # microseconds of work since the last report
    skipped: list[SkippedUrl] = field(default_factory=list)
    hosts: dict[int, HostNews] = field(default_factory=dict)  # what hosts said of themselves, if anything is new
    unchanged: list[Settled] = field(default_factory=list)  # those of the settled whose facts are still to be recalled

    @property
    def weight(self) -> int:
        """How many URLs it brings to the frontier."""
        return len(self.found) + len(self.skipped)

    @property
    def has_tries(self) -> bool:
        """Whether anything was settled that was not only put back."""
        return any(not done.untried for done in self.settled)

    def __bool__(self) -> bool:
        return bool(self.settled or self.found or self.skipped or self.traps or self.hosts)


class Turn(Struct):
    """What one commit answers: go on or not, what was taken, and if nothing, why.

    An empty `work` is not the end: `wait_seconds` says when to ask again; only `drained` means that all is settled.
    """

    control: Control
    work: list[FrontierTask] = field(default_factory=list)
    traps: dict[str, TrapState] = field(default_factory=dict)
    counts: Counts | None = None  # of the whole crawl, if it has a budget
    holds: dict[int, float] = field(default_factory=dict)  # for how many seconds hosts of the report are held
    wait_seconds: float | None = None  # None: nobody asked when the next URL is due
    drained: bool = False
    is_told: bool = False  # what the walker had to tell is in the journal
    found: int | None = None  # how many URLs the journal was told of, if it was
    finished: int | None = None  # the depth that was found to be finished, if it was asked for
    changed: Crawl | None = None  # the crawl with the options that were given to it meanwhile; then nothing was taken
    others_wait: bool = False  # another run waits for a worker, and this walker has had its slice


__all__ = [
    "Control",
    "Fence",
    "FrontierTask",
    "NewUrl",
    "Settled",
    "SitemapRecord",
    "Turn",
    "UrlKind",
    "WalkerBatch",
    "key_of",
]
