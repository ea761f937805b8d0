"""The values that pass between a walker and the frontier of its crawl."""

import struct
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, IntEnum

from msgspec import Struct, field
from msgspec.structs import replace
from xxhash import xxh3_128_digest

from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl
from shoal.crawl.frontier.fates import Fate, TrapState
from shoal.egress import Failure
from shoal.extract.flags import PageFlag
from shoal.hosts.throttle import HostUpdate
from shoal.pages.bodies import CapturedExchange
from shoal.pages.page import NOT_MODIFIED, Page, count_responses
from shoal.web.page_fetcher import RedirectChain

STAYED_EMPTY = int(PageFlag.STAYED_EMPTY)  # quicker to compare with than a flag
SUSPECT_FROM = 2  # crashes while other URLs were in flight
CRASHES_ALONE = 3  # after this many more crashes, alone in flight, the URL fails


class UrlKind(IntEnum):
    """The purpose of a URL: page or sitemap. The numbers are stored: never reuse or renumber one."""

    PAGE = 0
    SITEMAP = 1  # its links open; its depth counts the indexes that led to it


def key_of(url: Url, key_seed: int, kind: UrlKind = UrlKind.PAGE) -> tuple[int, int]:
    """96 bits of the URL's hash, seeded per crawl, as two signed numbers that SQL can index. A sitemap has its own key,
    so that the same URL may also be a page."""
    text = f"sitemap:{url}" if kind else url
    return key_in(digest_of(text, key_seed))


def digest_of(text: str, key_seed: int) -> bytes:
    """The hash of which a key is made."""
    return xxh3_128_digest(text.encode(), key_seed)


key_in: Callable[[bytes], tuple[int, int]] = struct.Struct("<qi4x").unpack
"""The key that begins a digest: 64 bits, and 32 more as its check."""


SkippedUrl = tuple[int, int, Fate]
"""A URL that was found and will not be fetched: key, check and reason. Pages have many of them, so it is kept small."""


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
    """A URL that was taken: this walker, and no other, fetches it."""

    key: int
    chk: int
    host: int
    depth: int
    seq: int  # its place in the queue of its host, unique in the crawl
    url: Url
    parent: str | None
    attempts: int
    crashes: int = 0
    kind: UrlKind = UrlKind.PAGE
    start_in_seconds: float = 0.0  # from when it was taken to its slot at its host
    slot_at: float = 0.0  # its slot, by the clock of the process that took it
    delay_seconds: float = 0.0  # between its slot and those before and after it; 0 if it needs none
    etag: str | None = None  # ETag of the page in the previous crawl, for a conditional request
    last_modified: str | None = None
    is_recovering: bool = False  # its host was on hold, and this response decides whether it gets more requests
    target: Url | None = None  # where its redirects have led so far; `host` is the host of this URL
    chain: RedirectChain | None = None  # the redirects that led there
    skip_fate: Fate | None = None  # set if it is not to be fetched; then it has no slot
    awaited: "AwaitedTarget | None" = None  # set if its target is another URL's; then it has no slot either

    @property
    def awaits_target(self) -> bool:
        """Return whether another URL has the target of its redirects, so that it is not requested now."""
        return self.chain is not None and self.chain.page is not None

    @property
    def is_target(self) -> bool:
        """Return whether it is left out because another URL's redirects lead to it."""
        return self.skip_fate in (Fate.FETCHED_VIA, Fate.FAILED)

    @property
    def at(self) -> Url:
        """The URL to request next: its own, or the one it redirects to."""
        return self.target or self.url

    @property
    def is_conditional(self) -> bool:
        return self.etag is not None or self.last_modified is not None

    @property
    def is_suspect(self) -> bool:
        """Return whether the URL was in flight when workers died. It is fetched alone until it is clear whether it
        kills them."""
        return self.crashes >= SUSPECT_FROM

    @property
    def is_killer(self) -> bool:
        return self.crashes >= SUSPECT_FROM + CRASHES_ALONE


class SitemapRecord(Struct, frozen=True):
    """The record of one sitemap. `listed`: how many URLs it has; `problem`: what is wrong with it, worded to follow its
    name. `entries`: the packed keys of the pages it lists, if the crawl is analyzed."""

    url: str
    fetched_at: int
    status: int | None = None
    listed: int = 0
    problem: str | None = None
    entries: bytes | None = None


class PendingRedirect(Struct, frozen=True):
    """A redirect that may be followed. The commit decides: if nobody else has fetched the target or is about to, the
    task waits for a slot at the target's host; else it ends with `page` as its page, unless it is part of a loop."""

    url: Url  # as the redirect wrote it, and as it will be requested
    target: Url  # the same in canonical form, as the crawl knows it
    chain: RedirectChain
    page: Page
    is_new: bool = True  # False if this task was at the URL before


def crashes_after(before: int, *, alone: bool) -> int:
    """Return the crashes of a URL after one more: with others in flight it can only become a suspect; alone, each
    further crash counts."""
    return before + 1 if alone else min(before + 1, max(before, SUSPECT_FROM))


class RedirectTarget(Struct, frozen=True):
    """A URL that another one redirects to, and its fate: OPEN while it also waits in the frontier itself."""

    url: str
    via: str
    fate: Fate


class RedirectState(Struct, frozen=True):
    """What a frontier knows about a URL that redirects lead to."""

    fate: Fate
    via: Url | None = None  # the URL whose redirects have claimed it
    chain: RedirectChain | None = None  # its own redirects, while it is open


class AwaitedTarget(Struct, frozen=True):
    """How the redirects of a URL end if another URL has their target; without any of these, with that target."""

    is_open: bool = False  # nobody knows yet
    is_circular: bool = False  # nobody would: the other URL waits in turn for this one
    failure: Failure | None = None  # the redirects form a loop, or are too many; it has all of them
    leads_to: str | None = None  # with a failure: where the last redirect leads


AWAITED_SECONDS = 0.2  # until a URL that waits for another one is looked at again


class Settled(Struct):
    """The outcome of a taken URL. One to be retried is OPEN and waits for at least `retry_in_seconds`; one that was
    not fetched (`untried`) counts no attempt, and keeps its place unless it has such a time. The commit decides whether
    a redirect (`onward`) ends here (FETCHED), continues, or waits for what becomes of its target (both OPEN)."""

    task: FrontierTask
    fate: Fate
    page: Page | None = None
    retry_in_seconds: float = 0.0
    untried: bool = False
    sitemap: SitemapRecord | None = None  # set instead of `page` if the URL is a sitemap
    onward: PendingRedirect | None = None
    target_fate: Fate | None = None  # fate of the URL that its redirects led to, if that was not fetched
    awaits_target: bool = False  # set by the commit: another URL has the target of `onward`
    retried_after: str | None = None  # status or error of an attempt that is to be repeated
    captured: CapturedExchange | None = None  # the page's response, if whoever runs the walker reads it

    @property
    def awaiting_chain(self) -> RedirectChain:
        """The redirects so far, of a URL that waits for what becomes of its target."""
        assert self.onward is not None
        task, chain = self.task, self.onward.chain
        key, chk = (task.key, task.chk) if task.chain is None else (task.chain.key, task.chain.chk)
        return replace(chain, key=key, chk=chk, page=self.onward.page)

    @property
    def url(self) -> Url:
        return self.task.url

    @property
    def is_unchanged(self) -> bool:
        """Return whether the server answered a conditional request with 304. A 304 to any other request does not
        count."""
        return self.page is not None and self.page.status == NOT_MODIFIED and self.task.is_conditional

    @property
    def is_looped_target(self) -> bool:
        """Return whether the redirects of another URL led here, and it has its own record because they loop."""
        return self.task.awaited is not None and self.task.chain is None and self.page is not None

    @property
    def ended_target(self) -> tuple[tuple[int, int], Fate] | None:
        """The key and the fate of a redirect target that ends with this URL without having been fetched."""
        fate = Fate.FAILED if self.fate is Fate.FAILED else self.target_fate
        if self.task.chain is None or fate is None or self.fate is Fate.OPEN:
            return None
        key = self.task.chain.key, self.task.chain.chk
        return None if key == (self.task.key, self.task.chk) else (key, fate)


class FrontierChange(Struct, kw_only=True):
    """The changes that a call made to the frontier. The caller adds them to the crawl's counters in the same
    transaction, unless the driver has counted them itself."""

    opened: int = 0  # URLs that belong to the crawl from now on; each is counted once
    settled: int = 0
    requeued: int = 0  # URLs that were settled and wait again
    is_counted: bool = False
    skips: Counter[Fate] = field(default_factory=Counter)  # negative for URLs that had been skipped and are open again

    def counts(self) -> Counts:
        """Return what the caller has to add to the crawl's counters."""
        if self.is_counted:
            return Counts()
        skipped = {fate.word: count for fate, count in self.skips.items() if count}
        return Counts(opened=self.opened, settled=self.settled - self.requeued, skipped=skipped)


class Added(FrontierChange, kw_only=True):
    """The outcome of adding URLs."""

    new: int = 0  # URLs that were not known, skipped ones included


class Taken(FrontierChange, kw_only=True):
    """The result of a take: the URLs taken, and those closed because their host has reached its page limit."""

    tasks: list[FrontierTask] = field(default_factory=list)


class Settlement(FrontierChange, kw_only=True):
    """The result of settling a walker's batch. `closed`: the URLs that were still the walker's and that this commit
    closed; their pages and sitemap records are to be stored beside it."""

    closed: list[Settled] = field(default_factory=list)

    @property
    def pages(self) -> list[tuple[int, int, Page]]:
        """The pages to store, each with its key and check."""
        return [(done.task.key, done.task.chk, done.page) for done in self.closed if done.page is not None]

    @property
    def sitemaps(self) -> list[tuple[tuple[int, int], SitemapRecord]]:
        """The sitemap records to store, each with its key and check."""
        return [((done.task.key, done.task.chk), done.sitemap) for done in self.closed if done.sitemap is not None]

    def counts(self, walked_seconds: float = 0.0) -> Counts:
        """Return the increments of the crawl's counters; `walked_seconds`: the time of work."""
        changed = FrontierChange.counts(self)
        counts = page_counts(self.closed, walked_seconds)
        return replace(counts, opened=changed.opened, settled=changed.settled, skipped=changed.skipped)


def page_counts(closed: list[Settled], walked_seconds: float = 0.0) -> Counts:
    """Return the increments of the counters of pages; `walked_seconds`: the time of work."""
    pages = [done.page for done in closed if done.page is not None]
    answered = [page for page in pages if page.status is not None]
    return Counts(
        pages=len(answered),
        errors=sum([page.error_code is not None for page in pages]),
        responses=count_responses([page.status for page in pages]),
        bytes=sum([page.received for page in pages]),
        not_modified=sum([done.is_unchanged for done in closed]),
        bytes_saved=sum([page.saved for page in pages]),
        stayed_empty=sum([page.flags & STAYED_EMPTY != 0 for page in pages]),
        depth_reached=max([page.depth for page in answered], default=0),
        walked=timedelta(seconds=walked_seconds),
    )


class Control(Enum):
    """The instruction to walkers in the result of every commit: continue, pause or stop."""

    GO = "go"
    PAUSE = "pause"
    STOP = "stop"


class TrapPoints(Struct):
    """Points for a URL pattern that may be a trap, and one of its URLs."""

    sample: Url
    repeats: int = 0  # because pages repeat each other
    growth: int = 0  # because all links of its pages seem to be new


class WalkerBatch(Struct):
    """The results that a walker writes in one commit."""

    settled: list[Settled] = field(default_factory=list)
    found: list[NewUrl] = field(default_factory=list)
    traps: dict[str, TrapPoints] = field(default_factory=dict)  # points for patterns that may be traps
    walked_seconds: float = 0.0  # time of work since the last batch
    skipped: list[SkippedUrl] = field(default_factory=list)
    hosts: dict[int, HostUpdate] = field(default_factory=dict)  # what was learned about hosts: holds, delays, latency
    redirects_decided: bool = False  # the frontier decided, before the pages were committed
    unchanged: list[Settled] = field(default_factory=list)  # 304s whose facts must still be read from the earlier crawl

    @property
    def weight(self) -> int:
        """The number of URLs that it adds to the frontier."""
        return len(self.found) + len(self.skipped)

    @property
    def has_tries(self) -> bool:
        """Return whether any of the settled URLs was actually fetched."""
        return any(not done.untried for done in self.settled)

    def __bool__(self) -> bool:
        return bool(self.settled or self.found or self.skipped or self.traps or self.hosts)


class Turn(Struct):
    """The result of one commit: whether to continue, what was taken, and if nothing, why.

    An empty `work` is not the end: `wait_seconds` says when to ask again. Only `drained` means that all is settled.
    """

    control: Control
    work: list[FrontierTask] = field(default_factory=list)
    traps: dict[str, TrapState] = field(default_factory=dict)
    counts: Counts | None = None  # counts of the whole crawl, if it has a budget
    hold_seconds: dict[int, float] = field(default_factory=dict)  # for how long hosts of the batch are held
    wait_seconds: float | None = None  # None if it was not requested
    drained: bool = False
    is_journaled: bool = False  # whether the journal entries were written
    found: int | None = None  # URLs found, if that was written to the journal
    finished: int | None = None  # the depth that is finished, if that was requested
    changed: Crawl | None = None  # the crawl with its new options, if they changed; then nothing was taken
    others_wait: bool = False  # another run waits for a worker, and this walker's time slice is over
