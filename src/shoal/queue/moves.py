"""Moves of locked jobs. Each move and its effect on the run are carried out in one commit."""

from collections.abc import Mapping, Sequence
from functools import partial

from shoal.base.database import Tx
from shoal.base.errors import LeaseLost
from shoal.base.signals import Signal, Signals
from shoal.queue.job import Job, Lease, LostJob, RunListener
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.queue.store import JobStore

Attempted = Lease | LostJob | Job


class JobsMoved(Signal, frozen=True, kw_only=True, tag=True):
    """A batch of jobs of one kind ended in the same way, or was returned for the same reason."""

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
    attempt: int | None = None  # None if neither the job nor its lease is known
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

    async def move_in(self, tx: Tx, move: Move, kind: str, run_id: str | None, of: Attempted | None = None) -> None:
        """Carry out a move and its effect on the run in an open transaction; raise if a different process moved the job
        first. `of`: the job or its lease before the move, for the log."""
        await self.lock_run(tx, kind, run_id)
        if await self.store.move(tx, [move]):
            raise LeaseLost(move.job_id, move.epoch)
        await self.jobs_moved_in(tx, kind, [(move, run_id, of)])

    async def jobs_moved_in(
        self, tx: Tx, kind: str, moves: Sequence[tuple[Move, str | None, Attempted | None]]
    ) -> None:
        """Follow up on moves of jobs of one kind; each comes with its run and with the job or its lease. Signal the
        moves on commit, and let the listener update the runs, which are locked."""
        for move, run_id, of in moves:
            # Signals wait for the commit, because after a conflict this function runs again (0002).
            tx.on_commit(partial(self._emit_moved, move, kind, run_id, of))
        if kind in self.listeners:
            await self.listeners[kind].jobs_moved(tx, [(move, run_id) for move, run_id, _ in moves])

    def _emit_moved(self, move: Move, kind: str, run_id: str | None, of: Attempted | None) -> None:
        self.signals.emit(
            JobMoved(
                job_id=move.job_id,
                kind=kind,
                run_id=run_id,
                to=move.to,
                how=move.grant_end,
                reason=move.reason,
                error=move.error,
                attempt=None if of is None else of.attempts + 1,
                max_attempts=None if of is None else of.max_attempts,
            )
        )
