"""The lifecycle of an analysis: created in the commit that completes its crawl, executed by a job, ended with the
job."""

from shoal.audit import states
from shoal.audit.analysis import Analysis, Finding
from shoal.audit.states import AnalysisState
from shoal.audit.store import AnalysisStore, NewAnalysis
from shoal.base.database import Database, Tx
from shoal.base.errors import NotFound
from shoal.base.ids import AnalysisId, JobId, new_id
from shoal.base.signals import Signal, Signals
from shoal.events.event import Event
from shoal.events.store import OutboxStore
from shoal.queue.job import LostJob, NewJob
from shoal.queue.queue import Queue
from shoal.queue.states import TERMINAL, JobState, Move

KIND = "analysis"
EVENT = "analysis.completed"


class AnalysisMoved(Signal, frozen=True, kw_only=True):
    """An analysis ended. `total_attempts`: the failed attempts of its job."""

    kind: str = KIND
    run_id: str
    state: AnalysisState
    reason: str | None
    error: str | None
    total_attempts: int


class Analyses:
    """Manages analyses; implements `queue.job.RunListener` for them."""

    def __init__(
        self, database: Database, store: AnalysisStore, queue: Queue, outbox: OutboxStore, signals: Signals
    ) -> None:
        self._database = database
        self.store = store
        self._queue = queue
        self._outbox = outbox
        self._signals = signals

    async def begin(self, tx: Tx, crawl: int, crawl_id: str, project: str, priority: int) -> None:
        """Store an analysis of a completed crawl and its job, in the commit that completes the crawl."""
        analysis_id = AnalysisId(new_id("anl"))
        await self.store.insert(tx, NewAnalysis(analysis_id, crawl, crawl_id, project))
        attempts = self._queue.settings.job_attempts
        job = NewJob(JobId(new_id("job")), KIND, analysis_id, priority=priority, max_attempts=attempts)
        await self._queue.enqueue_in(tx, [job])

    async def get(self, analysis_id: str) -> Analysis:
        analysis = await self._database.read(lambda tx: self.store.get(tx, analysis_id))
        if analysis is None:
            raise NotFound("analysis", analysis_id)
        return analysis

    async def newest(
        self, *, after: int | None = None, limit: int = 50, state: str | None = None, crawl_id: str | None = None
    ) -> list[Analysis]:
        return await self._database.read(lambda tx: self.store.page_of(tx, after, limit, state, crawl_id))

    async def findings(self, analysis_id: str) -> list[Finding]:
        analysis = await self.get(analysis_id)
        return await self._database.read(lambda tx: self.store.findings(tx, analysis))

    async def started(self, tx: Tx, analysis_id: str) -> Analysis:
        """Record the start of an attempt: the first one sets the state to running, later ones change nothing."""
        analysis = await self.store.lock(tx, analysis_id)
        if analysis is None:
            raise NotFound("analysis", analysis_id)
        await self.store.move(tx, analysis_id, states.run())
        return analysis

    async def lock(self, tx: Tx, run_id: str) -> None:
        await self.store.lock(tx, run_id)

    async def was_idle(self, tx: Tx, run_id: str, lost: LostJob) -> bool:
        return False

    async def job_moved(self, tx: Tx, run_id: str, move: Move) -> None:
        """End the analysis in the commit that ends its job. A job that is retried, or only lost its worker, does not
        change it."""
        if move.to not in TERMINAL:
            return
        done = move.to is JobState.DONE
        verdict = states.succeed() if done else states.fail(move.reason, move.error)
        if not await self.store.move(tx, run_id, verdict):
            return
        analysis = await self.store.get(tx, run_id)
        assert analysis is not None, "its state changed at the same time"
        jobs = await self._queue.jobs_of_run(tx, run_id)
        moved = AnalysisMoved(
            run_id=run_id,
            state=analysis.state,
            reason=analysis.state_reason,
            error=analysis.error,
            total_attempts=max((job.attempts for job in jobs), default=0),
        )
        tx.on_commit(lambda: self._signals.emit(moved))
        about = {"analysis_id": run_id, "crawl_id": analysis.crawl_id, "project": analysis.project}
        facts = {"state": verdict.to.value, "reason": verdict.reason, "findings": analysis.findings}
        await self._outbox.append(tx, Event(EVENT, run_id, about | facts))
