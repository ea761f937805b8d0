"""The lifecycle of an analysis: it is created in the commit that completes its crawl, or on request; a job executes it,
and it ends when the job ends."""

from collections.abc import Sequence

from shoal.audit import states
from shoal.audit.analysis import PREVIOUS, Analysis, AnalysisOptions, CommitStatus, status_of
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount
from shoal.audit.states import AnalysisState
from shoal.audit.store import AnalysisStore, CommitStatusStore, FindingPlace, GateStore, NewAnalysis
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.base.ids import AnalysisId, JobId, new_id
from shoal.base.signals import Signal, Signals
from shoal.crawl.crawl import Crawl
from shoal.crawl.journal_messages import left_in_quarantine
from shoal.crawl.states import SETTLED
from shoal.crawl.store import CrawlStore
from shoal.events.event import Event, append_events
from shoal.queue.enqueuer import Enqueuer
from shoal.queue.job import SHARED_LANE, Job, NewJob, attempts_made
from shoal.queue.states import TERMINAL, JobState, Move
from shoal.queue.store import JobStore

KIND = "analysis"
EVENT = "analysis.completed"
MOST_FINDINGS = 1_000  # in one response


class AnalysisMoved(Signal, frozen=True, kw_only=True):
    """An analysis ended with this attempt. `total_attempts`: the number of failed attempts of its job."""

    kind: str = KIND
    run_id: str
    state: AnalysisState
    reason: str | None
    error: str | None
    attempt: int
    max_attempts: int
    total_attempts: int


class CommitStatusWanted(Signal, frozen=True, kw_only=True):
    """The commit of an analysis should show a new status."""

    kind: str = KIND
    run_id: str
    attempt: int
    max_attempts: int


class Analyses:
    """Manages analyses."""

    def __init__(
        self,
        database: Database,
        enqueuer: Enqueuer,
        jobs: JobStore,
        attempts: int,
        signals: Signals,
    ) -> None:
        self._database = database
        self.store = AnalysisStore()
        self._gates = GateStore()
        self._statuses = CommitStatusStore()
        self._crawls = CrawlStore()
        self._enqueuer = enqueuer
        self._jobs = jobs
        self._attempts = attempts
        self._signals = signals

    async def begin(self, tx: Tx, crawl_id: str) -> None:
        """Store an analysis of a completed crawl, and the job of the analysis, in the commit that completes the crawl.

        If the gate or the baseline no longer exists, that commit must still succeed: the verdict then says what is
        missing.
        """
        crawl = await self._crawls.get(tx, crawl_id)
        assert crawl is not None, "it is completed in this transaction"
        wanted = crawl.config
        stored = None if wanted.gate is None else await self._gates.get(tx, wanted.gate)
        options = AnalysisOptions(
            None if stored is None else stored.gate,
            wanted.gate,
            await self._find_baseline(tx, crawl, wanted.baseline),
            wanted.commit,
        )
        await self._store(tx, crawl, options, SHARED_LANE)

    async def submit(
        self,
        crawl_id: str,
        options: AnalysisOptions,
        baseline: str | None = None,
        *,
        lane: str = SHARED_LANE,
    ) -> Analysis:
        """Store an analysis of a crawl that has ended, and the job of the analysis.

        `baseline`: the id of an analysis, the id of a crawl (for its newest successful analysis), or `previous`.
        """

        async def write(tx: Tx) -> Analysis:
            crawl = await self._crawls.get(tx, crawl_id)
            if crawl is None:
                raise NotFound("crawl", crawl_id)
            if crawl.state not in SETTLED:
                raise StateConflict("crawl", crawl_id, crawl.state, "be analyzed", "wait until it has ended")
            counts = await self._crawls.counts(tx, crawl.number)
            if not counts.pages + counts.errors:
                raise StateConflict("crawl", crawl_id, "empty", "be analyzed", "crawl a site that returns pages")
            found = await self._find_baseline(tx, crawl, baseline)
            if found is None and baseline not in (None, PREVIOUS):
                raise _no_baseline("baseline", baseline)
            complete = AnalysisOptions(options.gate, options.gate_name, found, options.commit)
            analysis_id = await self._store(tx, crawl, complete, lane)
            stored = await self.store.get(tx, analysis_id)
            assert stored is not None, "it was stored in this transaction"
            return stored

        return await self._database.run(write)

    async def check_baseline(self, wanted: str, called: str = "baseline") -> None:
        """Raise unless this is a successful analysis, a crawl that has one, or `previous`."""
        if wanted == PREVIOUS:
            return
        if await self._database.read(lambda tx: self._named_baseline(tx, wanted)) is None:
            raise _no_baseline(called, wanted)

    async def _find_baseline(self, tx: Tx, crawl: Crawl, wanted: str | None) -> AnalysisId | None:
        if wanted is None:
            return None
        if wanted == PREVIOUS:
            found = await self.store.newest_success(tx, crawl.project, crawl.config.seeds[0])
        else:
            found = await self._named_baseline(tx, wanted)
        return None if found is None else found.id

    async def _named_baseline(self, tx: Tx, wanted: str) -> Analysis | None:
        found = await self.store.get(tx, wanted)
        if found is None:
            of_crawl = await self.store.page_of(tx, None, 1, AnalysisState.SUCCESS, wanted)
            found = of_crawl[0] if of_crawl else None
        return None if found is None or found.state is not AnalysisState.SUCCESS else found

    async def _store(self, tx: Tx, crawl: Crawl, options: AnalysisOptions, lane: str) -> AnalysisId:
        analysis_id = AnalysisId(new_id("anl"))
        site = crawl.config.seeds[0]
        await self.store.insert(tx, NewAnalysis(analysis_id, crawl.number, crawl.id, crawl.project, site, options))
        job_id = JobId(new_id("job"))
        job = NewJob(job_id, KIND, analysis_id, lane=lane, priority=crawl.priority, max_attempts=self._attempts)
        await self._enqueuer.enqueue_in(tx, [job])
        return analysis_id

    async def get(self, analysis_id: str) -> Analysis:
        analysis = await self._database.read(lambda tx: self.store.get(tx, analysis_id))
        if analysis is None:
            raise NotFound("analysis", analysis_id)
        return analysis

    async def newest(
        self, *, after: int | None = None, limit: int = 50, state: str | None = None, crawl_id: str | None = None
    ) -> list[Analysis]:
        return await self._database.read(lambda tx: self.store.page_of(tx, after, limit, state, crawl_id))

    async def findings(
        self,
        analysis_id: str,
        *,
        after: FindingPlace | None = None,
        limit: int = MOST_FINDINGS,
        code: str | None = None,
        severity: str | None = None,
    ) -> list[tuple[FindingPlace, Finding]]:
        """Return stored findings, ordered by code; `counts` has the exact numbers."""
        analysis = await self.get(analysis_id)
        return await self._database.read(lambda tx: self.store.findings(tx, analysis, after, limit, code, severity))

    async def findings_of_page(self, analysis_id: str, page: str, limit: int = 20) -> list[Finding]:
        """Return stored findings about one page, at most `limit` of each code."""
        analysis = await self.get(analysis_id)
        return await self._database.read(lambda tx: self.store.findings_of_page(tx, analysis, page, limit))

    async def counts(self, analysis_id: str) -> list[FindingCount]:
        """Return the codes that were found, with the exact number of findings."""
        analysis = await self.get(analysis_id)
        return await self._database.read(lambda tx: self.store.counts(tx, analysis))

    async def commit_status(self, analysis_id: str) -> CommitStatus | None:
        """Return the commit status of an analysis; None if it has no commit, or has not started."""
        return await self._database.read(lambda tx: self._statuses.get(tx, analysis_id))

    async def outcomes(self, analysis_id: str) -> list[AnalyzerOutcome]:
        """Return how each analyzer ended."""
        analysis = await self.get(analysis_id)
        return await self._database.read(lambda tx: self.store.outcomes(tx, analysis))

    async def left_in_quarantine(self, analysis: Analysis) -> str:
        """Return a text that says how many URLs the crawl has in quarantine and how to crawl them; empty if the crawl
        has none or was removed."""

        async def look(tx: Tx) -> str:
            crawl = await self._crawls.get(tx, analysis.crawl_id)
            if crawl is None or crawl.number != analysis.crawl:
                return ""
            held = (await self._crawls.counts(tx, crawl.number)).held
            return left_in_quarantine(crawl.id, crawl.state, held) if held else ""

        return await self._database.read(look)

    async def started(self, tx: Tx, analysis_id: str) -> Analysis:
        """Record the start of an attempt: the first attempt sets the state to `running`, later attempts change
        nothing."""
        analysis = await self.store.lock(tx, analysis_id)
        if analysis is None:
            raise NotFound("analysis", analysis_id)
        if await self.store.move(tx, analysis_id, states.run()):
            await self._want_status(tx, analysis_id, await self._jobs.jobs_of_run(tx, analysis_id))
        return analysis

    async def _want_status(self, tx: Tx, analysis_id: str, jobs: Sequence[Job]) -> Analysis:
        """Store the status that the commit of an analysis should show now, if it has one."""
        analysis = await self.store.get(tx, analysis_id)
        assert analysis is not None, "its state changed at the same time"
        if analysis.options.commit is not None:
            await self._statuses.want(tx, analysis, *status_of(analysis))
            attempt, max_attempts = _attempts_of(jobs)
            wanted = CommitStatusWanted(run_id=analysis_id, attempt=attempt, max_attempts=max_attempts)
            tx.on_commit(lambda: self._signals.emit(wanted))
        return analysis

    async def lock(self, tx: Tx, run_id: str) -> None:
        await self.store.lock(tx, run_id)

    async def jobs_moved(self, tx: Tx, moves: Sequence[tuple[Move, str | None]]) -> None:
        """End analyses in the commit that ends their jobs. A job that is retried, or only lost its worker, does not
        change its analysis."""
        for move, run_id in moves:
            if run_id is not None and move.to in TERMINAL:
                await self._end(tx, run_id, move)

    async def _end(self, tx: Tx, run_id: str, move: Move) -> None:
        done = move.to is JobState.DONE
        end = states.succeed() if done else states.fail(move.reason, move.error)
        if not await self.store.move(tx, run_id, end):
            return
        jobs = await self._jobs.jobs_of_run(tx, run_id)
        analysis = await self._want_status(tx, run_id, jobs)
        attempt, max_attempts = _attempts_of(jobs)
        moved = AnalysisMoved(
            run_id=run_id,
            state=analysis.state,
            reason=analysis.state_reason,
            error=analysis.error,
            attempt=attempt,
            max_attempts=max_attempts,
            total_attempts=max((job.attempts for job in jobs), default=0),
        )
        tx.on_commit(lambda: self._signals.emit(moved))
        about = {"analysis_id": run_id, "crawl_id": analysis.crawl_id, "project": analysis.project}
        verdict = None if analysis.verdict is None else analysis.verdict.outcome.value
        facts = {"state": end.to.value, "reason": end.reason, "findings": analysis.findings, "verdict": verdict}
        await append_events(tx, Event(EVENT, run_id, about | facts))


def _attempts_of(jobs: Sequence[Job]) -> tuple[int, int]:
    """Return the current attempt of the analysis job, and the maximum number of attempts."""
    made = (attempts_made(job.state, job.attempts, job.lease_epoch) for job in jobs)
    return max(made, default=0), max((job.max_attempts for job in jobs), default=0)


def _no_baseline(called: str, wanted: str | None) -> InvalidInput:
    return InvalidInput(called, f'is "{wanted}", which has no successful analysis', "analyze that crawl first")
