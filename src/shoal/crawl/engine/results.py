"""Turns responses into the batch of a turn: reads them, completes unchanged pages, and keeps track of the budget."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from shoal.base.clock import Clock
from shoal.base.settings import CrawlSettings
from shoal.crawl.crawl import Counts, CrawlConfig
from shoal.crawl.engine.known_urls import PreviousCrawl
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.frontier.values import FrontierTask, Settled, UrlKind, WalkerBatch
from shoal.hosts.throttle import ThrottleTracker
from shoal.pages.page import NOT_MODIFIED
from shoal.web.page_fetcher import Fetched
from shoal.web.sitemap_fetcher import FetchedSitemap

if TYPE_CHECKING:
    from shoal.pages.warc import BodyRecorder


FEWEST = 10  # pages read at the same time; the number of their links is not known in advance
MOST = 1_000
SMALL_PART = 4  # if the links of one read fill at most a quarter of a commit, the next read has twice as many pages


class NotModifiedPages:
    """Completes the unchanged pages of one walker with data from the previous crawl."""

    def __init__(self, previous: PreviousCrawl, reader: PageReader, bodies: "BodyRecorder | None") -> None:
        self._previous = previous
        self._reader = reader
        self._bodies = bodies
        self._at_once = FEWEST

    async def recall(self, batch: WalkerBatch, most: int) -> list[Settled]:
        """Complete unchanged pages of a batch until the batch has `most` URLs. Remove the remaining unchanged pages
        from the batch and return them."""
        left = batch.unchanged
        while left and batch.weight < most:
            before = batch.weight
            now, left = left[: self._at_once], left[self._at_once :]
            await self._recall(now, batch)
            is_small = batch.weight - before <= most // SMALL_PART
            self._at_once = min(2 * self._at_once, MOST) if is_small else FEWEST
        if left:
            later = set(map(id, left))
            batch.settled = [done for done in batch.settled if id(done) not in later]
        return left

    async def _recall(self, pages: list[Settled], batch: WalkerBatch) -> None:
        recalled = await self._previous.recall([done.task for done in pages])
        for done in pages:
            known = recalled.get((done.task.key, done.task.chk))
            self._reader.recall(done, known, batch)
            if self._bodies is not None and known is not None and done.page is not None:
                self._bodies.recall(done.page, known.page)


class Budget:
    """The spent budget of a crawl, as one walker knows it: the total at the last commit, plus the part that this walker
    has spent since then."""

    def __init__(self, config: CrawlConfig, clock: Clock) -> None:
        self._config = config
        self._limited = config.has_budget
        self._clock = clock
        self._known = Counts()
        self._known_at = clock.monotonic()
        self._pages = self._bytes = 0
        self._sent_pages = self._sent_bytes = 0

    def change(self, config: CrawlConfig) -> None:
        """Apply changed limits. The amount already spent stays the same."""
        self._config, self._limited = config, config.has_budget

    def reported(self) -> None:
        """Mark the counts so far as part of the commit that starts now. The total that the commit returns includes
        them."""
        self._sent_pages, self._sent_bytes = self._pages, self._bytes

    def held_back(self, pages: list[Settled]) -> None:
        """Exclude these pages from the counts of the commit that starts now: they belong to a later commit."""
        self._sent_pages -= sum(done.page is not None and done.page.status is not None for done in pages)
        self._sent_bytes -= sum(done.page.received for done in pages if done.page is not None)

    def learn(self, counts: Counts) -> None:
        """Replace the counts that were sent with the total that the commit returned."""
        self._known, self._known_at = counts, self._clock.monotonic()
        self._pages -= self._sent_pages
        self._bytes -= self._sent_bytes
        self._sent_pages = self._sent_bytes = 0

    def forget(self) -> None:
        """Drop the walker's own counts after a failed commit. The next commit returns the stored total."""
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


STARVING_SECONDS = 0.02  # if the window runs dry, commit sooner, but not all the time
MOST_URLS = 20_000  # found URLs in one commit: the lease cannot be renewed during a long commit
MOST_BODIES = 16_000_000  # response bytes in one commit that are passed on to the caller with their pages


class BatchBuilder:
    """Collects the outcomes of the URLs that a walker holds, until a commit stores them.

    `held` counts the URLs that were taken from the frontier and do not belong to a committed batch yet. The batch is
    heavy when it has so many found URLs that further responses wait for the next batch.
    """

    def __init__(
        self,
        window_size: int,
        settings: CrawlSettings,
        budget: Budget,
        throttle: ThrottleTracker,
        wake: Callable[[], None],
        *,
        bodies: "BodyRecorder | None",
        not_modified: NotModifiedPages | None,
    ) -> None:
        self.window_size = window_size
        self._commit_results = settings.commit_results
        self._commit_seconds = settings.commit_every.total_seconds()
        self.budget = budget
        self.throttle = throttle
        self.wake = wake  # makes the commit loop check whether a commit is due
        self._bodies = bodies  # bodies are written before the commit of their pages
        self._not_modified = not_modified
        self.pending = WalkerBatch()
        self.held = 0
        self._body_bytes = 0  # size of the responses that are passed on with the pending batch
        self._suspects = 0  # number of suspects among the held tasks; while there is a suspect, nothing else is taken

    def take(self, tasks: list[FrontierTask]) -> None:
        """Count tasks that a commit took from the frontier."""
        self.held += len(tasks)
        self._suspects += sum(task.is_suspect for task in tasks)

    def add(self, settled: Settled) -> None:
        """Add the outcome of one URL."""
        results = self.pending.settled
        results.append(settled)
        self._suspects -= settled.task.is_suspect
        if settled.captured is not None:
            self._body_bytes += settled.captured.size
        # The first result starts the wait for the commit. A full batch, or a window that runs dry, ends the wait.
        if len(results) == 1 or len(results) >= self._commit_results or self._is_starving or self.is_full:
            self.wake()

    @property
    def is_heavy(self) -> bool:
        """Return whether the batch has so many URLs that further responses wait for the next batch."""
        return len(self.pending.found) + len(self.pending.skipped) >= MOST_URLS

    @property
    def is_full(self) -> bool:
        """Return whether so many URLs or bodies wait to be written that nothing more is fetched before the next
        commit."""
        if self._bodies is not None and self._bodies.is_full:
            return True
        return self.is_heavy or self._body_bytes >= MOST_BODIES

    @property
    def is_closed(self) -> bool:
        """Return whether no fetch may start: the budget is spent, or the batch is full."""
        return self.budget.spent is not None or self.is_full

    @property
    def _is_starving(self) -> bool:
        return self.held - len(self.pending.settled) < self.window_size

    def capacity(self) -> int:
        """Return how many more URLs to take: enough to fill the window, and to replace the fetches that finish while
        the next commit runs."""
        if self.budget.spent is not None or self._suspects:
            return 0
        return max(0, self.window_size + self._commit_results - self.held)

    def due_in_seconds(self, elapsed_seconds: float, longest_seconds: float) -> float:
        """Return the time until the next commit is due, given the time since the last one."""
        results = self.pending.settled
        finished = len(results)
        if self.is_closed:
            return 0
        if finished and not self.pending.has_tries:  # a commit would only take the same URLs again
            held_seconds = min(self.throttle.held_seconds(done.task.host) for done in results)
            return min(held_seconds, longest_seconds - elapsed_seconds)
        if finished >= self._commit_results or (finished and finished == self.held):
            return 0
        if not finished:
            return longest_seconds - elapsed_seconds
        every = self._commit_seconds
        return (min(STARVING_SECONDS, every) if self._is_starving else every) - elapsed_seconds

    def cut(self) -> WalkerBatch:
        """Return the batch for the commit that starts now, and begin the next one."""
        batch, self.pending, self._body_bytes = self.pending, WalkerBatch(), 0
        batch.hosts = self.throttle.updates()
        self.held -= len(batch.settled)
        self.budget.reported()
        return batch

    async def complete(self, batch: WalkerBatch, most: int | None = None) -> None:
        """Prepare a batch for its commit: complete unchanged pages and write bodies.

        Unchanged pages whose links would raise the batch above `most` URLs move to the next batch. Bodies that arrive
        meanwhile are written with the next batch.
        """
        taken = self._bodies.take() if self._bodies is not None else []
        if batch.unchanged and self._not_modified is not None:
            postponed = await self._not_modified.recall(batch, MOST_URLS if most is None else most)
            self.budget.held_back(postponed)
            self.held += len(postponed)
            self.pending.settled[:0] = postponed
            self.pending.unchanged[:0] = postponed
        if self._bodies is not None:
            await self._bodies.write(taken)

    def forget(self) -> None:
        """Start over without held URLs: the store knows which URLs are settled, and the rest are taken again."""
        self.budget.forget()
        if self._bodies is not None:
            self._bodies.forget()
        self.pending = WalkerBatch()
        self.held = 0
        self._body_bytes = 0
        self._suspects = 0


class ResponseReader:
    """Turns responses into settled URLs and new links. Pages and sitemaps have different readers.

    While the batch is heavy, responses wait here for the next batch.
    """

    def __init__(
        self,
        pages: PageReader,
        sitemaps: SitemapReader,
        batch: BatchBuilder,
        *,
        bodies: "BodyRecorder | None",
        hands_on: bool = False,
    ) -> None:
        """`hands_on`: whether the walker's caller gets each page with its response."""
        self._pages = pages
        self._sitemaps = sitemaps
        self.batch = batch
        self._bodies = bodies
        self._hands_on = hands_on
        self.waiting: deque[tuple[FrontierTask, Fetched]] = deque()  # responses that are not read yet

    def add(self, task: FrontierTask, fetched: Fetched) -> None:
        """Add a response to the end of the waiting responses."""
        self.waiting.append((task, fetched))

    def read(self) -> bool:
        """Read waiting responses until the batch is heavy.

        Return True after one part of a large sitemap. The caller reads the rest after other tasks of the event loop
        have run, because leases have to be renewed meanwhile.
        """
        has_more = False
        while self.waiting and not has_more and not self.batch.is_heavy:
            has_more = self._read_next()
        if self.batch.is_heavy:
            self.batch.wake()
        return has_more

    def give_up(self, task: FrontierTask) -> None:
        """Fail a URL that was the only one in flight each time its worker died."""
        self.batch.add(self._reader_of(task).killer(task))

    def clear(self) -> None:
        """Drop the waiting responses: the frontier gets their URLs back."""
        self.waiting.clear()

    def _read_next(self) -> bool:
        task, fetched = self.waiting.popleft()
        if self.batch.budget.full:
            return False  # too late: the frontier gets the URL back when the walker leaves
        settled = self._settle(task, fetched)
        if settled is None:
            self.waiting.appendleft((task, fetched))
            return True
        self.batch.budget.count(settled)
        # The commit may end a redirect here, and then the redirect's record needs the body. If the redirect does not
        # end here, a few bytes are wasted.
        page = settled.page if settled.onward is None else settled.onward.page
        if fetched.captured and page is not None and self._bodies is not None:
            self._bodies.add(page, fetched.captured, fetched.earlier)
        if self._hands_on and fetched.captured and settled.page is not None and settled.page.status != NOT_MODIFIED:
            settled.captured = fetched.captured[0]
        self.batch.add(settled)
        return False

    def _settle(self, task: FrontierTask, fetched: Fetched) -> Settled | None:
        """Return the outcome of the URL; None if a large sitemap has more entries to read."""
        batch = self.batch.pending
        try:
            if isinstance(fetched, FetchedSitemap):
                return self._sitemaps.read(task, fetched, batch)
            if fetched.chain is not None:
                return self._pages.redirect(task, fetched, batch)
            return self._pages.read(task, fetched, batch)
        except Exception as error:  # one odd page must not end the whole crawl
            return self._reader_of(task).unexpected(task, error)

    def _reader_of(self, task: FrontierTask) -> PageReader | SitemapReader:
        return self._sitemaps if task.kind is UrlKind.SITEMAP else self._pages
