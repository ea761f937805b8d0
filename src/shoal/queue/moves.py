"""Moves of locked jobs and what follows from them: each is carried out with its effect on the run, in one commit."""

from collections.abc import Mapping, Sequence
from functools import partial

from shoal.base.database import Tx
from shoal.base.errors import LeaseLost
from shoal.base.signals import Signal, Signals
from shoal.queue.job import Lease, RunListener
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.queue.store import JobStore


class JobsMoved(Signal, frozen=True, kw_only=True):
    """A batch of jobs of one kind ended, or was returned, in the same way."""

    kind: str
    how: GrantEnd
    count: int


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


class JobMoves:
    """Moves jobs by compare-and-set. The listener of a run is called in the same commit when one of its jobs moves."""

    def __init__(self, store: JobStore, signals: Signals, listeners: Mapping[str, RunListener]) -> None:
        self.store = store
        self.signals = signals
        self.listeners = listeners

    async def lock_run(self, tx: Tx, kind: str, run_id: str | None) -> None:
        """Lock the run of a job. Every commit that moves a job does this first: the lock order is run, then job."""
        if run_id is not None and kind in self.listeners:
            await self.listeners[kind].lock(tx, run_id)

    async def move_in(self, tx: Tx, move: Move, kind: str, run_id: str | None, lease: Lease | None = None) -> None:
        """Carry out a move and its effect on the run in an open transaction; raises if the job has moved on. `lease`:
        under which it is made, for the log."""
        await self.lock_run(tx, kind, run_id)
        await self.move_locked_in(tx, move, kind, run_id, lease)

    async def move_locked_in(
        self, tx: Tx, move: Move, kind: str, run_id: str | None, lease: Lease | None = None
    ) -> None:
        """Do the same if the run is locked already. To lock it again might be to wait for others that share the lock,
        and they for a job that we hold."""
        if await self.store.move(tx, [move]):
            raise LeaseLost(move.job_id, move.epoch)
        await self.job_moved_in(tx, move, kind, run_id, lease)

    async def job_moved_in(self, tx: Tx, move: Move, kind: str, run_id: str | None, lease: Lease | None = None) -> None:
        """Follow up on a move: signal it on commit, and let the listener of the run, which is locked, update the
        run."""
        await self.jobs_moved_in(tx, kind, [(move, run_id)], lease)

    async def jobs_moved_in(
        self, tx: Tx, kind: str, moves: Sequence[tuple[Move, str | None]], lease: Lease | None = None
    ) -> None:
        """Follow up on the moves of jobs of one kind."""
        for move, run_id in moves:
            # Not before the commit: after a conflict all this is done again (0002).
            tx.on_commit(partial(self._emit_moved, move, kind, run_id, lease))
        if kind in self.listeners:
            await self.listeners[kind].jobs_moved(tx, moves)

    def _emit_moved(self, move: Move, kind: str, run_id: str | None, lease: Lease | None) -> None:
        self.signals.emit(
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
