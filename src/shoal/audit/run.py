"""One attempt at an analysis, in a worker's child: feeds every stored page to every analyzer, then stores the findings
and ends the job in one commit. A process that dies before that commit leaves nothing behind."""

from collections.abc import Callable, Mapping

from shoal.audit.analyses import KIND, Analyses
from shoal.audit.analysis import Analysis, Finding
from shoal.audit.analyzers import Analyzer
from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.errors import LeaseLost
from shoal.base.signals import Signal, Signals
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue import states
from shoal.queue.job import Lease
from shoal.queue.queue import Queue
from shoal.queue.states import Move

BATCH = 500  # pages


class AnalysisAttempted(Signal, frozen=True, kw_only=True):
    """An attempt at an analysis starts."""

    kind: str = KIND
    run_id: str
    job_id: str
    attempt: int
    max_attempts: int
    again: bool = False  # set in an extra signal before every attempt but the first


class AnalysisRun:
    """Runs one analysis job in this process."""

    def __init__(
        self,
        database: Database,
        analyses: Analyses,
        queue: Queue,
        pages: PageStore,
        analyzers: Mapping[str, Callable[[], Analyzer]],
        clock: Clock,
        signals: Signals,
        lease: Lease,
        alive: Callable[[], bool],
    ) -> None:
        self._database = database
        self._analyses = analyses
        self._queue = queue
        self._pages = pages
        self._analyzers = analyzers
        self._clock = clock
        self._signals = signals
        self._lease = lease
        self._alive = alive
        self._leaving: str | None = None
        self._moved_at = clock.monotonic()

    async def run(self) -> str:
        """Run until the job is finished or returned; return the outcome."""
        self._tell()
        analysis = await self._database.run(self._attach)
        findings = await self._analyse(analysis)
        if findings is None:
            return (await self._queue.release(self._lease, self._leaving or "shutdown")).value
        move = states.finish(self._lease.fence.job_id, self._lease.fence.epoch)
        await self._database.run(lambda tx: self._finish(tx, analysis, findings, move))
        return move.to.value

    def leave(self, reason: str) -> None:
        """Return the job soon; the next worker reads all pages again."""
        self._leaving = reason

    def limit_rate(self, per_second: float | None) -> None:
        """Ignored: an analysis fetches nothing."""

    def stalled_for(self) -> float:
        return self._clock.monotonic() - self._moved_at

    def nudge(self) -> None:
        return

    async def _attach(self, tx: Tx) -> Analysis:
        analysis = await self._analyses.started(tx, self._lease.run_id or "")
        await self._fence(tx)
        return analysis

    async def _fence(self, tx: Tx) -> None:
        await self._queue.fence(tx, self._lease.fence)

    async def _analyse(self, analysis: Analysis) -> list[Finding] | None:
        """Return the findings of all analyzers; None if we have to leave first."""
        analyzers = [make() for make in self._analyzers.values()]
        number = 0
        while pages := await self._next(analysis, number):
            number = pages[-1][0]
            for analyzer in analyzers:
                for _, page in pages:
                    analyzer.see(page)
            self._moved_at = self._clock.monotonic()
            await self._clock.sleep(0)  # let the event loop send our heartbeat to the parent
            if self._leaving is not None:
                return None
            if not self._alive():
                raise LeaseLost(self._lease.fence.job_id, self._lease.fence.epoch)
        return [finding for analyzer in analyzers for finding in analyzer.findings()]

    async def _next(self, analysis: Analysis, number: int) -> list[tuple[int, Page]]:
        return await self._database.read(lambda tx: self._pages.after(tx, analysis.crawl, number, BATCH))

    async def _finish(self, tx: Tx, analysis: Analysis, findings: list[Finding], move: Move) -> None:
        await self._analyses.lock(tx, analysis.id)
        await self._fence(tx)
        await self._analyses.store.keep(tx, analysis, findings)
        await self._queue.move_in(tx, move, KIND, analysis.id)

    def _tell(self) -> None:
        attempt = self._lease.attempts + 1
        for again in (True, False) if attempt > 1 else (False,):
            self._signals.emit(
                AnalysisAttempted(
                    run_id=self._lease.run_id or "",
                    job_id=self._lease.fence.job_id,
                    attempt=attempt,
                    max_attempts=self._lease.max_attempts,
                    again=again,
                )
            )
