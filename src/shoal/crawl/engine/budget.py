"""Budgets: what a crawl may spend. A spent budget ends it as completed, with the budget's name as the reason.

What the whole crawl has spent, and how much more may be under way, is decided in each commit by what the store knows;
a walker adds what it brought since.
"""

from math import inf

from shoal.base.clock import Clock
from shoal.crawl.crawl import Counts, CrawlConfig
from shoal.crawl.frontier.values import Settled

BUDGETS = frozenset({"max_pages", "max_bytes", "max_seconds"})


def room(config: CrawlConfig, counts: Counts, taken: int) -> int | None:
    """How many more URLs may be taken when the crawl has `taken` under way; None if no budget says.

    Each may become a page, so that pages are never too many. Of bytes nobody knows before: each is taken to be as large
    as pages were so far, and the first is fetched alone.
    """
    rooms = []
    if config.max_pages is not None:
        rooms.append(config.max_pages - counts.pages - taken)
    if config.max_bytes is not None:
        left = config.max_bytes - counts.bytes
        rooms.append((max(1, left * counts.pages // max(counts.bytes, 1)) if left > 0 else 0) - taken)
    return max(0, min(rooms)) if rooms else None


class Budget:
    """What one walker knows of its crawl's spending: the sum over all walkers at the last commit, and its own since."""

    def __init__(self, config: CrawlConfig, clock: Clock) -> None:
        self._config = config
        self._limited = config.has_budget
        self._clock = clock
        self._known = Counts()
        self._known_at = clock.monotonic()
        self._pages = self._bytes = 0
        self._sent_pages = self._sent_bytes = 0

    def change(self, config: CrawlConfig) -> None:
        """Go by other limits; what was spent stays spent."""
        self._config, self._limited = config, config.has_budget

    def reported(self) -> None:
        """What was counted so far is on its way to the store, which will tell the new sum."""
        self._sent_pages, self._sent_bytes = self._pages, self._bytes

    def held_back(self, pages: list[Settled]) -> None:
        """These are not on their way after all: they go with a later report."""
        self._sent_pages -= sum(done.page is not None and done.page.status is not None for done in pages)
        self._sent_bytes -= sum(done.page.received for done in pages if done.page is not None)

    def learn(self, counts: Counts) -> None:
        self._known, self._known_at = counts, self._clock.monotonic()
        self._pages -= self._sent_pages
        self._bytes -= self._sent_bytes
        self._sent_pages = self._sent_bytes = 0

    def forget(self) -> None:
        """What was brought may not have reached the store, which will tell what did."""
        self._pages = self._bytes = self._sent_pages = self._sent_bytes = 0

    def count(self, settled: Settled) -> None:
        if settled.page is not None:
            self._pages += settled.page.status is not None
            self._bytes += settled.page.received

    @property
    def spent(self) -> str | None:
        """The name of the budget that is used up."""
        if not self._limited:
            return None
        if self._config.max_pages is not None and self._known.pages + self._pages >= self._config.max_pages:
            return "max_pages"
        if self.full:
            return "max_bytes"
        return "max_seconds" if self.seconds_left <= 0 else None

    @property
    def full(self) -> bool:
        """Whether no further byte may be kept."""
        if not self._limited or self._config.max_bytes is None:
            return False
        return self._known.bytes + self._bytes >= self._config.max_bytes

    @property
    def seconds_left(self) -> float:
        if self._config.max_seconds is None:
            return inf
        return self._config.max_seconds - self._known.walked / 1e6 - (self._clock.monotonic() - self._known_at)
