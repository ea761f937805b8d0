"""The command `audit`: crawl, analyze, judge by a gate, and report."""

import asyncio
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from msgspec import to_builtins

from shoal.app import App, opened
from shoal.audit.analyses import KIND, AnalysisMoved, CommitStatusWanted
from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.audit.finding import Severity
from shoal.audit.gate import Gate, parse_gate
from shoal.audit.reports.ci import to_annotations
from shoal.audit.reports.formats import FORMATS, FormatName
from shoal.audit.reports.report import Report, counted, load_report
from shoal.audit.run import AnalysisAttempted, AnalyzerFailed
from shoal.audit.states import TERMINAL, AnalysisState
from shoal.audit.verdict import Outcome
from shoal.base.errors import InvalidInput
from shoal.base.forge_commit import CONTEXT, ForgeCommit
from shoal.base.ids import new_id
from shoal.base.service import PassResult
from shoal.base.settings_loader import load
from shoal.base.signals import Signal
from shoal.base.text import plural, shorten, visible
from shoal.cli.analyses import ReportFiles, note_written, report_flags
from shoal.cli.api_client import ApiTarget, store_option
from shoal.cli.completion import complete_id
from shoal.cli.crawl import CrawlCommand, Display, crawl_request, quiet_option
from shoal.cli.options import SECTIONS, crawl_flags, given_values, read_file
from shoal.cli.output import json_option, print_json, print_table
from shoal.cli.progress import first_line
from shoal.cli.root import Command
from shoal.cli.seeds import Seeds, seeds_option
from shoal.observe.logs import note
from shoal.pages.export.output import Outputs
from shoal.process.crawl_request import CrawlRequest
from shoal.process.lifetime import quiet, reduce_collections
from shoal.process.runners import analysis_runner
from shoal.queue.job import Lease, local_lane
from shoal.queue.moves import JobMoved
from shoal.serve.resources.analysis import AnalysisDetail
from shoal.work.leases import LeaseRenewer, holder_name

COLUMNS = ["severity", "code", "count", "example", "fix"]
LONGEST_EXAMPLE = 80  # characters, so that a long URL does not move the column of fixes out of sight


def print_summary(
    report: Report, store: str | None, earlier: str | None = None, *, has_full_report: bool = False
) -> None:
    """Print the findings to stdout, most serious first, and everything else to stderr. `earlier`: the crawl with which
    to compare; `has_full_report`: whether the command has written every page with its evidence to a file."""
    rows = []
    for count in report.codes:
        first = next(iter(report.examples.get(count.code, ())), None)
        example = "" if first is None else shorten(first.page or "(the whole site)", LONGEST_EXAMPLE)
        rows.append([count.severity.value, count.code, f"{count.count:,}", example, count.fix])
    if rows:
        print_table(COLUMNS, rows)
    missing = [*report.failed_analyzers, *report.skipped_analyzers]
    nothing = (
        f"Nothing was found on {plural(report.pages, 'page')}." if not missing else "The other analyzers found nothing."
    )
    for line in missing_analyzers(report):
        note(line)
    note(f"{counted(report)}." if rows else nothing)
    note(f"Not checked: {report.not_checked}.")
    if report.analysis.error is not None:
        note(f"Analysis failed: {visible(report.analysis.error)}")
    verdict = report.analysis.verdict
    if verdict is not None:
        note(f"Gate: {verdict.outcome}")
        for reason in verdict.reasons:
            note(f"  {visible(reason)}")
        for reason in verdict.warnings:
            note(f"  Warning: {visible(reason)}")
    for line in next_steps(report, store, earlier, has_full_report=has_full_report):
        note(line)


def missing_analyzers(report: Report) -> list[str]:
    """Return lines about the analyzers that failed or were skipped, with the reasons. Analyzers that were skipped for
    the same reason share a line."""
    lines = [
        f"{'Optional analyzer' if one.optional else 'Analyzer'} {one.analyzer} failed: {visible(one.error or '')}"
        for one in report.failed_analyzers
    ]
    reasons: dict[str, list[str]] = {}
    for one in report.skipped_analyzers:
        reasons.setdefault(one.skipped or "", []).append(one.analyzer)
    return lines + [f"Skipped {', '.join(names)}: {visible(reason)}" for reason, names in reasons.items()]


def next_steps(report: Report, store: str | None, earlier: str | None, *, has_full_report: bool = False) -> list[str]:
    """Return advice for the user: how to look at the findings, and then how to prevent new ones."""
    analysis = report.analysis
    where = ["--store", store] if store else []
    steps = []
    if report.codes and not has_full_report:
        command = shlex.join(["shoal", "analyses", "report", analysis.id, "--html", "report.html", *where])
        steps.append(f"Every page with its evidence: `{command}`")
    if analysis.verdict is None:
        errors = [count.code for count in report.codes if count.severity is Severity.ERROR][:3]
        codes = ", ".join(f'"{code}"' for code in errors or ["broken_link", "server_error"])
        again = shlex.join(["shoal", "audit", analysis.site, "--gate", "gate.toml", *where])
        steps.append(f"To fail a build on errors, write `fail = [{codes}]` to gate.toml and run `{again}`")
    elif analysis.verdict.outcome is not Outcome.PASSED:
        command = shlex.join(["shoal", "crawls", "diff", earlier or "EARLIER", analysis.crawl_id, *where])
        since = "an earlier crawl" if earlier is None else "the baseline"
        steps.append(f"What changed since {since}: `{command}`")
    return steps


FLAG: Final = "--commit"
_WRITTEN: Final = re.compile(r"([a-z]+):([^@\s]+)@([0-9A-Fa-f]+)")
_EXAMPLE: Final = "write it as github:owner/name@SHA, or use `ci` within a CI job"


@dataclass(frozen=True, slots=True)
class CiCommit:
    """A commit, and the settings for its forge that were found in the CI job."""

    commit: ForgeCommit
    settings: Mapping[str, str] = field(default_factory=dict)


def read_commit(text: str, context: str | None, env: Mapping[str, str]) -> CiCommit:
    """Return the commit that the flags name. `context`: the name of the commit status."""
    if text == "ci":
        found = _from_ci(env, context or CONTEXT)
        if found is None:
            raise InvalidInput(FLAG, "is `ci`, but this is not a job of GitHub, GitLab, Gitea or Forgejo", _EXAMPLE)
        return found
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise InvalidInput(FLAG, f"{text!r} does not name a commit", _EXAMPLE)
    values = {"forge": match[1], "repo": match[2], "sha": match[3].lower(), "context": context or CONTEXT}
    return CiCommit(_commit(values))


def _commit(values: Mapping[str, Any]) -> ForgeCommit:
    names = {"context": "--commit-context"}
    return ForgeCommit.read(values, called=lambda name: names.get(name, f"{FLAG} ({name})"))


def _from_ci(env: Mapping[str, str], context: str) -> CiCommit | None:
    """Read the variables that CI systems document. Jobs of Gitea and Forgejo also set the variables of GitHub."""
    if env.get("GITLAB_CI") == "true":
        values = {
            "forge": "gitlab",
            "repo": env.get("CI_PROJECT_PATH", ""),
            "sha": env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA") or env.get("CI_COMMIT_SHA", ""),
            "context": context,
            "url": env.get("CI_JOB_URL"),
        }
        return CiCommit(_commit(values), _given(env, SHOAL_GITLAB_API="CI_API_V4_URL"))
    if env.get("GITHUB_ACTIONS") != "true" and env.get("GITEA_ACTIONS") != "true":
        return None
    forge = "forgejo" if env.get("FORGEJO_ACTIONS") == "true" else "gitea"
    forge = forge if "true" in (env.get("GITEA_ACTIONS"), env.get("FORGEJO_ACTIONS")) else "github"
    server, repo, run = (env.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"))
    values = {
        "forge": forge,
        "repo": repo,
        "sha": _head_of_pull_request(env) or env.get("GITHUB_SHA", ""),
        "context": context,
        "url": f"{server}/{repo}/actions/runs/{run}" if server and run else None,
    }
    prefix = "SHOAL_GITHUB" if forge == "github" else "SHOAL_GITEA"
    settings = _given(env, **{f"{prefix}_API": "GITHUB_API_URL", f"{prefix}_TOKEN": "GITHUB_TOKEN"})
    return CiCommit(_commit(values), settings)


def _given(env: Mapping[str, str], **names: str) -> dict[str, str]:
    """Return settings from variables of the CI job. Settings that the user set explicitly take precedence."""
    return {name: env[other] for name, other in names.items() if env.get(other) and not env.get(name)}


def _head_of_pull_request(env: Mapping[str, str]) -> str | None:
    """Return the last commit of a pull request. `GITHUB_SHA` is a merge commit, where nobody would see the status."""
    try:
        event = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_text("utf-8"))
        sha = event["pull_request"]["head"]["sha"]
    except (KeyError, OSError, ValueError, TypeError):
        return None
    return sha if isinstance(sha, str) else None


RETRY_POLL_SECONDS: Final = 0.1


async def analyze_locally(app: App, crawl_id: str, options: AnalysisOptions, baseline: str | None = None) -> Analysis:
    """Analyze a crawl that has ended and return the stored analysis. Failed analyzers are tried again, as on a worker.
    Any other error is stored with the analysis and then raised."""
    lane = local_lane(new_id("anl"))  # not in the lane of the crawl, where a process that died may have left a job
    analysis = await app.audit.analyses.submit(crawl_id, options, baseline, lane=lane)
    while analysis.state not in TERMINAL:
        if leases := await app.queue.lease(holder_name(), [KIND], [lane], 1):
            await _attempt(app, leases[0])
        else:
            await app.clock.sleep(RETRY_POLL_SECONDS)  # wait for the end of the job's back-off
        analysis = await app.audit.analyses.get(analysis.id)
    return analysis


async def _attempt(app: App, lease: Lease) -> None:
    async with LeaseRenewer(app.queue, lease, app.clock) as renewer:
        run = await analysis_runner(app, lease, renewer.trusted)
        try:
            await run.run()
        except Exception as error:
            lease.max_attempts = lease.attempts + 1  # no worker would try the job again
            await app.queue.fail(lease, f"{type(error).__name__}: {error}")
            raise


EXIT_CODES = {Outcome.PASSED: 0, Outcome.FAILED: 10, Outcome.INCONCLUSIVE: 12}
ANALYSIS_FAILED = 13


@click.command(
    cls=Command,
    sections=SECTIONS,
    epilog="Example: shoal audit https://example.com/ --gate gate.toml",
)
@click.argument("urls", nargs=-1, metavar="URL...")
@seeds_option
@crawl_flags
@click.option("--gate", metavar="FILE", help="TOML or JSON file with the rules that the site must meet.")
@click.option(
    "--baseline", metavar="ID", help="Analysis or crawl to compare with; `previous`: the last analysis of the site."
)
@report_flags
@click.option("--annotations", is_flag=True, help="Print findings as GitHub Actions annotations.")
@click.option(
    "--commit",
    metavar="COMMIT",
    help="Publish the verdict as a commit status: github:OWNER/NAME@SHA, gitlab:…, gitea:…, forgejo:…, or `ci` for "
    "the commit of the running CI job.",
)
@click.option("--commit-context", metavar="NAME", help="Name of the commit status.  [default: shoal/audit]")
@click.option(
    "--resume",
    metavar="ID",
    shell_complete=complete_id,
    help="Resume the crawl of an interrupted audit, or analyze a crawl that has ended.",
)
@store_option
@quiet_option
@json_option
def audit(
    urls: Sequence[str],
    seeds_file: str | None,
    gate: str | None,
    baseline: str | None,
    reports: ReportFiles,
    annotations: bool,
    commit: str | None,
    commit_context: str | None,
    resume: str | None,
    store: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Crawl a site, report what is wrong with it, and judge it by a gate. Exits with 10 if the gate failed, with 12
    if the crawl does not show enough of the site to judge it, and with 13 if an analyzer failed in every attempt."""
    seeds = Seeds(urls, seeds_file)
    request = crawl_request(seeds, None, resume, given_values(options) | ({"analyze": True} if seeds else {}))
    rules = None
    if gate is not None:
        text = read_file(gate, "the rules of a gate").decode("utf-8", "replace")
        rules = parse_gate(text, Path(gate).name)
    ci_commit = None if commit is None else read_commit(commit, commit_context, os.environ)
    reports.check()
    reduce_collections()
    flags = {"--gate": gate, "--baseline": baseline, "--commit": commit, "--store": store}
    again = [word for flag, value in flags.items() if value is not None for word in (flag, value)] + reports.words
    results = AuditOutput(reports, annotations, as_json, store, again, quiet)
    return uvloop.run(_audit(request, rules, baseline, ci_commit, results))


@dataclass(frozen=True, slots=True)
class AuditOutput:
    """The files and the output of the command. `again`: the flags that a command to resume the audit needs."""

    reports: ReportFiles
    annotations: bool
    as_json: bool
    store: str | None
    again: Sequence[str]
    quiet: bool


async def _audit(
    request: CrawlRequest, gate: Gate | None, baseline: str | None, commit: CiCommit | None, output: AuditOutput
) -> int:
    settings = load({"DATABASE_URL": output.store} | (dict(commit.settings) if commit else {})).settings
    async with opened(settings, quiet(settings, _is_printed)) as app:
        if baseline is not None:
            await app.audit.analyses.check_baseline(baseline, called="--baseline")
        crawl = await request.find(app)
        how_to_go_on = shlex.join(["shoal", "audit", "--resume", crawl.id, *output.again])
        if not output.quiet:
            note(first_line(crawl, request.config, settings))
        display = Display("aside", output.quiet)
        command = CrawlCommand(
            app, crawl, Outputs(()), how_to_go_on=how_to_go_on, target=ApiTarget(output.store), display=display
        )
        code = await command.run()
        options = AnalysisOptions(gate, commit=None if commit is None else commit.commit)
        async with _publishing(app):
            analysis = await analyze_locally(app, crawl.id, options, baseline)
        await _print(app, analysis, output)
        if analysis.state is AnalysisState.FAILED:
            return ANALYSIS_FAILED
        return code if analysis.verdict is None else EXIT_CODES[analysis.verdict.outcome] or code


def _is_printed(signal: Signal) -> bool:
    """Return whether the summary also prints this message. The first failure of an analyzer is logged only, because the
    next attempt may succeed."""
    match signal:
        case AnalysisAttempted() | AnalysisMoved():
            return True
        case JobMoved(kind=kind):
            return kind == KIND
        case AnalyzerFailed(attempt=attempt):
            return attempt > 1
        case _:
            return False


@asynccontextmanager
async def _publishing(app: App) -> AsyncIterator[None]:
    """Publish commit statuses as soon as they change. At the end, a few attempts are made to send the last status. If
    that fails, a controller on the same store retries it."""
    publisher = app.audit.status_publisher
    wanted: set[str] = set()
    sending: list[asyncio.Task[PassResult]] = []

    def send(signal: Signal) -> None:
        if isinstance(signal, CommitStatusWanted):
            wanted.add(signal.run_id)
            sending.append(asyncio.get_running_loop().create_task(publisher.run_once()))

    app.signals.subscribe(send)
    try:
        yield
    finally:
        await asyncio.gather(*sending, return_exceptions=True)
        for analysis_id in wanted:
            error = await publisher.finish(analysis_id)
            if error is not None:
                note(f"The commit status could not be published: {error}")
        await publisher.close()


async def _print(app: App, analysis: Analysis, output: AuditOutput) -> None:
    analyses = app.audit.analyses

    async def download(format_name: FormatName) -> bytes:
        made = FORMATS[format_name]
        return made.write(await load_report(analyses, analysis.id, made.most_per_code)).encode()

    written = await output.reports.write(download)
    report = await load_report(analyses, analysis.id, 1)
    if output.as_json:
        print_json(to_builtins(AnalysisDetail.with_outcomes(analysis, list(report.codes), list(report.outcomes))))
    else:
        baseline = analysis.options.baseline
        earlier = None if baseline is None else (await analyses.get(baseline)).crawl_id
        print_summary(report, output.store, earlier, has_full_report=output.reports.has_html)
    if output.annotations:
        print(to_annotations(report), end="", flush=True)
    note_written(written)
