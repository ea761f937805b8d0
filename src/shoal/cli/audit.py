"""`shoal audit`: crawl a site in this process, analyze it, and judge it by a gate."""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvloop
from msgspec import to_builtins

from shoal.app import App, opened
from shoal.audit.analyses import KIND, AnalysisMoved, CommitStatusWanted
from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.audit.gate import Gate, parse_gate
from shoal.audit.reports.ci import to_annotations
from shoal.audit.reports.formats import FORMATS, FormatName
from shoal.audit.reports.report import load_report
from shoal.audit.run import AnalysisAttempted, AnalyzerFailed
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Outcome
from shoal.base.errors import UsageError
from shoal.base.service import PassResult
from shoal.base.settings_loader import load
from shoal.base.signals import Signal
from shoal.cli.audit_summary import print_summary
from shoal.cli.ci_commit import CiCommit, read_commit
from shoal.cli.crawl import CrawlCommand, crawl_request
from shoal.cli.options import crawl_flags, given_values, read_file
from shoal.cli.output import json_option, print_json
from shoal.cli.report_files import ReportFiles, note_written, report_flags
from shoal.observe.logs import note
from shoal.pages.export.output import Outputs
from shoal.process.crawl_request import CrawlRequest
from shoal.process.lifetime import quiet, reduce_collections
from shoal.process.local_analysis import analyze_locally
from shoal.queue.moves import JobMoved
from shoal.serve.resources.analysis import AnalysisDetail

EXIT_CODES = {Outcome.PASSED: 0, Outcome.FAILED: 10, Outcome.INCONCLUSIVE: 12}
ANALYSIS_FAILED = 13


@click.command(epilog="Example: shoal audit https://example.com/ --gate gate.toml")
@click.argument("urls", nargs=-1, metavar="URL...")
@crawl_flags
@click.option("--gate", metavar="FILE", help="TOML or JSON file with the rules that the site must meet.")
@click.option(
    "--baseline", metavar="ID", help="Analysis or crawl to compare with; `previous`: the last analysis of the site."
)
@report_flags
@click.option("--annotations", is_flag=True, help="Print findings as annotations of GitHub Actions.")
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
    help="Resume the crawl of an audit that was interrupted, or analyze a crawl that has ended.",
)
@click.option("--store", metavar="URL", help="Store: sqlite:////path or postgresql://…; overrides DATABASE_URL.")
@json_option
def audit(
    urls: Sequence[str],
    gate: str | None,
    baseline: str | None,
    reports: ReportFiles,
    annotations: bool,
    commit: str | None,
    commit_context: str | None,
    resume: str | None,
    store: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Crawl a site, report what is wrong with it, and judge it by a gate. Exits with 10 if the gate failed, with 12
    if the crawl says too little about the site to judge it, and with 13 if an analyzer failed in every attempt."""
    if bool(urls) == (resume is not None):
        raise UsageError("Nothing to audit: give URLs, or --resume ID", 'see "shoal audit --help"')
    rules = None
    if gate is not None:
        text = read_file(gate, "the rules of a gate").decode("utf-8", "replace")
        rules = parse_gate(text, Path(gate).name)
    found = None if commit is None else read_commit(commit, commit_context, os.environ)
    request = crawl_request(urls, None, resume, given_values(options) | ({"analyze": True} if urls else {}))
    reports.check()
    reduce_collections()
    flags = {"--gate": gate, "--baseline": baseline, "--commit": commit, "--store": store}
    again = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    results = AuditOutput(reports, annotations, as_json, store, again)
    return uvloop.run(_audit(request, rules, baseline, found, results))


@dataclass(frozen=True, slots=True)
class AuditOutput:
    """The files and the output of the command. `again`: the flags to resume it with."""

    reports: ReportFiles
    annotations: bool
    as_json: bool
    store: str | None
    again: Sequence[str]


async def _audit(
    request: CrawlRequest, gate: Gate | None, baseline: str | None, commit: CiCommit | None, output: AuditOutput
) -> int:
    settings = load({"DATABASE_URL": output.store} | (dict(commit.settings) if commit else {})).settings
    async with opened(settings, quiet(settings, _is_printed)) as app:
        if baseline is not None:
            await app.audit.analyses.check_baseline(baseline, called="--baseline")
        crawl = await request.find(app)
        how_to_go_on = shlex.join(["shoal", "audit", "--resume", crawl.id, *output.again])
        command = CrawlCommand(app, crawl, Outputs(()), how_to_go_on, output.store, as_json=False, to_stdout=False)
        code = await command.run()
        options = AnalysisOptions(gate, commit=None if commit is None else commit.commit)
        async with _publishing(app):
            analysis = await analyze_locally(app, crawl.id, options, baseline)
        await _print(app, analysis, output)
        if analysis.state is AnalysisState.FAILED:
            return ANALYSIS_FAILED
        return code if analysis.verdict is None else EXIT_CODES[analysis.verdict.outcome] or code


def _is_printed(signal: Signal) -> bool:
    """Return whether the summary says this, too. The first failure of an analyzer is logged: the next attempt may
    succeed."""
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
    """Publish commit statuses as soon as they change. At the end the last status is tried a few times; if that fails, a
    controller on the same store retries it."""
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
        print_summary(report, output.store, earlier)
    if output.annotations:
        print(to_annotations(report), end="", flush=True)
    note_written(written)
