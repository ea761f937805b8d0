"""The operations of the queue: enqueue, lease, extend, finish, fail, release, lose, cancel.

Each is one commit, except `lease`, which commits again after it had to park jobs, and `unpark`, which makes one commit
per quota key. Jobs that fit into a quota again are unparked after the commit that freed their seats. A method whose
name ends in `_in` is part of a larger commit. Signals are emitted when the transaction has committed.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from shoal.base.database import Database, Tx
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError
from shoal.base.ids import JobId
from shoal.base.settings import QueueSettings
from shoal.base.signals import Signal
from shoal.queue import states
from shoal.queue.enqueuer import Enqueuer
from shoal.queue.job import (
    HTTP,
    Enqueued,
    Extended,
    Fence,
    HeartbeatAnswer,
    Lease,
    LeaseRequest,
    NewJob,
    RunListener,
    TurnResult,
)
from shoal.queue.moves import JobMoves, JobsMoved
from shoal.queue.recovery import Recovery, answer_within
from shoal.queue.states import GrantEnd, JobState, Move

T = TypeVar("T")

ROUNDS = 20  # attempts of a lease request that finds only jobs over their quota
SMALL = 40  # jobs per turn: up to this number, the round trip to the store takes longer than the work in the store
APART = 50  # after a turn that needed more than one statement: turns before a single statement is tried again


class JobsLeased(Signal, frozen=True, kw_only=True, tag=True):
    """A batch of jobs of one kind was granted to one holder."""

    kind: str
    holder: str
    count: int
    waited_seconds: float  # the longest wait in the batch


class JobLeased(Signal, frozen=True, kw_only=True):
    job_id: str
    kind: str
    run_id: str | None
    holder: str
    epoch: int
    attempt: int
    max_attempts: int
    waited_seconds: float


class Queue:
    """Jobs and their leases. The listener of a run is called, in the same commit, when one of its jobs moves."""

    def __init__(
        self,
        database: Database,
        enqueuer: Enqueuer,
        settings: QueueSettings,
        listeners: Mapping[str, RunListener] | None = None,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.database = database
        self.enqueuer = enqueuer
        self.jobs = enqueuer.jobs
        self.lanes = enqueuer.lanes
        self.moves = JobMoves(self.jobs, enqueuer.signals, listeners or {})
        self.recovery = Recovery(database, self.moves, self.lanes, settings, jitter)
        self.settings = settings
        self.signals = enqueuer.signals
        self._apart = 0

    def on(self, database: Database) -> "Queue":
        """Return a queue over the same jobs that uses another connection. That queue has no listeners, so use it only
        to extend leases."""
        return Queue(database, self.enqueuer, self.settings)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store jobs, all or none; returns the outcome of each, in their order."""
        if not self.lanes.takes_one_statement(jobs):
            return await self.database.run(lambda tx: self.enqueue_in(tx, jobs))
        return await self.database.once(lambda tx: self.enqueue_in(tx, jobs), within=self.answer_within)

    async def enqueue_in(self, tx: Tx, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store jobs in an open transaction."""
        return await self.enqueuer.enqueue_in(tx, jobs)

    async def lease(
        self, holder: str, kinds: list[str], lanes: list[str], limit: int, capabilities: Sequence[str] = (HTTP,)
    ) -> list[Lease]:
        """Grant up to `limit` jobs. Jobs over their quota are parked, and a further commit tries other jobs instead."""
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
                break  # keep the granted jobs: nobody else could lease them until these leases expire
            leases += result.leases
            if not result.parked or len(leases) == limit:
                break
        await self._decide_attempts(granted)
        for lease in granted:
            self._emit_leased(lease, holder)
        return leases

    @property
    def answer_within(self) -> timedelta:
        """Return the maximum time for a statement about a lease: a response after that time would be useless."""
        return answer_within(self.settings)

    @property
    def own_attempts(self) -> int | None:
        """Return this process's `WORKER_JOB_ATTEMPTS`; None if it is not set."""
        return self.settings.job_attempts if "job_attempts" in self.settings.given else None

    async def _decide_attempts(self, leases: Sequence[Lease]) -> None:
        """Apply this process's `WORKER_JOB_ATTEMPTS`, if set, to the jobs of runs. It replaces the setting of the
        process that created the job, but not a number that was given with the job. For page jobs, `page_jobs.ingest`
        applies the setting when a job has failed."""
        attempts = self.own_attempts
        if attempts is None:
            return
        runs = [lease for lease in leases if lease.kind in self.moves.listeners and not lease.has_own_limit]
        decided = [(lease, max(attempts, lease.attempts + 1)) for lease in runs]
        differing = [(lease, most) for lease, most in decided if most != lease.max_attempts]
        if not differing:
            return
        differing.sort(key=lambda one: one[0].fence.job_id)  # jobs are locked in this order everywhere

        async def commit(tx: Tx) -> list[tuple[Lease, int]]:
            return [one for one in differing if await self.jobs.set_attempts(tx, one[0].fence, one[1])]

        try:
            changed = await self.database.run(commit, within=self.answer_within)
        except ShoalError:
            return  # the leases are granted in any case; for this attempt, the stored numbers apply
        for lease, most in changed:
            lease.max_attempts = most

    async def finish_and_lease(self, moves: Sequence[Move], request: LeaseRequest, limit: int) -> TurnResult:
        """End a batch of jobs and lease the next batch in one commit, for kinds whose runs have no listener."""
        return await self._turn(moves, request, limit, lambda result: self.emit_turn(request, moves, result))

    async def finish_and_lease_in(self, tx: Tx, moves: Sequence[Move], request: LeaseRequest, limit: int) -> TurnResult:
        """Carry out moves and lease in an open transaction. Each move is fenced; a refused move changes nothing. If
        there are only moves, call `jobs.move`.

        This building block emits no signals and does not call the listeners of runs. Before it, the caller locks the
        runs; after it, the caller calls `jobs_moved_in` or its own listener, or registers `emit_turn` to be called on
        commit."""
        return await self.lanes.pop(tx, request, limit, self.settings.lease, moves)

    async def _turn(
        self, moves: Sequence[Move], request: LeaseRequest, limit: int, emit: Callable[[TurnResult], None]
    ) -> TurnResult:
        """Finish and lease in a separate commit. Try a small batch as a single statement first, unless a single
        statement was recently not enough."""

        async def once(tx: Tx) -> TurnResult | None:
            result = await self.lanes.pop_once(tx, request, limit, self.settings.lease, moves)
            if result is not None:
                tx.on_commit(lambda: emit(result))
            return result

        async def commit(tx: Tx) -> TurnResult:
            result = await self.finish_and_lease_in(tx, moves, request, limit)
            tx.on_commit(lambda: emit(result))
            return result

        small, self._apart = len(moves) + limit <= SMALL and not self._apart, max(0, self._apart - 1)
        if small:
            result = await self.database.once(once, within=self.answer_within)
            if result is not None:
                return result
            self._apart = APART
        return await self.database.run(commit, within=self.answer_within)

    def emit_turn(self, request: LeaseRequest, moves: Sequence[Move], result: TurnResult) -> None:
        """Emit signals about the jobs that a committed turn has moved and leased. The number of signals is small,
        whatever the size of the batch."""
        made = [move for move in moves if move not in result.refused] if result.refused else moves
        ends: dict[GrantEnd, int] = {}
        for move in made:
            ends[move.grant_end] = ends.get(move.grant_end, 0) + 1
        for how, count in ends.items():
            self.signals.emit(JobsMoved(kind=request.kinds[0], how=how, count=count))
        waits: dict[str, list[float]] = {}
        for lease in result.leases:
            waits.setdefault(lease.kind, []).append(lease.waited_seconds)
        for kind, waited in waits.items():
            self.signals.emit(
                JobsLeased(kind=kind, holder=request.holder, count=len(waited), waited_seconds=max(waited))
            )

    async def lease_one(self, job_id: JobId, holder: str) -> Lease | None:
        """Grant this job if it is pending."""
        return await self.database.run(lambda tx: self.lease_one_in(tx, job_id, holder), within=self.answer_within)

    async def lease_one_in(self, tx: Tx, job_id: JobId, holder: str) -> Lease | None:
        """Grant this job if it is pending, in an open transaction."""
        lease = await self.jobs.lease_one(tx, job_id, holder, self.settings.lease)
        if lease is not None:
            tx.on_commit(lambda: self._emit_leased(lease, holder))
        return lease

    async def extend(self, fences: Sequence[Fence]) -> Extended:
        """Renew leases for one more term; return the leases that are still held, and those of them whose jobs have to
        be killed."""
        return await self.database.run(
            lambda tx: self.jobs.extend(tx, fences, self.settings.lease), within=self.answer_within
        )

    async def beat(self, owner: str, fence: Fence, ttl: timedelta, longest: timedelta) -> HeartbeatAnswer:
        """Renew a bot's lease by the job's own term, or else by `ttl`, up to `longest` after the grant; raise
        `LeaseLost` if `longest` is over, or if the lease does not belong to that owner."""
        beat = await self.database.run(
            lambda tx: self.jobs.beat(tx, owner, fence, ttl, longest), within=self.answer_within
        )
        if beat is None:
            raise LeaseLost(fence.job_id, fence.epoch)
        return beat

    async def began(self, fence: Fence, node: str, pid: int, config: str | None = None) -> bool:
        """Record the node, process and configuration that work on a grant; return False if the job is no longer locked
        by this grant."""
        return await self.database.run(
            lambda tx: self.jobs.note(tx, fence, node, pid, config), within=self.answer_within
        )

    async def waits(self, kind: str, lanes: Sequence[str]) -> bool:
        """Return whether a job of that kind waits in one of these lanes; a different process may lease that job
        first."""
        return await self.database.read(lambda tx: self.lanes.waits(tx, kind, lanes), within=self.answer_within)

    async def held_by(self, holder: str) -> list[Lease]:
        """Return the leases of that holder."""
        return await self.database.read(lambda tx: self.jobs.held_by(tx, holder), within=self.answer_within)

    async def fail(self, lease: Lease, error: str) -> JobState:
        """Count a failed attempt. The job is retried after a back-off, or fails permanently after its last attempt."""
        return await self._move(self.failure(lease, error), lease)

    def failure(self, lease: Lease, error: str) -> Move:
        """Return the move that counts a failed attempt."""
        job_id, epoch = lease.fence.job_id, lease.fence.epoch
        if lease.attempts + 1 < lease.max_attempts:
            return states.retry(job_id, epoch, error, self.recovery.backoff(lease.attempts + 1))
        return states.fail(job_id, epoch, error)

    async def release(self, lease: Lease, reason: str) -> JobState:
        """Return a job to its lane without counting an attempt."""
        return await self._move(states.release(lease.fence.job_id, lease.fence.epoch, reason), lease)

    async def finish(self, lease: Lease, reason: str | None = None) -> JobState:
        return await self._move(states.finish(lease.fence.job_id, lease.fence.epoch, reason), lease)

    async def cancel(self, lease: Lease, reason: str) -> JobState:
        """End a job whose work was killed on request."""
        return await self._move(states.cancel(lease.fence.job_id, lease.fence.epoch, reason), lease)

    async def depth_up_to(self, lane: str, most: int) -> int:
        """Return how many due jobs wait in a lane, up to `most`."""
        return await self.database.read(lambda tx: self.lanes.depth(tx, lane, most))

    async def fence(self, tx: Tx, fence: Fence) -> None:
        """Raise `LeaseLost` unless the job is still locked with that epoch; the job then stays locked until the
        transaction ends."""
        if not await self.jobs.fence(tx, fence):
            raise LeaseLost(fence.job_id, fence.epoch)

    async def other_run_waits(self, tx: Tx, job_id: JobId) -> bool:
        """Return whether a job of a different run, with the same or a higher priority, has waited in the same lane for
        longer than an idle worker's poll interval. If so, no worker is free for that job."""
        return await self.jobs.other_run_waits(tx, job_id, self.settings.poll_every)

    async def kill_run(self, tx: Tx, run_id: str) -> int:
        """Tell the workers to kill their leased jobs of this run after `force_grace`; return the number of jobs
        marked."""
        return await self.jobs.kill_run(tx, run_id, self.settings.force_grace)

    def _emit_leased(self, lease: Lease, holder: str) -> None:
        self.signals.emit(
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

    async def _move(self, move: Move, lease: Lease) -> JobState:
        await self.database.run(
            lambda tx: self.moves.move_in(tx, move, lease.kind, lease.run_id, lease), within=self.answer_within
        )
        return move.to
