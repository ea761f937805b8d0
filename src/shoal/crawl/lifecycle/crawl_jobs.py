"""Updates a crawl when one of its jobs changes its state. The queue calls this listener in the commit that changes the
job."""

from collections.abc import Sequence

from shoal.base.database import Tx
from shoal.base.errors import BackendUnavailable, FrontierLost, RedisMisconfigured, ShoalError
from shoal.base.ids import JobId
from shoal.base.signals import Signal, Signals
from shoal.crawl import journal_messages as messages
from shoal.crawl import states
from shoal.crawl.crawl import BUDGETS, Crawl
from shoal.crawl.journal import Journal
from shoal.crawl.lifecycle.crawl_status import LIVE, NO_PAGE
from shoal.crawl.lifecycle.transitions import CrawlTransitions
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.crawl.store import ByDriver, CrawlStore, FrontierStore
from shoal.queue.job import EndedRun, Fence, Job, LostJob, RunEndHook, is_local
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.queue.store import JobStore

OUT_OF_REACH = (BackendUnavailable, FrontierLost, RedisMisconfigured)
"""Errors of a frontier outside the database. (Database errors end the transaction, even if they are caught.)"""
QUIET = {CrawlState.PAUSING: CrawlState.PAUSED, CrawlState.STOPPING: CrawlState.STOPPED}


class FrontierOutOfReach(Signal, frozen=True, kw_only=True):
    """A job of a crawl changed its state although the crawl's frontier, which is kept outside the database, could not
    be reached."""

    crawl_id: str
    error: str


class CrawlJobs:
    """The listener of crawl jobs."""

    def __init__(
        self,
        frontiers: ByDriver[FrontierStore],
        jobs: JobStore,
        journal: Journal,
        transitions: CrawlTransitions,
        signals: Signals,
        hooks: Sequence[RunEndHook],
    ) -> None:
        self._store = CrawlStore()
        self._frontiers = frontiers
        self._jobs = jobs
        self._journal = journal
        self._transitions = transitions
        self._signals = signals
        self._hooks = hooks

    async def lock(self, tx: Tx, run_id: str) -> None:
        await self._store.lock(tx, run_id)

    async def jobs_moved(self, tx: Tx, moves: Sequence[tuple[Move, str | None]]) -> None:
        """Update the crawls in the commit that changed the states of their jobs. Locks the crawls."""
        ends = [await self._job_moved(tx, run_id, move) for move, run_id in moves if run_id is not None]
        if ended := [run for run in ends if run is not None]:
            for hook in self._hooks:
                await hook.ended(tx, ended)

    async def _job_moved(self, tx: Tx, run_id: str, move: Move) -> EndedRun | None:
        """Update a crawl; return it if it completed or failed."""
        crawl = await self._store.lock(tx, run_id)
        if crawl is None:  # removed: its jobs end without it
            return None
        if move.grant_end is GrantEnd.RELEASED:
            await self._put_back(tx, crawl, Fence(move.job_id, move.epoch))
        end = await self._end_of(tx, crawl, move)
        entry = messages.walker_moved(move)
        if end is None and await self._is_first_to_finish(tx, crawl, move):
            entry = messages.limit_reached(move)
        await self._journal.write(tx, crawl.number, [] if entry is None else [entry])
        if end is not None:
            await self._transitions.move(tx, crawl, end)
        if end is not None or crawl.state not in LIVE or move.reason in BUDGETS:
            await self._jobs.cancel_waiting(tx, run_id, (end.to if end else crawl.state).value)
        if end is None or end.to not in (CrawlState.COMPLETED, CrawlState.FAILED):
            return None
        completed = end.to is CrawlState.COMPLETED
        analyze = completed and crawl.config.analyze and await self._has_workers(tx, move.job_id)
        return EndedRun(id=crawl.id, is_success=completed, policy_id=crawl.policy_id, analyze=analyze)

    async def _put_back(self, tx: Tx, crawl: Crawl, fence: Fence) -> None:
        """Return the URLs of a walker to the frontier after its job was released, e.g. because the store was
        unavailable or full. These URLs were not in flight during a crash, so they do not become suspects."""
        try:
            if await self._frontiers.of(crawl).holds(tx, crawl.number, fence):
                await self._frontiers.of(crawl).release(tx, crawl.number, fence)
        except OUT_OF_REACH as error:  # the next walker returns the URLs
            self._report(tx, crawl, error)

    async def was_idle(self, tx: Tx, run_id: str, lost: LostJob) -> bool:
        """Return whether the lost walker held no URL, so that its loss does not count as a failed attempt. The
        exception is a walker that died while loading hooks, before its first URL: its loss counts, because a hook that
        crashes its process must not do so forever. `attach` marks the grant once the hooks are loaded."""
        crawl = await self._store.get(tx, run_id)
        if crawl is None:  # removed: its jobs end without it
            return False
        try:
            if await self._frontiers.of(crawl).holds(tx, crawl.number, Fence(lost.id, lost.epoch)):
                return False
        except OUT_OF_REACH as error:  # leases must expire even if the frontier cannot be reached
            self._report(tx, crawl, error)
            return False
        return lost.settled or not crawl.config.hooks

    def _report(self, tx: Tx, crawl: Crawl, error: ShoalError) -> None:
        out_of_reach = FrontierOutOfReach(crawl_id=crawl.id, error=error.message)
        tx.on_commit(lambda: self._signals.emit(out_of_reach))

    async def _has_workers(self, tx: Tx, job_id: JobId) -> bool:
        """Return whether a worker ran the crawl's job. A local crawl runs in its own process, and its store may have no
        workers."""
        job = await self._jobs.get(tx, job_id)
        return job is not None and not is_local(job.lane)

    async def _end_of(self, tx: Tx, crawl: Crawl, move: Move) -> CrawlMove | None:
        if crawl.state not in LIVE:
            return None
        if crawl.state in (CrawlState.PAUSING, CrawlState.STOPPING):
            # Cancel waiting jobs first, as a pause does. Otherwise, a walker whose job is leased while we count would
            # run on a paused crawl.
            await self._jobs.cancel_waiting(tx, crawl.id, QUIET[crawl.state].value)
        pending, locked = await self._jobs.live_of_run(tx, crawl.id)
        counts = await self._store.counts(tx, crawl.number)
        if move.to is JobState.DONE and crawl.state is not CrawlState.STOPPING and counts.drained:
            return states.drain(leaves_urls=counts.held > 0) if counts.pages else states.fail(NO_PAGE)
        if crawl.state is CrawlState.RUNNING and not locked and crawl.config.has_budget:
            # The last walker to leave completes the crawl, so that nothing is committed after its end.
            left = left_for_a_budget(await self._jobs.jobs_of_run(tx, crawl.id), crawl)
            if left and (spent := left[0].state_reason) is not None:
                return states.complete(spent)
        if crawl.state in (CrawlState.PAUSING, CrawlState.STOPPING):
            quiet = states.pause if crawl.state is CrawlState.PAUSING else states.stop
            return quiet(crawl.state_reason or "asked") if not locked else None
        return states.fail(move.reason or "walker_lost") if not pending and not locked else None

    async def _is_first_to_finish(self, tx: Tx, crawl: Crawl, move: Move) -> bool:
        """Return whether this walker is the first to leave because of a spent budget."""
        if move.reason not in BUDGETS:
            return False
        return len(left_for_a_budget(await self._jobs.jobs_of_run(tx, crawl.id), crawl)) == 1


def left_for_a_budget(jobs: list[Job], crawl: Crawl) -> list[Job]:
    """Return the walkers that found a budget spent under the crawl's current options."""
    return [job for job in jobs if job.state_reason in BUDGETS and (job.finished_at or 0) >= crawl.changed_at]
