"""Budgets: what a crawl may spend. A spent budget ends it as completed, with the budget's name as the reason."""

from shoal.crawl.crawl import Counts, CrawlConfig
from shoal.crawl.frontier import Settled


class Budget:
    """What one walker knows of its crawl's spending: what was spent when it began, and what it spent since."""

    def __init__(self, config: CrawlConfig, counts: Counts) -> None:
        self._max_pages = config.max_pages
        self._pages = counts.pages

    @property
    def spent(self) -> str | None:
        if self._max_pages is not None and self._pages >= self._max_pages:
            return "max_pages"
        return None

    def allow(self, want: int, unfinished: int) -> int:
        """How many more URLs the budget has room for, if every unfinished one becomes a page."""
        if self._max_pages is None:
            return want
        return max(0, min(want, self._max_pages - self._pages - unfinished))

    def count(self, settled: Settled) -> None:
        if settled.page is not None and settled.page.status is not None:
            self._pages += 1
