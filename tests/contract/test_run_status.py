"""The state of a run shows its first attempt and its end, but no attempts in between: scenarios 1 to 3 of the workers'
design, for crawls and for analyses, with the number of attempts and the pauses that were set."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol, TypeVar

import pytest

from shoal.audit.analyses import KIND as ANALYSIS
from shoal.audit.states import AnalysisState
from shoal.base.database import Work
from shoal.base.errors import StorageFull
from shoal.base.settings import QueueSettings
from shoal.crawl.crawl import Crawl
from shoal.crawl.lifecycle.crawls import KIND as CRAWL
from shoal.crawl.states import CrawlState
from shoal.queue.job import Lease
from shoal.queue.states import JobState
from tests.contract.conftest import SITE, Bench, Severed, Walker
from tests.contract.test_analyses import attempt as analyse
from tests.contract.test_analyses import completed, only

T = TypeVar("T")

J = JobState
ATTEMPTS, BACKOFF = 3, 5.0
MARGIN = 2.0  # seconds: PostgreSQL's own clock keeps running meanwhile


@dataclass(frozen=True)
class Shown:
    """The status of a run as shown to users."""

    state: str
    started_at: int | None
    finished_at: int | None


class Run(Protocol):
    """A run of one kind, with one job."""

    kind: str
    success: str

    async def shown(self) -> Shown: ...

    async def begin(self, lease: Lease) -> None:
        """Run an attempt until the run is shown as started."""
        ...

    async def succeed(self, lease: Lease) -> None: ...


class CrawlRun:
    kind, success = CRAWL, CrawlState.COMPLETED

    def __init__(self, bench: Bench, crawl: Crawl) -> None:
        self.bench, self.crawl = bench, crawl

    async def shown(self) -> Shown:
        crawl = (await self.bench.crawls.get(self.crawl.id)).crawl
        return Shown(crawl.state, crawl.started_at, crawl.finished_at)

    async def begin(self, lease: Lease) -> None:
        await Walker(self.bench, self.crawl, lease).attach()

    async def succeed(self, lease: Lease) -> None:
        walker = Walker(self.bench, self.crawl, lease)
        await walker.attach()
        await walker.take()
        assert (await walker.fetch_all()).drained


class AnalysisRun:
    kind, success = ANALYSIS, AnalysisState.SUCCESS

    def __init__(self, bench: Bench, analysis_id: str) -> None:
        self.bench, self.id = bench, analysis_id

    async def shown(self) -> Shown:
        analysis = await self.bench.analyses.get(self.id)
        return Shown(analysis.state, analysis.started_at, analysis.finished_at)

    async def begin(self, lease: Lease) -> None:
        run = analyse(self.bench, lease)
        await self.bench.database.run(run._attach)

    async def succeed(self, lease: Lease) -> None:
        await analyse(self.bench, lease).run()


@pytest.fixture
async def retrying_bench(bench: Bench) -> Bench:
    """A bench whose jobs are retried with WORKER_JOB_ATTEMPTS=3 and WORKER_BACKOFF_MS=5000, not with the defaults."""
    settings = QueueSettings(job_attempts=ATTEMPTS, backoff=timedelta(seconds=BACKOFF))
    return replace(bench, settings=settings, signals_seen=[])


@pytest.fixture(params=["crawl", "analysis"])
async def run(request: pytest.FixtureRequest, retrying_bench: Bench) -> Run:
    if request.param == "crawl":
        return CrawlRun(retrying_bench, await retrying_bench.submit())
    await completed(retrying_bench)
    return AnalysisRun(retrying_bench, (await only(retrying_bench)).id)


async def fail(bench: Bench, run: Run) -> JobState:
    lease = await bench.lease(kind=run.kind)
    await run.begin(lease)
    return await bench.queue.fail(lease, "a temporary error")


@pytest.mark.parametrize(("theirs", "tries"), [(1, 1), (5, 5), (None, ATTEMPTS)])
async def test_the_worker_that_runs_an_attempt_decides_how_many_there_are(
    retrying_bench: Bench, run: Run, theirs: int | None, tries: int
) -> None:
    """Only if its number is set; otherwise that of the process that created the run holds."""
    given = {} if theirs is None else {"job_attempts": theirs}
    worker = replace(retrying_bench, settings=QueueSettings(backoff=timedelta(seconds=BACKOFF), **given))
    for attempt in range(1, tries + 1):
        lease = await worker.lease(kind=run.kind)
        assert (lease.attempts + 1, lease.max_attempts) == (attempt, tries)
        assert (await worker.job(lease.fence.job_id)).max_attempts == tries
        await run.begin(lease)
        assert await worker.queue.fail(lease, "an error") is (J.FAILED if attempt == tries else J.PENDING)
        await worker.jump(3600)
    assert (await run.shown()).state == "failed"


class FullAfterTheFirst(Severed):
    """A store that is full after one commit."""

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        if not self.writes:
            raise StorageFull("the store")
        self.writes = False
        return await self._database.run(work, within=within)


async def test_granted_leases_are_returned_although_their_attempts_cannot_be_changed(retrying_bench: Bench) -> None:
    for _ in range(3):
        await retrying_bench.submit()
    settings = QueueSettings(job_attempts=5)
    worker = replace(retrying_bench.over(FullAfterTheFirst(retrying_bench.database)), settings=settings)
    leases = await worker.queue.lease("worker", [CRAWL], ["shared"], 3)
    assert [lease.max_attempts for lease in leases] == [ATTEMPTS] * 3


async def test_success_at_once(retrying_bench: Bench, run: Run) -> None:
    before = await run.shown()
    assert (before.state in ("pending", "queued"), before.started_at) == (True, None)
    await run.succeed(await retrying_bench.lease(kind=run.kind))
    after = await run.shown()
    assert after.state == run.success
    assert after.started_at is not None
    assert after.finished_at is not None


async def test_failures_and_then_success_show_one_run(retrying_bench: Bench, run: Run) -> None:
    seen = []
    for tries in (1, 2):
        assert await fail(retrying_bench, run) is J.PENDING
        seen.append(await run.shown())
        await retrying_bench.jump(1.1 * BACKOFF * 2 ** (tries - 1))
    await run.succeed(await retrying_bench.lease(kind=run.kind))
    assert [one.state for one in seen] == ["running", "running"]
    assert {one.started_at for one in [*seen, await run.shown()]} == {seen[0].started_at}
    assert {one.finished_at for one in seen} == {None}
    assert (await run.shown()).state == run.success


async def test_only_the_last_of_all_attempts_fails_it(retrying_bench: Bench, run: Run) -> None:
    for _ in range(ATTEMPTS - 1):
        assert await fail(retrying_bench, run) is J.PENDING
        assert (await run.shown()).state == "running"
        await retrying_bench.jump(3600)
    assert await fail(retrying_bench, run) is J.FAILED
    after = await run.shown()
    assert (after.state, after.finished_at is not None) == ("failed", True)


async def test_the_backoff_doubles_and_the_job_is_not_leased_before(retrying_bench: Bench, run: Run) -> None:
    for tries in (1, 2):
        await fail(retrying_bench, run)
        await retrying_bench.jump(BACKOFF * 2 ** (tries - 1) - MARGIN)
        assert await retrying_bench.queue.lease("w1", [run.kind], ["shared"], 1) == []
        await retrying_bench.jump(0.1 * BACKOFF * 2 ** (tries - 1) + MARGIN + 0.1)
    assert len(await retrying_bench.queue.lease("w1", [run.kind], ["shared"], 1)) == 1


async def test_lost_workers_and_failures_together_change_nothing_that_can_be_seen(
    retrying_bench: Bench, run: Run
) -> None:
    first = await retrying_bench.lease(kind=run.kind)
    await run.begin(first)
    began = await run.shown()
    await retrying_bench.queue.recovery.lose(first, "its child died")
    assert await run.shown() == began
    await fail(retrying_bench, run)
    assert await run.shown() == began
    await retrying_bench.jump(60)
    await run.begin(await retrying_bench.lease(kind=run.kind))
    await retrying_bench.lose()
    assert await run.shown() == began


async def test_runs_are_retried_independently_of_each_other(retrying_bench: Bench) -> None:
    crawls = [await retrying_bench.submit(f"{SITE}/{name}", project=name) for name in "abc"]
    runs = {crawl.id: CrawlRun(retrying_bench, crawl) for crawl in crawls}
    leases = {lease.run_id: lease for lease in await retrying_bench.queue.lease("w1", [CRAWL], ["shared"], 3)}
    assert set(leases) == set(runs)
    for run_id, lease in leases.items():
        await runs[run_id or ""].begin(lease)
    lucky, unlucky, hopeless = crawls
    await runs[lucky.id].succeed(leases[lucky.id])
    await retrying_bench.queue.fail(leases[unlucky.id], "once")
    await retrying_bench.queue.fail(leases[hopeless.id], "again and again")
    await retrying_bench.jump(60)
    again = {lease.run_id: lease for lease in await retrying_bench.queue.lease("w1", [CRAWL], ["shared"], 3)}
    assert {run_id: lease.attempts for run_id, lease in again.items()} == {unlucky.id: 1, hopeless.id: 1}
    await runs[unlucky.id].succeed(again[unlucky.id])
    assert await retrying_bench.queue.fail(again[hopeless.id], "again and again") is J.PENDING
    await retrying_bench.jump(60)
    await fail(retrying_bench, runs[hopeless.id])
    states = [(await runs[crawl.id].shown()).state for crawl in crawls]
    assert states == ["completed", "completed", "failed"]
