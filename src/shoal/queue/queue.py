"""The verbs of the queue: enqueue, lease, extend, finish, fail, release, lose, cancel. Each ends in one commit."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from shoal.base.database import Database, Tx
from shoal.base.errors import LeaseLost
from shoal.base.ids import JobId
from shoal.base.signals import Signal, Signals
from shoal.queue import states
from shoal.queue.job import Holder, Lease, LostJob, NewJob, RunKeeper
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.queue.store import JobStore
from shoal.settings import QueueSettings

T = TypeVar("T")

JITTER = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnqueued(Signal):
    job_id: str
    kind: str
    run_id: str | None
    lane: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLeased(Signal):
    job_id: str
    kind: str
    run_id: str | None
    holder: str
    epoch: int
    attempt: int
    max_attempts: int
    waited_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMoved(Signal):
    """A locked job was finished, retried, failed, handed back, lost or cancelled."""

    job_id: str
    kind: str
    run_id: str | None
    to: JobState
    how: GrantEnd
    reason: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWentBack(Signal):
    """A clock shows an earlier time than it did: that of the store, or of the controller's machine."""

    whose: str
    seconds: float


class Queue:
    """Jobs and their leases. `keepers` are told, in the same commit, when a job of their runs moves."""

    def __init__(
        self,
        database: Database,
        store: JobStore,
        settings: QueueSettings,
        signals: Signals,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self.store = store
        self.settings = settings
        self._signals = signals
        self._keepers: dict[str, RunKeeper] = {}
        self._jitter = jitter

    def register(self, keepers: Mapping[str, RunKeeper]) -> None:
        """Name who owns the runs of each job kind."""
        self._keepers.update(keepers)

    async def enqueue_in(self, tx: Tx, job: NewJob) -> bool:
        """Store a job as part of a larger commit; announce it with `announce` once that is through."""
        return await self.store.insert(tx, job)

    def announce(self, job: NewJob) -> None:
        self._signals.emit(JobEnqueued(job_id=job.id, kind=job.kind, run_id=job.run_id, lane=job.lane))

    async def lease(self, holder: str, kinds: list[str], lanes: list[str], limit: int) -> list[Lease]:
        ttl = self.settings.lease
        leases = await self._database.run(lambda tx: self.store.lease(tx, holder, kinds, lanes, limit, ttl))
        for lease in leases:
            self._tell_leased(lease, holder)
        return leases

    async def lease_one(self, job_id: JobId, holder: str) -> Lease | None:
        ttl = self.settings.lease
        lease = await self._database.run(lambda tx: self.store.lease_one(tx, job_id, holder, ttl))
        if lease is not None:
            self._tell_leased(lease, holder)
        return lease

    async def extend(self, holders: list[Holder]) -> list[Holder]:
        """Those of the leases that are still ours; they last one more term from now."""
        return await self._database.run(lambda tx: self.store.extend(tx, holders, self.settings.lease))

    async def fail(self, lease: Lease, error: str) -> JobState:
        """Count a failed attempt: try again after a pause, or, after the last one, fail for good."""
        job_id, epoch = lease.holder.job_id, lease.holder.epoch
        if lease.attempts + 1 < lease.max_attempts:
            move = states.retry(job_id, epoch, error, self.backoff(lease.attempts + 1))
        else:
            move = states.fail(job_id, epoch, error)
        return await self._move(move, lease.kind, lease.run_id)

    async def release(self, lease: Lease, reason: str) -> JobState:
        """Hand a job back without penalty."""
        move = states.release(lease.holder.job_id, lease.holder.epoch, reason)
        return await self._move(move, lease.kind, lease.run_id)

    async def finish(self, lease: Lease, reason: str | None = None) -> JobState:
        move = states.finish(lease.holder.job_id, lease.holder.epoch, reason)
        return await self._move(move, lease.kind, lease.run_id)

    async def lose(self, lease: Lease, error: str, reason: str = states.WORKER_LOST) -> JobState:
        """Our child died with the job, or was killed because it stalled: nobody has to wait for the lease's end."""

        async def commit(tx: Tx) -> Move:
            await self.lock_run(tx, lease.kind, lease.run_id)
            lost = await self.store.lost(tx, lease.holder)
            if lost is None:
                raise LeaseLost(lease.holder.job_id, lease.holder.epoch)
            move = self.verdict(lost, GrantEnd.CRASHED, error, reason)
            await self.move_in(tx, move, lease.kind, lease.run_id)
            return move

        move = await self._database.run(commit)
        await self.tell_moved(move, lease.kind, lease.run_id)
        return move.to

    def verdict(self, lost: LostJob, end: GrantEnd, error: str, reason: str = states.WORKER_LOST) -> Move:
        """What becomes of a job whose worker is gone: back to its lane, or, past the poison limit, a dead letter."""
        crashes = 1 if lost.settled else lost.crash_count + 1
        if crashes > self.settings.poison_limit:
            return states.bury(lost.id, lost.epoch, end, error, reason)
        return states.give_back(lost.id, lost.epoch, end, error, reason)

    async def move_in(self, tx: Tx, move: Move, kind: str, run_id: str | None) -> None:
        """Carry out a move, and what it means for the run, inside an open transaction; raises if the job moved on."""
        await self.lock_run(tx, kind, run_id)
        if not await self.store.apply(tx, move):
            raise LeaseLost(move.job_id, move.epoch)
        if run_id is not None and kind in self._keepers:
            await self._keepers[kind].job_moved(tx, run_id, move)

    async def lock_run(self, tx: Tx, kind: str, run_id: str | None) -> None:
        """The first lock of every commit that moves a job: the lock order is run, then job."""
        if run_id is not None and kind in self._keepers:
            await self._keepers[kind].lock(tx, run_id)

    async def tell_moved(self, move: Move, kind: str, run_id: str | None) -> None:
        """Say what a committed move did to the job, and to its run."""
        self._signals.emit(
            JobMoved(
                job_id=move.job_id,
                kind=kind,
                run_id=run_id,
                to=move.to,
                how=move.grant_end,
                reason=move.reason,
                error=move.error,
            )
        )
        if run_id is not None and kind in self._keepers and move.grant_end is not GrantEnd.RELEASED:
            await self._keepers[kind].told(run_id)

    def tell_clock(self, whose: str, seconds: float) -> None:
        self._signals.emit(ClockWentBack(whose=whose, seconds=seconds))

    def backoff(self, attempts: int) -> timedelta:
        """`WORKER_BACKOFF_MS · 2^(attempts-1)`; the jitter only adds."""
        base = min(self.settings.backoff * 2.0 ** min(attempts - 1, 40), self.settings.longest_backoff)
        return base * (1 + JITTER * self._jitter())

    async def _move(self, move: Move, kind: str, run_id: str | None) -> JobState:
        await self._database.run(lambda tx: self.move_in(tx, move, kind, run_id))
        await self.tell_moved(move, kind, run_id)
        return move.to

    def _tell_leased(self, lease: Lease, holder: str) -> None:
        self._signals.emit(
            JobLeased(
                job_id=lease.holder.job_id,
                kind=lease.kind,
                run_id=lease.run_id,
                holder=holder,
                epoch=lease.holder.epoch,
                attempt=lease.attempts + 1,
                max_attempts=lease.max_attempts,
                waited_seconds=lease.waited_seconds,
            )
        )
