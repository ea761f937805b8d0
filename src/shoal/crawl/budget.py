"""Budgets: what a crawl may spend. A spent budget ends it as completed, with the budget's name as the reason."""

from shoal.crawl.crawl import Counts, CrawlConfig
from shoal.crawl.frontier import Settled


class Budget:
    """What one walker knows of its crawl's spending: the sum over all walkers at the last commit, and its own since."""

    def __init__(self, config: CrawlConfig) -> None:
        self._config = config
        self._known = Counts()
        self._pages = 0
        self._bytes = 0

    def reported(self) -> None:
        """What was counted so far is on its way to the store, which will tell the new sum."""
        self._pages = self._bytes = 0

    def learn(self, counts: Counts) -> None:
        self._known = counts

    def count(self, settled: Settled) -> None:
        if settled.page is not None and settled.page.status is not None:
            self._pages += 1
            self._bytes += settled.page.bytes

    @property
    def spent(self) -> str | None:
        """The name of the budget that is used up."""
        config, known = self._config, self._known
        if config.max_pages is not None and known.pages + self._pages >= config.max_pages:
            return "max_pages"
        if config.max_bytes is not None and known.bytes + self._bytes >= config.max_bytes:
            return "max_bytes"
        if config.max_seconds is not None and known.walked / 1e6 >= config.max_seconds * config.workers:
            return "max_seconds"
        return None

    def allow(self, want: int, unfinished: int) -> int:
        """How many more URLs the budget has room for, if every unfinished one becomes a page."""
        if self._config.max_pages is None:
            return want
        return max(0, min(want, self._config.max_pages - self._known.pages - self._pages - unfinished))
