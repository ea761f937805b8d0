"""Recovery of jobs whose workers are lost, of offers that nobody takes, and of parked jobs.

Each operation is one commit, except `unpark` (one commit per quota key) and `release_bot` (one commit per batch)."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.database.clock import ClockWatch
from shoal.base.errors import LeaseLost
from shoal.base.ids import JobId
from shoal.base.settings import QueueSettings
from shoal.base.signals import Signal
from shoal.queue import states
from shoal.queue.job import Lease, LostJob, bot_holder, bot_of, is_bot
from shoal.queue.lanes import LaneRepair, Lanes
from shoal.queue.moves import JobMoves, JobsMoved
from shoal.queue.states import GrantEnd, JobState, Move

ANSWER_PART = 0.5  # share of the lease term that a statement about the lease may take
JITTER = 0.1
RELEASED_AT_ONCE = 100  # jobs of a bot that one commit releases


def answer_within(settings: QueueSettings) -> timedelta:
    """Return the maximum time for a statement about a lease: a response after that time would be useless."""
    return settings.lease * ANSWER_PART


class JobsReturned(Signal, frozen=True, kw_only=True):
    """Waiting jobs of private lanes went to the shared lane, so every worker may lease them."""

    count: int


class ExpiryFailed(Signal, frozen=True, kw_only=True):
    """Jobs with expired leases could not be returned to the queue. `job_id` and `error`: those of the first job."""

    job_id: str
    error: str
    count: int


class BotLeasesLost(Signal, frozen=True, kw_only=True):
    """Leases of a bot expired."""

    token: str
    bot_id: str
    count: int


class Recovery:
    """Takes jobs back from workers that are gone, and puts lanes and quotas in order."""

    def __init__(
        self,
        database: Database,
        moves: JobMoves,
        lanes: Lanes,
        settings: QueueSettings,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self._moves = moves
        self._store = moves.store
        self._lanes = lanes
        self.settings = settings
        self._signals = moves.signals
        self._jitter = jitter

    async def expired(self, limit: int, *, bots: bool) -> list[LostJob]:
        """Return locked jobs whose lease expired, oldest first, with or without the jobs of bots. The jobs are
        candidates for `expire`: their workers may still come back."""
        return await self._database.read(lambda tx: self._store.expired(tx, limit, bots=bots))

    async def expire(self, seen: Sequence[LostJob]) -> int:
        """Take back, in one commit, jobs of one kind whose leases expired, all of the same run or all without a run;
        return how many. Jobs are left alone if their workers came back, or if a different process was first."""
        kind, run_id = seen[0].kind, seen[0].run_id

        async def commit(tx: Tx) -> int:
            await self._moves.lock_run(tx, kind, run_id)
            # Check again under the locks: workers may have renewed their leases since `expired` read them (0021).
            lost = await self._store.lost_in(tx, [job.fence for job in seen], expired=True)
            await self._move_lost(tx, lost, GrantEnd.EXPIRED)
            for bot, count in Counter(bot for job in lost if (bot := bot_of(job.lease_holder))).items():
                signal = BotLeasesLost(token=bot[0], bot_id=bot[1], count=count)
                tx.on_commit(partial(self._signals.emit, signal))
            return len(lost)

        return await self._database.run(commit)

    def report_failures(self, job_id: JobId, error: str, count: int) -> None:
        """Report jobs that `expire` could not take back."""
        self._signals.emit(ExpiryFailed(job_id=job_id, error=error, count=count))

    async def lose(self, lease: Lease, error: str, reason: str = states.WORKER_LOST) -> JobState:
        """Take a job back before its lease expires, because the child that ran it died or was killed as stalled."""
        moves = await self.lose_all([lease], error, reason)
        if not moves:
            raise LeaseLost(lease.fence.job_id, lease.fence.epoch)
        return moves[0].to

    async def lose_all(self, leases: Sequence[Lease], error: str, reason: str = states.WORKER_LOST) -> list[Move]:
        """Return the jobs of a dead child to their lanes, in one commit; jobs past the poison limit become dead
        letters. Return the moves of the jobs that were still ours."""

        async def commit(tx: Tx) -> list[Move]:
            # Lock runs in a fixed order, and all runs before the first job (0019).
            for kind, run_id in sorted({(lease.kind, lease.run_id or "") for lease in leases}):
                await self._moves.lock_run(tx, kind, run_id or None)
            lost = await self._store.lost_in(tx, [lease.fence for lease in leases], expired=False)
            return await self._move_lost(tx, lost, GrantEnd.CRASHED, error, reason)

        return await self._database.run(commit, within=answer_within(self.settings))

    async def _move_lost(
        self, tx: Tx, lost: Sequence[LostJob], end: GrantEnd, error: str = "", reason: str = states.WORKER_LOST
    ) -> list[Move]:
        """Take back jobs. The jobs and their runs are locked. `error`: empty if their leases expired."""
        moves = [
            await self._move_of_lost(tx, job, end, error or f"the lease of {job.lease_holder} expired", reason)
            for job in lost
        ]
        if moves:
            await self._store.move(tx, moves)
        for kind in sorted({job.kind for job in lost}):
            moved = [(move, job.run_id, job) for move, job in zip(moves, lost, strict=True) if job.kind == kind]
            await self._moves.jobs_moved_in(tx, kind, moved)
        return moves

    async def recover(self, holder: str) -> int:
        """Take back the leases of a process on this machine that is known to be dead, and of its children, without
        waiting for the leases to expire; return how many. As for any lost worker, no attempt is counted. `holder` is
        the name under which that process held leases."""
        # Read without locks: `lose_all` leaves out jobs that a janitor has taken back since (0043).
        held = await self._database.read(lambda tx: self._store.held_by_process(tx, holder))
        return len(await self.lose_all(held, f"{holder} was restarted")) if held else 0

    async def release_bot(self, token: str, reason: str) -> None:
        """Immediately return the jobs of a bot's token to their lanes, because the bot can no longer send results for
        them. No attempt or crash is counted."""
        holder = bot_holder(token, "").rstrip("/")
        held = await self._database.read(lambda tx: self._store.held_by_process(tx, holder))
        for start in range(0, len(held), RELEASED_AT_ONCE):
            fences = [lease.fence for lease in held[start : start + RELEASED_AT_ONCE]]
            moves = [states.release(fence.job_id, fence.epoch, reason) for fence in fences]
            await self._database.run(partial(self._release_in, kind=held[0].kind, moves=moves))

    async def _release_in(self, tx: Tx, kind: str, moves: Sequence[Move]) -> None:
        refused = await self._store.move(tx, moves)
        signal = JobsMoved(kind=kind, how=GrantEnd.RELEASED, count=len(moves) - len(refused))
        tx.on_commit(partial(self._signals.emit, signal))

    async def _move_of_lost(self, tx: Tx, lost: LostJob, end: GrantEnd, error: str, reason: str) -> Move:
        """Decide what becomes of a job whose worker is lost: it returns to its lane, or becomes a dead letter past
        the poison limit. A job that a bot lost waits first; the number of such losses is limited by the retries of its
        policy. A crash counts only if the worker had some of the run's work in flight. The run and the job are
        locked."""
        listener = self._moves.listeners.get(lost.kind)
        # A commit that takes URLs holds the fence, so no such commit comes between this check and the move (0006).
        if listener is not None and lost.run_id is not None and await listener.was_idle(tx, lost.run_id, lost):
            return states.give_back(lost.id, lost.epoch, end, error, reason, counts_crash=False)
        crashes = 1 if lost.settled else lost.crash_count + 1
        by_bot = is_bot(lost.lease_holder)
        limit = lost.max_retry if by_bot and lost.max_retry is not None else self.settings.poison_limit
        if crashes > limit:
            return states.bury(lost.id, lost.epoch, end, error, reason)
        if by_bot:
            return states.bot_lost(lost.id, lost.epoch, error, self.backoff(crashes))
        return states.give_back(lost.id, lost.epoch, end, error, reason)

    def backoff(self, attempts: int) -> timedelta:
        """Return the retry delay: `WORKER_BACKOFF_MS · 2^(attempts-1)` plus a positive jitter."""
        return self.settings.backoff_after(attempts) * (1 + JITTER * self._jitter())

    async def hand_back(self, lane: str) -> int:
        """Move the waiting jobs of a node's private lane to the shared one; no attempt is counted."""
        return await self._database.run(lambda tx: self.hand_back_in(tx, lane))

    async def hand_back_in(self, tx: Tx, lane: str) -> int:
        """Move the jobs of a private lane to the shared one in an open transaction; returns how many. Jobs that are
        being leased at this moment stay, so repeat the call while the node is away."""
        returned = await self._lanes.return_lane(tx, lane)
        self._emit_returned(tx, returned)
        return returned

    async def tidy(self, limit: int) -> int:
        """Make jobs available when their start time has come, correct the quota counts, and move offers to the shared
        lane if no node took them; return the number of these offers."""

        async def commit(tx: Tx) -> list[str]:
            offers = await self._lanes.return_offers(tx, limit)
            self._emit_returned(tx, len(offers))
            await self._store.quotas.repair(tx)
            await self._lanes.make_due(tx)
            return offers

        offered_to = await self._database.run(commit)
        # Use a separate commit: it waits for locks on nodes, and no commit may do that after it has locked a host
        # (0043).
        if offered_to:
            await self._database.run(lambda tx: self._lanes.count_lapses(tx, set(offered_to)))
        return len(offered_to)

    def _emit_returned(self, tx: Tx, count: int) -> None:
        if count:
            tx.on_commit(lambda: self._signals.emit(JobsReturned(count=count)))

    async def unpark(self, limit: int) -> int:
        """Unpark as many jobs as their quotas allow, for the next `limit` quota keys; return how many. Each key gets a
        separate commit, which holds the lock of that key."""
        freed = 0
        for key in await self._database.read(lambda tx: self._store.quotas.next_with_capacity(tx, limit)):
            freed += await self._database.run(partial(self._store.quotas.unpark, key=key))
        return freed

    async def repair_lanes(self) -> LaneRepair:
        """Put back jobs that lanes outside the database have lost."""
        return await self._lanes.repair(self._database)

    async def freshest_lease(self) -> timedelta | None:
        """Return the time left on the node lease that ends last; negative if it has expired, None if there is none."""
        return await self._database.read(self._store.freshest_lease)

    def clock_watch(self, clock: Clock) -> ClockWatch:
        """Return a watch over the store's clock that compares it with the uptime of this machine."""
        return ClockWatch(self._database, self._store.clock, clock, self._signals)
