"""Store contracts of the crawl package: crawls with their counters, and the frontier."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Protocol

from msgspec import Struct, field

from shoal.base.database import Tx
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import Trap
from shoal.crawl.frontier.values import (
    Added,
    FrontierChange,
    FrontierTask,
    NewUrl,
    Settlement,
    SitemapRecord,
    Taken,
    WalkerBatch,
)
from shoal.crawl.lifecycle.failed_urls import DroppedPage, FailedPage, FailedSeed
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.hosts.rate import HeldHost, HostStanding
from shoal.queue.job import Fence

OUTSIDE = ""
"""The counter of what did not come from a walker."""


class CrawlFilter(Struct, frozen=True):
    """A filter for crawls; a crawl must match every field that is set."""

    state: str | None = None
    project: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class CrawlStore(Protocol):
    async def insert(
        self,
        tx: Tx,
        crawl_id: CrawlId,
        config: CrawlConfig,
        named: list[str],
        state: CrawlState,
        key_seed: int | None = None,
    ) -> Crawl | None:
        """Store a crawl; return None if the id is taken. Without a key seed the crawl gets a random one; give that of
        an earlier crawl if a URL must have the same key in both."""
        ...

    async def get(self, tx: Tx, crawl_id: str) -> Crawl | None: ...

    async def lock(self, tx: Tx, crawl_id: str) -> Crawl | None:
        """Return the crawl, locked until this transaction ends. Take this lock before any other."""
        ...

    async def page_of(self, tx: Tx, after: int | None, limit: int, wanted: CrawlFilter) -> list[Crawl]:
        """Return crawls, newest first; `after` is the number of the last one on the previous page."""
        ...

    async def count(self, tx: Tx) -> dict[str, int]:
        """Count the crawls by state."""
        ...

    async def move(self, tx: Tx, crawl_id: str, move: CrawlMove) -> bool:
        """Change the state; return False if the move is not allowed from the current one."""
        ...

    async def counts(self, tx: Tx, number: int) -> Counts:
        """Return the sums over all walkers. One statement reads them, so `drained` is exact."""
        ...

    async def first_failure(self, tx: Tx, number: int) -> tuple[str, str] | None:
        """Return the URL and the error message of the first page that failed. It reads the crawl's pages, so ask only
        about crawls without a good page."""
        ...

    async def failed_seeds(self, tx: Tx, number: int, seeds: list[tuple[Url, tuple[int, int]]]) -> list[FailedSeed]:
        """Return those of these URLs (given with their keys, in this order) that ended in 4xx, 5xx or no answer, or
        were skipped. The others gave a page, or are still open."""
        ...

    async def now(self, tx: Tx) -> int:
        """Return the time by the store's clock, in microseconds."""
        ...

    async def control(self, tx: Tx, crawl_id: str) -> tuple[CrawlState, int]:
        """Return what walkers go by: the crawl's state, and when its options were last changed."""
        ...

    async def add_counts(self, tx: Tx, number: int, counter: str, counts: Counts) -> None:
        """Add to the counters of a crawl. `counter` is the job of the walker that counts, so that walkers do not wait
        for each other, or `OUTSIDE`."""
        ...

    async def keep_sitemaps(self, tx: Tx, number: int, sitemaps: list[tuple[tuple[int, int], SitemapRecord]]) -> int:
        """Store sitemap records, each under its key and check; return how many were new."""
        ...

    async def last_page(self, tx: Tx, number: int) -> int:
        """Return the number of the page that was stored last; 0 if there is none."""
        ...

    async def landed(self, tx: Tx, number: int, keys: list[int]) -> list[str]:
        """Return the final URLs of those of these pages that redirected and were HTML."""
        ...

    async def failed_after(self, tx: Tx, number: int, after: int, limit: int) -> list[FailedPage]:
        """Return pages that gave no good answer, in the order in which they were stored, after the page `after`."""
        ...

    async def drop_failed(self, tx: Tx, number: int, pages: list[FailedPage]) -> list[DroppedPage]:
        """Remove the records of these pages; return those that were still there. Call under the crawl's lock."""
        ...

    async def change(self, tx: Tx, crawl_id: str, config: CrawlConfig) -> None:
        """Change the crawl's options, with a change time of its own. Call under the crawl's lock."""
        ...


class HostRate(Struct, frozen=True):
    """The rate limit of requests to one host. A delay that the host itself asks for, and its holds, come first."""

    delay: timedelta
    probe: bool = False  # give one URL to a host whose robots.txt was never read
    per_host: int | None = None  # the most pages of one host
    walkers: int = 1  # walkers that share the hosts
    ease: float = 0.0  # seconds of delay for each second that a slow host takes to answer
    longest_ease: timedelta = timedelta(0)

    def delay_at(self, standing: HostStanding) -> float:
        """Seconds between two requests to a host."""
        return standing.delay(self.delay.total_seconds(), self.ease, self.longest_ease.total_seconds())


class Admission(Protocol):
    """What a walker knows about URLs before it fetches them."""

    def verdict(self, task: FrontierTask) -> Fate | None:
        """Return the fate of a URL that is not to be fetched; None if it is to be fetched."""
        ...

    def knows(self, origin: str) -> bool:
        """Return whether the robots.txt of this host is known, so that a verdict counts."""
        ...


class FrontierStore(Protocol):
    """The URLs of crawls: which are known, which wait, and which walker has them.

    It stores neither pages nor the crawl's counters: calls return what they changed, and the caller stores the rest in
    the same transaction. A walker's calls happen under its fence. Batches, never single URLs.
    """

    async def add(self, tx: Tx, crawl: int, urls: list[NewUrl]) -> Added:
        """Record URLs that were not known. Those with an OPEN fate wait. Repeating it changes nothing."""
        ...

    async def take(
        self,
        tx: Tx,
        crawl: int,
        fence: Fence,
        want: int,
        in_flight: int,
        rate: HostRate,
        admission: Admission | None = None,
    ) -> Taken:
        """Take up to `want` URLs: from the hosts that waited longest, shallow URLs first, none before it is due. An
        empty answer does not mean that the frontier is empty. URLs with a verdict come on top and use no slot."""
        ...

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool = False) -> Settlement:
        """Close the batch's taken URLs, or put them back to wait, and add the URLs they led to. URLs that are not (or
        no longer) this walker's are left as they are and are not in the settlement. `leaves`: the same commit will put
        back everything else that this walker has. A redirect goes on, and nobody else fetches its target from then on;
        or it ends, and has its page (see `Onward`)."""
        ...

    async def quarantine(self, tx: Tx, crawl: int, traps: dict[str, Url]) -> None:
        """Put these patterns into quarantine, each with a sample URL, unless they are known already."""
        ...

    async def traps(self, tx: Tx, crawl: int) -> list[Trap]:
        """Return every pattern that was ever quarantined."""
        ...

    async def released(self, tx: Tx, crawl: int, patterns: Iterable[str]) -> set[str]:
        """Return those of these patterns that a person released. No other one is released before this commit ends."""
        ...

    async def free(self, tx: Tx, crawl: int, pattern: str) -> int | None:
        """Release a pattern, so that its URLs wait again; return how many were opened. None if it is not in
        quarantine."""
        ...

    async def reopen(self, tx: Tx, crawl: int, urls: list[NewUrl], answered: list[Url]) -> FrontierChange:
        """Let closed URLs wait as if they had never been tried. `answered`: the URLs that gave pages, which no longer
        count against the page limits of their hosts. Call under the crawl's lock."""
        ...

    async def release(self, tx: Tx, crawl: int, fence: Fence) -> int:
        """Put back everything that this walker still has; return how many URLs."""
        ...

    async def holds(self, tx: Tx, crawl: int, fence: Fence) -> bool:
        """Return whether this walker has URLs that it has neither settled nor put back. Exact only under its job's
        lock."""
        ...

    async def taken(self, tx: Tx, crawl: int) -> int:
        """Count the URLs that walkers have. Exact only under the crawl's lock."""
        ...

    async def recover(self, tx: Tx, crawl: int) -> int:
        """Put back what walkers that lost their job had taken; return how many URLs."""
        ...

    async def held_hosts(self, tx: Tx, crawl: int, most: int) -> list[HeldHost]:
        """Return up to `most` hosts that are held although URLs wait there, the longest held first."""
        ...

    async def shallowest(self, tx: Tx, crawl: int) -> int | None:
        """Return the depth of the shallowest URL that is open and not in quarantine; None if there is none. It looks at
        every host of the crawl."""
        ...

    async def next_in(self, tx: Tx, crawl: int, job_id: str = "") -> float | None:
        """Return the seconds until a waiting URL becomes due; None if none waits. With a job, only hosts count that its
        walker or nobody has claimed."""
        ...
