"""Translate the values of the packages into response schemas."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from shoal.audit.analysis import Analysis
from shoal.audit.commit_status.status import CommitStatus
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, most_serious_first
from shoal.audit.states import AnalysisState
from shoal.audit.store import StoredGate
from shoal.base.clock import from_micros, moment
from shoal.base.errors import LeaseLost
from shoal.base.text import redact_url
from shoal.crawl.crawl import shown_config
from shoal.crawl.frontier.explain import UrlExplanation
from shoal.crawl.frontier.traps import Trap
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import CrawlState
from shoal.fleet.pressure import PressureStatus
from shoal.hosts.rate import HeldHost
from shoal.observe.hourly_stats import BOT_COUNTS, BotActivity, HourRow
from shoal.page_jobs.group import Group
from shoal.page_jobs.history import MOST_CHANGES, Diff
from shoal.page_jobs.leasing import PageTask
from shoal.page_jobs.result import Receipt, Result, StoredResult
from shoal.pages.page import Page
from shoal.plan.importer import ImportSummary
from shoal.plan.policy import Policy, shown_options
from shoal.serve import schemas
from shoal.serve.problems import Json


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


def group(group: Group) -> schemas.Group:
    spec = {"crawl_config": {}, "rule_set": None} if group.spec is None else group.spec.shown()
    return schemas.Group(
        id=group.id,
        state=group.state,
        state_reason=group.state_reason,
        project=group.project,
        labels=group.labels,
        priority=group.priority,
        total=group.total,
        jobs=group.jobs,
        created_at=from_micros(group.created_at),
        finished_at=moment(group.finished_at),
        **spec,
    )


def results(found: Sequence[StoredResult], following: str | None) -> Json:
    """Return one page of results. It may have megabytes: call it in a thread."""
    return Json(schemas.ResultList(items=[result(one) for one in found], next=following))


def result(stored: StoredResult) -> schemas.Result:
    result = stored.result
    return schemas.Result(
        job_id=stored.job_id,
        group=stored.group_id,
        policy=stored.policy,
        attempt=stored.epoch,
        state=stored.state,
        status=result.status,
        url=result.url,
        final_url=result.final_url,
        http_status=result.http_status,
        data=result.data,
        meta=schemas.ResultMeta(
            crawl_duration=result.duration_seconds, error=_result_error(result), html_hash=result.html_hash
        ),
        fetched_at=from_micros(result.fetched_at),
    )


def _result_error(result: Result) -> schemas.ResultError | None:
    code = result.error_code
    return None if code is None else schemas.ResultError(code=code, message=result.error_message)


def result_diff(policy_id: str, diff: Diff) -> schemas.ResultDiff:
    changes = diff.changes()
    listed = [
        schemas.DataChange(path=change.path, before=change.before, after=change.after)
        for change in changes[:MOST_CHANGES]
    ]
    return schemas.ResultDiff(
        policy_id=policy_id,
        before=_diff_side(diff.before),
        after=_diff_side(diff.after),
        html_changed=diff.html_changed,
        changes=listed,
        more_changes=len(changes) - len(listed),
    )


def _diff_side(stored: StoredResult) -> schemas.DiffSide:
    result = stored.result
    return schemas.DiffSide(
        job_id=stored.job_id,
        status=result.status,
        html_hash=result.html_hash,
        fetched_at=from_micros(result.fetched_at),
    )


def bot_job(task: PageTask) -> schemas.BotJob:
    """Show a bot its job, without policy, project and labels."""
    work, lease = task.work, task.lease
    assert work is not None, "tasks that cannot be read are returned to their lane"
    config = work.crawl_config
    return schemas.BotJob(
        job_id=lease.fence.job_id,
        url=work.url,
        priority=lease.priority,
        crawl_config=schemas.BotConfig(
            headers=config.headers,
            js_required=config.js_required,
            timeout_hint=config.timeout_hint,
            proxy=config.proxy,
        ),
        rule_set=work.rule_set,
        lease=schemas.BotLease(epoch=lease.fence.epoch, ttl_seconds=lease.ttl_seconds),
    )


def pushed(receipt: Receipt) -> schemas.Pushed:
    assert receipt.state is not None
    return schemas.Pushed(job_id=receipt.fence.job_id, state=receipt.state.value.upper())


def pushed_item(receipt: Receipt) -> schemas.PushedItem:
    job_id = receipt.fence.job_id
    if receipt.state is not None:
        return schemas.PushedItem(job_id=job_id, status=200, state=receipt.state.value.upper())
    lost = LeaseLost(job_id, receipt.fence.epoch)
    return schemas.PushedItem(job_id=job_id, status=lost.response.http_status, code=lost.code, detail=lost.message)


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


def policy(policy: Policy, now: int) -> schemas.Policy:
    """Show a policy without secrets; its freshness is as of `now`, in store time."""
    form, last = policy.form, policy.last_success_at
    shown = form.plain() | {
        "crawl_config": shown_options(form.crawl_config),
        "url": None if form.url is None else redact_url(form.url),
    }
    return schemas.Policy(
        id=policy.id,
        **shown,
        next_run_at=moment(policy.next_run_at),
        last_run_at=moment(policy.last_run_at),
        last_success_at=moment(last),
        live_job_id=policy.live_job_id,
        last_crawl_id=policy.live_crawl,
        freshness=schemas.Freshness(
            age_seconds=None if last is None else round((now - last) / 1e6), stale=policy.staleness(now) > 1.0
        ),
        created_at=from_micros(policy.created_at),
    )


def policies_imported(summary: ImportSummary) -> schemas.PoliciesImported:
    problems = [schemas.InvalidLine(line=line, problem=problem) for line, problem in summary.problems]
    return schemas.PoliciesImported(made=summary.made, bad=summary.bad, problems=problems)


def hour(row: HourRow) -> schemas.Hour:
    return schemas.Hour(
        hour=from_micros(row.hour),
        created=row.count("created"),
        done=row.count("done"),
        failed=row.count("failed"),
        expired=row.count("expired"),
        retried=row.count("retried"),
        lost=row.count("lost"),
        retry_rate=row.retry_rate,
        average_seconds=row.average_seconds,
        bots=row.bots,
    )


def bot_seen(bot: BotActivity) -> schemas.BotSeen:
    counts = {name: getattr(bot, name) for name in BOT_COUNTS}
    return schemas.BotSeen(token=bot.token, bot_id=bot.bot_id, seen_at=from_micros(bot.seen_at), **counts)


def back_pressure(status: PressureStatus) -> schemas.BackPressure:
    load = None if status.load is None else round(status.load, 4)
    return schemas.BackPressure(slots=status.job_class, load=load, held=status.why is not None, reason=status.why)
