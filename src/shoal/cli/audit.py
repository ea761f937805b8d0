"""`shoal audit`: crawl a site in this process, analyze it, and judge it by a gate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import uvloop
from msgspec import to_builtins

from shoal.app import App, opened
from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.audit.finding import FindingCount, most_serious_first
from shoal.audit.gate import Gate, parse_gate
from shoal.audit.verdict import Outcome, Verdict
from shoal.base.errors import UsageError
from shoal.cli.crawl import CrawlCommand
from shoal.cli.garbage_collection import reduce_collections
from shoal.cli.long_running import quiet
from shoal.cli.options import crawl_flags, flag_of, given_values, read_file
from shoal.cli.output import note, print_json, print_table
from shoal.export.output import Outputs
from shoal.local.crawl_request import CrawlRequest, read_config
from shoal.local.local_analysis import analyze_here
from shoal.serve import to_api
from shoal.settings_loader import load

EXIT_CODES = {Outcome.PASSED: 0, Outcome.FAILED: 10, Outcome.INCONCLUSIVE: 12}


@click.command(epilog="Example: shoal audit https://example.com/ --gate gate.toml")
@click.argument("urls", nargs=-1, metavar="URL...")
@crawl_flags
@click.option("--gate", metavar="FILE", help="TOML or JSON file with the rules that the site must meet.")
@click.option(
    "--baseline", metavar="ID", help="Analysis or crawl to compare with; `previous`: the last analysis of the site."
)
@click.option("--store", metavar="URL", help="Store: sqlite:////path or postgresql://…; overrides DATABASE_URL.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(
    urls: Sequence[str], gate: str | None, baseline: str | None, store: str | None, as_json: bool, **options: Any
) -> int:
    """Crawl a site, report what is wrong with it, and judge it by a gate. Exits with 10 if the gate failed, and with 12
    if the crawl says too little about the site to judge it."""
    if not urls:
        raise UsageError("Nothing to audit: give URLs", 'see "shoal audit --help"')
    rules = None if gate is None else parse_gate(_text_of(gate), Path(gate).name)
    config = read_config({"seeds": list(urls), **given_values(options), "analyze": True}, flag_of)
    reduce_collections()
    return uvloop.run(_audit(CrawlRequest(config), rules, baseline, store, as_json))


def _text_of(path: str) -> str:
    return read_file(path, "the rules of a gate").decode("utf-8", "replace")


async def _audit(
    request: CrawlRequest, gate: Gate | None, baseline: str | None, store: str | None, as_json: bool
) -> int:
    settings = load({"DATABASE_URL": store}).settings
    async with opened(settings, quiet(settings)) as app:
        if baseline is not None:
            await app.audit.analyses.check_baseline(baseline, called="--baseline")
        crawl = await request.find(app)
        how_to_go_on = f"shoal crawl --resume {crawl.id}"
        code = await CrawlCommand(app, crawl, Outputs(()), how_to_go_on, as_json=False, to_stdout=False).run()
        analysis = await analyze_here(app, crawl.id, AnalysisOptions(gate), baseline)
        await _print(app, analysis, as_json)
        return code if analysis.verdict is None else EXIT_CODES[analysis.verdict.outcome] or code


async def _print(app: App, analysis: Analysis, as_json: bool) -> None:
    analyses = app.audit.analyses
    counts, outcomes = await analyses.counts(analysis.id), await analyses.outcomes(analysis.id)
    if as_json:
        print_json(to_builtins(to_api.analysis_detail(analysis, counts, outcomes)))
        return
    rows = [await _row(app, analysis, count) for count in most_serious_first(counts)]
    print_table(["severity", "code", "count", "example", "fix"], rows)
    if not rows:
        note("Nothing was found.")
    for failed in [one for one in outcomes if one.error is not None]:
        note(f"Analyzer {failed.analyzer} failed: {failed.error}")
    if analysis.verdict is not None:
        _print_verdict(analysis.verdict)


async def _row(app: App, analysis: Analysis, count: FindingCount) -> list[Any]:
    [(_, first)] = await app.audit.analyses.findings(analysis.id, code=count.code, limit=1)
    return [count.severity.value, count.code, count.count, first.page or "", count.fix]


def _print_verdict(verdict: Verdict) -> None:
    note(f"Gate: {verdict.outcome.value}")
    for reason in verdict.reasons:
        note(f"  {reason}")
