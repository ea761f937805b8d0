"""The engine, which runs one walker from the moment it attaches to its crawl to its last commit.

The engine makes one commit after another while `FetchWindow` fetches. Each commit stores the results that
`BatchBuilder` collected, and takes as many URLs as the window needs until the next commit. The result of the commit
says whether to continue, pause or stop.
"""

import sys
from collections.abc import Awaitable, Callable
from enum import Enum

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, LeaseLost
from shoal.base.settings import Settings
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.fetch_window import FetchWindow, window_and_rate
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.results import STARVING_SECONDS, BatchBuilder
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.engine.walker_commits import TurnRequest, WalkerCommits
from shoal.crawl.engine.walker_context import WalkerCallbacks, WalkerRequests, WalkerSignals
from shoal.crawl.frontier.values import Control, Settled, Turn, WalkerBatch
from shoal.crawl.journal_messages import JournalReporter
from shoal.hosts.rate import FetchRate

LONGEST_SILENCE_SECONDS = 1.0  # between commits without results: the longest delay until a pause or stop is noticed
OUTAGE_SECONDS = 0.5  # between attempts to reach the store again
NEXT_URL = "the next URL"  # the URL's host is on hold, its slot is far ahead, or it will be retried later
REPORT_SECONDS = 60.0  # between two reports that the store is out of reach


class Ending(Enum):
    """The reason why a walker ended."""

    DRAINED = "drained"
    PAUSED = "paused"
    STOPPED = "stopped"
    BUDGET = "budget"
    HANDED_BACK = "handed_back"


class Engine:
    """Runs one walker of one crawl."""

    def __init__(
        self,
        commits: WalkerCommits,
        window: FetchWindow,
        batch: BatchBuilder,
        *,
        pages: PageReader,
        sitemaps: SitemapReader,
        control: WalkerRequests,
        callbacks: WalkerCallbacks,
        signals: WalkerSignals,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._commits = commits
        self._window = window
        self._batch = batch
        self._budget = batch.budget
        self._throttle = batch.throttle
        self._pages = pages
        self._sitemaps = sitemaps
        self._control = control
        self._callbacks = callbacks
        self._signals = signals
        self._settings = settings
        self._slice_seconds = settings.crawl.slice.total_seconds()
        self._clock = clock
        self._journal = JournalReporter(clock)
        self._started_at = self._cut_at = clock.monotonic()
        self._reported_at = float("-inf")  # when an outage was last reported
        self._progressed_at = self._started_at  # when a URL was last settled, or no URL was due
        self._nothing_due = False  # at the last commit, no URL in the frontier was due

    def stalled_seconds(self) -> float:
        """Return for how long no URL has been settled although work was due. Waiting for a host does not count as a
        stall."""
        return self._clock.monotonic() - self._progressed_at

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for: a URL to become due, or a reason from the window; None if only
        responses are awaited."""
        return NEXT_URL if self._nothing_due and not self._batch.held else self._window.waits_for

    def limit_rate(self, rate: FetchRate | None) -> None:
        """Limit the rate at which fetches start; None removes the limit."""
        self._window.pool.limit_rate(rate)

    async def run(self) -> Ending:
        """Crawl until this walker no longer holds the job; return the reason why it ended.

        After an outage of the store, start over from the stored state, as long as the job is ours. The walker cannot
        know whether the failed commit was stored, so it does not send the batch again: either the store has the batch,
        or its URLs are still held by this walker and are taken again. A walker that was asked to return its job does
        not wait for the end of an outage.
        """
        try:
            while True:
                try:
                    return await self._crawl()
                except BackendUnavailable as error:
                    self._report_settled(self._commits.stored())
                    if not self._callbacks.alive() or self._control.hand_back_reason is not None:
                        raise  # the process that leased the job returns it once the store is back
                    self._report_outage(error)
                    self._window.drop()
                    self._pages.forget()
                    self._pages.traps.forget()
                    self._batch.forget()
                    self._throttle.forget()
                    await self._clock.sleep(OUTAGE_SECONDS)
        finally:
            self._window.close()

    def _report_outage(self, error: BackendUnavailable) -> None:
        if (now := self._clock.monotonic()) - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            self._signals.interrupted(error)

    def _report_settled(self, done: list[Settled]) -> None:
        """Report the results that a commit made durable."""
        self._signals.settled(done, self._sitemaps.is_guess)
        self._callbacks.settled(done)

    async def _crawl(self) -> Ending:
        await self._commits.attach()
        await self._widen_scope()
        turn = await self._commit()
        while True:
            if turn.drained:
                return Ending.DRAINED
            if turn.control is not Control.GO:
                await self._leave(self._commits.close, turn.control.value)
                return Ending.PAUSED if turn.control is Control.PAUSE else Ending.STOPPED
            if turn.changed is not None:
                self.change_options(turn.changed)
                turn = await self._commit()
                continue
            if (budget := self._budget.spent) is not None:
                await self._leave(self._commits.close, budget)
                return Ending.BUDGET
            if (reason := self._control.hand_back_reason) is not None:
                await self._leave(self._commits.hand_back, reason)
                return Ending.HANDED_BACK
            if turn.others_wait:
                await self._leave(self._commits.step_back)
                return Ending.HANDED_BACK
            if self._commits.has_other_walkers and self._pages.has_out_of_scope(turn.work):
                await self._widen_scope()
            self._window.accept(turn.work)
            self._nothing_due = not turn.work and turn.wait_seconds is not None
            await self._wait_until_due(turn)
            turn = await self._commit()

    def change_options(self, crawl: Crawl) -> None:
        """Apply the changed options of the crawl to everything that depends on them."""
        size, rate = window_and_rate(crawl, self._settings, self._commits.rate.timing)
        self._commits.change(crawl, rate)
        self._pages.scope.change(crawl.config)
        self._budget.change(crawl.config)
        self._throttle.change(latency_factor=rate.latency_factor, delay_seconds=rate.delay_seconds)
        self._batch.window_size = size.total
        self._window.change(size)

    async def _widen_scope(self) -> None:
        """Add to the scope the hosts to which seeds redirected. This walker does not know the redirects that other
        walkers followed, or a process that was killed."""
        for url in await self._commits.seeds_landed():
            self._pages.scope.widen(url)

    async def _commit(self) -> Turn:
        if not self._callbacks.alive() and not await self._callbacks.renew():
            raise LeaseLost(self._commits.fence.job_id, self._commits.fence.epoch)
        batch = self._cut()
        self._window.catch_up()
        await self._batch.complete(batch)
        update = self._journal.update_for(batch)
        takes_none = self._control.hand_back_reason is not None or not self._callbacks.has_capacity()
        want = 0 if takes_none else self._batch.capacity()
        slice_over = self._clock.monotonic() - self._started_at >= self._slice_seconds
        turn = await self._commits.turn(batch, TurnRequest(want, self._batch.held, slice_over, update))
        self._window.resume_sitemaps()
        self._journal.learn(update, turn)
        self._pages.traps.learn(turn.traps)
        if turn.counts is not None:
            self._budget.learn(turn.counts)
        window = self._window
        nothing_due = (
            self._batch.held == window.pool.waiting_for_slots or window.waits_for_rate or window.waits_for_renderer
        )
        if batch.has_tries or (not batch.settled and nothing_due):
            self._progressed_at = self._clock.monotonic()
        self._report_settled(self._commits.stored(batch))
        if batch.hosts:
            self._throttle.learn(turn.hold_seconds)
            for host in turn.hold_seconds:  # other walkers' responses may have caused the hold
                self._window.pool.put_back(host)
            self._journal.held(batch.hosts, turn.hold_seconds)
            self._signals.hosts_held(batch.hosts, turn.hold_seconds)
        return turn

    async def _leave(self, commit: Callable[..., Awaitable[None]], *reason: str) -> None:
        """Make the last commit, with all results so far."""
        self._window.drop()
        batch = self._cut()
        await self._batch.complete(batch, sys.maxsize)  # there is no later batch for the rest
        await commit(batch, *reason)
        self._report_settled(self._commits.stored(batch))

    def _cut(self) -> WalkerBatch:
        batch, now = self._batch.cut(), self._clock.monotonic()
        batch.walked_seconds = now - self._cut_at
        self._cut_at = now
        return batch

    async def _wait_until_due(self, turn: Turn) -> None:
        """Wait until a commit is due: because of enough results, the time since the last commit, a request, or the end
        of all work in flight."""
        control, began_at = self._control, self._clock.monotonic()
        longest = min(silence_seconds(turn), self._budget.remaining_seconds)
        while control.hand_back_reason is None and not control.is_nudged:
            if control.error is not None:
                raise control.error
            left = self._batch.due_in_seconds(self._clock.monotonic() - began_at, longest)
            if left <= 0:
                return
            await control.wait(left)
        control.is_nudged = False


def silence_seconds(turn: Turn) -> float:
    """Return the time after which a walker without results commits again."""
    if turn.work or turn.wait_seconds is None:
        return LONGEST_SILENCE_SECONDS
    return max(turn.wait_seconds, STARVING_SECONDS)
