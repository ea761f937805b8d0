"""Contract of analyses: one begins in the commit that completes its crawl, its state shows the first attempt and the
end of the last one, and its findings are stored once."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.analyses import KIND, AnalysisMoved
from shoal.audit.analysis import Analysis, AnalysisOptions, CommitState
from shoal.audit.analyzer import Analyzer, Found, Needs
from shoal.audit.analyzer_run import AnalyzerSkipped
from shoal.audit.analyzers.responses import Responses
from shoal.audit.artifacts import Artifact, ArtifactStore
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCode, FindingCount, Severity
from shoal.audit.gate import Gate, GateRule, read_gate
from shoal.audit.gates import MOST_GATES
from shoal.audit.loader import SiteLoader
from shoal.audit.run import AnalysisAttempt, AnalysisAttempted, AnalysisContext, AnalyzerFailed
from shoal.audit.site import Site
from shoal.audit.site_store import FIRST_FATE, SiteStore
from shoal.audit.states import AnalysisState
from shoal.audit.store import FindingPlace
from shoal.audit.verdict import Outcome
from shoal.base.database import Tx
from shoal.base.errors import AlreadyExists, InvalidInput, LeaseLost, NotFound, StateConflict, TooLarge
from shoal.base.forge_commit import ForgeCommit
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.states import CrawlState
from shoal.drivers.artifacts import FolderArtifacts
from shoal.observe.log_messages import log_line
from shoal.queue.job import Lease
from shoal.queue.moves import JobMoved
from shoal.queue.queue import JobLeased
from shoal.queue.states import JobState
from tests.contract.conftest import Bench, failed, fetched

A = AnalysisState
J = JobState
COMPLETED = "analysis.completed"


class Broken:
    """An analyzer that always fails."""

    name = "broken"
    codes = ()
    needs = Needs()

    def analyze(self, site: Site) -> Iterator[Found]:
        raise RuntimeError("it cannot be counted")


class NoEvidence:
    """An analyzer whose evidence cannot be stored."""

    name = "broken"
    codes = (FindingCode("broken.set", Severity.ERROR, "What.", "How."),)
    needs = Needs()

    def analyze(self, site: Site) -> Iterator[Found]:
        yield Found("broken.set", urls=[None], evidence=lambda place: {"pages": {1, 2}})


class NoFile(Broken):
    """An analyzer that leaves something that is not a file."""

    artifacts = (("broken.txt", None),)

    def analyze(self, site: Site) -> Iterator[Found]:
        yield from ()


class BrokenLoader(SiteLoader):
    """A store that fails in the middle of an attempt."""

    async def load(self, *wanted: Any) -> Site:
        raise RuntimeError("it cannot be read")


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
    bench: Bench,
    lease: Lease,
    analyzers: Sequence[Analyzer] = (Responses(),),
    alive: bool = True,
    loader: type[SiteLoader] = SiteLoader,
    artifacts: ArtifactStore | None = None,
) -> AnalysisAttempt:
    read = loader(bench.database, bench.app.settings.crawl.max_url_length)
    context = AnalysisContext(
        bench.database, bench.analyses, bench.queue, read, bench.clock, bench.signals, artifacts=artifacts
    )
    return AnalysisAttempt(context, analyzers, lease, lambda: alive)


async def try_and_fail(bench: Bench) -> JobState:
    """An attempt as a worker sees it: the child reports that it failed, and the parent counts it."""
    lease = await bench.lease(kind=KIND)
    with pytest.raises(RuntimeError):
        await attempt(bench, lease, loader=BrokenLoader).run()
    return await bench.queue.fail(lease, "RuntimeError: it cannot be read")


async def test_the_few_urls_that_robots_txt_forbids_are_all_found(bench: Bench) -> None:
    crawl = await bench.submit(analyze=True)
    forbidden, other = int(Fate.SKIPPED_ROBOTS), int(Fate.SKIPPED_SCOPE)
    # Two URLs share a key, and two share a check: the drivers have indexes of different orders.
    fates = {(-5, 1): forbidden, (0, 7): other, (1, 7): forbidden, (2, 3): other, (2, 4): forbidden, (9, -8): forbidden}
    for (key, chk), fate in fates.items():
        await bench.sql(f"INSERT INTO fate (crawl, key, chk, fate) VALUES ({crawl.number}, {key}, {chk}, {fate})")
    for scan in range(1, len(fates) + 3):
        found, after = list[int](), FIRST_FATE
        while after is not None:
            some, after = await bench.database.read(
                lambda tx, at=after, size=scan: SiteStore().blocked_after(tx, crawl.number, at, size)
            )
            found += some
        assert sorted(found) == [-5, 1, 2, 9]


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


async def test_the_crawl_of_a_single_process_gives_workers_no_analysis(bench: Bench) -> None:
    crawl = await bench.submit(analyze=True)
    await bench.sql(f"UPDATE job SET lane = 'local/{crawl.id}' WHERE run_id = '{crawl.id}'")
    [lease] = await bench.queue.lease("here", ["crawl"], [f"local/{crawl.id}"], 1)
    await bench.queue.finish(lease, "max_pages")
    assert await bench.analyses.newest() == []


async def test_a_successful_analysis_has_no_error_and_sends_one_event(bench: Bench) -> None:
    await completed(bench)
    assert await attempt(bench, await bench.lease(kind=KIND)).run() == J.DONE
    analysis = await only(bench)
    assert analysis.error is None
    [(_, event)] = await bench.events(COMPLETED)
    assert (event["analysis_id"], event["state"], event["findings"]) == (analysis.id, "success", analysis.findings)


async def test_failed_attempts_before_a_success_leave_no_error_and_send_no_event(bench: Bench) -> None:
    await completed(bench)
    await bench.sql("UPDATE job SET max_attempts = 3 WHERE kind = 'analysis'")
    for pause in (6, 12):
        assert await try_and_fail(bench) is J.PENDING
        assert ((await only(bench)).state, await bench.events(COMPLETED)) == (A.RUNNING, [])
        await bench.jump(pause)
    await attempt(bench, await bench.lease(kind=KIND)).run()
    assert (await only(bench)).error is None
    assert len(await bench.events(COMPLETED)) == 1


async def test_a_failed_analysis_has_the_error_of_its_last_attempt_and_sends_one_event(bench: Bench) -> None:
    await completed(bench)
    assert await try_and_fail(bench) is J.PENDING
    await bench.jump(6)
    assert await try_and_fail(bench) is J.FAILED
    analysis = await only(bench)
    assert (analysis.state, analysis.state_reason) == (A.FAILED, "attempts_exhausted")
    assert analysis.error == "RuntimeError: it cannot be read"
    [(_, event)] = await bench.events(COMPLETED)
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
    assert [(line.facts["attempt"], line.facts["max_attempts"]) for line in lines] == [(1, 2), (2, 2), (2, 2), (2, 2)]
    assert (lines[1].facts["attempt"], lines[1].facts["max_attempts"]) == (2, 2)
    assert lines[1].facts["delay_ms"] == 5000
    jobs = [one for one in bench.signals_seen if isinstance(one, JobLeased | JobMoved) and one.kind == KIND]
    assert [(one.run_id, one.attempt, one.max_attempts) for one in jobs] == [
        (analysis.id, attempt, 2) for attempt in (1, 1, 2, 2)
    ]
    assert lines[3].facts["total_attempts"] == 2


async def test_an_attempt_whose_lease_is_no_longer_valid_stops_without_error_and_event(bench: Bench) -> None:
    await completed(bench)
    lease = await bench.lease(kind=KIND)
    with pytest.raises(LeaseLost):
        await attempt(bench, lease, alive=False).run()
    await bench.queue.recovery.lose(lease, "its child died")
    assert (await only(bench)).error is None
    assert await bench.events(COMPLETED) == []
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


async def test_findings_are_counted_stored_and_measured(bench: Bench) -> None:
    await completed(bench)
    await attempt(bench, await bench.lease(kind=KIND)).run()
    analysis = await only(bench)
    [(_, finding)] = await bench.analyses.findings(analysis.id)
    [count] = await bench.analyses.counts(analysis.id)
    assert (finding.code, finding.severity, finding.evidence) == ("page_unreachable", "error", {"error": "connect"})
    assert finding.page is not None
    assert finding.page.endswith("/broken")
    assert (count.code, count.count, count.stored, analysis.findings) == ("page_unreachable", 1, 1, 1)
    assert analysis.metrics is not None
    assert {name: analysis.metrics[name] for name in ("pages", "failed_pages", "errors", "broken_link")} == {
        "pages": 1,
        "failed_pages": 1,
        "errors": 1,
        "broken_link": 0,
    }
    assert analysis.summary is not None
    assert analysis.summary["errors"] == {"connect": 1}
    assert [row["depth"] for row in analysis.summary["status_by_depth"]] == [0, None], "no stored links lead to /broken"


@pytest.mark.parametrize(
    ("analyzer", "error"),
    [
        (Broken(), "RuntimeError: it cannot be counted"),
        (NoEvidence(), "The evidence of broken.set is not JSON"),
        (NoFile(), "Its files could not be stored: TypeError"),
    ],
)
async def test_an_analyzer_fails_alone(bench: Bench, tmp_path: Path, analyzer: Analyzer, error: str) -> None:
    await completed(bench)
    run = attempt(
        bench, await bench.lease(kind=KIND), [analyzer, Responses()], artifacts=FolderArtifacts(tmp_path / "files")
    )
    assert await run.run() == J.PENDING
    analysis = await only(bench)
    assert (analysis.state, analysis.findings) == (A.RUNNING, 1)
    outcomes = {one.analyzer: one.error or "" for one in await bench.analyses.outcomes(analysis.id)}
    assert outcomes.pop("broken").startswith(error)
    assert outcomes == {"responses": ""}


class Flaky(Broken):
    """An analyzer that fails a number of times; counts its runs."""

    def __init__(self, failures: int, optional: bool = False) -> None:
        self.runs, self.failures, self.optional = 0, failures, optional

    def analyze(self, site: Site) -> Iterator[Found]:
        self.runs += 1
        if self.runs <= self.failures:
            raise RuntimeError(f"failure {self.runs}")
        yield from ()


class Counting(Responses):
    """An analyzer that counts its runs, and asks for a URL that nobody answers."""

    needs = Needs(urls=lambda site: ["https://shop.test/asked"], probes=("/path",))
    runs = 0

    def analyze(self, site: Site) -> Iterator[Found]:
        self.runs += 1
        yield from super().analyze(site)


class NotApplicable(Broken):
    def analyze(self, site: Site) -> Iterator[Found]:
        raise AnalyzerSkipped("The site has no shop.")


async def test_only_the_analyzer_that_failed_runs_again(bench: Bench) -> None:
    await completed(bench)
    flaky, other = Flaky(1), Counting()
    assert await attempt(bench, await bench.lease(kind=KIND), [flaky, other]).run() == J.PENDING
    assert await bench.events(COMPLETED) == []
    await bench.jump(6)
    assert await attempt(bench, await bench.lease(kind=KIND), [flaky, other]).run() == J.DONE
    analysis = await only(bench)
    assert (analysis.state, analysis.error, analysis.findings) == (A.SUCCESS, None, 1)
    assert (flaky.runs, other.runs) == (2, 1)
    assert [one.error for one in await bench.analyses.outcomes(analysis.id)] == [None, None]
    assert analysis.metrics is not None
    assert analysis.metrics["page_unreachable"] == 1, "found by the first attempt"
    assert analysis.summary is not None
    assert analysis.summary["not_checked"]["targets"] == 1, "not answered in the first attempt"


class Asking(Flaky):
    """An analyzer that asks for fewer URLs in each run."""

    def __init__(self) -> None:
        super().__init__(1)
        self.needs = Needs(urls=lambda site: [f"https://shop.test/{place}" for place in range(4 - self.runs)])


async def test_what_was_not_checked_is_counted_by_the_attempt_that_each_analyzer_ended_in(bench: Bench) -> None:
    await completed(bench)
    analyzers = [Asking(), Counting()]
    shown = []
    for end in (J.PENDING, J.DONE):
        assert await attempt(bench, await bench.lease(kind=KIND), analyzers).run() == end
        summary = (await only(bench)).summary or {}
        shown.append((summary["not_checked"]["targets"], summary["unanswered"]["broken"]["targets"]))
        await bench.jump(6)
    assert shown == [(4 + 1, 4), (3 + 1, 3)]


class Dying(Flaky):
    """An analyzer with which the worker dies."""

    def analyze(self, site: Site) -> Iterator[Found]:
        try:
            yield from super().analyze(site)
        except RuntimeError:
            raise asyncio.CancelledError from None


async def test_what_an_attempt_that_died_could_not_check_is_still_counted(bench: Bench) -> None:
    await completed(bench)
    analyzers = [other := Counting(), Dying(1)]
    lease = await bench.lease(kind=KIND)
    with pytest.raises(asyncio.CancelledError):
        await attempt(bench, lease, analyzers).run()
    await bench.queue.fail(lease, "the worker died")
    await bench.jump(6)
    assert await attempt(bench, await bench.lease(kind=KIND), analyzers).run() == J.DONE
    assert other.runs == 1, "its findings were kept"
    unchecked = ((await only(bench)).summary or {})["not_checked"]
    assert (unchecked["targets"], unchecked["probes"]) == (1, 1)


async def test_an_analyzer_that_fails_in_every_attempt_fails_the_analysis_and_its_commit(bench: Bench) -> None:
    commit = ForgeCommit(forge="github", repo="acme/shop", sha="a" * 40)
    await completed(bench, commit=commit)
    analyzers = [Flaky(9), Responses()]
    for last in (J.PENDING, J.FAILED):
        assert await attempt(bench, await bench.lease(kind=KIND), analyzers).run() == last
        await bench.jump(6)
    analysis = await only(bench)
    assert (analysis.state, analysis.state_reason, analysis.findings) == (A.FAILED, "attempts_exhausted", 1)
    assert analysis.error == 'Analyzer "broken" failed: RuntimeError: failure 2'
    assert len(await bench.analyses.findings(analysis.id)) == 1, "those of the others are shown"
    status = await bench.analyses.commit_status(analysis.id)
    assert status is not None
    assert (status.state, status.description) == (CommitState.FAILURE, f"Analysis failed: {analysis.error}")
    [(_, event)] = await bench.events(COMPLETED)
    assert (event["state"], event["findings"]) == ("failed", 1)


@pytest.mark.parametrize("named", [False, True])
async def test_an_optional_analyzer_that_fails_is_neither_retried_nor_a_failure(bench: Bench, named: bool) -> None:
    await completed(bench)
    run = attempt(bench, await bench.lease(kind=KIND), [Flaky(9, optional=not named), Responses()])
    run._context = replace(run._context, optional=["broken"] if named else [])
    assert await run.run() == J.DONE
    broken, _ = await bench.analyses.outcomes((await only(bench)).id)
    assert (broken.error, broken.optional) == ("RuntimeError: failure 1", True)


async def test_an_analyzer_that_does_not_apply_is_skipped(bench: Bench) -> None:
    await completed(bench)
    assert await attempt(bench, await bench.lease(kind=KIND), [NotApplicable(), Responses()]).run() == J.DONE
    skipped, other = await bench.analyses.outcomes((await only(bench)).id)
    assert (skipped.error, skipped.skipped, other.skipped) == (None, "The site has no shop.", None)
    assert not [one for one in bench.signals_seen if isinstance(one, AnalyzerFailed)]


async def test_a_gate_is_not_passed_while_an_analyzer_has_failed(bench: Bench) -> None:
    await completed(bench)
    gate = Gate(rules=[GateRule(metric="pages", op=">", threshold=0)])
    await bench.analyses.submit((await only(bench)).crawl_id, AnalysisOptions(gate))
    [_, lease] = await bench.queue.lease("w1", [KIND], ["shared"], 2)
    await attempt(bench, lease, [Broken(), Responses()]).run()
    analysis = await bench.analyses.get(lease.run_id or "")
    assert analysis.verdict is not None
    assert analysis.verdict.outcome is Outcome.INCONCLUSIVE
    assert analysis.verdict.reasons == ['Analyzer "broken" failed (RuntimeError: it cannot be counted).']


async def test_an_analyzer_that_fails_is_logged_with_the_attempt(bench: Bench) -> None:
    await completed(bench)
    await attempt(bench, await bench.lease(kind=KIND), [Broken()]).run()
    [failed] = [log_line(one) for one in bench.signals_seen if isinstance(one, AnalyzerFailed)]
    analysis = await only(bench)
    assert failed.facts["analysis_id"] == failed.facts["correlation_id"] == analysis.id
    assert (failed.facts["analyzer"], failed.facts["attempt"], failed.facts["max_attempts"]) == ("broken", 1, 2)


def some_findings(code: str, number: int) -> tuple[AnalyzerOutcome, list[FindingCount], list[Finding]]:
    findings = [
        Finding("responses", code, Severity.ERROR, f"https://a.test/{place}", place, {"n": place})
        for place in range(number)
    ]
    count = FindingCount("responses", code, Severity.ERROR, "What.", "How.", number + 5, number)
    left = (Artifact("responses-raw.txt", 7),)
    return AnalyzerOutcome("responses", None, number + 5, 1.5, left), [count], findings


async def test_findings_kept_twice_are_there_once(bench: Bench) -> None:
    await completed(bench)
    analysis = await only(bench)
    outcome, counts, findings = some_findings("server_error", 3)
    for _ in range(2):
        await bench.database.run(lambda tx: bench.analyses.store.keep(tx, analysis, outcome, counts, findings))
    assert [one for _, one in await bench.analyses.findings(analysis.id)] == findings
    assert await bench.analyses.counts(analysis.id) == counts
    assert await bench.analyses.outcomes(analysis.id) == [outcome]


async def test_a_later_attempt_replaces_the_findings_of_an_analyzer(bench: Bench) -> None:
    await completed(bench)
    analysis = await only(bench)
    for code, number in (("server_error", 3), ("page_unreachable", 1)):
        values = some_findings(code, number)
        await bench.database.run(lambda tx, values=values: bench.analyses.store.keep(tx, analysis, *values))
    assert [one.code for _, one in await bench.analyses.findings(analysis.id)] == ["page_unreachable"]


async def test_the_findings_of_one_page_are_read_alone(bench: Bench) -> None:
    await completed(bench)
    analysis = await only(bench)
    page, other = "https://example.com/a\ud800", "https://example.com/b"
    findings = [
        Finding("x", code, Severity.ERROR, about, place, {"place": place})
        for code in ("a", "b")
        for place, about in enumerate((other, page, None, page, page))
    ]
    counts = [FindingCount("x", code, Severity.ERROR, "", "", 5, 5) for code in ("a", "b")]
    outcome = AnalyzerOutcome("x", None, 10, 0.0)
    await bench.database.run(lambda tx: bench.analyses.store.keep(tx, analysis, outcome, counts, findings))
    found = await bench.analyses.findings_of_page(analysis.id, page, limit=2)
    assert [(one.code, one.evidence["place"]) for one in found] == [("a", 1), ("a", 3), ("b", 1), ("b", 3)]
    assert len(await bench.analyses.findings_of_page(analysis.id, other)) == 2
    assert await bench.analyses.findings_of_page(analysis.id, "https://example.com/") == []


async def test_findings_are_read_on_from_a_place_and_by_code_and_severity(bench: Bench) -> None:
    await completed(bench)
    analysis = await only(bench)
    findings = [
        Finding("x", code, severity, None, place, {})
        for code, severity in (("a", Severity.ERROR), ("b", Severity.NOTICE), ("c", Severity.ERROR))
        for place in range(3)
    ]
    counts = [
        FindingCount("x", code, severity, "", "", 3, 3)
        for code, severity in (("a", Severity.ERROR), ("b", Severity.NOTICE), ("c", Severity.ERROR))
    ]

    async def keep(tx: Tx) -> None:
        await bench.analyses.store.keep(tx, analysis, AnalyzerOutcome("x", None, 9, 0.0), counts, findings)

    await bench.database.run(keep)
    seen: list[Finding] = []
    after: FindingPlace | None = None
    while some := await bench.analyses.findings(analysis.id, after=after, limit=2):
        seen += [one for _, one in some]
        after = some[-1][0]
    assert seen == findings
    by_severity = await bench.analyses.findings(analysis.id, severity="error", limit=4)
    assert [one.code for _, one in by_severity] == ["a", "a", "a", "c"]
    assert [one.code for _, one in await bench.analyses.findings(analysis.id, code="b")] == ["b"] * 3


RULES = {"rules": [{"metric": "errors", "op": "<=", "threshold": 0}], "ignore": ["title_too_long"]}


async def test_gates_are_stored_replaced_and_deleted_by_name(bench: Bench) -> None:
    gates, gate = bench.app.audit.gates, read_gate(RULES)
    stored = await gates.create("release", gate)
    assert (stored.name, stored.gate) == ("release", gate)
    with pytest.raises(AlreadyExists):
        await gates.create("release", gate)
    other = Gate(rules=[GateRule(metric="pages", op=">", threshold=1)])
    assert (await gates.put("release", other)).gate == other
    assert [one.name for one in await gates.all()] == ["release"]
    await gates.delete("release")
    for use in (gates.get, gates.delete):
        with pytest.raises(NotFound):
            await use("release")
    with pytest.raises(InvalidInput):
        await gates.put("no name", gate)


async def test_the_next_gate_after_the_last_is_refused_and_one_of_them_can_be_replaced(bench: Bench) -> None:
    gates, gate = bench.app.audit.gates, read_gate(RULES)
    for number in range(MOST_GATES):
        await gates.create(f"gate-{number}", gate)
    for store in (gates.create, gates.put):
        with pytest.raises(TooLarge, match="the list of gates is larger than 200 gates; remove one first"):
            await store("another", gate)
    await gates.put("gate-7", gate)
    assert len(await gates.all()) == MOST_GATES
    await gates.delete("gate-7")
    await gates.create("another", gate)


async def test_a_crawl_names_the_gate_that_judges_its_analysis(bench: Bench) -> None:
    await bench.app.audit.gates.create("release", read_gate(RULES))
    await completed(bench, gate="release")
    await attempt(bench, await bench.lease(kind=KIND)).run()
    analysis = await only(bench)
    assert analysis.state is A.SUCCESS
    assert analysis.verdict is not None
    assert analysis.verdict.outcome is Outcome.FAILED
    [rule] = analysis.verdict.rules
    assert (rule.condition, rule.value) == ("errors <= 0", 1)
    assert [body["verdict"] for _, body in await bench.events(COMPLETED)] == ["failed"]


async def test_a_gate_that_is_gone_makes_the_verdict_inconclusive(bench: Bench) -> None:
    await completed(bench, gate="gone")
    await attempt(bench, await bench.lease(kind=KIND)).run()
    verdict = (await only(bench)).verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.reasons) == (Outcome.INCONCLUSIVE, ['Gate "gone" does not exist.'])


async def test_an_analysis_is_compared_with_its_baseline(bench: Bench) -> None:
    first = await completed(bench)
    await attempt(bench, await bench.lease(kind=KIND)).run()
    before = await only(bench)
    gate = read_gate({"rules": [{"metric": "errors", "max_increase": 0}]})
    for baseline in (before.id, first.id, "previous"):
        analysis = await bench.analyses.submit(first.id, AnalysisOptions(gate), baseline)
        assert analysis.options.baseline is not None
        await attempt(bench, await bench.lease(kind=KIND)).run()
        verdict = (await bench.analyses.get(analysis.id)).verdict
        assert verdict is not None
        assert (verdict.outcome, verdict.rules[0].baseline) == (Outcome.PASSED, 1)
    with pytest.raises(InvalidInput, match="has no successful analysis"):
        await bench.analyses.submit(first.id, AnalysisOptions(gate), "nothing")


class Comparing:
    """An analyzer that reads the pages of the baseline."""

    name = "comparing"
    codes = (FindingCode("comparing.same", Severity.NOTICE, "Still there.", "Nothing."),)
    needs = Needs(previous=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        before = set() if site.previous is None else set(site.previous.text("url"))
        yield Found("comparing.same", urls=[url for url in site.pages.text("url") if url in before])


async def test_an_analyzer_may_read_the_pages_of_the_baseline(bench: Bench) -> None:
    crawl = await completed(bench)
    await attempt(bench, await bench.lease(kind=KIND), [Comparing()]).run()
    first = await only(bench)
    assert first.findings == 0
    again = await bench.analyses.submit(crawl.id, AnalysisOptions(), "previous")
    await attempt(bench, await bench.lease(kind=KIND), [Comparing()]).run()
    assert (await bench.analyses.get(again.id)).findings == 2


async def test_a_running_or_empty_crawl_is_not_analyzed(bench: Bench) -> None:
    crawl = await bench.submit()
    with pytest.raises(StateConflict, match="wait until it has ended"):
        await bench.analyses.submit(crawl.id, AnalysisOptions())
    await bench.app.crawls.stop(crawl.id)
    with pytest.raises(StateConflict, match="empty"):
        await bench.analyses.submit(crawl.id, AnalysisOptions())
    with pytest.raises(NotFound):
        await bench.analyses.submit("nothing", AnalysisOptions())


async def test_a_poisonous_analysis_fails_though_it_never_ended_an_attempt(bench: Bench) -> None:
    await completed(bench)
    for _ in range(4):
        await bench.queue.recovery.lose(await bench.lease(kind=KIND), "its child died")
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
