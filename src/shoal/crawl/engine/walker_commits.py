"""The commits of one walker: at its start, in each turn, and when it leaves. All commits are fenced. A turn settles the
walker's results, takes the next URLs, and returns whether to continue."""

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from shoal.base.database import Conflict, Tx, Work
from shoal.base.errors import BadConfig, FrontierLost
from shoal.base.url import Url, UrlRefusal, canonical
from shoal.crawl import journal_messages as messages
from shoal.crawl.crawl import BUDGETS, Counts, Crawl, CrawlConfig
from shoal.crawl.engine.known_urls import PreviousCrawl
from shoal.crawl.engine.walker_context import WalkerStores
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.rebuild import FrontierRebuild, outage
from shoal.crawl.frontier.redirects import AwaitedTargets
from shoal.crawl.frontier.traps import patterns_of, trap_of
from shoal.crawl.frontier.values import Control, FrontierTask, NewUrl, Settled, Settlement, Turn, WalkerBatch, key_of
from shoal.crawl.journal_messages import JournalUpdate
from shoal.crawl.lifecycle.crawls import KIND
from shoal.crawl.scope import seeds_of
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import AdmissionChecks, HostRate
from shoal.hosts.store import HostStore
from shoal.pages.store import PageStore
from shoal.queue import states as job_states
from shoal.queue.job import Fence
from shoal.queue.states import Move

T = TypeVar("T")

WORTH_COUNTING_SECONDS = 0.5  # working time without a result is counted only if it is at least this long
RESOLUTION_SECONDS = 1e-6  # resolution of the times that the store counts
MOSTLY = 0.9  # share of a walker's found URLs that must be new to the crawl
IDLE_SECONDS = 1.0  # interval at which a walker without work checks whether other walkers found URLs


class TurnRequest(Struct, frozen=True):
    """A walker's request in one turn, for `want` URLs. `in_flight`: the number of URLs that the walker still has after
    this batch; `slice_over`: whether the walker's time slice is over, so that it yields to a waiting run."""

    want: int
    in_flight: int
    slice_over: bool = False
    update: JournalUpdate | None = None  # additions to the journal


class WalkerCommits:
    """Writes and reads all stored data of one walker of one crawl."""

    def __init__(
        self,
        stores: WalkerStores,
        crawl: Crawl,
        fence: Fence,
        *,
        rate: HostRate,
        previous_crawl: PreviousCrawl | None = None,
        admission: AdmissionChecks | None = None,
    ) -> None:
        self._database = stores.database
        self._crawls = stores.crawls
        self._frontier = stores.frontiers.of(crawl)
        self._hosts = HostStore()
        self._queue = stores.queue
        self._journal = stores.crawls.journal
        self._crawl = crawl
        self.fence = fence
        self.rate = rate
        self._pages = PageStore()
        self.previous_crawl = previous_crawl  # the crawl that this crawl repeats
        self.admission = admission  # knows which URLs need no slot
        self.has_other_walkers = crawl.config.workers > 1
        self._drained = job_states.finish(fence.job_id, fence.epoch, "drained")
        self._hand_over = job_states.release(fence.job_id, fence.epoch, "changed")
        # Results that were committed before the frontier settled their URLs, and that are not reported yet.
        self._stored: list[Settled] = []
        # Set if a commit found the frontier lost; the calls of the next attach may not notice the loss.
        self._lost: FrontierLost | None = None
        self._found = 0  # the number in our last journal entry about found URLs
        self._uncounted_seconds = 0.0  # working time of batches too small to be worth a write

    async def seeds_landed(self) -> list[Url]:
        """Return the URLs that seeds redirected to, for the seeds fetched so far."""
        keys = [key_of(seed, self._crawl.key_seed)[0] for seed in seeds_of(self._crawl.config)]
        found = await self._database.read(lambda tx: self._crawls.store.landed(tx, self._crawl.number, keys))
        urls = [canonical(url, self._crawl.config.url_rules()) for url in found]
        return [url for url in urls if not isinstance(url, UrlRefusal)]

    async def attach(self) -> None:
        """Start the walker, or start it again: set the crawl running, and put back into the frontier all URLs that this
        walker or lost walkers had taken. If the store has lost the frontier, rebuild it first."""
        if self._crawl.frontier != self._frontier.driver:
            where = f'is not set, but the frontier of crawl "{self._crawl.id}" is in Redis'
            raise BadConfig("REDIS_URL", where, "set it to the server that the crawl was started with")

        async def commit(tx: Tx) -> None:
            # This locks the crawl. The lock on the crawl has to be taken before the lock on its job (0019).
            started = await self._crawls.started(tx, self._crawl.id, self.fence.job_id)
            await self._fence(tx)
            await self._frontier.release(tx, self._crawl.number, self.fence)
            await self._frontier.recover(tx, self._crawl.number)
            # The hooks are loaded by now, so loading them cannot be the cause of a later crash.
            if self._crawl.config.hooks:
                await self._queue.jobs.mark_settled(tx, self.fence)
            await self._journal.write(tx, self._crawl.number, started)

        lost, self._lost = self._lost, None
        if lost is None:
            try:
                await self._database.run(commit)
                return
            except FrontierLost as error:
                lost = error
        rebuild = FrontierRebuild(self._database, self._crawls, self._frontier, self._queue)
        try:
            await rebuild.run(self._crawl, self.fence, lost.generation)
        except FrontierLost as error:
            await self._give_up(error)
            raise
        await self._run(commit)

    async def _give_up(self, error: FrontierLost) -> None:
        """Fail the crawl: its frontier is lost and cannot be rebuilt."""
        move = job_states.give_up(self.fence.job_id, self.fence.epoch, error.code, error.message)

        async def commit(tx: Tx) -> None:
            await self._crawls.store.lock(tx, self._crawl.id)
            await self._queue.moves.move_in(tx, move, KIND, self._crawl.id)

        await self._database.run(commit)

    def stored(self, batch: WalkerBatch | None = None) -> list[Settled]:
        """Return the results that commits made durable since the last call, each page once. These are the results of
        the committed batch or, if the frontier is kept outside the database, the results whose pages were stored."""
        if not self._crawl.settles_apart:
            return [] if batch is None else batch.settled
        stored, self._stored = self._stored, []
        return stored

    async def turn(self, batch: WalkerBatch, request: TurnRequest) -> Turn:
        """Settle the batch and take more URLs, in one commit. With a frontier outside the database, an earlier commit
        stores the pages. If the walker is left without work and the whole frontier is drained, the same commit ends the
        job and the run."""

        batch.walked_seconds += self._uncounted_seconds
        # Commit the pages first: after a kill between the two commits, their URLs are still taken, and are fetched
        # again (0042).
        held_before = await self._commit_pages(batch, worth_seconds=WORTH_COUNTING_SECONDS)

        async def commit(tx: Tx) -> Turn:
            last = request.in_flight == 0
            # Lock the crawl if this commit may end the run, or if no other walker may take URLs meanwhile (0009).
            if last or self._shares_a_budget:
                await self._crawls.store.lock(tx, self._crawl.id)
            # The fence comes first, because changes of a frontier in Redis are not undone if the lease is lost (0042).
            control, is_changed = await self._fence(tx)
            hold_seconds = await self._settle(tx, batch, worth_seconds=WORTH_COUNTING_SECONDS) or held_before
            if control is not Control.GO:
                return Turn(control, hold_seconds=hold_seconds)
            if is_changed:  # URLs are taken only under the current options
                changed = await self._crawls.store.get(tx, self._crawl.id)
                return Turn(control, hold_seconds=hold_seconds, changed=changed)
            if not last and await self._others_wait(tx, request):
                return Turn(control, hold_seconds=hold_seconds, others_wait=True)
            return await self._refill(tx, request, hold_seconds)

        turn = await self._run(commit)
        if self.rate.timing is not None:
            self.rate.timing.usable(turn.work)
        is_counted = batch or batch.walked_seconds >= WORTH_COUNTING_SECONDS
        self._uncounted_seconds = 0.0 if is_counted else batch.walked_seconds
        self._found = self._found if turn.found is None else turn.found
        return turn

    async def _refill(self, tx: Tx, request: TurnRequest, hold_seconds: dict[int, float]) -> Turn:
        """Take more URLs, and write the journal entries."""
        counts = None
        if self._crawl.config.has_budget:
            counts = await self._crawls.store.counts(tx, self._crawl.number)
        want = await self._affordable(tx, request, counts)
        work = await self._take(tx, want, request.in_flight)
        if redirects := [task for task in work if task.awaits_target or task.is_target]:
            await AwaitedTargets(tx, self._frontier, self._crawl).find(redirects)
        if self.previous_crawl is not None and work:
            await self.previous_crawl.prepare(tx, work)
        traps = {trap.pattern: trap.state for trap in await self._frontier.traps(tx, self._crawl.number)}
        turn = Turn(Control.GO, work, traps, counts, hold_seconds)
        # The suspect is alone in flight, so a crash now counts against the URL and not against the job.
        if any(task.is_suspect for task in work):
            await self._queue.jobs.mark_settled(tx, self.fence)
        if not request.in_flight and not work:
            await self._idle(tx, turn, request.update)
            turn.others_wait = not turn.drained and await self._others_wait(tx, request)
        if request.update is not None and not turn.is_journaled:
            await self._write_journal(tx, request.update, turn)
        return turn

    async def exchange(self, tx: Tx, batch: WalkerBatch, want: int) -> tuple[CrawlState, list[FrontierTask]]:
        """Settle URLs without pages and take more URLs, in an open transaction, for callers that do the fetching. URLs
        are taken only from a running crawl. This call neither ends the crawl nor writes to its journal."""
        number = self._crawl.number
        await self._queue.fence(tx, self.fence)
        state, _ = await self._crawls.store.control(tx, self._crawl.id)
        try:
            if batch:
                settlement = await self._frontier.settle(tx, number, self.fence, batch)
                await self._crawls.store.add_counts(tx, number, self.fence.job_id, settlement.counts())
                if batch.has_tries:
                    await self._queue.jobs.mark_settled(tx, self.fence)
            if state is not CrawlState.RUNNING or not want:
                return state, []
            return state, await self._take(tx, want, 0)
        except FrontierLost as error:
            self._lost = error
            raise

    async def _take(self, tx: Tx, want: int, in_flight: int) -> list[FrontierTask]:
        """Take URLs. Count the URLs that were closed because their host has reached its page limit."""
        number = self._crawl.number
        taken = await self._frontier.take(tx, number, self.fence, want, in_flight, self.rate, self.admission)
        if taken.settled:
            await self._crawls.store.add_counts(tx, number, self.fence.job_id, taken.counts())
        return taken.tasks

    def change(self, crawl: Crawl, rate: HostRate) -> None:
        """Continue with changed options of the same crawl."""
        self._crawl, self.rate = crawl, rate

    async def close(self, batch: WalkerBatch, reason: str) -> None:
        """Make the last commit of a walker that ends: settle the batch, return the remaining URLs to the frontier, and
        finish the job."""
        await self._leave(batch, job_states.finish(self.fence.job_id, self.fence.epoch, reason))

    async def hand_back(self, batch: WalkerBatch, reason: str) -> None:
        """Make the last commit of a walker whose job is returned to the queue for another worker. No attempt is
        counted."""
        await self._leave(batch, job_states.release(self.fence.job_id, self.fence.epoch, reason))

    async def step_back(self, batch: WalkerBatch) -> None:
        """Make the last commit of a walker that makes room for a different run on its worker. The walker's job goes to
        the end of the queue."""
        await self._leave(batch, job_states.step_back(self.fence.job_id, self.fence.epoch))

    async def _leave(self, batch: WalkerBatch, move: Move) -> None:
        batch.walked_seconds += self._uncounted_seconds
        await self._commit_pages(batch)

        async def commit(tx: Tx) -> None:
            await self._crawls.store.lock(tx, self._crawl.id)
            _, is_changed = await self._fence(tx)
            await self._settle(tx, batch, leaves=True)
            await self._frontier.release(tx, self._crawl.number, self.fence)
            # If the options have just changed, the new budget may not be used up yet: let the next walker decide.
            made = self._hand_over if is_changed and move.reason in BUDGETS else move
            if made.reason == Control.STOP.value:
                state, _ = await self._crawls.store.control(tx, self._crawl.id)
                if state in (CrawlState.COMPLETED, CrawlState.FAILED):  # by another walker: nobody stopped the crawl
                    made = replace(made, reason=state.value)
            await self._queue.moves.move_in(tx, made, KIND, self._crawl.id)

        await self._run(commit)

    async def _run(self, commit: Work[T]) -> T:
        """Run a unit of work and commit it. If the frontier turns out to be lost, the next attach rebuilds it."""
        try:
            return await self._database.run(commit)
        except FrontierLost as error:
            self._lost = error
            raise outage(error) from error

    async def _commit_pages(self, batch: WalkerBatch, *, worth_seconds: float = RESOLUTION_SECONDS) -> dict[int, float]:
        """Commit the pages before a frontier outside the database settles their URLs. Count the pages that were not
        stored yet. Return the hold times of hosts that asked us to wait."""
        if not self._crawl.settles_apart or (not batch and batch.walked_seconds < worth_seconds):
            return {}
        number = self._crawl.number

        async def commit(tx: Tx) -> dict[int, float]:
            await self._fence(tx)
            hold_seconds = await self._hosts.record(tx, batch.hosts) if batch.hosts else {}
            await self._respect_releases(tx, batch)
            walked_seconds = batch.walked_seconds / await self._count_walkers(tx)
            held = await self._frontier.prepare(tx, number, self.fence, batch)
            ended = [done for done in held if done.fate is not Fate.OPEN]
            # Count only pages that are not stored yet: after a kill between the two commits, some pages are fetched
            # twice (0042).
            keys = [(done.task.key, done.task.chk) for done in ended if done.page is not None]
            known = await self._pages.known(tx, number, keys) if keys else set()
            new = [done for done in ended if (done.task.key, done.task.chk) not in known]
            fresh = [done for done in held if done.page is None or (done.task.key, done.task.chk) not in known]
            tx.on_commit(lambda: self._stored.extend(fresh))
            settlement = Settlement(closed=new, is_counted=True)
            if await self._pages.insert(tx, number, settlement.pages) != len(settlement.pages):
                raise Conflict  # somebody else has just stored one of these pages
            await self._crawls.store.keep_sitemaps(tx, number, settlement.sitemaps)
            await self._crawls.store.add_counts(tx, number, self.fence.job_id, settlement.counts(walked_seconds))
            if batch.has_tries:
                await self._queue.jobs.mark_settled(tx, self.fence)
            return hold_seconds

        return await self._run(commit)

    async def _write_journal(self, tx: Tx, update: JournalUpdate, turn: Turn) -> None:
        """Write the journal entries of this commit."""
        number, entries = self._crawl.number, list(update.entries)
        if update.found:
            turn.found = (await self._crawls.store.counts(tx, number)).opened
            entries += [messages.found(turn.found)] if turn.found != self._found else []
        shallowest = None if update.depth is None else await self._frontier.shallowest(tx, number)
        if update.depth is not None and shallowest is not None and shallowest > update.depth:
            turn.finished = shallowest - 1
            entries += await self._journal.finish_depth(tx, number, turn.finished)
        await self._journal.write(tx, number, entries)
        turn.is_journaled = True

    async def _idle(self, tx: Tx, turn: Turn, update: JournalUpdate | None) -> None:
        """End the crawl if it is drained. Otherwise set how long this walker, which has no work, waits for other
        walkers."""
        if await self._frontier.recover(tx, self._crawl.number):
            turn.wait_seconds = 0.0
            return
        counts = await self._crawls.store.counts(tx, self._crawl.number)
        # Other walkers commit without the crawl's lock only while they hold URLs. Held URLs are not settled, so once
        # the crawl is drained, nobody else is committing (0046).
        if counts.drained:
            turn.drained = True
            if update is not None:  # must come before the entry about the end
                await self._write_journal(tx, update, turn)
            await self._queue.moves.move_in(tx, self._drained, KIND, self._crawl.id)
            return
        next_in = await self._frontier.next_in_seconds(tx, self._crawl.number, self.fence.job_id)
        turn.wait_seconds = IDLE_SECONDS if next_in is None else min(next_in, IDLE_SECONDS)

    async def _fence(self, tx: Tx) -> tuple[Control, bool]:
        """Check the lease. Return the instruction for walkers, and whether the crawl's options have changed."""
        await self._queue.fence(tx, self.fence)
        state, changed_at = await self._crawls.store.control(tx, self._crawl.id)
        return _control(state), changed_at != self._crawl.changed_at

    async def _settle(
        self, tx: Tx, batch: WalkerBatch, *, worth_seconds: float = RESOLUTION_SECONDS, leaves: bool = False
    ) -> dict[int, float]:
        """Settle the batch in the frontier, and store its pages, sitemap records and counters. Return the hold times of
        hosts that asked us to wait. Hosts are locked first, then traps, then the frontier."""
        if not batch and batch.walked_seconds < worth_seconds:
            return {}
        if self._crawl.settles_apart:
            # `_commit_pages` has stored the pages, so this call may fail or be repeated without losing a page (0042).
            settlement = await self._frontier.settle(tx, self._crawl.number, self.fence, batch, leaves=leaves)
            await self._score_traps(tx, batch, settlement)
            return {}
        # Host rows may be locked first, because the take, which comes last, skips rows that others have locked (0016).
        hold_seconds = await self._hosts.record(tx, batch.hosts) if batch.hosts else {}
        await self._respect_releases(tx, batch)
        walked_seconds = batch.walked_seconds / await self._count_walkers(tx)
        number = self._crawl.number
        settlement = await self._frontier.settle(tx, number, self.fence, batch, leaves=leaves)
        await self._score_traps(tx, batch, settlement)
        await self._pages.insert(tx, number, settlement.pages)
        await self._crawls.store.keep_sitemaps(tx, number, settlement.sitemaps)
        await self._crawls.store.add_counts(tx, number, self.fence.job_id, settlement.counts(walked_seconds))
        if batch.has_tries:
            await self._queue.jobs.mark_settled(tx, self.fence)
        return hold_seconds

    async def _score_traps(self, tx: Tx, batch: WalkerBatch, settlement: Settlement) -> None:
        """Store the points for patterns that may be traps, and report patterns that were quarantined as traps."""
        if not batch.traps:
            return
        # If other walkers had already found many of the URLs that are new to this walker, its pages do not show growth.
        if settlement.opened < MOSTLY * len(batch.found):
            for earned in batch.traps.values():
                earned.growth = min(0, earned.growth)
        traps = await self._frontier.score_traps(tx, self._crawl.number, batch.traps)
        await self._journal.write(tx, self._crawl.number, [messages.trapped(*trap) for trap in traps.items()])

    async def _respect_releases(self, tx: Tx, batch: WalkerBatch) -> None:
        """Requeue URLs that the walker put into quarantine if a user has released their pattern meanwhile."""
        both: list[NewUrl | Settled] = [*batch.found, *batch.settled]
        trapped = [one for one in both if one.fate is Fate.QUARANTINED]
        if not trapped:
            return
        patterns = {pattern for one in trapped for pattern in patterns_of(one.url)}
        states = await self._frontier.locked_traps(tx, self._crawl.number, patterns)
        for one in trapped:
            if trap_of(one.url, states) is None:
                one.fate = Fate.OPEN
                if isinstance(one, Settled):
                    one.untried = True

    @property
    def _shares_a_budget(self) -> bool:
        config = self._crawl.config
        return config.workers > 1 and (config.max_pages is not None or config.max_bytes is not None)

    async def _count_walkers(self, tx: Tx) -> int:
        """Count the walkers at work. Each walker counts only its share of the time, so that all shares add up to the
        wall-clock time."""
        if self._crawl.config.workers == 1:
            return 1
        _, locked = await self._queue.jobs.live_of_run(tx, self._crawl.id)
        return max(1, locked)

    async def _affordable(self, tx: Tx, request: TurnRequest, counts: Counts | None) -> int:
        """Return how many of the wanted URLs the budget allows, given the number of URLs that all walkers have in
        flight."""
        if counts is None:
            return request.want
        # With a shared budget, the crawl is locked, so no other walker takes URLs between this count and our take
        # (0009).
        taken = await self._frontier.taken(tx, self._crawl.number) if self._shares_a_budget else request.in_flight
        most = _urls_left(self._crawl.config, counts, taken)
        return request.want if most is None else min(request.want, most)

    async def _others_wait(self, tx: Tx, request: TurnRequest) -> bool:
        if not request.slice_over:
            return False
        return await self._queue.other_run_waits(tx, self.fence.job_id)


def _urls_left(config: CrawlConfig, counts: Counts, taken: int) -> int | None:
    """Return how many more URLs may be taken while `taken` URLs are in flight; None if no budget limits the number.

    Every URL in flight is counted as a page, so the page limit is never exceeded. The size of a page is unknown before
    the fetch, so the average size so far is assumed, and the first page is fetched alone.
    """
    limits = []
    if config.max_pages is not None:
        limits.append(config.max_pages - counts.pages - taken)
    if config.max_bytes is not None:
        left = config.max_bytes - counts.bytes
        limits.append((max(1, left * counts.pages // max(counts.bytes, 1)) if left > 0 else 0) - taken)
    return max(0, min(limits)) if limits else None


def _control(state: CrawlState) -> Control:
    if state in (CrawlState.PAUSING, CrawlState.PAUSED):
        return Control.PAUSE
    return Control.STOP if state is CrawlState.STOPPING or state in TERMINAL else Control.GO
