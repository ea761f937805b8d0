"""Analyses, their findings, and gates."""

from typing import Annotated, Any, ClassVar, Self

from shoal.audit import analysis as audit
from shoal.audit import analysis as commit
from shoal.audit import finding as findings
from shoal.audit import store
from shoal.audit.analysis import CommitState
from shoal.audit.finding import Severity
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Outcome
from shoal.base.forge_commit import ForgeCommit
from shoal.base.request_form import describe
from shoal.serve.resources.resource import CrawlError, Moment, NextPage, Resource


class RuleResult(Resource, kw_only=True):
    """A gate rule with the measured value."""

    condition: Annotated[str, describe("The rule, such as `broken_links <= 0`.")]
    metric: Annotated[str, describe("Metric or finding code that was compared.")]
    severity: Annotated[str, describe("`error`, or `warning` if the gate may pass even though this rule is violated.")]
    outcome: Annotated[Outcome, describe("Whether the rule holds.")]
    value: Annotated[float | None, describe("The measured value; null if it could not be measured.")]
    baseline: Annotated[float | None, describe("The value of the baseline, if the rule uses it.")]
    reason: Annotated[str | None, describe("Why the rule did not pass.")]


class Verdict(Resource, kw_only=True):
    """The verdict of a gate."""

    outcome: Annotated[Outcome, describe("Whether the gate passed.")]
    reasons: Annotated[list[str], describe("Why the gate did not pass, as sentences.")]
    rules: Annotated[list[RuleResult], describe("Each rule with its outcome.")]


class Analysis(Resource, kw_only=True):
    """An analysis of a crawl. Retries do not change its state."""

    id: Annotated[str, describe("Id of the analysis.")]
    crawl_id: str
    project: str
    site: Annotated[str, describe("The first seed of the crawl.")]
    state: AnalysisState
    state_reason: str | None
    error: Annotated[CrawlError | None, describe("Why the analysis failed, if it did.")]
    findings: Annotated[int | None, describe("Number of findings; null before the analysis has finished.")]
    gate: Annotated[
        str | None, describe("Name of the gate; null if there is no gate, or if its rules were given without a name.")
    ]
    baseline: Annotated[str | None, describe("The analysis that the gate compares with.")]
    commit: Annotated[ForgeCommit | None, describe("The commit whose status shows the verdict.")]
    verdict: Annotated[Verdict | None, describe("Verdict of the gate; null without a gate, or before the end.")]
    created_at: Moment
    started_at: Annotated[Moment | None, describe("Start of the first attempt.")]
    finished_at: Moment | None

    example: ClassVar = {
        "id": "anl_01hr2v8k3m4n5p6q",
        "crawl_id": "crl_01hr2v8k3m4n5p6q",
        "project": "default",
        "state": "success",
        "state_reason": None,
        "error": None,
        "findings": 9,
        "site": "https://example.com/",
        "gate": "release",
        "baseline": None,
        "commit": None,
        "verdict": {
            "outcome": "failed",
            "reasons": ["broken_links is 3; the gate demands <= 0."],
            "rules": [
                {
                    "condition": "broken_links <= 0",
                    "metric": "broken_links",
                    "severity": "error",
                    "outcome": "failed",
                    "value": 3.0,
                    "baseline": None,
                    "reason": "broken_links is 3; the gate demands <= 0.",
                }
            ],
        },
        "created_at": "2026-03-01T09:10:00Z",
        "started_at": "2026-03-01T09:10:01Z",
        "finished_at": "2026-03-01T09:10:03Z",
    }

    @classmethod
    def of(cls, analysis: audit.Analysis, **more: Any) -> Self:
        failed, verdict = analysis.state is AnalysisState.FAILED, analysis.verdict
        return super().of(
            analysis,
            analysis.options,
            error=CrawlError(code=analysis.state_reason, message=analysis.error or "") if failed else None,
            gate=analysis.options.gate_name,
            verdict=verdict and Verdict.of(verdict, rules=[RuleResult.of(one) for one in verdict.rules]),
            **more,
        )


class AnalysisList(Resource, kw_only=True):
    items: list[Analysis]
    next: NextPage

    example: ClassVar = {"items": [Analysis.example], "next": "MTI"}


class FindingCount(Resource, kw_only=True):
    """All findings of one code."""

    code: Annotated[str, describe("Stable code of the problem.")]
    severity: Severity
    analyzer: Annotated[str, describe("Analyzer that reports it.")]
    title: Annotated[str, describe("What is wrong.")]
    fix: Annotated[str, describe("How to fix it.")]
    count: Annotated[int, describe("Exact number of findings.")]
    stored: Annotated[int, describe("Number of these findings that are stored and listed.")]


class Artifact(Resource, kw_only=True):
    """A file written by an analyzer; it can be downloaded by its name."""

    name: Annotated[str, describe("Name of the file.")]
    bytes: Annotated[int, describe("Size of the file.")]


class AnalyzerOutcome(Resource, kw_only=True):
    """The outcome of one analyzer."""

    analyzer: Annotated[str, describe("Name of the analyzer.")]
    error: Annotated[str | None, describe("Why the analyzer failed; the findings of the other analyzers are kept.")]
    findings: Annotated[int, describe("Number of findings of the analyzer.")]
    duration_ms: Annotated[float, describe("Run time of the analyzer in milliseconds.")]
    artifacts: Annotated[list[Artifact], describe("Files that the analyzer wrote.")]
    skipped: Annotated[str | None, describe("Why the analyzer does not apply to the crawl; null if it applies.")]
    optional: Annotated[bool, describe("Whether the analysis succeeds even if this analyzer fails.")]


class CommitStatus(Resource, kw_only=True):
    """The status of a commit on its forge."""

    state: Annotated[CommitState, describe("The state that the commit should show.")]
    description: Annotated[str, describe("The sentence that the forge shows beside the state.")]
    shown: Annotated[
        CommitState | None, describe("The state that the commit shows; null if nothing has been published yet.")
    ]
    error: Annotated[
        str | None,
        describe("Why the last attempt to publish the status failed. Publishing is retried for up to a day."),
    ]


class AnalysisDetail(Analysis, kw_only=True):
    """An analysis with its measurements."""

    metrics: Annotated[
        dict[str, float] | None, describe("The metrics that gates compare; null before the analysis has finished.")
    ]
    codes: Annotated[list[FindingCount], describe("The codes that have findings, most serious first.")]
    analyzers: Annotated[list[AnalyzerOutcome], describe("The outcome of each analyzer.")]
    summary: Annotated[dict[str, Any] | None, describe("Distributions over all pages, such as status by depth.")]
    commit_status: Annotated[
        CommitStatus | None, describe("The status that the commit should show; null without a commit.")
    ]

    example: ClassVar = Analysis.example | {
        "metrics": {"pages": 120.0, "broken_links": 3.0},
        "codes": [
            {
                "code": "broken_link",
                "severity": "error",
                "analyzer": "links",
                "title": "Pages link to a URL that answers with a 4xx status.",
                "fix": "Correct or remove the links, or restore the page.",
                "count": 3,
                "stored": 3,
            }
        ],
        "analyzers": [
            {
                "analyzer": "links",
                "error": None,
                "findings": 3,
                "duration_ms": 1.4,
                "artifacts": [],
                "skipped": None,
                "optional": False,
            }
        ],
        "summary": {"depth": [{"depth": 0, "2xx": 1}]},
        "commit_status": None,
    }

    @classmethod
    def with_outcomes(
        cls,
        analysis: audit.Analysis,
        counts: list[findings.FindingCount],
        outcomes: list[findings.AnalyzerOutcome],
        status: commit.CommitStatus | None = None,
    ) -> Self:
        return cls.of(
            analysis,
            codes=[FindingCount.of(count) for count in findings.most_serious_first(counts)],
            analyzers=[
                AnalyzerOutcome.of(one, artifacts=[Artifact.of(file) for file in one.artifacts]) for one in outcomes
            ],
            commit_status=None if status is None else CommitStatus.of(status),
        )


class Finding(Resource, kw_only=True):
    """A finding of an analyzer."""

    analyzer: Annotated[str, describe("Analyzer that reported it.")]
    code: Annotated[str, describe("Stable code of the problem.")]
    severity: Severity
    page: Annotated[str | None, describe("URL of the page concerned; null if the finding concerns the whole site.")]
    key: Annotated[str, describe("Key of the problem; identical in every analysis of the site.")]
    evidence: Annotated[dict[str, Any], describe("Details of the finding; the fields depend on the code.")]

    example: ClassVar = {
        "analyzer": "links",
        "code": "broken_link",
        "severity": "error",
        "page": "https://example.com/gone",
        "key": "8d3f0c5a9b1e2f47",
        "evidence": {"status": 404, "links": 2, "linked_from": ["https://example.com/", "https://example.com/about"]},
    }

    @classmethod
    def of(cls, finding: findings.Finding) -> Self:
        return super().of(finding, key=finding.identifier)


class FindingList(Resource, kw_only=True):
    items: list[Finding]
    next: NextPage

    example: ClassVar = {"items": [Finding.example], "next": None}


class StoredGateRule(Resource, kw_only=True):
    """A condition that must hold."""

    metric: Annotated[str, describe("Metric or finding code to compare.")]
    op: Annotated[str | None, describe("Operator; the rule holds while `metric op threshold` is true.")]
    threshold: Annotated[float | None, describe("Value to compare the metric with.")]
    max_increase: Annotated[
        float | None, describe("Maximum increase of the metric since the baseline; replaces `op` and `threshold`.")
    ]
    severity: Annotated[str, describe("`warning`: the rule is reported, but does not fail the gate.")]


class StoredGate(Resource, kw_only=True):
    """A gate under its name."""

    name: Annotated[str, describe("Name of the gate.")]
    rules: Annotated[list[StoredGateRule], describe("Conditions that must hold.")]
    ignore: Annotated[list[str], describe("Finding codes that the gate ignores.")]
    fail: Annotated[
        list[str], describe("Finding codes that fail the gate; a single finding with one of these codes is enough.")
    ]
    min_pages: Annotated[int, describe("The verdict is inconclusive if the crawl has fewer pages.")]
    min_pages_percent: Annotated[
        float,
        describe("The verdict is inconclusive if the crawl has fewer than this percentage of the baseline's pages."),
    ]
    created_at: Moment
    changed_at: Annotated[Moment, describe("When the gate was last changed.")]

    example: ClassVar = {
        "name": "release",
        "rules": [{"metric": "broken_links", "op": "<=", "threshold": 0.0, "max_increase": None, "severity": "error"}],
        "ignore": ["title_too_long"],
        "fail": ["redirect_loop"],
        "min_pages": 1,
        "min_pages_percent": 50.0,
        "created_at": "2026-03-01T09:00:00Z",
        "changed_at": "2026-03-01T09:00:00Z",
    }

    @classmethod
    def of(cls, stored: store.StoredGate) -> Self:
        return super().of(stored, stored.gate, rules=[StoredGateRule.of(rule) for rule in stored.gate.rules])


class GateList(Resource, kw_only=True):
    items: list[StoredGate]

    example: ClassVar = {"items": [StoredGate.example]}
