"""Recovery: what becomes of jobs whose workers are lost, of offers that nobody takes, and of parked jobs.

Each operation is one commit, except `unpark`, which makes one per quota key, and `release_bot`, which makes one per
batch."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.database.clock import ClockWatch
from shoal.base.errors import LeaseLost
from shoal.base.settings import QueueSettings
from shoal.base.signals import Signal
from shoal.queue import states
from shoal.queue.job import Fence, Lease, LostJob, bot_holder, bot_of, is_bot
from shoal.queue.lanes import LaneRepair, Lanes
from shoal.queue.moves import JobMoves, JobsMoved
from shoal.queue.states import GrantEnd, JobState, Move

ANSWER_PART = 0.5  # of a lease: how long the store may take to answer about it
JITTER = 0.1
RELEASED_AT_ONCE = 100  # jobs of a bot, in one commit


def answer_within(settings: QueueSettings) -> timedelta:
    """Return how long the store may take to answer a statement about a lease: a later response is of no use."""
    return settings.lease * ANSWER_PART


class JobsReturned(Signal, frozen=True, kw_only=True):
    """Waiting jobs of private lanes went to the shared one, so every worker may lease them."""

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
        """Return locked jobs whose lease expired, oldest first, with or without those that bots hold. They are
        candidates for `expire`: their workers may still come back."""
        return await self._database.read(lambda tx: self._store.expired(tx, limit, bots=bots))

    async def expire(self, seen: Sequence[LostJob]) -> int:
        """Take jobs of one kind and run, or of none, from workers whose leases expired, in one commit; return how many.
        Others are left alone: their workers came back, or another process was first."""
        kind, run_id = seen[0].kind, seen[0].run_id

        async def commit(tx: Tx) -> int:
            await self._moves.lock_run(tx, kind, run_id)
            # Checked again under the locks: workers may have renewed their leases since `expired` read them (0021).
            lost = await self._store.lost_in(tx, [Fence(job.id, job.epoch) for job in seen], expired=True)
            await self._move_lost(tx, lost, GrantEnd.EXPIRED)
            for bot, count in Counter(bot for job in lost if (bot := bot_of(job.lease_holder))).items():
                signal = BotLeasesLost(token=bot[0], bot_id=bot[1], count=count)
                tx.on_commit(partial(self._signals.emit, signal))
            return len(lost)

        return await self._database.run(commit)

    async def lose(self, lease: Lease, error: str, reason: str = states.WORKER_LOST) -> JobState:
        """Take a job back before its lease expires, because our child died with it or was killed as stalled."""
        moves = await self.lose_all([lease], error, reason)
        if not moves:
            raise LeaseLost(lease.fence.job_id, lease.fence.epoch)
        return moves[0].to

    async def lose_all(self, leases: Sequence[Lease], error: str, reason: str = states.WORKER_LOST) -> list[Move]:
        """Return the jobs of a child that died to their lanes, or make those past the poison limit dead letters, in one
        commit; return the moves of those that were still ours."""

        async def commit(tx: Tx) -> list[Move]:
            # In one order, and all of them before the first job (0019).
            for kind, run_id in sorted({(lease.kind, lease.run_id or "") for lease in leases}):
                await self._moves.lock_run(tx, kind, run_id or None)
            lost = await self._store.lost_in(tx, [lease.fence for lease in leases], expired=False)
            return await self._move_lost(tx, lost, GrantEnd.CRASHED, error, reason)

        return await self._database.run(commit, within=answer_within(self.settings))

    async def _move_lost(
        self, tx: Tx, lost: Sequence[LostJob], end: GrantEnd, error: str = "", reason: str = states.WORKER_LOST
    ) -> list[Move]:
        """Take back jobs that are locked, as are their runs. `error`: empty if their leases expired."""
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
        """Take back the leases of a process of this machine that is known to be dead, and of its children, without
        waiting until they expire; returns how many. As for any lost worker, no attempt is counted. `holder` is the name
        under which that process held leases."""
        # Read without locks: `lose_all` leaves out what a janitor has taken back since (0043).
        held = await self._database.read(lambda tx: self._store.held_by_process(tx, holder))
        return len(await self.lose_all(held, f"{holder} was restarted")) if held else 0

    async def release_bot(self, token: str, reason: str) -> None:
        """Return the jobs that a bot's token holds to their lanes immediately, because it can send no result for them.
        Nothing is counted against them."""
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
        the poison limit. A job lost by a bot waits first, and may be lost only as often as its policy allows
        retries. A crash counts only if the worker had some of the run's work in flight. The run and the job are
        locked."""
        listener = self._moves.listeners.get(lost.kind)
        # A commit that takes URLs holds the fence, so none comes between this check and the move (0006).
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
        """Return the retry delay: `WORKER_BACKOFF_MS · 2^(attempts-1)` plus jitter, which only adds."""
        return self.settings.backoff_after(attempts) * (1 + JITTER * self._jitter())

    async def hand_back(self, lane: str) -> int:
        """Move the waiting jobs of a node's private lane to the shared one; no attempt is counted."""
        return await self._database.run(lambda tx: self.hand_back_in(tx, lane))

    async def hand_back_in(self, tx: Tx, lane: str) -> int:
        """Move the jobs of a private lane to the shared one in an open transaction; returns how many. Jobs that are
        being leased at this moment stay, so repeat it while the node is away."""
        returned = await self._lanes.return_lane(tx, lane)
        self._emit_returned(tx, returned)
        return returned

    async def tidy(self, limit: int) -> int:
        """Make jobs available whose time has come, correct the counts of quotas, and return offers that no node took
        to the shared lane; returns how many offers."""

        async def commit(tx: Tx) -> list[str]:
            offers = await self._lanes.return_offers(tx, limit)
            self._emit_returned(tx, len(offers))
            await self._store.quotas.repair(tx)
            await self._lanes.make_due(tx)
            return offers

        offered_to = await self._database.run(commit)
        # In its own commit: it waits for nodes, which no commit may do after it has locked a host (0043).
        if offered_to:
            await self._database.run(lambda tx: self._lanes.count_lapses(tx, set(offered_to)))
        return len(offered_to)

    def _emit_returned(self, tx: Tx, count: int) -> None:
        if count:
            tx.on_commit(lambda: self._signals.emit(JobsReturned(count=count)))

    async def unpark(self, limit: int) -> int:
        """Unpark as many jobs as their quotas allow, for the next `limit` quota keys; returns how many. Each key is
        unparked in a separate commit, which holds the lock of that key."""
        freed = 0
        for key in await self._database.read(lambda tx: self._store.quotas.next_with_capacity(tx, limit)):
            freed += await self._database.run(partial(self._store.quotas.unpark, key=key))
        return freed

    async def repair_lanes(self) -> LaneRepair:
        """Put back what lanes outside the database have lost."""
        return await self._lanes.repair(self._database)

    async def freshest_lease(self) -> timedelta | None:
        """Return the time left on the node lease that ends last; negative if it has expired, None if there is none."""
        return await self._database.read(self._store.freshest_lease)

    def clock_watch(self, clock: Clock) -> ClockWatch:
        """Return a watch over the store's clock that compares it with the uptime of this machine."""
        return ClockWatch(self._database, self._store.clock, clock, self._signals)
