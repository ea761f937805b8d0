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

STAYED_EMPTY = int(PageFlag.STAYED_EMPTY)  # comparing with a number is quicker than comparing with a flag
SUSPECT_FROM = 2  # number of crashes, with other URLs in flight, after which a URL is a suspect
CRASHES_ALONE = 3  # number of further crashes, alone in flight, after which the URL fails


class UrlKind(IntEnum):
    """The purpose of a URL: page or sitemap. The numbers are stored, so never reuse or change a number."""

    PAGE = 0
    SITEMAP = 1  # the URLs it lists are opened; its depth counts the sitemap indexes that led to it


def key_of(url: Url, key_seed: int, kind: UrlKind = UrlKind.PAGE) -> tuple[int, int]:
    """Return 96 bits of the URL's hash, which is seeded per crawl, as two signed numbers that SQL can index. A sitemap
    has a separate key, so that the same URL may also be a page."""
    text = f"sitemap:{url}" if kind else url
    return key_in(digest_of(text, key_seed))


def digest_of(text: str, key_seed: int) -> bytes:
    """Return the hash from which a key is made."""
    return xxh3_128_digest(text.encode(), key_seed)


key_in: Callable[[bytes], tuple[int, int]] = struct.Struct("<qi4x").unpack
"""Return the key at the start of a digest: 64 bits, and 32 further bits as the check."""


SkippedUrl = tuple[int, int, Fate]
"""A URL that was found and will not be fetched: key, check and reason. Pages have many such URLs, so this is only a
tuple."""


class NewUrl(Struct):
    """A URL to add. If its fate is OPEN, the URL waits to be fetched; otherwise it is recorded as skipped or kept in
    quarantine."""

    key: int
    chk: int
    url: Url
    depth: int
    fate: Fate
    parent_key: int | None = None
    kind: UrlKind = UrlKind.PAGE


class FrontierTask(Struct):
    """A URL that was taken: only this walker fetches it."""

    key: int
    chk: int
    host: int
    depth: int
    seq: int  # position in the queue of the URL's host, unique in the crawl
    url: Url
    parent: str | None
    attempts: int
    crashes: int = 0
    kind: UrlKind = UrlKind.PAGE
    start_in_seconds: float = 0.0  # time between the take and the URL's slot at its host
    slot_at: float = 0.0  # time of the URL's slot, by the clock of the process that took it
    delay_seconds: float = 0.0  # time between its slot and the neighbouring slots; 0 if it needs no slot
    etag: str | None = None  # ETag of the page in the previous crawl, for a conditional request
    last_modified: str | None = None
    # The URL's host was on hold, and the response decides whether the host gets more requests.
    is_recovering: bool = False
    target: Url | None = None  # the URL that its redirects have reached so far; `host` is the host of this target
    chain: RedirectChain | None = None  # the redirects that led to the target
    skip_fate: Fate | None = None  # set if the URL must not be fetched; then it has no slot
    awaited: "AwaitedTarget | None" = None  # set if its target belongs to a different URL; then it has no slot either

    @property
    def awaits_target(self) -> bool:
        """Return whether its redirect target belongs to a different URL, so that the target is not requested now."""
        return self.chain is not None and self.chain.page is not None

    @property
    def is_target(self) -> bool:
        """Return whether the URL is not fetched because a different URL redirects to it."""
        return self.skip_fate in (Fate.FETCHED_VIA, Fate.FAILED)

    @property
    def at(self) -> Url:
        """The URL to request next: the task's own URL, or the URL that it redirects to."""
        return self.target or self.url

    @property
    def is_conditional(self) -> bool:
        return self.etag is not None or self.last_modified is not None

    @property
    def is_suspect(self) -> bool:
        """Return whether the URL was in flight when workers died. Such a URL is fetched alone until it is clear whether
        it kills workers."""
        return self.crashes >= SUSPECT_FROM

    @property
    def is_killer(self) -> bool:
        return self.crashes >= SUSPECT_FROM + CRASHES_ALONE


class SitemapRecord(Struct, frozen=True):
    """The record of one sitemap. `listed`: the number of URLs in the sitemap; `problem`: a description of the problem,
    worded to follow the sitemap's name; `entries`: the packed keys of the listed pages, if the crawl is analyzed."""

    url: str
    fetched_at: int
    status: int | None = None
    listed: int = 0
    problem: str | None = None
    entries: bytes | None = None


class PendingRedirect(Struct, frozen=True):
    """A redirect that may be followed. The commit decides: if nobody else has fetched the target or is about to fetch
    it, the task waits for a slot at the target's host. Otherwise the task ends with `page` as its page record, unless
    it is part of a loop."""

    url: Url  # the target as written in the redirect; it will be requested in this form
    target: Url  # the target in canonical form, in which the crawl knows it
    chain: RedirectChain
    page: Page
    is_new: bool = True  # False if this task has already visited the URL


def crashes_after(before: int, *, alone: bool) -> int:
    """Return the number of crashes of a URL after one more crash. With other URLs in flight, a crash can only make the
    URL a suspect. If the URL was alone in flight, each further crash counts."""
    return before + 1 if alone else min(before + 1, max(before, SUSPECT_FROM))


class RedirectTarget(Struct, frozen=True):
    """A URL that a different URL redirects to. Its fate is OPEN while it also waits to be fetched itself."""

    url: str
    via: str
    fate: Fate


class RedirectState(Struct, frozen=True):
    """The state of a redirect target in the frontier."""

    fate: Fate
    via: Url | None = None  # the URL whose redirects have claimed this target
    chain: RedirectChain | None = None  # the redirects of this target itself, while it is open


class AwaitedTarget(Struct, frozen=True):
    """The end of a URL's redirects if their target belongs to a different URL. If no field is set, the redirects end
    with that target."""

    is_open: bool = False  # the end is not known yet
    is_circular: bool = False  # the end would never be known, because the other URL in turn waits for this URL
    failure: Failure | None = None  # set if the redirects form a loop or are too many; contains all the redirects
    leads_to: str | None = None  # if there is a failure: the target of the last redirect


AWAITED_SECONDS = 0.2  # time until a URL that waits for a different URL is checked again


class Settled(Struct):
    """The outcome of a taken URL. A URL to be retried has the fate OPEN and waits for at least `retry_in_seconds`. If a
    URL was not fetched (`untried`), no attempt is counted, and the URL keeps its place unless `retry_in_seconds` is
    set. The commit decides about a redirect (`onward`): it ends here (FETCHED), continues (OPEN), or waits for the
    outcome of its target (OPEN)."""

    task: FrontierTask
    fate: Fate
    page: Page | None = None
    retry_in_seconds: float = 0.0
    untried: bool = False
    sitemap: SitemapRecord | None = None  # set instead of `page` if the URL is a sitemap
    onward: PendingRedirect | None = None
    target_fate: Fate | None = None  # fate of the redirect target, if the target was not fetched
    awaits_target: bool = False  # set by the commit if the target of `onward` belongs to a different URL
    retried_after: str | None = None  # status or error of an attempt that will be repeated
    captured: CapturedExchange | None = None  # the page's response, if the code that runs the walker reads it

    @property
    def awaiting_chain(self) -> RedirectChain:
        """The redirects so far, if the URL waits for the outcome of its redirect target."""
        assert self.onward is not None
        task, chain = self.task, self.onward.chain
        key, chk = (task.key, task.chk) if task.chain is None else (task.chain.key, task.chain.chk)
        return replace(chain, key=key, chk=chk, page=self.onward.page)

    @property
    def url(self) -> Url:
        return self.task.url

    @property
    def is_unchanged(self) -> bool:
        """Return whether the server answered a conditional request with 304. A 304 response to an unconditional request
        does not count."""
        return self.page is not None and self.page.status == NOT_MODIFIED and self.task.is_conditional

    @property
    def is_looped_target(self) -> bool:
        """Return whether a different URL redirected to this URL, and this URL has its own record because the redirects
        form a loop."""
        return self.task.awaited is not None and self.task.chain is None and self.page is not None

    @property
    def ended_target(self) -> tuple[tuple[int, int], Fate] | None:
        """The key and the fate of this URL's redirect target, if the target was not fetched and is settled together
        with this URL."""
        fate = Fate.FAILED if self.fate is Fate.FAILED else self.target_fate
        if self.task.chain is None or fate is None or self.fate is Fate.OPEN:
            return None
        key = self.task.chain.key, self.task.chain.chk
        return None if key == (self.task.key, self.task.chk) else (key, fate)


class FrontierChange(Struct, kw_only=True):
    """The changes that a call made to the frontier. The caller adds them to the crawl's counters in the same
    transaction, unless the driver has counted them itself."""

    opened: int = 0  # number of URLs that belong to the crawl from now on; each URL is counted once
    settled: int = 0
    requeued: int = 0  # number of URLs that were settled and wait again
    is_counted: bool = False
    # Skipped URLs by fate; negative for URLs that had been skipped and are open again.
    skips: Counter[Fate] = field(default_factory=Counter)

    def counts(self) -> Counts:
        """Return the counts that the caller has to add to the crawl's counters."""
        if self.is_counted:
            return Counts()
        skipped = {fate.word: count for fate, count in self.skips.items() if count}
        return Counts(opened=self.opened, settled=self.settled - self.requeued, skipped=skipped)


class Added(FrontierChange, kw_only=True):
    """The outcome of adding URLs."""

    new: int = 0  # number of URLs that were not known, including skipped URLs


class Taken(FrontierChange, kw_only=True):
    """The result of a take: the taken URLs, and the URLs that were closed because their host has reached its page
    limit."""

    tasks: list[FrontierTask] = field(default_factory=list)


class Settlement(FrontierChange, kw_only=True):
    """The result of settling a walker's batch. `closed`: the URLs that the walker still held and that this commit
    closed; their pages and sitemap records have to be stored in the same commit."""

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
        """Return the increments of the crawl's counters; `walked_seconds`: the working time."""
        changed = FrontierChange.counts(self)
        counts = page_counts(self.closed, walked_seconds)
        return replace(counts, opened=changed.opened, settled=changed.settled, skipped=changed.skipped)


def page_counts(closed: list[Settled], walked_seconds: float = 0.0) -> Counts:
    """Return the increments of the page counters; `walked_seconds`: the working time."""
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
    repeats: int = 0  # points because pages repeat each other
    growth: int = 0  # points because all links of the pattern's pages seem to be new


class WalkerBatch(Struct):
    """The results that a walker writes in one commit."""

    settled: list[Settled] = field(default_factory=list)
    found: list[NewUrl] = field(default_factory=list)
    traps: dict[str, TrapPoints] = field(default_factory=dict)  # points for patterns that may be traps
    walked_seconds: float = 0.0  # working time since the last batch
    skipped: list[SkippedUrl] = field(default_factory=list)
    hosts: dict[int, HostUpdate] = field(default_factory=dict)  # new data about hosts: holds, delays, latency
    redirects_decided: bool = False  # whether the frontier decided about redirects before the pages were committed
    # Unchanged pages whose data must still be read from the earlier crawl.
    unchanged: list[Settled] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """The number of URLs that the batch adds to the frontier."""
        return len(self.found) + len(self.skipped)

    @property
    def has_tries(self) -> bool:
        """Return whether any of the settled URLs was actually fetched."""
        return any(not done.untried for done in self.settled)

    def __bool__(self) -> bool:
        return bool(self.settled or self.found or self.skipped or self.traps or self.hosts)


class Turn(Struct):
    """The result of one commit: whether to continue, the URLs taken, and the reason if no URL was taken.

    An empty `work` is not the end of the crawl: `wait_seconds` says when to ask again. Only `drained` means that all
    URLs are settled.
    """

    control: Control
    work: list[FrontierTask] = field(default_factory=list)
    traps: dict[str, TrapState] = field(default_factory=dict)
    counts: Counts | None = None  # counts of the whole crawl, if the crawl has a budget
    hold_seconds: dict[int, float] = field(default_factory=dict)  # hold times of hosts in the batch
    wait_seconds: float | None = None  # time until the next request for work; None while the walker has work
    drained: bool = False
    is_journaled: bool = False  # whether the journal entries were written
    found: int | None = None  # number of URLs found, if it was written to the journal
    finished: int | None = None  # the finished depth, if it was requested
    changed: Crawl | None = None  # the crawl with its new options, if the options changed; then no URL was taken
    others_wait: bool = False  # another run waits for a worker, and this walker's time slice is over
