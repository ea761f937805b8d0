"""One attempt at an analysis, in a worker's child.

Each analyzer's findings are stored in a separate commit. A later attempt runs only the analyzers that failed or have
not run yet. The last commit stores metrics and verdict and ends the attempt: the job is done, or, if an analyzer that
is not optional failed, the job is retried or failed. Every commit checks the fence, so a process that lost its lease
changes nothing.
"""

import asyncio
import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shoal.audit.analyses import KIND, Analyses
from shoal.audit.analysis import Analysis, Summary
from shoal.audit.analyzer import Analyzer
from shoal.audit.analyzer_run import AnalyzerError, AnalyzerResult, AnalyzerSkipped, failed, run_analyzer, skipped
from shoal.audit.artifacts import Artifact, ArtifactStore
from shoal.audit.external import ExternalAnalyzer
from shoal.audit.finding import AnalyzerOutcome
from shoal.audit.loader import SiteLoader
from shoal.audit.overview import measure, summarize
from shoal.audit.prober import measure_again, needs_second_look
from shoal.audit.site import Site
from shoal.audit.verdict import GateInput, Outcome, Verdict, judge
from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.errors import LeaseLost, ShoalError
from shoal.base.signals import Signal, Signals
from shoal.queue import states
from shoal.queue.job import Lease
from shoal.queue.queue import Queue
from shoal.queue.states import Move


class AnalysisAttempted(Signal, frozen=True, kw_only=True):
    """An attempt at an analysis starts."""

    kind: str = KIND
    run_id: str
    job_id: str
    attempt: int
    max_attempts: int
    again: bool = False  # set in an extra signal before every attempt but the first
    delay_ms: int | None = None  # the minimum wait before the retry


class AnalyzerFailed(Signal, frozen=True, kw_only=True):
    """An analyzer failed; the analysis continues with the others."""

    kind: str = KIND
    run_id: str
    job_id: str
    analyzer: str
    error: str
    optional: bool
    attempt: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class AnalysisContext:
    """The objects that all analyses of a process share."""

    database: Database
    analyses: Analyses
    queue: Queue
    loader: SiteLoader
    clock: Clock
    signals: Signals
    artifacts: ArtifactStore | None = None
    most_stored: int = 10_000  # findings of one code
    most_remeasured: int = 20  # slow pages
    optional: Collection[str] = ()  # further analyzers whose failure does not fail the analysis


class AnalysisAttempt:
    """One attempt at an analysis: runs its job in this process."""

    def __init__(
        self, context: AnalysisContext, analyzers: Sequence[Analyzer], lease: Lease, alive: Callable[[], bool]
    ) -> None:
        self._context = context
        self.analyzers = analyzers
        self._lease = lease
        self._alive = alive
        self._leaving: str | None = None
        self._running: Analyzer | None = None
        self._moved_at = context.clock.monotonic()

    async def run(self) -> str:
        """Run until the job is finished or returned; return the outcome."""
        self._tell()
        try:
            with _no_collections():
                return await self._analyze()
        except _Left:
            return (await self._context.queue.release(self._lease, self._leaving or "shutdown")).value
        finally:
            self._context.loader.close()

    def leave(self, reason: str) -> None:
        """Return the job to the queue soon; the next worker continues with the analyzers that have not run. An external
        command is ended; a built-in analyzer finishes by itself."""
        self._leaving = reason
        if isinstance(self._running, ExternalAnalyzer):
            self._running.stop()

    def limit_rate(self, per_second: float | None) -> None:
        """Do nothing: a node's limit applies to crawls and page jobs. The prober sends at most a thousand requests,
        which wait only for the rate limits of their hosts."""

    def stalled_seconds(self) -> float:
        return self._context.clock.monotonic() - self._moved_at

    def nudge(self) -> None:
        return

    async def _analyze(self) -> str:
        context = self._context
        analysis, earlier = await context.database.run(self._attach)
        previous = await self._previous_crawl(analysis)
        ended = {one.analyzer for one in earlier if not one.fails_analysis}
        remaining = [analyzer for analyzer in self.analyzers if analyzer.name not in ended]
        timing = [analyzer for analyzer in self.analyzers if any(code.timing for code in analyzer.codes)]
        site = await context.loader.load(analysis, [*remaining, *timing], self._progress, previous)
        unanswered = (analysis.summary or {}).get("unanswered", {})  # in earlier attempts
        site.unanswered |= {name: counts for name, counts in unanswered.items() if name in ended}
        summary = await asyncio.to_thread(summarize, site)
        await context.database.run(lambda tx: self._summarize(tx, analysis, summary))
        for analyzer in remaining:
            await self._run_and_keep(analysis, analyzer, site)
            await self._progress()
        measured = await self._measure(analysis, site)
        verdict = await self._judge(analysis, measured)
        if verdict is not None and needs_second_look(verdict):
            await self._look_again(analysis, timing, site)
            summary = await asyncio.to_thread(summarize, site)
            measured = await self._measure(analysis, site)
            verdict = await self._judge(analysis, measured)
        move = self._end(measured.outcomes)
        await context.database.run(lambda tx: self._finish(tx, analysis, measured, summary, verdict, move))
        return move.to.value

    async def _measure(self, analysis: Analysis, site: Site) -> GateInput:
        """Measure the site and what all analyzers found, in this attempt or an earlier one."""
        analyses = self._context.analyses
        return measure(site, await analyses.counts(analysis.id), await analyses.outcomes(analysis.id))

    def _end(self, outcomes: Sequence[AnalyzerOutcome]) -> Move:
        """Return the end of this attempt."""
        failed = [one for one in outcomes if one.fails_analysis]
        if not failed:
            return states.finish(self._lease.fence.job_id, self._lease.fence.epoch)
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        error = f'Analyzer "{failed[0].analyzer}" failed{more}: {failed[0].error}'
        return self._context.queue.failure(self._lease, error)

    async def _previous_crawl(self, analysis: Analysis) -> int | None:
        """Return the number of the baseline's crawl; None if there is no baseline, or it was removed."""
        baseline = analysis.options.baseline
        if baseline is None:
            return None
        found = await self._context.database.read(lambda tx: self._context.analyses.store.get(tx, baseline))
        return None if found is None else found.crawl

    async def _attach(self, tx: Tx) -> tuple[Analysis, list[AnalyzerOutcome]]:
        """Start the attempt; return the analysis, and how analyzers ended in earlier attempts."""
        analysis = await self._context.analyses.started(tx, self._lease.run_id or "")
        await self._fence(tx)
        return analysis, await self._context.analyses.store.outcomes(tx, analysis)

    async def _fence(self, tx: Tx) -> None:
        await self._context.queue.fence(tx, self._lease.fence)

    async def _run_and_keep(self, analysis: Analysis, analyzer: Analyzer, site: Site) -> None:
        result = await self._with_artifacts(analysis, analyzer, await self._run_one(analyzer, site))
        is_optional = analyzer.name in self._context.optional or bool(getattr(analyzer, "optional", False))
        result = result.but(optional=True) if is_optional else result
        await self._context.database.run(lambda tx: self._keep(tx, analysis, result))
        if result.outcome.error is not None:
            self._context.signals.emit(
                AnalyzerFailed(
                    run_id=analysis.id,
                    job_id=self._lease.fence.job_id,
                    analyzer=analyzer.name,
                    error=result.outcome.error,
                    optional=is_optional,
                    attempt=self._lease.attempts + 1,
                    max_attempts=self._lease.max_attempts,
                )
            )

    async def _run_one(self, analyzer: Analyzer, site: Site) -> AnalyzerResult:
        """Run one analyzer in a thread, so that this process keeps sending heartbeats. A failure of the analyzer
        becomes its result."""
        clock = self._context.clock
        began = clock.monotonic()
        self._running = analyzer
        try:
            result = await asyncio.to_thread(run_analyzer, analyzer, site, self._context.most_stored)
        except AnalyzerSkipped as reason:
            result = skipped(analyzer.name, str(reason))
        except Exception as error:
            if self._leaving is not None:
                raise _Left from None  # the analyzer may have failed because it was stopped
            text = str(error) if isinstance(error, AnalyzerError) else f"{type(error).__name__}: {error}"
            result = failed(analyzer.name, text)
        finally:
            self._running = None
        return result.but(duration_ms=round(1000 * (clock.monotonic() - began), 3))

    async def _with_artifacts(self, analysis: Analysis, analyzer: Analyzer, result: AnalyzerResult) -> AnalyzerResult:
        """Store the files that an analyzer left; if they cannot be stored, the analyzer counts as failed."""
        store = self._context.artifacts
        if store is None:
            return result
        stored = []
        try:
            for name, data in getattr(analyzer, "artifacts", ()):
                await store.put(analysis.id, name, data)
                stored.append(Artifact(name, len(data)))
        except Exception as error:  # a plug-in may leave files of any kind
            reason = error.message if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
            return failed(analyzer.name, f"Its files could not be stored: {reason}")
        return result.but(artifacts=tuple(stored))

    async def _look_again(self, analysis: Analysis, analyzers: Sequence[Analyzer], site: Site) -> None:
        """Measure slow pages again, and repeat the analyzers that report them."""
        prober = self._context.loader.prober
        if prober is None or not await measure_again(site, prober, self._context.most_remeasured, self._progress):
            return
        for analyzer in analyzers:
            await self._run_and_keep(analysis, analyzer, site)

    async def _judge(self, analysis: Analysis, measured: GateInput) -> Verdict | None:
        options = analysis.options
        if options.gate is None:
            missing = [f'Gate "{options.gate_name}" does not exist.']
            return None if options.gate_name is None else Verdict(Outcome.INCONCLUSIVE, missing)
        baseline = None if options.baseline is None else await self._baseline(options.baseline)
        return judge(options.gate, measured, baseline)

    async def _baseline(self, analysis_id: str) -> GateInput | None:
        analyses = self._context.analyses

        async def read(tx: Tx) -> GateInput | None:
            analysis = await analyses.store.get(tx, analysis_id)
            if analysis is None or analysis.metrics is None:
                return None  # removed since
            outcomes = await analyses.store.outcomes(tx, analysis)
            return GateInput(analysis.metrics, await analyses.store.counts(tx, analysis), outcomes)

        return await self._context.database.read(read)

    async def _summarize(self, tx: Tx, analysis: Analysis, summary: Summary) -> None:
        """Store the summary before findings, so that a later attempt, which continues from these findings, knows what
        was not checked."""
        await self._context.analyses.lock(tx, analysis.id)
        await self._fence(tx)
        await self._context.analyses.store.summarize(tx, analysis, summary)

    async def _keep(self, tx: Tx, analysis: Analysis, result: AnalyzerResult) -> None:
        await self._context.analyses.lock(tx, analysis.id)
        await self._fence(tx)
        await self._context.analyses.store.keep(tx, analysis, result.outcome, result.counts, result.findings)

    async def _finish(
        self, tx: Tx, analysis: Analysis, measured: GateInput, summary: Summary, verdict: Verdict | None, move: Move
    ) -> None:
        await self._context.analyses.lock(tx, analysis.id)
        await self._fence(tx)
        await self._context.analyses.store.conclude(tx, analysis, measured.metrics, summary, verdict)
        await self._context.queue.moves.move_in(tx, move, KIND, analysis.id, self._lease)

    async def _progress(self) -> None:
        self._moved_at = self._context.clock.monotonic()
        await self._context.clock.sleep(0)  # let the event loop send our heartbeat to the parent
        if self._leaving is not None:
            raise _Left
        if not self._alive():
            raise LeaseLost(self._lease.fence.job_id, self._lease.fence.epoch)

    def _tell(self) -> None:
        attempt, settings = self._lease.attempts + 1, self._context.queue.settings
        for again in (True, False) if attempt > 1 else (False,):
            delay = settings.backoff_after(attempt - 1) if again else None
            self._context.signals.emit(
                AnalysisAttempted(
                    run_id=self._lease.run_id or "",
                    job_id=self._lease.fence.job_id,
                    attempt=attempt,
                    max_attempts=self._lease.max_attempts,
                    again=again,
                    delay_ms=None if delay is None else round(delay.total_seconds() * 1000),
                )
            )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Switch off the cyclic garbage collector: this process keeps millions of objects without reference cycles, so the
    collector would visit all of them and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Left(Exception):
    """The run was asked to stop."""
