"""Translate the values of the packages into response schemas."""

import dataclasses
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from shoal.audit.analysis import Analysis
from shoal.audit.commit_status.status import CommitStatus
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, most_serious_first
from shoal.audit.states import AnalysisState
from shoal.audit.store import StoredGate
from shoal.base.clock import from_micros, moment
from shoal.crawl.crawl import shown_config
from shoal.crawl.frontier.explain import UrlExplanation
from shoal.crawl.frontier.traps import Trap
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import CrawlState
from shoal.hosts.rate import HeldHost
from shoal.pages.page import Page
from shoal.serve import schemas


def crawl(status: CrawlStatus) -> schemas.Crawl:
    crawl, counts = status.crawl, status.counts
    responses = counts.responses
    failed = crawl.state is CrawlState.FAILED
    return schemas.Crawl(
        id=crawl.id,
        state=crawl.state,
        state_reason=crawl.state_reason,
        seeds=crawl.config.seeds,
        project=crawl.project,
        labels=crawl.config.labels,
        priority=crawl.priority,
        created_at=from_micros(crawl.created_at),
        started_at=moment(crawl.started_at),
        finished_at=moment(crawl.finished_at),
        pages=counts.pages,
        errors=counts.errors,
        responses=schemas.Responses(
            success=responses["2xx"],
            redirect=responses["3xx"],
            client_error=responses["4xx"],
            server_error=responses["5xx"],
            none=responses["none"],
        ),
        queued=counts.queued,
        skipped=counts.skipped,
        bytes=counts.bytes,
        not_modified=counts.not_modified,
        bytes_saved=counts.bytes_saved,
        depth_reached=counts.depth_reached,
        worked_seconds=round(counts.walked.total_seconds(), 3),
        config=shown_config(crawl.config),
        node_ids=list(status.node_ids),
        error=schemas.CrawlError(code=crawl.state_reason, message=status.error_message) if failed else None,
    )


def crawl_detail(status: CrawlStatus, held: list[HeldHost]) -> schemas.CrawlDetail:
    hosts = [
        schemas.HeldHost(origin=host.origin, held_until=from_micros(host.until), status=host.status) for host in held
    ]
    return schemas.CrawlDetail(
        **asdict(crawl(status)),
        held_hosts=hosts,
        failed_seeds=[failed_seed(seed) for seed in status.failed_seeds],
        dead_seeds=[failed_seed(seed) for seed in status.dead_seeds],
    )


def crawl_retried(status: CrawlStatus, retried: int) -> schemas.CrawlRetried:
    return schemas.CrawlRetried(**asdict(crawl(status)), retried=retried)


def failed_seed(seed: FailedSeed) -> schemas.FailedSeed:
    code, message = seed.error_code, seed.error_message or ""
    error = None if code is None else schemas.CrawlError(code=code, message=message)
    return schemas.FailedSeed(url=seed.url, status=seed.status, error=error)


def trap(trap: Trap) -> schemas.Trap:
    return schemas.Trap(pattern=trap.pattern, state=trap.state, sample=trap.sample, count=trap.count)


def url_explanation(crawl_id: str, found: UrlExplanation) -> dict[str, Any]:
    """Return a `UrlExplained` with the facts behind it."""
    explained = schemas.UrlExplained(
        crawl_id=crawl_id, url=found.url, state=found.state, reason=found.reason, explanation=found.sentence
    )
    return asdict(explained) | found.facts


def page(page: Page, crawl_id: str) -> schemas.Page:
    return schemas.Page(**page.record(crawl_id))


def analysis(analysis: Analysis) -> schemas.Analysis:
    return schemas.Analysis(**_analysis_fields(analysis))


def analysis_detail(
    analysis: Analysis,
    counts: list[FindingCount],
    outcomes: list[AnalyzerOutcome],
    status: CommitStatus | None = None,
) -> schemas.AnalysisDetail:
    shown = None
    if status is not None:
        shown = schemas.CommitStatus(
            state=status.state, description=status.description, shown=status.shown, error=status.error
        )
    return schemas.AnalysisDetail(
        **_analysis_fields(analysis),
        metrics=analysis.metrics,
        codes=[schemas.FindingCount(**dataclasses.asdict(count)) for count in most_serious_first(counts)],
        analyzers=[schemas.AnalyzerOutcome(**dataclasses.asdict(outcome)) for outcome in outcomes],
        summary=analysis.summary,
        commit_status=shown,
    )


def _analysis_fields(analysis: Analysis) -> dict[str, Any]:
    failed, verdict = analysis.state is AnalysisState.FAILED, analysis.verdict
    shown = None
    if verdict is not None:
        rules = [schemas.RuleResult(**dataclasses.asdict(rule)) for rule in verdict.rules]
        shown = schemas.Verdict(outcome=verdict.outcome, reasons=verdict.reasons, rules=rules)
    return {
        "id": analysis.id,
        "crawl_id": analysis.crawl_id,
        "project": analysis.project,
        "site": analysis.site,
        "state": analysis.state,
        "state_reason": analysis.state_reason,
        "error": schemas.CrawlError(code=analysis.state_reason, message=analysis.error or "") if failed else None,
        "findings": analysis.findings,
        "gate": analysis.options.gate_name,
        "baseline": analysis.options.baseline,
        "commit": analysis.options.commit,
        "verdict": shown,
        "created_at": from_micros(analysis.created_at),
        "started_at": moment(analysis.started_at),
        "finished_at": moment(analysis.finished_at),
    }


def finding(finding: Finding) -> schemas.Finding:
    return schemas.Finding(
        analyzer=finding.analyzer,
        code=finding.code,
        severity=finding.severity,
        page=finding.page,
        key=finding.identifier,
        evidence=finding.evidence,
    )


def gate(stored: StoredGate) -> schemas.StoredGate:
    gate = stored.gate
    return schemas.StoredGate(
        name=stored.name,
        rules=[schemas.StoredGateRule(**to_builtins(rule)) for rule in gate.rules],
        ignore=gate.ignore,
        fail=gate.fail,
        min_pages=gate.min_pages,
        min_pages_percent=gate.min_pages_percent,
        created_at=from_micros(stored.created_at),
        changed_at=from_micros(stored.changed_at),
    )
