"""Updates analyses when their jobs change state, and creates analyses when crawls complete. The queue and the crawls
call this listener in the same commit.

Every process has this listener, but most processes never see an analysis, so the listener imports its modules at the
first use.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.base.database import Database, Tx
from shoal.base.signals import Signals
from shoal.queue.enqueuer import Enqueuer
from shoal.queue.job import EndedRun, LostJob
from shoal.queue.states import Move
from shoal.queue.store import JobStore

if TYPE_CHECKING:
    from shoal.audit.analyses import Analyses


class AnalysisListener:
    """Implements `queue.job.RunListener` and `queue.job.RunEndHook`."""

    def __init__(self, database: Database, enqueuer: Enqueuer, jobs: JobStore, signals: Signals, attempts: int) -> None:
        self._database = database
        self._enqueuer = enqueuer
        self._jobs = jobs
        self._signals = signals
        self._attempts = attempts

    @cached_property
    def analyses(self) -> "Analyses":
        from shoal.audit.analyses import Analyses

        return Analyses(self._database, self._enqueuer, self._jobs, self._attempts, self._signals)

    async def lock(self, tx: Tx, run_id: str) -> None:
        await self.analyses.lock(tx, run_id)

    async def was_idle(self, tx: Tx, run_id: str, lost: LostJob) -> bool:
        return False

    async def jobs_moved(self, tx: Tx, moves: Sequence[tuple[Move, str | None]]) -> None:
        await self.analyses.jobs_moved(tx, moves)

    async def ended(self, tx: Tx, runs: Sequence[EndedRun]) -> None:
        for run in runs:
            if run.analyze:
                await self.analyses.begin(tx, run.id)
