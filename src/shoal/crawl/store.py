"""The crawl room's store contracts: crawls, and the frontier of one crawl."""

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
    """Which crawls are looked for: those that have all that is named here."""

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
        """Store a crawl; None if the id is taken. A key seed of its own, unless one is given: that of an earlier crawl,
        so that a URL has the same key in both."""
        ...

    async def get(self, tx: Tx, crawl_id: str) -> Crawl | None: ...

    async def lock(self, tx: Tx, crawl_id: str) -> Crawl | None:
        """The crawl, locked against every other change until this transaction ends: the first lock of all."""
        ...

    async def page_of(self, tx: Tx, after: int | None, limit: int, wanted: CrawlFilter) -> list[Crawl]:
        """Crawls, newest first; `after` is the number of the last one seen."""
        ...

    async def count(self, tx: Tx) -> dict[str, int]:
        """How many crawls there are by state."""
        ...

    async def move(self, tx: Tx, crawl_id: str, move: CrawlMove) -> bool:
        """Change the state if it is one that the move may come from; False if not."""
        ...

    async def counts(self, tx: Tx, number: int) -> Counts:
        """The sums over all walkers, read in one statement: `drained` is exact."""
        ...

    async def first_failure(self, tx: Tx, number: int) -> tuple[str, str] | None:
        """The URL and the words of the first page that failed. For crawls that got nowhere: it reads their pages."""
        ...

    async def failed_seeds(self, tx: Tx, number: int, seeds: list[tuple[Url, tuple[int, int]]]) -> list[FailedSeed]:
        """Those of these URLs, given with their keys, that ended in 4xx, 5xx, no answer or were skipped, in the given
        order. A URL that is not in the answer gave a page, or has not ended."""
        ...

    async def now(self, tx: Tx) -> int:
        """The store's clock."""
        ...

    async def control(self, tx: Tx, crawl_id: str) -> tuple[CrawlState, int]:
        """What walkers are told: the crawl's state, and when its options were changed last."""
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
        """Give the crawl other options, at a moment that no other change has. Call under its lock."""
        ...


class HostRate(Struct, frozen=True):
    """How takes may ask one host. The delay that the host itself asks for, and its holds, come first."""

    delay: timedelta
    probe: bool = False  # a host that was never asked for its robots.txt gets one URL first
    per_host: int | None = None  # pages of one host, in all
    walkers: int = 1  # that share the hosts
    ease: float = 0.0  # seconds of delay for each second that a slow host takes to answer
    longest_ease: timedelta = timedelta(0)

    def delay_at(self, standing: HostStanding) -> float:
        """Seconds between two requests to a host."""
        return standing.delay(self.delay.total_seconds(), self.ease, self.longest_ease.total_seconds())


class Admission(Protocol):
    """What a walker knows of URLs before it fetches them."""

    def verdict(self, task: FrontierTask) -> Fate | None:
        """What becomes of a URL that is not to be fetched; None if it is."""
        ...

    def knows(self, origin: str) -> bool:
        """Whether the rules of this host are known, so that a verdict counts."""
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
        holder: Fence,
        want: int,
        in_flight: int,
        pace: HostRate,
        admission: Admission | None = None,
    ) -> Taken:
        """Up to `want` URLs: of the host that waited longest first, shallow first, none before its time. An empty
        answer does not mean that the frontier is empty. Those with a verdict come on top, and use up no slot."""
        ...

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool = False) -> Settlement:
        """Close the batch's taken URLs, or put them back to wait, and add the URLs they led to. URLs that are not (or
        no longer) this walker's are left as they are and are not in the settlement. `leaves`: the same commit will put
        back everything else that this walker has. A redirect goes on, and nobody else fetches its target from then on;
        or it ends, and has its page (see `Onward`)."""
        ...

    async def quarantine(self, tx: Tx, crawl: int, traps: dict[str, Url]) -> None:
        """Put these patterns into quarantine, each with a URL as its sample, unless somebody decided about them."""
        ...

    async def traps(self, tx: Tx, crawl: int) -> list[Trap]:
        """Every pattern that was ever quarantined."""
        ...

    async def released(self, tx: Tx, crawl: int, patterns: Iterable[str]) -> set[str]:
        """Those of these patterns that a person released; of the others, none is before this commit ends."""
        ...

    async def free(self, tx: Tx, crawl: int, pattern: str) -> int | None:
        """Release a pattern, so that its URLs wait again; return how many were opened. None if it is not in
        quarantine."""
        ...

    async def reopen(self, tx: Tx, crawl: int, urls: list[NewUrl], answered: list[Url]) -> FrontierChange:
        """Let closed URLs wait as if they had never been tried. `answered`: the URLs that gave pages, which no longer
        count against the page limits of their hosts. Call under the crawl's lock."""
        ...

    async def release(self, tx: Tx, crawl: int, holder: Fence) -> int:
        """Put back everything that this holder still has; how many."""
        ...

    async def holds(self, tx: Tx, crawl: int, holder: Fence) -> bool:
        """Whether this holder has taken URLs that it has neither settled nor put back. Exact only under its job's
        lock."""
        ...

    async def taken(self, tx: Tx, crawl: int) -> int:
        """How many URLs are under way, whoever has them. Exact only under the lock of the crawl."""
        ...

    async def recover(self, tx: Tx, crawl: int) -> int:
        """Put back what holders that no longer hold their job had taken; how many."""
        ...

    async def held_hosts(self, tx: Tx, crawl: int, most: int) -> list[HeldHost]:
        """Hosts that are held just now although something waits there, the longest held first; up to `most`."""
        ...

    async def shallowest(self, tx: Tx, crawl: int) -> int | None:
        """The depth of the shallowest URL that is open and not in quarantine; None if there is none. It looks at every
        host of the crawl."""
        ...

    async def next_in(self, tx: Tx, crawl: int, job_id: str = "") -> float | None:
        """Seconds until something that waits becomes due; None if nothing waits. With a job: at hosts that it, or
        nobody, has claimed; what another walker has claimed comes due for that one."""
        ...
