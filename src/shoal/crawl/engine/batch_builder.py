"""The batch that a walker builds for its next commit, and when that commit is due."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.base.settings import CrawlSettings
from shoal.crawl.engine.budget import Budget
from shoal.crawl.engine.not_modified import NotModifiedPages
from shoal.crawl.frontier.values import FrontierTask, Settled, WalkerBatch
from shoal.hosts.throttle import ThrottleTracker

if TYPE_CHECKING:
    from shoal.pages.warc import BodyRecorder

STARVING_SECONDS = 0.02  # a window that runs dry commits sooner, but not all the time
MOST_URLS = 20_000  # found URLs in one commit: no lease can be renewed during a long commit


class BatchBuilder:
    """Collects what became of the URLs that a walker holds, until a commit takes it.

    `held` counts the URLs that were taken from the frontier and are in no committed batch yet. The batch is heavy when
    it has so many found URLs that further responses wait for the next one.
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
        self._budget = budget
        self._throttle = throttle
        self._wake = wake  # makes the commit loop check whether a commit is due
        self._bodies = bodies  # are written before the commit that has their pages
        self._not_modified = not_modified
        self.pending = WalkerBatch()
        self.held = 0
        self._suspects = 0  # suspects among the held tasks; while there is one, nothing else is taken

    def take(self, tasks: list[FrontierTask]) -> None:
        """Count tasks that a commit took from the frontier."""
        self.held += len(tasks)
        self._suspects += sum(task.is_suspect for task in tasks)

    def add(self, settled: Settled) -> None:
        """Add what became of one URL."""
        results = self.pending.settled
        results.append(settled)
        self._suspects -= settled.task.is_suspect
        # The first result starts the wait for the commit; a full batch or a window that runs dry ends it.
        if len(results) == 1 or len(results) >= self._commit_results or self._is_starving or self.is_full:
            self._wake()

    @property
    def is_heavy(self) -> bool:
        """Return whether the batch has so many URLs that further responses wait for the next one."""
        return len(self.pending.found) + len(self.pending.skipped) >= MOST_URLS

    @property
    def is_full(self) -> bool:
        """Return whether so many URLs or bodies wait to be written that nothing more is fetched before the next
        commit."""
        return self.is_heavy or (self._bodies is not None and self._bodies.is_full)

    @property
    def is_closed(self) -> bool:
        """Return whether no fetch may start: the budget is spent, or the batch is full."""
        return self._budget.spent is not None or self.is_full

    @property
    def _is_starving(self) -> bool:
        return self.held - len(self.pending.settled) < self.window_size

    def capacity(self) -> int:
        """Return how many more URLs to take: for the window, and for what finishes while the next commit runs."""
        if self._budget.spent is not None or self._suspects:
            return 0
        return max(0, self.window_size + self._commit_results - self.held)

    def due_in_seconds(self, elapsed_seconds: float, longest_seconds: float) -> float:
        """Return the time until the next commit is due, given the time since the last one."""
        results = self.pending.settled
        finished = len(results)
        if self.is_closed:
            return 0
        if finished and not self.pending.has_tries:  # a commit would only take the same URLs again
            held_seconds = min(self._throttle.held_seconds(done.task.host) for done in results)
            return min(held_seconds, longest_seconds - elapsed_seconds)
        if finished >= self._commit_results or (finished and finished == self.held):
            return 0
        if not finished:
            return longest_seconds - elapsed_seconds
        every = self._commit_seconds
        return (min(STARVING_SECONDS, every) if self._is_starving else every) - elapsed_seconds

    def cut(self) -> WalkerBatch:
        """Return the batch for the commit that starts now, and begin the next one."""
        batch, self.pending = self.pending, WalkerBatch()
        batch.hosts = self._throttle.updates()
        self.held -= len(batch.settled)
        self._budget.reported()
        return batch

    async def complete(self, batch: WalkerBatch, most: int | None = None) -> None:
        """Do what has to precede the commit of a batch: fill in unchanged pages and write bodies.

        Pages whose links would make more than `most` URLs move to the next batch. Bodies that arrive meanwhile are
        written with theirs.
        """
        taken = self._bodies.take() if self._bodies is not None else []
        if batch.unchanged and self._not_modified is not None:
            postponed = await self._not_modified.recall(batch, MOST_URLS if most is None else most)
            self._budget.held_back(postponed)
            self.held += len(postponed)
            self.pending.settled[:0] = postponed
            self.pending.unchanged[:0] = postponed
        if self._bodies is not None:
            await self._bodies.write(taken)

    def forget(self) -> None:
        """Start over with nothing held: the store knows which URLs are settled, and the others are taken again."""
        self._budget.forget()
        if self._bodies is not None:
            self._bodies.forget()
        self.pending = WalkerBatch()
        self.held = 0
        self._suspects = 0
