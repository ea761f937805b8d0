"""Contract of analyses: one begins in the commit that completes its crawl, its state shows the first attempt and the
end of the last one, and its findings are stored once."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from shoal.audit.analyses import KIND, AnalysisMoved
from shoal.audit.analysis import Analysis, Finding
from shoal.audit.analyzers import ANALYZERS, Analyzer
from shoal.audit.overview import Overview
from shoal.audit.run import AnalysisAttempted, AnalysisRun
from shoal.audit.states import AnalysisState
from shoal.base.errors import LeaseLost, NotFound
from shoal.crawl.crawl import Crawl
from shoal.crawl.states import CrawlState
from shoal.events.event import TYPES
from shoal.observe.log_messages import log_line
from shoal.pages.page import Page
from shoal.queue.job import Lease
from shoal.queue.states import JobState
from tests.contract.conftest import Bench, failed, fetched

A = AnalysisState
J = JobState


class Broken:
    """An analyzer that cannot."""

    name = "broken"

    def see(self, page: Page) -> None:
        raise RuntimeError("it cannot be counted")

    def findings(self) -> list[Finding]:
        return []


async def completed(bench: Bench, **config: Any) -> Crawl:
    """A crawl that has just been completed: one page, and one that failed."""
    crawl = await bench.submit(**{"analyze": True, **config})
    walker = await bench.walker(crawl)
    [seed] = await walker.take()
    await walker.turn(fetched(seed), found=[walker.link("/broken")])
    await walker.turn(*[failed(task) for task in walker.held])
    assert await bench.state(crawl) is CrawlState.COMPLETED
    return crawl


async def only(bench: Bench) -> Analysis:
    [analysis] = await bench.analyses.newest()
    return analysis


def attempt(
    bench: Bench, lease: Lease, analyzers: Mapping[str, Callable[[], Analyzer]] = ANALYZERS, alive: bool = True
) -> AnalysisRun:
    return AnalysisRun(
        bench.database,
        bench.analyses,
        bench.queue,
        bench.pages,
        analyzers,
        bench.clock,
        bench.signals,
        lease,
        lambda: alive,
    )


async def try_and_fail(bench: Bench) -> JobState:
    """An attempt as a worker sees it: the child reports that it failed, and the parent counts it."""
    lease = await bench.lease(kind=KIND)
    with pytest.raises(RuntimeError):
        await attempt(bench, lease, {"broken": Broken}).run()
    return await bench.queue.fail(lease, "RuntimeError: it cannot be counted")


async def told(bench: Bench) -> list[dict[str, Any]]:
    rows = await bench.sql("SELECT body FROM outbox WHERE type = 'analysis.completed'")
    bodies = [orjson.loads(row["body"]) for row in rows]
    assert all(tuple(body) == TYPES["analysis.completed"].data for body in bodies)
    return bodies


async def test_a_completed_crawl_that_asked_for_it_has_an_analysis_in_the_same_commit(bench: Bench) -> None:
    crawl = await completed(bench, project="acme", priority=70)
    analysis = await only(bench)
    assert (analysis.crawl_id, analysis.project, analysis.state) == (crawl.id, "acme", A.PENDING)
    lease = await bench.lease(kind=KIND)
    assert lease.run_id == analysis.id
    assert (await bench.job(lease.fence.job_id)).priority == 70


async def test_a_crawl_that_did_not_ask_for_it_has_none(bench: Bench) -> None:
    await completed(bench, analyze=False)
    assert await bench.analyses.newest() == []


async def test_a_crawl_that_gave_no_page_is_not_analysed(bench: Bench) -> None:
    crawl = await bench.submit(analyze=True)
    walker = await bench.walker(crawl)
    [seed] = await walker.take()
    await walker.turn(failed(seed))
    assert await bench.state(crawl) is CrawlState.FAILED
    assert await bench.analyses.newest() == []


async def test_a_crawl_that_one_process_runs_by_itself_leaves_nothing_to_workers(bench: Bench) -> None:
    crawl = await bench.submit(analyze=True)
    await bench.sql(f"UPDATE job SET lane = 'local/{crawl.id}' WHERE run_id = '{crawl.id}'")
    [lease] = await bench.queue.lease("here", ["crawl"], [f"local/{crawl.id}"], 1)
    await bench.queue.finish(lease, "max_pages")
    assert await bench.analyses.newest() == []


async def test_success_at_once(bench: Bench) -> None:
    await completed(bench)
    lease = await bench.lease(kind=KIND)
    run = attempt(bench, lease)
    assert (await only(bench)).started_at is None
    assert await run.run() == J.DONE
    analysis = await only(bench)
    assert (analysis.state, analysis.error) == (A.SUCCESS, None)
    assert analysis.started_at is not None
    assert analysis.finished_at is not None
    [event] = await told(bench)
    assert (event["analysis_id"], event["state"], event["findings"]) == (analysis.id, "success", analysis.findings)


async def test_failures_and_then_success_show_one_run(bench: Bench) -> None:
    await completed(bench)
    await bench.sql("UPDATE job SET max_attempts = 3 WHERE kind = 'analysis'")
    seen = []
    for pause in (6, 12):
        assert await try_and_fail(bench) is J.PENDING
        seen.append(await only(bench))
        assert seen[-1].state is A.RUNNING
        await bench.jump(pause)
    await attempt(bench, await bench.lease(kind=KIND)).run()
    over = await only(bench)
    assert over.state is A.SUCCESS
    assert {one.started_at for one in [*seen, over]} == {seen[0].started_at}
    assert {one.finished_at for one in seen} == {None}
    assert len(await told(bench)) == 1


async def test_only_the_last_failure_fails_it(bench: Bench) -> None:
    await completed(bench)
    assert await try_and_fail(bench) is J.PENDING
    assert (await only(bench)).state is A.RUNNING
    await bench.jump(6)
    assert await try_and_fail(bench) is J.FAILED
    analysis = await only(bench)
    assert (analysis.state, analysis.state_reason) == (A.FAILED, "attempts_exhausted")
    assert analysis.finished_at is not None
    assert analysis.error == "RuntimeError: it cannot be counted"
    [event] = await told(bench)
    assert event["state"] == "failed"


async def test_the_lines_of_the_log_are_those_of_its_design(bench: Bench) -> None:
    await completed(bench)
    await try_and_fail(bench)
    await bench.jump(6)
    await try_and_fail(bench)
    lines = [log_line(one) for one in bench.signals_seen if isinstance(one, AnalysisAttempted | AnalysisMoved)]
    assert [line.message for line in lines] == [
        "Processing analysis job",
        "Retrying analysis job",
        "Processing analysis job",
        "All retry attempts exhausted, marking analysis as FAILED",
    ]
    analysis = await only(bench)
    assert all(line.facts["analysis_id"] == line.facts["correlation_id"] == analysis.id for line in lines)
    assert (lines[1].facts["attempt"], lines[1].facts["max_attempts"]) == (2, 2)
    assert lines[3].facts["total_attempts"] == 2


async def test_a_lost_worker_changes_nothing_that_can_be_seen(bench: Bench) -> None:
    await completed(bench)
    lease = await bench.lease(kind=KIND)
    run = attempt(bench, lease, alive=False)
    with pytest.raises(LeaseLost):
        await run.run()
    before = await only(bench)
    await bench.queue.lose(lease, "its child died")
    assert await only(bench) == before
    assert before.state is A.RUNNING
    await attempt(bench, await bench.lease(kind=KIND)).run()
    assert (await only(bench)).state is A.SUCCESS


async def test_a_late_attempt_leaves_nothing(bench: Bench) -> None:
    await completed(bench)
    late = attempt(bench, await bench.lease("w1", KIND))
    await bench.lose()
    await attempt(bench, await bench.lease("w2", KIND)).run()
    findings = await bench.analyses.findings((await only(bench)).id)
    with pytest.raises(LeaseLost):
        await late.run()
    assert await bench.analyses.findings((await only(bench)).id) == findings


async def test_an_analysis_that_is_asked_to_leave_hands_its_job_back(bench: Bench) -> None:
    await completed(bench)
    lease = await bench.lease(kind=KIND)
    run = attempt(bench, lease)
    run.leave("shutdown")
    assert await run.run() == J.PENDING
    assert (await only(bench)).state is A.RUNNING
    job = await bench.job(lease.fence.job_id)
    assert (job.attempts, job.crash_count) == (0, 0)


async def test_the_overview_counts_what_the_crawl_gave(bench: Bench) -> None:
    await completed(bench)
    await attempt(bench, await bench.lease(kind=KIND)).run()
    analysis = await only(bench)
    findings = {finding.key: finding for finding in await bench.analyses.findings(analysis.id)}
    assert len(findings) == analysis.findings
    assert {key: finding.facts["count"] for key, finding in findings.items()} == {
        "pages": 2,
        "status:2xx": 1,
        "status:error": 1,
        "depth:0": 1,
        "depth:1": 1,
        "error:connect": 1,
    }
    assert findings["error:connect"].facts["sample"].endswith("/broken")


async def test_findings_kept_twice_are_there_once(bench: Bench) -> None:
    await completed(bench)
    analysis = await only(bench)
    found = Overview().findings()
    for _ in range(2):
        await bench.database.run(lambda tx: bench.analyses.store.keep(tx, analysis, found))
    assert await bench.analyses.findings(analysis.id) == found


async def test_a_poisonous_analysis_fails_though_it_never_ended_an_attempt(bench: Bench) -> None:
    await completed(bench)
    for _ in range(4):
        await bench.queue.lose(await bench.lease(kind=KIND), "its child died")
    analysis = await only(bench)
    assert (analysis.state, analysis.state_reason, analysis.started_at) == (A.FAILED, "poison", None)


async def test_analyses_are_listed_newest_first_and_by_their_crawl(bench: Bench) -> None:
    crawls = [await completed(bench) for _ in range(3)]
    newest = await bench.analyses.newest(limit=2)
    assert [one.crawl_id for one in newest] == [crawls[2].id, crawls[1].id]
    [last] = await bench.analyses.newest(after=newest[-1].number)
    assert last.crawl_id == crawls[0].id
    [one] = await bench.analyses.newest(crawl_id=crawls[1].id)
    assert one.crawl_id == crawls[1].id
    assert await bench.analyses.newest(state="success") == []


async def test_an_unknown_analysis_is_reported(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.analyses.get("anl_none")
