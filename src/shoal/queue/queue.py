"""The operations of the queue: enqueue, lease, extend, finish, fail, release, lose, cancel.

Each is one commit, except `lease`, which commits again after it had to park jobs, and `unpark`, which makes one commit
per quota key. Jobs that fit into a quota again are unparked after the commit that freed their seats. A method with
`_in` is part of a larger commit. Signals are emitted when the transaction has committed.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.database.clock import ClockWatch
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError
from shoal.base.ids import JobId
from shoal.base.settings import QueueSettings
from shoal.base.signals import Signal, Signals
from shoal.queue import states
from shoal.queue.enqueuer import Enqueuer
from shoal.queue.job import (
    HTTP,
    Enqueued,
    Extended,
    Fence,
    Grant,
    HeartbeatAnswer,
    Job,
    Lease,
    LeaseRequest,
    LostJob,
    NewJob,
    RunListener,
    TurnResult,
    bot_holder,
    bot_of,
    is_bot,
)
from shoal.queue.lanes import LaneChoice, LaneRepair, Lanes, lanes_as_given
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.queue.store import JobStore

T = TypeVar("T")

JITTER = 0.1
ROUNDS = 20  # attempts of a lease that finds only jobs over their quota
ANSWER_PART = 0.5  # of a lease: how long the store may take to grant or renew it
SMALL = 40  # jobs per turn: up to this number, the round trip to the store takes longer than the work in it
RELEASED_AT_ONCE = 100  # jobs of a bot, in one commit
APART = 50  # turns to wait, after one that needed more than a statement, before a single statement is tried again


class JobsReturned(Signal, frozen=True, kw_only=True):
    """Waiting jobs of private lanes went to the shared one, so every worker may lease them."""

    count: int


class JobsLeased(Signal, frozen=True, kw_only=True):
    """A batch of jobs of one kind was granted to one holder."""

    kind: str
    holder: str
    count: int
    waited_seconds: float  # the longest


class JobsMoved(Signal, frozen=True, kw_only=True):
    """A batch of jobs of one kind ended, or was returned, in the same way."""

    kind: str
    how: GrantEnd
    count: int


class BotLeasesLost(Signal, frozen=True, kw_only=True):
    """Leases of a bot expired."""

    token: str
    bot_id: str
    count: int


class JobLeased(Signal, frozen=True, kw_only=True):
    job_id: str
    kind: str
    run_id: str | None
    holder: str
    epoch: int
    attempt: int
    max_attempts: int
    waited_seconds: float


class JobMoved(Signal, frozen=True, kw_only=True):
    """A locked job was finished, retried, failed, released, lost or cancelled."""

    job_id: str
    kind: str
    run_id: str | None
    to: JobState
    how: GrantEnd
    reason: str | None
    error: str | None
    attempt: int | None = None  # None if the lease is not known
    max_attempts: int | None = None


class Queue:
    """Jobs and their leases. The listener of a run is called, in the same commit, when one of its jobs moves."""

    def __init__(
        self,
        database: Database,
        store: JobStore,
        lanes: Lanes,
        settings: QueueSettings,
        signals: Signals,
        listeners: Mapping[str, RunListener] | None = None,
        jitter: Callable[[], float] = random.random,
        choose_lanes: LaneChoice = lanes_as_given,
    ) -> None:
        self._database = database
        self._store = store
        self._lanes = lanes
        self._enqueuer = Enqueuer(store, lanes, signals, choose_lanes)
        self.settings = settings
        self._signals = signals
        self._listeners = listeners or {}
        self._jitter = jitter
        self._apart = 0

    def on(self, database: Database) -> "Queue":
        """Return a queue over the same jobs that uses another connection. It has no listeners: only extend leases."""
        return Queue(database, self._store, self._lanes, self.settings, self._signals)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store jobs, all or none; returns the outcome of each, in their order."""
        # Dedupe keys have to be looked up, the hosts at which jobs wait have to be recorded, and other lanes filled.
        further = any(job.dedupe_key is not None or job.host is not None for job in jobs) or not self._lanes.is_stored
        if further:
            return await self._database.run(lambda tx: self.enqueue_in(tx, jobs))
        return await self._database.once(lambda tx: self.enqueue_in(tx, jobs), within=self.answer_within)

    async def enqueue_in(self, tx: Tx, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store jobs in an open transaction."""
        return await self._enqueuer.enqueue_in(tx, jobs)

    def emit_enqueued(self, jobs: Sequence[Job]) -> None:
        """Signal that dead letters wait to be leased again."""
        self._enqueuer.emit_enqueued(jobs, is_new=False)

    async def lease(
        self, holder: str, kinds: list[str], lanes: list[str], limit: int, capabilities: Sequence[str] = (HTTP,)
    ) -> list[Lease]:
        """Grant up to `limit` jobs. Jobs over their quota are parked, and another commit tries others instead."""
        request, leases = LeaseRequest(holder, kinds, lanes, capabilities), list[Lease]()
        granted: list[Lease] = []

        for _ in range(ROUNDS):
            try:
                result = await self._turn(
                    (), request, limit - len(leases), lambda result: granted.extend(result.leases)
                )
            except BackendUnavailable:
                if not leases:
                    raise
                break  # keep what was granted: nobody else could have it until its leases expire
            leases += result.leases
            if not result.parked or len(leases) == limit:
                break
        await self._decide_attempts(granted)
        for lease in granted:
            self._emit_leased(lease, holder)
        return leases

    @property
    def answer_within(self) -> timedelta:
        """Return how long the store may take to answer a statement about a lease: a later answer is of no use."""
        return self.settings.lease * ANSWER_PART

    @property
    def own_attempts(self) -> int | None:
        """Return our own `WORKER_JOB_ATTEMPTS`; None if it is not set."""
        return self.settings.job_attempts if "job_attempts" in self.settings.given else None

    async def set_attempts_in(self, tx: Tx, fence: Fence, attempts: int) -> None:
        """Change how often a leased job may be tried, in an open transaction."""
        await self._store.set_attempts(tx, fence, attempts)

    async def _decide_attempts(self, leases: Sequence[Lease]) -> None:
        """Let our own `WORKER_JOB_ATTEMPTS` decide how often a run is tried, if it is set, instead of that of the
        process that created the job. For page jobs, `page_jobs.ingest` does it when one has failed."""
        attempts = self.own_attempts
        if attempts is None:
            return
        runs = [(lease, max(attempts, lease.attempts + 1)) for lease in leases]
        differing = [
            (lease, most) for lease, most in runs if lease.kind in self._listeners and most != lease.max_attempts
        ]
        if not differing:
            return
        differing.sort(key=lambda one: one[0].fence.job_id)  # locked in this order, like everywhere

        async def commit(tx: Tx) -> list[tuple[Lease, int]]:
            return [one for one in differing if await self._store.set_attempts(tx, one[0].fence, one[1])]

        try:
            changed = await self._database.run(commit, within=self.answer_within)
        except ShoalError:
            return  # the leases are granted whatever happens here; the stored numbers hold for this attempt
        for lease, most in changed:
            lease.max_attempts = most

    async def finish_and_lease(self, moves: Sequence[Move], request: LeaseRequest, limit: int) -> TurnResult:
        """End a batch of jobs and lease the next one in one commit, for kinds whose runs have no listener."""
        return await self._turn(moves, request, limit, lambda result: self.emit_turn(request, moves, result))

    async def finish_and_lease_in(
        self, tx: Tx, moves: Sequence[Move], request: LeaseRequest | None, limit: int = 0
    ) -> TurnResult:
        """Carry out moves and lease in an open transaction. Each move is fenced; a refused one changes nothing.

        A building block that emits no signals and does not call the listeners of runs: the caller locks the runs
        before, calls `job_moved_in` or its own listener after, or has `emit_turn` called on commit."""
        if request is None:
            return TurnResult(await self._store.move(tx, moves), [])
        return await self._lanes.pop(tx, request, limit, self.settings.lease, moves)

    async def _turn(
        self, moves: Sequence[Move], request: LeaseRequest, limit: int, emit: Callable[[TurnResult], None]
    ) -> TurnResult:
        """Finish and lease in a separate commit. A small batch is tried as a single statement, unless that recently
        was not enough."""

        async def once(tx: Tx) -> TurnResult | None:
            result = await self._lanes.pop_once(tx, request, limit, self.settings.lease, moves)
            if result is not None:
                tx.on_commit(lambda: emit(result))
            return result

        async def commit(tx: Tx) -> TurnResult:
            result = await self.finish_and_lease_in(tx, moves, request, limit)
            tx.on_commit(lambda: emit(result))
            return result

        small, self._apart = len(moves) + limit <= SMALL and not self._apart, max(0, self._apart - 1)
        if small:
            result = await self._database.once(once, within=self.answer_within)
            if result is not None:
                return result
            self._apart = APART
        return await self._database.run(commit, within=self.answer_within)

    def emit_turn(self, request: LeaseRequest, moves: Sequence[Move], result: TurnResult) -> None:
        """Signal what a committed turn did, in few signals whatever the size of the batch."""
        made = [move for move in moves if move not in result.refused] if result.refused else moves
        ends: dict[GrantEnd, int] = {}
        for move in made:
            ends[move.grant_end] = ends.get(move.grant_end, 0) + 1
        for how, count in ends.items():
            self._signals.emit(JobsMoved(kind=request.kinds[0], how=how, count=count))
        waits: dict[str, list[float]] = {}
        for lease in result.leases:
            waits.setdefault(lease.kind, []).append(lease.waited_seconds)
        for kind, waited in waits.items():
            self._signals.emit(
                JobsLeased(kind=kind, holder=request.holder, count=len(waited), waited_seconds=max(waited))
            )

    async def lease_one(self, job_id: JobId, holder: str) -> Lease | None:
        """Grant this job if it is pending."""
        return await self._database.run(lambda tx: self.lease_one_in(tx, job_id, holder), within=self.answer_within)

    async def lease_one_in(self, tx: Tx, job_id: JobId, holder: str) -> Lease | None:
        """Grant this job if it is pending, in an open transaction."""
        lease = await self._store.lease_one(tx, job_id, holder, self.settings.lease)
        if lease is not None:
            tx.on_commit(lambda: self._emit_leased(lease, holder))
        return lease

    async def extend(self, fences: Sequence[Fence]) -> Extended:
        """Renew leases for one more term; returns those that are still held, and which of their jobs to kill."""
        return await self._database.run(
            lambda tx: self._store.extend(tx, fences, self.settings.lease), within=self.answer_within
        )

    async def beat(self, owner: str, fence: Fence, ttl: timedelta, longest: timedelta) -> HeartbeatAnswer:
        """Renew a bot's lease by the job's own term, or `ttl`, up to `longest` after it was granted; raises `LeaseLost`
        if that time is over, or the lease does not belong to that owner."""
        beat = await self._database.run(
            lambda tx: self._store.beat(tx, owner, fence, ttl, longest), within=self.answer_within
        )
        if beat is None:
            raise LeaseLost(fence.job_id, fence.epoch)
        return beat

    async def began(self, fence: Fence, node: str, pid: int, config: str | None = None) -> bool:
        """Record the node, process and configuration that work on a grant; False if the job moved on."""
        return await self._database.run(
            lambda tx: self._store.note(tx, fence, node, pid, config), within=self.answer_within
        )

    async def waits(self, kind: str, lanes: Sequence[str]) -> bool:
        """Return whether a job of that kind waits in one of these lanes; another process may lease it first."""
        return await self._database.read(lambda tx: self._lanes.waits(tx, kind, lanes), within=self.answer_within)

    async def page_backlog(self, tx: Tx, capability: str, most: int) -> int:
        """Return how many page jobs of a capability wait in the shared lane, up to `most`, without those that wait for
        the rate limits of their hosts."""
        return await self._lanes.page_backlog(tx, capability, most)

    async def held_by(self, holder: str) -> list[Lease]:
        """Return the leases of that holder."""
        return await self._database.read(lambda tx: self._store.held_by(tx, holder), within=self.answer_within)

    async def fail(self, lease: Lease, error: str) -> JobState:
        """Count a failed attempt: retry after a back-off, or fail for good after the last attempt."""
        return await self._move(self.failure(lease, error), lease)

    def failure(self, lease: Lease, error: str) -> Move:
        """Return the move that counts a failed attempt."""
        job_id, epoch = lease.fence.job_id, lease.fence.epoch
        if lease.attempts + 1 < lease.max_attempts:
            return states.retry(job_id, epoch, error, self.backoff(lease.attempts + 1))
        return states.fail(job_id, epoch, error)

    async def release(self, lease: Lease, reason: str) -> JobState:
        """Return a job to its lane without counting an attempt."""
        move = states.release(lease.fence.job_id, lease.fence.epoch, reason)
        return await self._move(move, lease)

    async def finish(self, lease: Lease, reason: str | None = None) -> JobState:
        move = states.finish(lease.fence.job_id, lease.fence.epoch, reason)
        return await self._move(move, lease)

    async def cancel(self, lease: Lease, reason: str) -> JobState:
        """End a job whose work was killed on request."""
        move = states.cancel(lease.fence.job_id, lease.fence.epoch, reason)
        return await self._move(move, lease)

    async def lose(self, lease: Lease, error: str, reason: str = states.WORKER_LOST) -> JobState:
        """Take a job back before its lease expires, because our child died with it or was killed as stalled."""

        async def commit(tx: Tx) -> JobState:
            await self.lock_run(tx, lease.kind, lease.run_id)
            lost = await self._store.lost(tx, lease.fence)
            if lost is None:
                raise LeaseLost(lease.fence.job_id, lease.fence.epoch)
            move = await self.move_of_lost_in(tx, lost, GrantEnd.CRASHED, error, reason)
            await self._move_in(tx, move, lease.kind, lease.run_id, lease)
            return move.to

        return await self._database.run(commit, within=self.answer_within)

    async def lose_all(self, leases: Sequence[Lease], error: str) -> int:
        """Return the jobs of a child that died to their lanes, or make those past the poison limit dead letters, in one
        commit; returns how many were still ours."""

        async def commit(tx: Tx) -> int:
            for kind, run_id in sorted({(lease.kind, lease.run_id or "") for lease in leases}):
                await self.lock_run(tx, kind, run_id or None)
            lost = await self._store.lost_in(tx, [lease.fence for lease in leases], expired=False)
            moves = [(await self.move_of_lost_in(tx, job, GrantEnd.CRASHED, error), job) for job in lost]
            await self.finish_and_lease_in(tx, [move for move, _ in moves], None)
            for kind in sorted({job.kind for job in lost}):
                await self._jobs_moved_in(tx, kind, [(move, job.run_id) for move, job in moves if job.kind == kind])
            return len(moves)

        return await self._database.run(commit, within=self.answer_within)

    async def expired(self, limit: int, *, bots: bool) -> list[LostJob]:
        """Return locked jobs whose lease expired, oldest first, with or without those that bots hold. They are
        candidates for `expire`: their workers may still come back."""
        return await self._database.read(lambda tx: self._store.expired(tx, limit, bots=bots))

    async def expire(self, seen: LostJob) -> bool:
        """Take a job from a worker whose lease expired; False if the worker came back, or another process was first."""
        fence = Fence(seen.id, seen.epoch)

        async def commit(tx: Tx) -> None:
            await self.lock_run(tx, seen.kind, seen.run_id)
            lost = await self._store.lost(tx, fence) if await self._store.still_expired(tx, fence) else None
            if lost is None:
                raise LeaseLost(fence.job_id, fence.epoch)
            await self._move_in(tx, await self._expiry(tx, lost), lost.kind, lost.run_id)
            self._emit_lost(tx, [lost])

        try:
            await self._database.run(commit)
        except LeaseLost:
            return False
        return True

    async def expire_all(self, kind: str, run_id: str | None, seen: Sequence[LostJob]) -> int:
        """Do the same for jobs of one run, or of none, in one commit; returns how many were still expired."""

        async def commit(tx: Tx) -> int:
            await self.lock_run(tx, kind, run_id)
            lost = await self._store.lost_in(tx, [Fence(job.id, job.epoch) for job in seen], expired=True)
            moves = [await self._expiry(tx, job) for job in lost]
            await self.finish_and_lease_in(tx, moves, None)
            await self._jobs_moved_in(tx, kind, [(move, run_id) for move in moves])
            self._emit_lost(tx, lost)
            return len(moves)

        return await self._database.run(commit)

    def _emit_lost(self, tx: Tx, lost: Sequence[LostJob]) -> None:
        """Tell which bots lost leases, once this is committed."""
        for bot, count in Counter(bot for job in lost if (bot := bot_of(job.lease_holder))).items():
            signal = BotLeasesLost(token=bot[0], bot_id=bot[1], count=count)
            tx.on_commit(partial(self._signals.emit, signal))

    async def _expiry(self, tx: Tx, lost: LostJob) -> Move:
        return await self.move_of_lost_in(tx, lost, GrantEnd.EXPIRED, f"the lease of {lost.lease_holder} expired")

    async def freshest_lease(self) -> timedelta | None:
        """Return the time left on the node lease that ends last; negative if it has expired, None if there is none."""
        return await self._database.read(self._store.freshest_lease)

    async def tidy(self, limit: int) -> int:
        """Make jobs available whose time has come, correct the counts of quotas, and return offers that no node took
        to the shared lane; returns how many offers."""

        async def commit(tx: Tx) -> list[str]:
            offers = await self._lanes.return_offers(tx, limit)
            self._emit_returned(tx, len(offers))
            await self._store.repair_quota_counts(tx)
            await self._lanes.make_due(tx)
            return offers

        offered_to = await self._database.run(commit)
        if offered_to:
            await self._database.run(lambda tx: self._lanes.count_lapses(tx, set(offered_to)))
        return len(offered_to)

    async def repair_lanes(self) -> LaneRepair:
        """Put back what lanes outside the database have lost."""
        return LaneRepair() if self._lanes.is_stored else await self._database.run(self._lanes.repair)

    async def hand_back(self, lane: str) -> int:
        """Move the waiting jobs of a node's private lane to the shared one; no attempt is counted."""
        return await self._database.run(lambda tx: self.hand_back_in(tx, lane))

    async def hand_back_in(self, tx: Tx, lane: str) -> int:
        """Move the jobs of a private lane to the shared one in an open transaction; returns how many. Jobs that are
        being leased at this moment stay, so repeat it while the node is away."""
        returned = await self._lanes.return_lane(tx, lane)
        self._emit_returned(tx, returned)
        return returned

    async def recover(self, holder: str) -> int:
        """Take back the leases of a process of this machine that is known to be dead, and of its children, without
        waiting until they expire; returns how many. As for any lost worker, no attempt is counted. `holder` is the name
        under which that process held leases."""
        held = await self._database.read(lambda tx: self._store.held_by_process(tx, holder))
        return await self.lose_all(held, f"{holder} was restarted") if held else 0

    async def release_bot(self, token: str, reason: str) -> None:
        """Return the jobs that a bot's token holds to their lanes at once, because it can send no result for them.
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

    async def depth_up_to(self, lane: str, most: int) -> int:
        """Return how many due jobs wait in a lane, up to `most`."""
        return await self._database.read(lambda tx: self._lanes.depth(tx, lane, most))

    async def unpark(self, limit: int) -> int:
        """Unpark as many jobs as their quotas allow, for the next `limit` quota keys; returns how many. Each key is
        unparked in a separate commit, which holds the lock of that key."""
        freed = 0
        for key in await self._database.read(lambda tx: self._store.parked_in(tx, limit)):
            freed += await self._database.run(partial(self._store.unpark, key=key))
        return freed

    async def move_of_lost_in(
        self, tx: Tx, lost: LostJob, end: GrantEnd, error: str, reason: str = states.WORKER_LOST
    ) -> Move:
        """Decide what becomes of a job whose worker is lost: it returns to its lane, or becomes a dead letter past
        the poison limit. A job lost by a bot waits first, and may be lost only as often as its policy allows
        retries. A crash counts only if the worker had some of the run's work in flight. The run and the job are
        locked."""
        listener = self._listeners.get(lost.kind)
        if listener is not None and lost.run_id is not None and await listener.was_idle(tx, lost.run_id, lost):
            return states.give_back_idle(lost.id, lost.epoch, end, error, reason)
        crashes = 1 if lost.settled else lost.crash_count + 1
        by_bot = is_bot(lost.lease_holder)
        limit = lost.max_retry if by_bot and lost.max_retry is not None else self.settings.poison_limit
        if crashes > limit:
            return states.bury(lost.id, lost.epoch, end, error, reason)
        if by_bot:
            return states.bot_lost(lost.id, lost.epoch, error, self.backoff(crashes))
        return states.give_back(lost.id, lost.epoch, end, error, reason)

    async def move_in(self, tx: Tx, move: Move, kind: str, run_id: str | None, lease: Lease | None = None) -> None:
        """Carry out a move and its effect on the run in an open transaction; raises if the job has moved on. `lease`:
        under which it is made, for the log."""
        await self.lock_run(tx, kind, run_id)
        await self._move_in(tx, move, kind, run_id, lease)

    async def _move_in(self, tx: Tx, move: Move, kind: str, run_id: str | None, lease: Lease | None = None) -> None:
        """Do the same if the run is locked already. To lock it again might be to wait for others that share the lock,
        and they for a job that we hold."""
        if await self._store.move(tx, [move]):
            raise LeaseLost(move.job_id, move.epoch)
        await self.job_moved_in(tx, move, kind, run_id, lease)

    async def job_moved_in(self, tx: Tx, move: Move, kind: str, run_id: str | None, lease: Lease | None = None) -> None:
        """Follow up on a move: signal it on commit, and let the listener of the run, which is locked, update the
        run."""
        await self._jobs_moved_in(tx, kind, [(move, run_id)], lease)

    async def _jobs_moved_in(
        self, tx: Tx, kind: str, moves: Sequence[tuple[Move, str | None]], lease: Lease | None = None
    ) -> None:
        """Follow up on the moves of jobs of one kind."""
        for move, run_id in moves:
            tx.on_commit(partial(self._emit_moved, move, kind, run_id, lease))
        if kind in self._listeners:
            await self._listeners[kind].jobs_moved(tx, moves)

    async def fence(self, tx: Tx, fence: Fence) -> None:
        """Raise `LeaseLost` unless the job is still locked with that epoch; it stays so until the transaction ends."""
        if not await self._store.fence(tx, fence):
            raise LeaseLost(fence.job_id, fence.epoch)

    async def mark_settled(self, tx: Tx, fence: Fence) -> None:
        """Record that this grant settled something, so that earlier crashes of the job no longer count."""
        await self._store.mark_settled(tx, fence)

    async def job(self, tx: Tx, job_id: JobId) -> Job | None:
        return await self._store.get(tx, job_id)

    async def jobs_of_run(self, tx: Tx, run_id: str) -> list[Job]:
        return await self._store.jobs_of_run(tx, run_id)

    async def live_of_run(self, tx: Tx, run_id: str) -> tuple[int, int]:
        """Return how many of the run's jobs are pending, and how many are locked."""
        return await self._store.live_of_run(tx, run_id)

    async def history(self, tx: Tx, job_id: JobId) -> list[Grant]:
        """Return every grant of a job, oldest first."""
        return await self._store.history(tx, job_id)

    async def held_by_owner(self, tx: Tx, owner: str) -> int:
        """Return how many jobs an owner holds. Reads every locked job: call it rarely."""
        return await self._store.held_by_owner(tx, owner)

    async def other_run_waits(self, tx: Tx, job_id: JobId) -> bool:
        """Return whether a job of another run, of the same priority or higher, has waited in the same lane for
        longer than an idle worker's poll interval, which means that no worker is free for it."""
        return await self._store.other_run_waits(tx, job_id, self.settings.poll_every)

    async def cancel_waiting(self, tx: Tx, run_id: str, reason: str) -> int:
        """Cancel the pending jobs of a run; returns how many."""
        return await self._store.cancel_waiting(tx, run_id, reason)

    async def kill_run(self, tx: Tx, run_id: str) -> int:
        """Have the leased jobs of a run killed by their workers after `force_grace`; returns how many."""
        return await self._store.kill_run(tx, run_id, self.settings.force_grace)

    async def set_priority(self, tx: Tx, run_id: str, priority: int) -> None:
        """Change the priority of the live jobs of a run."""
        await self._store.set_priority(tx, run_id, priority)

    async def lock_run(self, tx: Tx, kind: str, run_id: str | None) -> None:
        """Lock the run of a job. Every commit that moves a job does this first: the lock order is run, then job."""
        if run_id is not None and kind in self._listeners:
            await self._listeners[kind].lock(tx, run_id)

    def _emit_moved(self, move: Move, kind: str, run_id: str | None, lease: Lease | None) -> None:
        self._signals.emit(
            JobMoved(
                job_id=move.job_id,
                kind=kind,
                run_id=run_id,
                to=move.to,
                how=move.grant_end,
                reason=move.reason,
                error=move.error,
                attempt=None if lease is None else lease.attempts + 1,
                max_attempts=None if lease is None else lease.max_attempts,
            )
        )

    def clock_watch(self, clock: Clock) -> ClockWatch:
        """Return a watch over the store's clock that compares it with the uptime of this machine."""
        return ClockWatch(self._database, self._store.clock, clock, self._signals)

    def backoff(self, attempts: int) -> timedelta:
        """Return the retry delay: `WORKER_BACKOFF_MS · 2^(attempts-1)` plus jitter, which only adds."""
        return self.settings.backoff_after(attempts) * (1 + JITTER * self._jitter())

    async def _move(self, move: Move, lease: Lease) -> JobState:
        await self._database.run(
            lambda tx: self.move_in(tx, move, lease.kind, lease.run_id, lease), within=self.answer_within
        )
        return move.to

    def _emit_returned(self, tx: Tx, count: int) -> None:
        if count:
            tx.on_commit(lambda: self._signals.emit(JobsReturned(count=count)))

    def _emit_leased(self, lease: Lease, holder: str) -> None:
        self._signals.emit(
            JobLeased(
                job_id=lease.fence.job_id,
                kind=lease.kind,
                run_id=lease.run_id,
                holder=holder,
                epoch=lease.fence.epoch,
                attempt=lease.attempts + 1,
                max_attempts=lease.max_attempts,
                waited_seconds=lease.waited_seconds,
            )
        )
