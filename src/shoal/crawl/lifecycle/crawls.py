"""The lifecycle of crawls: submit, show, pause, resume, stop, and the state changes that follow from those of their
jobs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from shoal.access.audit_hook import AuditHook, no_audit
from shoal.base.database import Database, Tx
from shoal.base.errors import (
    AlreadyExists,
    BackendUnavailable,
    FrontierLost,
    InvalidInput,
    NotFound,
    RedisMisconfigured,
    StateConflict,
)
from shoal.base.ids import CrawlId, JobId, new_id
from shoal.base.query_params import SESSION, TRACKING
from shoal.base.signals import Signal, Signals
from shoal.crawl import states
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig, FrontierDriver
from shoal.crawl.engine.budget import BUDGETS
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import Trap
from shoal.crawl.frontier.values import NewUrl, key_of
from shoal.crawl.journal import messages
from shoal.crawl.journal.entry import JournalEntry
from shoal.crawl.journal.journal import Journal
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.failed_urls import DroppedPage, FailedPage, FailedSeed, FailedUrls, in_words
from shoal.crawl.lifecycle.on_completed import OnCompleted
from shoal.crawl.scope.seeds import check_addresses, check_label, check_proxy, check_walkers, first_urls, seeds_of
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.crawl.store import OUTSIDE, CrawlFilter, CrawlStore, FrontierStore
from shoal.egress.address import AddressRule
from shoal.egress.proxies import Proxies
from shoal.events.event import Event
from shoal.events.store import OutboxStore
from shoal.hosts.rate import HeldHost
from shoal.queue.job import Fence, Job, LostJob, NewJob, is_local, local_lane, node_of, quota_keys
from shoal.queue.lanes import lane_of_run
from shoal.queue.queue import Queue
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.settings import CrawlSettings

KIND = "crawl"
NO_PAGE = "no_seed_gave_a_page"
LEFT = "process_gone"
SEEDS_AT_ONCE = 100  # seeds looked up per statement
MOST_HELD = 100  # hosts on hold that are reported
REOPENED_AT_ONCE = 500  # failed URLs per commit
LIVE = states.WALKED | {CrawlState.QUEUED}
OUT_OF_REACH = (BackendUnavailable, FrontierLost, RedisMisconfigured)
"""Errors of a frontier outside the database. (Those of the database end the transaction whatever is caught.)"""
QUIET = {CrawlState.PAUSING: CrawlState.PAUSED, CrawlState.STOPPING: CrawlState.STOPPED}


class CrawlMoved(Signal, frozen=True, kw_only=True):
    """A crawl changed its state."""

    crawl_id: str
    state: CrawlState
    reason: str | None
    seconds: float | None = None  # from its start to its end


class CrawlEnded(Signal, frozen=True, kw_only=True):
    """A crawl ended in a child of this process, for metrics."""

    state: str
    seconds: float | None


class CrawlChanged(Signal, frozen=True, kw_only=True):
    """The options of a crawl were changed."""

    crawl_id: str
    changes: dict[str, Any]


class FrontierOutOfReach(Signal, frozen=True, kw_only=True):
    """A job of a crawl changed its state although its frontier, which is kept outside the database, could not be
    reached."""

    crawl_id: str
    error: str


@dataclass(frozen=True, slots=True)
class CrawlStatus:
    """A crawl with its counts, read in one transaction, the nodes that crawl it now, and the error if it failed."""

    crawl: Crawl
    counts: Counts
    node_ids: tuple[str, ...] = ()
    error_message: str = ""
    failed_seeds: tuple[FailedSeed, ...] = ()  # all seeds if the crawl has ended and none returned a page; else empty

    @property
    def why_no_seed(self) -> str:
        """Return why no seed returned a page; empty if one did, or if the crawl has not ended."""
        return in_words(self.failed_seeds)


class Crawls:
    """Operations on crawls, and the state of a crawl as its jobs change."""

    def __init__(
        self,
        database: Database,
        store: CrawlStore,
        frontier: FrontierStore,
        queue: Queue,
        outbox: OutboxStore,
        rule: AddressRule,
        signals: Signals,
        journal: Journal,
        settings: CrawlSettings | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self._database = database
        self.store = store
        self._frontier = frontier
        self._queue = queue
        self._outbox = outbox
        self._rule = rule
        self._signals = signals
        self.journal = journal
        self._settings = settings or CrawlSettings()
        self._proxies = proxies or Proxies()
        self._on_completed: Callable[[], OnCompleted] | None = None

    def followed_by(self, on_completed: Callable[[], OnCompleted]) -> None:
        """Set the hook that is called for completed crawls that ask for an analysis."""
        self._on_completed = on_completed

    async def submit(
        self,
        config: CrawlConfig,
        *,
        crawl_id: CrawlId | None = None,
        named: Sequence[str] | None = None,
        here: bool = False,
        frontier: FrontierDriver | None = None,
    ) -> Crawl:
        """Store a crawl with its seeds and jobs. `named`: hosts that the user named on this machine's command line;
        `here`: put its job into a local lane, which workers do not lease from; `frontier`: the driver of its frontier,
        by default that of the settings."""
        config = self._with_lists(config)
        seeds = seeds_of(config)
        check_label(self._proxies, config)
        check_walkers(config, self._settings.max_concurrent_chrome)
        if named is None:
            self.check(config)
        wanted = crawl_id or CrawlId(new_id("crl"))
        driver = frontier or self._settings.frontier
        state = CrawlState.QUEUED if config.start else CrawlState.PENDING
        jobs = self._walkers(wanted, config, here) if config.start else []

        async def commit(tx: Tx) -> Crawl:
            key_seed = await self._seed_of_earlier(tx, config)
            crawl = await self.store.insert(tx, wanted, config, list(named or []), state, key_seed, driver)
            if crawl is None:
                raise AlreadyExists("crawl", wanted, "choose another id, or resume that crawl")
            await self._frontier.begin(tx, crawl)
            await self.add_urls(tx, crawl.number, first_urls(seeds, crawl.key_seed, config))
            self._emit_on_commit(tx, crawl.id, CrawlMove(state))
            await self._queue.enqueue_in(tx, jobs)
            await self.journal.write(tx, crawl.number, [messages.submitted(crawl, here=here)])
            return crawl

        return await self._database.run(commit)

    def check(self, config: CrawlConfig) -> None:
        """Raise if a seed or the proxy has a blocked address, or its label is unknown; host names are checked on
        resolution."""
        check_addresses(self._rule, seeds_of(config))
        check_label(self._proxies, config)
        check_proxy(self._rule, config)

    async def _seed_of_earlier(self, tx: Tx, config: CrawlConfig) -> int | None:
        """Return the key seed of the crawl that this one repeats, so that a URL has the same key in both."""
        earlier_id = config.recrawl_of
        if earlier_id is None:
            return None
        earlier = await self.store.get(tx, earlier_id)
        if earlier is None:
            raise InvalidInput(EARLIER, f"{earlier_id!r} is not a crawl in this store", EARLIER_FIX)
        if earlier.state not in states.TERMINAL:
            raise InvalidInput(EARLIER, f"{earlier_id!r} is {earlier.state}", "wait until it has ended, or stop it")
        return earlier.key_seed

    async def get(self, crawl_id: str) -> CrawlStatus:
        async def look(tx: Tx) -> CrawlStatus:
            crawl = await self.store.get(tx, crawl_id)
            if crawl is None:
                raise NotFound("crawl", crawl_id)
            status = await self._look_at(tx, crawl)
            return dataclasses.replace(status, failed_seeds=await self._failed_seeds(tx, status))

        return await self._database.read(look)

    async def newest(
        self,
        *,
        after: int | None = None,
        limit: int = 50,
        state: str | None = None,
        project: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[CrawlStatus]:
        return await self.matching(CrawlFilter(state, project, labels or {}), after=after, limit=limit)

    async def matching(
        self, wanted: CrawlFilter, *, after: int | None = None, limit: int = 50, floor: int = 0
    ) -> list[CrawlStatus]:
        """Return crawls that match a filter, newest first, down to the crawl with the number `floor`."""

        async def look(tx: Tx) -> list[CrawlStatus]:
            crawls = await self.store.page_of(tx, after, limit, wanted, floor)
            counts = await self.store.counts_of(tx, [crawl.number for crawl in crawls])
            return [await self._look_at(tx, crawl, counts[crawl.number]) for crawl in crawls]

        return await self._database.read(look)

    async def count(self) -> dict[str, int]:
        """Count the crawls by state."""
        return await self._database.read(self.store.count)

    async def last_number(self) -> int:
        """Return the number of the newest crawl; 0 if there is none."""
        return await self._database.read(self.store.last_number)

    async def live_counts(self) -> dict[int, tuple[int, int]]:
        """Return the pages and errors of every crawl that runs, by its number."""
        return await self._database.read(self.store.live_counts)

    async def _look_at(self, tx: Tx, crawl: Crawl, counts: Counts | None = None) -> CrawlStatus:
        counts = counts or await self.store.counts(tx, crawl.number)
        if crawl.state not in LIVE and crawl.state is not CrawlState.FAILED:
            return CrawlStatus(crawl, counts)
        jobs = await self._queue.jobs_of_run(tx, crawl.id)
        nodes = sorted({node_of(job.lease_holder) for job in jobs if job.lease_holder is not None})
        if crawl.state in states.WALKED and await self._is_abandoned(tx, crawl, jobs):
            return CrawlStatus(dataclasses.replace(crawl, state_reason=LEFT), counts)
        why = await self._why(tx, crawl, counts, jobs) if crawl.state is CrawlState.FAILED else ""
        return CrawlStatus(crawl, counts, tuple(nodes), why)

    async def _failed_seeds(self, tx: Tx, status: CrawlStatus) -> tuple[FailedSeed, ...]:
        """Return the seeds of a crawl that has ended if none of them returned a page. For most crawls the first batch
        of lookups finds one that did."""
        crawl, failed = status.crawl, list[FailedSeed]()
        if crawl.state not in states.TERMINAL:
            return ()
        seeds = [(url, key_of(url, crawl.key_seed)) for url in dict.fromkeys(seeds_of(crawl.config))]
        for start in range(0, len(seeds), SEEDS_AT_ONCE):
            some = seeds[start : start + SEEDS_AT_ONCE]
            failed += await self.store.failed_seeds(tx, crawl.number, some)
            if len(failed) < start + len(some):
                return ()
        return tuple(failed)

    async def _is_abandoned(self, tx: Tx, crawl: Crawl, jobs: list[Job]) -> bool:
        """Return whether a local crawl's process died without reporting it; workers do not take over such a crawl."""
        live = [job for job in jobs if job.finished_at is None]
        if any(job.lane != local_lane(crawl.id) for job in live):
            return False
        now = await self.store.now(tx)
        return not any(job.lease_until is not None and job.lease_until > now for job in live)

    async def _why(self, tx: Tx, crawl: Crawl, counts: Counts, jobs: list[Job]) -> str:
        """Return why a crawl failed: the error of the first failed page, or that of its jobs."""
        if crawl.state_reason != NO_PAGE:
            return next((job.error for job in reversed(jobs) if job.error), crawl.state_reason or "unknown")
        page = await self.store.first_failure(tx, crawl.number)
        if page is not None:
            return f"{page[0]}: {page[1].rstrip('.')}"
        if Fate.SKIPPED_ROBOTS.word in counts.skipped:
            return "robots.txt disallows it, see `shoal robots test URL`"
        return "the options exclude every seed" if counts.skipped else "no seed was requested"

    async def start(self, crawl_id: str) -> CrawlState:
        """Start a crawl that was stored without being submitted."""
        return await self._enqueue(crawl_id, {CrawlState.PENDING}, "be started")

    async def resume(self, crawl_id: str, *, here: bool = False) -> CrawlState:
        return await self._enqueue(crawl_id, {CrawlState.PAUSED}, "be resumed", here=here)

    async def retry(self, crawl_id: str) -> CrawlState:
        """Resume a failed crawl with its open URLs; if there are none, retry its failed URLs."""
        status = await self.get(crawl_id)
        if status.crawl.state is CrawlState.FAILED and status.counts.drained:
            if not await self.retry_these(crawl_id, FailedUrls()):
                raise StateConflict(
                    "crawl",
                    crawl_id,
                    status.crawl.state,
                    "be retried",
                    "none of its URLs was ever requested; start a new one",
                )
            return (await self.get(crawl_id)).crawl.state
        return await self._enqueue(crawl_id, {CrawlState.FAILED}, "be retried")

    async def retry_these(self, crawl_id: str, which: FailedUrls) -> int:
        """Retry failed URLs, in batches; return how many. The last batch queues a crawl that had ended. URLs that fail
        again in the meantime are left alone."""
        number, after, reopened = (await self.get(crawl_id)).crawl.number, 0, 0
        upto = await self._database.read(lambda tx: self.store.last_page(tx, number))
        while True:
            found = [page for page in await self._failed_after(number, after) if page.number <= upto]
            chosen = [page for page in found if page in which]
            is_last = len(found) < REOPENED_AT_ONCE
            if which.limit is not None:
                chosen = chosen[: which.limit - reopened]
                is_last = is_last or reopened + len(chosen) == which.limit
            if chosen or is_last:
                reopened += await self._reopen(crawl_id, chosen, reopened if is_last else None)
            if is_last:
                return reopened
            after = found[-1].number

    async def add_urls(self, tx: Tx, number: int, urls: list[NewUrl], counter: str = OUTSIDE) -> int:
        """Add URLs to the frontier and count them; return how many were new."""
        added = await self._frontier.add(tx, number, urls)
        await self.store.add_counts(tx, number, counter, added.counts())
        return added.new

    async def reopen(self, tx: Tx, number: int, pages: list[FailedPage]) -> int:
        """Reopen the URLs of failed pages as if they had never been tried; return how many. Remove their records and
        subtract their counts. Pages that somebody else reopened are left out. Call under the crawl's lock."""
        dropped = await self.store.drop_failed(tx, number, pages)
        answered = [page.final_url for page in dropped if page.status is not None]
        change = await self._frontier.reopen(tx, number, [page.url for page in dropped], answered)
        counts = dataclasses.replace(DroppedPage.taken_back(dropped), opened=change.counts().opened)
        await self.store.add_counts(tx, number, OUTSIDE, counts)
        return len(dropped)

    async def _failed_after(self, crawl: int, number: int) -> list[FailedPage]:
        return await self._database.read(lambda tx: self.store.failed_after(tx, crawl, number, REOPENED_AT_ONCE))

    async def _reopen(self, crawl_id: str, pages: list[FailedPage], before: int | None) -> int:
        """Reopen one batch. `before` is set for the last batch: the number of URLs reopened by the earlier ones."""

        async def commit(tx: Tx) -> int:
            crawl = await self._locked(tx, crawl_id)
            await self._check_retry(tx, crawl)
            reopened = await self.reopen(tx, crawl.number, pages) if pages else 0
            if reopened:
                await self.journal.write(tx, crawl.number, [messages.reopened(reopened)])
            ended = crawl.state in states.TERMINAL
            if before is None or not ended or not (before or reopened or await self._was_broken_off(tx, crawl)):
                return reopened
            await self._move(tx, crawl, states.queue())
            await self._queue.enqueue_in(tx, self._walkers(crawl.id, crawl.config, here=False))
            return reopened

        return await self._database.run(commit)

    async def _check_retry(self, tx: Tx, crawl: Crawl) -> None:
        if crawl.state in (CrawlState.STOPPING, CrawlState.STOPPED):
            raise StateConflict("crawl", crawl.id, crawl.state, "retry URLs", "start a new one")
        jobs = await self._queue.jobs_of_run(tx, crawl.id) if crawl.state in LIVE else []
        if any(job.finished_at is None and job.lane == local_lane(crawl.id) for job in jobs):
            # The process that crawls it has already output these pages, and would output them twice.
            raise StateConflict("crawl", crawl.id, crawl.state, "retry URLs", "pause it in the process that runs it")

    async def _was_broken_off(self, tx: Tx, crawl: Crawl) -> bool:
        """Return whether a retry was interrupted before its last batch."""
        return crawl.state_reason not in BUDGETS and not (await self.store.counts(tx, crawl.number)).drained

    async def change(self, crawl_id: str, change: CrawlChange) -> CrawlStatus:
        """Change limits, filters or rate of a crawl; its walkers apply them from their next commit on. Walkers that
        left because of a limit that has now changed are replaced."""

        async def commit(tx: Tx) -> None:
            crawl = await self._locked(tx, crawl_id)
            if crawl.state in states.ENDING:
                raise StateConflict("crawl", crawl_id, crawl.state, "be changed", "start a new one")
            config = change.applied(crawl.config)
            if config == crawl.config:
                return
            left = await self._left_for_a_budget(tx, crawl)
            await self.store.change(tx, crawl_id, config)
            if config.priority != crawl.priority:
                await self._queue.set_priority(tx, crawl_id, config.priority)
            changed = CrawlChanged(crawl_id=crawl_id, changes=change.plain())
            tx.on_commit(lambda: self._signals.emit(changed))
            await self._replace_walkers(tx, crawl, config, left)
            await self.journal.write(tx, crawl.number, [messages.changed(change.plain())])

        await self._database.run(commit)
        return await self.get(crawl_id)

    async def _replace_walkers(self, tx: Tx, crawl: Crawl, config: CrawlConfig, left: list[Job]) -> None:
        """Replace the walkers that left because of a budget which has changed, each in its own lane."""
        if crawl.state is CrawlState.RUNNING and config.budgets != crawl.config.budgets:
            await self._queue.enqueue_in(tx, [self._walker(crawl.id, config, job.lane) for job in left])

    async def pause(self, crawl_id: str, reason: str = "asked") -> CrawlState:
        return await self._quiet(crawl_id, "be paused", states.ask_to_pause(reason), states.pause(reason))

    async def stop(
        self, crawl_id: str, reason: str = "asked", *, force: bool = False, audit: AuditHook = no_audit
    ) -> CrawlState:
        """End a crawl permanently. `force`: workers kill walkers that have not left after a grace period, even if they
        were asked to leave before."""
        ask, now = states.ask_to_stop(reason), states.stop(reason)
        return await self._quiet(crawl_id, "be stopped", ask, now, force=force, audit=audit)

    async def traps(self, crawl_id: str) -> list[Trap]:
        """Return every pattern that was ever quarantined, with its number of URLs and a sample URL."""
        number = (await self.get(crawl_id)).crawl.number
        return await self._database.read(lambda tx: self._frontier.traps(tx, number))

    async def held_hosts(self, crawl_id: str) -> list[HeldHost]:
        """Return hosts on hold for which URLs of the crawl wait, the longest hold first, at most `MOST_HELD`."""
        number = (await self.get(crawl_id)).crawl.number
        return await self._database.read(lambda tx: self._frontier.held_hosts(tx, number, MOST_HELD))

    async def release(self, crawl_id: str, pattern: str) -> int:
        """Release a pattern from quarantine; return how many of its URLs wait again. It is not quarantined again."""

        async def commit(tx: Tx) -> int:
            crawl = await self._locked(tx, crawl_id)
            if crawl.state in states.TERMINAL:
                raise StateConflict("crawl", crawl_id, crawl.state, "release a pattern", "start a new crawl")
            freed = await self._frontier.free(tx, crawl.number, pattern)
            if freed is None:
                raise NotFound("quarantined pattern", pattern, "list them with `shoal crawls show`")
            await self.store.add_counts(tx, crawl.number, OUTSIDE, freed.counts())
            await self.journal.write(tx, crawl.number, [messages.released(pattern, freed.opened)])
            return freed.opened

        return await self._database.run(commit)

    async def started(self, tx: Tx, crawl_id: str, job_id: str) -> list[JournalEntry]:
        """Set a queued crawl to running on its first grant; later grants change nothing. Return the journal entries,
        which the caller writes at the end of the commit."""
        crawl = await self._locked(tx, crawl_id)
        if crawl.state is not CrawlState.QUEUED:
            return [messages.taken_up(job_id)]
        await self._set_state(tx, crawl_id, states.run(), with_event=crawl.started_at is None)
        self._emit_on_commit(tx, crawl_id, states.run())
        return [messages.moved(crawl, states.run(), None)]

    async def lock(self, tx: Tx, run_id: str) -> None:
        await self.store.lock(tx, run_id)

    async def job_moved(self, tx: Tx, run_id: str, move: Move) -> None:
        """Update the crawl in the commit that moved one of its jobs. Locks the crawl."""
        crawl = await self.store.lock(tx, run_id)
        if crawl is None:  # removed: its jobs end without it
            return
        if move.grant_end is GrantEnd.RELEASED:
            await self._put_back(tx, crawl, Fence(move.job_id, move.epoch))
        end = await self._end_of(tx, crawl, move)
        entry = messages.walker_moved(move)
        if end is None and await self._is_first_to_finish(tx, crawl, move):
            entry = messages.limit_reached(move)
        await self.journal.write(tx, crawl.number, [] if entry is None else [entry])
        if end is not None:
            await self._move(tx, crawl, end)
            await self._call_completion_hook(tx, crawl, end, move.job_id)
        if end is not None or crawl.state not in LIVE or move.reason in BUDGETS:
            await self._queue.cancel_waiting(tx, run_id, (end.to if end else crawl.state).value)

    async def _put_back(self, tx: Tx, crawl: Crawl, fence: Fence) -> None:
        """Put the URLs of a walker whose job was released, e.g. because the store was unavailable or full, back into
        the frontier. They were not in flight during a crash, so they do not become suspects."""
        try:
            if await self._frontier.holds(tx, crawl.number, fence):
                await self._frontier.release(tx, crawl.number, fence)
        except OUT_OF_REACH as error:  # the next walker puts them back
            signal = FrontierOutOfReach(crawl_id=crawl.id, error=error.message)
            tx.on_commit(partial(self._signals.emit, signal))

    async def was_idle(self, tx: Tx, run_id: str, lost: LostJob) -> bool:
        """Return whether the lost walker held no URL, so that its loss does not count. The exception is a walker that
        died while loading hooks, before its first URL: `attach` marks its grant once they are loaded, and a hook that
        crashes its process must not do so for ever."""
        crawl = await self.store.get(tx, run_id)
        if crawl is None:  # removed: its jobs end without it
            return False
        try:
            if await self._frontier.holds(tx, crawl.number, Fence(lost.id, lost.epoch)):
                return False
        except OUT_OF_REACH as error:  # leases expire whether or not the frontier can be reached
            signal = FrontierOutOfReach(crawl_id=crawl.id, error=error.message)
            tx.on_commit(partial(self._signals.emit, signal))
            return False
        return lost.settled or not crawl.config.hooks

    async def _call_completion_hook(self, tx: Tx, crawl: Crawl, end: CrawlMove, job_id: JobId) -> None:
        """Call the completion hook for a completed crawl. It needs workers, so local crawls do not have it."""
        if self._on_completed is None or end.to is not CrawlState.COMPLETED or not crawl.config.analyze:
            return
        job = await self._queue.job(tx, job_id)
        if job is not None and not is_local(job.lane):
            await self._on_completed().begin(tx, crawl.id)

    async def _end_of(self, tx: Tx, crawl: Crawl, move: Move) -> CrawlMove | None:
        if crawl.state not in LIVE:
            return None
        if crawl.state in (CrawlState.PAUSING, CrawlState.STOPPING):
            # Cancel waiting jobs first, as in `_quiet`: a walker leased while we count would run on a paused crawl.
            await self._queue.cancel_waiting(tx, crawl.id, QUIET[crawl.state].value)
        pending, locked = await self._queue.live_of_run(tx, crawl.id)
        counts = await self.store.counts(tx, crawl.number)
        if move.to is JobState.DONE and crawl.state is not CrawlState.STOPPING and counts.drained:
            return states.complete("drained") if counts.pages else states.fail(NO_PAGE)
        if crawl.state is CrawlState.RUNNING and not locked and (spent := await self._spent_budget(tx, crawl)):
            return states.complete(spent)
        if crawl.state in (CrawlState.PAUSING, CrawlState.STOPPING):
            quiet = states.pause if crawl.state is CrawlState.PAUSING else states.stop
            return quiet(crawl.state_reason or "asked") if not locked else None
        return states.fail(move.reason or "walker_lost") if not pending and not locked else None

    async def _spent_budget(self, tx: Tx, crawl: Crawl) -> str | None:
        """Return the budget because of which a walker left. The last walker to leave completes the crawl, so that
        nothing is committed after its end."""
        left = await self._left_for_a_budget(tx, crawl) if crawl.config.has_budget else []
        return left[0].state_reason if left else None

    async def _is_first_to_finish(self, tx: Tx, crawl: Crawl, move: Move) -> bool:
        """Return whether this walker is the first to leave because of a spent budget."""
        return move.reason in BUDGETS and len(await self._left_for_a_budget(tx, crawl)) == 1

    async def _left_for_a_budget(self, tx: Tx, crawl: Crawl) -> list[Job]:
        """Return the walkers that found a budget spent under the crawl's current options."""
        jobs = await self._queue.jobs_of_run(tx, crawl.id)
        return [job for job in jobs if job.state_reason in BUDGETS and (job.finished_at or 0) >= crawl.changed_at]

    async def _quiet(
        self,
        crawl_id: str,
        action: str,
        ask: CrawlMove,
        now: CrawlMove,
        *,
        force: bool = False,
        audit: AuditHook = no_audit,
    ) -> CrawlState:
        """Pause or stop: at once if the crawl has no walker, else by asking its walkers."""

        async def commit(tx: Tx) -> None:
            crawl = await self._locked(tx, crawl_id)
            killed = await self._queue.kill_run(tx, crawl_id) if force else 0
            if killed:
                await self.journal.write(tx, crawl.number, [messages.forced(self._queue.settings.force_grace)])
            await audit(tx, crawl_id)
            if crawl.state in (ask.to, now.to):
                return
            # Cancel waiting jobs first, so that no worker can lease one while we count the walkers.
            await self._queue.cancel_waiting(tx, crawl_id, now.to.value)
            _, locked = await self._queue.live_of_run(tx, crawl_id)
            if locked and crawl.state is CrawlState.QUEUED:
                await self._set_state(tx, crawl_id, states.run())  # its walker is leased and about to start: ask it
            if not await self._move(tx, crawl, ask if locked else now):
                raise _conflict(crawl, action)

        await self._database.run(commit)
        return (await self.get(crawl_id)).crawl.state

    async def _enqueue(self, crawl_id: str, sources: set[CrawlState], action: str, *, here: bool = False) -> CrawlState:
        status = await self.get(crawl_id)
        jobs = self._walkers(status.crawl.id, status.crawl.config, here)

        async def commit(tx: Tx) -> None:
            crawl = await self._locked(tx, crawl_id)
            if crawl.state not in sources or not await self._move(tx, crawl, states.queue()):
                raise _conflict(crawl, action)
            await self._queue.enqueue_in(tx, jobs)

        await self._database.run(commit)
        return CrawlState.QUEUED

    async def _locked(self, tx: Tx, crawl_id: str) -> Crawl:
        crawl = await self.store.lock(tx, crawl_id)
        if crawl is None:
            raise NotFound("crawl", crawl_id)
        return crawl

    async def _move(self, tx: Tx, crawl: Crawl, move: CrawlMove) -> bool:
        """Change the state, write it to the journal and signal it on commit."""
        if not await self._set_state(tx, crawl.id, move):
            return False
        ended = await self.store.get(tx, crawl.id) if move.to in states.TERMINAL else None
        self._emit_on_commit(tx, crawl.id, move, None if ended is None else ended.took_seconds)
        counts = await self.store.counts(tx, crawl.number) if move.to in states.TERMINAL else None
        entries = [messages.moved(crawl, move, counts)]
        if counts is not None and counts.drained and counts.pages:
            entries = [*await self.journal.finish_depth(tx, crawl.number, counts.depth_reached), *entries]
        await self.journal.write(tx, crawl.number, entries)
        return True

    async def _set_state(self, tx: Tx, crawl_id: str, move: CrawlMove, *, with_event: bool = True) -> bool:
        """Change the state and append its event, unless `with_event` is False: a crawl has one start event."""
        moved = await self.store.move(tx, crawl_id, move)
        if moved and with_event and move.to in EVENTS:
            await self._outbox.append(
                tx, Event(EVENTS[move.to], crawl_id, {"crawl_id": crawl_id, "reason": move.reason})
            )
        return moved

    def _with_lists(self, config: CrawlConfig) -> CrawlConfig:
        """Copy the operator's parameter lists into the crawl: the process that runs it may have other settings."""
        settings = self._settings
        lists = {"tracking_params": settings.tracking_params, "session_params": settings.session_params}
        built_in = {"tracking_params": TRACKING, "session_params": SESSION}
        ours = {name: list(names) for name, names in lists.items() if names != built_in[name]}
        return replace(config, **{name: names for name, names in ours.items() if getattr(config, name) is None})

    def _walkers(self, crawl_id: CrawlId, config: CrawlConfig, here: bool) -> list[NewJob]:
        lane = lane_of_run(crawl_id, local=here)
        return [self._walker(crawl_id, config, lane) for _ in range(config.workers)]

    def _walker(self, crawl_id: CrawlId, config: CrawlConfig, lane: str) -> NewJob:
        return NewJob(
            id=JobId(new_id("job")),
            kind=KIND,
            run_id=crawl_id,
            lane=lane,
            priority=config.priority,
            max_attempts=self._queue.settings.job_attempts,
            quota_keys=quota_keys(config.project, config.labels),
        )

    def _emit_on_commit(self, tx: Tx, crawl_id: str, move: CrawlMove, seconds: float | None = None) -> None:
        moved = CrawlMoved(crawl_id=crawl_id, state=move.to, reason=move.reason, seconds=seconds)
        tx.on_commit(lambda: self._signals.emit(moved))


EVENTS = {
    CrawlState.RUNNING: "crawl.started",
    CrawlState.COMPLETED: "crawl.completed",
    CrawlState.FAILED: "crawl.failed",
    CrawlState.STOPPED: "crawl.stopped",
}


def _conflict(crawl: Crawl, action: str) -> StateConflict:
    return StateConflict("crawl", crawl.id, crawl.state, action, INSTEAD.get(crawl.state))


INSTEAD = {
    CrawlState.PENDING: "start it first",
    CrawlState.STOPPING: "a stopped crawl cannot continue; start a new one, with --since to recrawl only changes",
    CrawlState.STOPPED: "a stopped crawl cannot continue; start a new one, with --since to recrawl only changes",
    CrawlState.COMPLETED: "it has ended; retry its failed URLs with `shoal crawls retry --all`",
    CrawlState.FAILED: "it has ended; continue it with `shoal crawls retry`",
}
"""Advice by state: what a user can do with the crawl instead of the rejected action."""


EARLIER = "recrawl_of (--since)"
EARLIER_FIX = "use a crawl that `shoal crawls ls` lists, or another store"
