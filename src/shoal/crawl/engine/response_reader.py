"""Reading of responses into the batch for the next commit, as fast as that batch takes them."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.crawl.engine.batch_builder import BatchBuilder
from shoal.crawl.engine.budget import Budget
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.frontier.values import FrontierTask, Settled, UrlKind
from shoal.web.page_fetcher import Fetched
from shoal.web.sitemap_fetcher import FetchedSitemap

if TYPE_CHECKING:
    from shoal.pages.warc import BodyRecorder


class ResponseReader:
    """Turns responses into settled URLs and new links, with the reader for their kind.

    While the batch is heavy, responses wait here for the next one.
    """

    def __init__(
        self,
        pages: PageReader,
        sitemaps: SitemapReader,
        batch: BatchBuilder,
        budget: Budget,
        wake: Callable[[], None],
        *,
        bodies: "BodyRecorder | None",
    ) -> None:
        self._pages = pages
        self._sitemaps = sitemaps
        self._batch = batch
        self._budget = budget
        self._wake = wake  # makes the commit loop check whether a commit is due
        self._bodies = bodies
        self._waiting: deque[tuple[FrontierTask, Fetched]] = deque()

    @property
    def has_waiting(self) -> bool:
        """Return whether responses wait to be read."""
        return bool(self._waiting)

    def add(self, task: FrontierTask, fetched: Fetched) -> None:
        """Put a response behind those that wait."""
        self._waiting.append((task, fetched))

    def read(self) -> bool:
        """Read waiting responses until the batch is heavy.

        Return True after one part of a large sitemap: the caller reads the rest when others have had their turn in the
        event loop, because leases have to be renewed meanwhile.
        """
        has_more = False
        while self._waiting and not has_more and not self._batch.is_heavy:
            has_more = self._read_next()
        if self._batch.is_heavy:
            self._wake()
        return has_more

    def give_up(self, task: FrontierTask) -> None:
        """Fail a URL that was alone in flight each time its worker died."""
        self._batch.add(self._reader_of(task).killer(task))

    def clear(self) -> None:
        """Drop what waits: the frontier gets those URLs back."""
        self._waiting.clear()

    def _read_next(self) -> bool:
        task, fetched = self._waiting.popleft()
        if self._budget.full:
            return False  # too late: the frontier gets it back when the walker leaves
        settled = self._settle(task, fetched)
        if settled is None:
            self._waiting.appendleft((task, fetched))
            return True
        self._budget.count(settled)
        # The commit may end a redirect here: then its record has a body, otherwise a few bytes are stored without need.
        page = settled.page if settled.onward is None else settled.onward.page
        if fetched.captured and page is not None and self._bodies is not None:
            self._bodies.add(page, fetched.captured, fetched.earlier)
        self._batch.add(settled)
        return False

    def _settle(self, task: FrontierTask, fetched: Fetched) -> Settled | None:
        """Return what became of the URL; None if a large sitemap has more entries to read."""
        batch = self._batch.pending
        try:
            if isinstance(fetched, FetchedSitemap):
                return self._sitemaps.read(task, fetched, batch)
            if fetched.chain is not None:
                return self._pages.redirect(task, fetched, batch)
            return self._pages.read(task, fetched, batch)
        except Exception as error:  # one odd page must not end the crawl of all others
            return self._reader_of(task).unexpected(task, error)

    def _reader_of(self, task: FrontierTask) -> PageReader | SitemapReader:
        return self._sitemaps if task.kind is UrlKind.SITEMAP else self._pages
