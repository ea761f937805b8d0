"""Budgets: limits on pages, bytes and time. A spent budget completes the crawl, with the budget's name as the reason.

The store knows what the whole crawl has spent, and each commit decides by it how many URLs may be in flight. A walker
adds what it has fetched since.
"""

from math import inf

from shoal.base.clock import Clock
from shoal.crawl.crawl import Counts, CrawlConfig
from shoal.crawl.frontier.values import Settled

BUDGETS = frozenset({"max_pages", "max_bytes", "max_seconds"})


def urls_left(config: CrawlConfig, counts: Counts, taken: int) -> int | None:
    """Return how many more URLs may be taken while `taken` are in flight; None if no budget limits it.

    Every URL is counted as a page, so the page limit is never exceeded. The size of a page is unknown before it is
    fetched: the average so far is assumed, and the first page is fetched alone.
    """
    limits = []
    if config.max_pages is not None:
        limits.append(config.max_pages - counts.pages - taken)
    if config.max_bytes is not None:
        left = config.max_bytes - counts.bytes
        limits.append((max(1, left * counts.pages // max(counts.bytes, 1)) if left > 0 else 0) - taken)
    return max(0, min(limits)) if limits else None


class Budget:
    """The budget spent by a crawl, as one walker knows it: the total at the last commit plus the walker's own part
    since then."""

    def __init__(self, config: CrawlConfig, clock: Clock) -> None:
        self._config = config
        self._limited = config.has_budget
        self._clock = clock
        self._known = Counts()
        self._known_at = clock.monotonic()
        self._pages = self._bytes = 0
        self._sent_pages = self._sent_bytes = 0

    def change(self, config: CrawlConfig) -> None:
        """Apply changed limits; what was spent stays spent."""
        self._config, self._limited = config, config.has_budget

    def reported(self) -> None:
        """Mark what was counted so far as part of the commit that starts; its response includes it in the sum."""
        self._sent_pages, self._sent_bytes = self._pages, self._bytes

    def held_back(self, pages: list[Settled]) -> None:
        """Take these pages out of the commit that starts: a later one has them."""
        self._sent_pages -= sum(done.page is not None and done.page.status is not None for done in pages)
        self._sent_bytes -= sum(done.page.received for done in pages if done.page is not None)

    def learn(self, counts: Counts) -> None:
        """Replace what was sent with the sum that the commit returned."""
        self._known, self._known_at = counts, self._clock.monotonic()
        self._pages -= self._sent_pages
        self._bytes -= self._sent_bytes
        self._sent_pages = self._sent_bytes = 0

    def forget(self) -> None:
        """Drop the walker's own counts after a failed commit: the next one returns what the store has."""
        self._pages = self._bytes = self._sent_pages = self._sent_bytes = 0

    def count(self, settled: Settled) -> None:
        """Count a page that was fetched."""
        if settled.page is not None:
            self._pages += settled.page.status is not None
            self._bytes += settled.page.received

    @property
    def spent(self) -> str | None:
        """The name of the budget that is used up, if one is."""
        if not self._limited:
            return None
        if self._config.max_pages is not None and self._known.pages + self._pages >= self._config.max_pages:
            return "max_pages"
        if self.full:
            return "max_bytes"
        return "max_seconds" if self.remaining_seconds <= 0 else None

    @property
    def full(self) -> bool:
        """Return whether the byte budget is used up, so that no further response is read."""
        if not self._limited or self._config.max_bytes is None:
            return False
        return self._known.bytes + self._bytes >= self._config.max_bytes

    @property
    def remaining_seconds(self) -> float:
        """The time left in the time budget; infinite without one."""
        if self._config.max_seconds is None:
            return inf
        return (
            self._config.max_seconds - self._known.walked.total_seconds() - (self._clock.monotonic() - self._known_at)
        )
