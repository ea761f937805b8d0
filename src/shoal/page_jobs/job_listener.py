"""Updates groups and policies when page jobs move; the queue calls this listener in the same commit.

Every process has this listener, but most processes never see a page job, so its imports are done at the first use.
"""

from collections.abc import Sequence

from shoal.base.database import Tx
from shoal.base.signals import Signals
from shoal.queue.job import LostJob, RunEndHook
from shoal.queue.states import TERMINAL, JobState, Move


class PageJobListener:
    """Implements `queue.job.RunListener`. The runs of page jobs are their groups; jobs of policies have no run."""

    def __init__(self, signals: Signals, hooks: Sequence[RunEndHook]) -> None:
        self._signals = signals
        self._hooks = hooks

    async def lock(self, tx: Tx, run_id: str) -> None:
        from shoal.page_jobs.store import GroupStore

        await GroupStore().lock_all(tx, groups=[run_id])

    async def was_idle(self, tx: Tx, run_id: str, lost: LostJob) -> bool:
        return False

    async def jobs_moved(self, tx: Tx, moves: Sequence[tuple[Move, str | None]]) -> None:
        """Report dead letters, end the groups whose last job ended, and then report runs of policies."""
        from shoal.page_jobs.groups import end_groups_without_jobs
        from shoal.page_jobs.ingest import report_dead_letters

        dead = [move for move, _ in moves if move.to in (JobState.EXPIRED, JobState.FAILED)]
        runs = await report_dead_letters(tx, dead) if dead else []
        groups = {run_id: None for move, run_id in moves if run_id is not None and move.to in TERMINAL}
        await end_groups_without_jobs(tx, self._signals, groups)
        for hook in self._hooks if runs else ():
            await hook.ended(tx, runs)
