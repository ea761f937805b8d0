"""What follows for analyses when their jobs move, and when crawls end; the queue and crawls call it in the same commit.

Every process has this listener, and most never see an analysis, so what it uses is imported then.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.base.database import Database, Tx
from shoal.base.signals import Signals
from shoal.crawl.store import CrawlStore
from shoal.events.store import OutboxStore
from shoal.queue.enqueuer import Enqueuer
from shoal.queue.job import EndedRun, LostJob
from shoal.queue.states import Move
from shoal.queue.store import JobStore

if TYPE_CHECKING:
    from shoal.audit.analyses import Analyses
    from shoal.audit.store import AuditStores


class AnalysisListener:
    """Implements `queue.job.RunListener` and `queue.job.RunEndHook`."""

    def __init__(
        self,
        database: Database,
        crawls: CrawlStore,
        enqueuer: Enqueuer,
        jobs: JobStore,
        outbox: OutboxStore,
        signals: Signals,
        attempts: int,
        stores: "Callable[[], AuditStores]",
    ) -> None:
        self._database = database
        self._crawls = crawls
        self._enqueuer = enqueuer
        self._jobs = jobs
        self._outbox = outbox
        self._signals = signals
        self._attempts = attempts
        self._stores = stores

    @cached_property
    def analyses(self) -> "Analyses":
        from shoal.audit.analyses import Analyses

        return Analyses(
            self._database,
            self._stores(),
            self._crawls,
            self._enqueuer,
            self._jobs,
            self._attempts,
            self._outbox,
            self._signals,
        )

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
