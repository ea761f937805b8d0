"""The output of `shoal audit`: the findings as a table, the verdict, and what to do next."""

import shlex

from shoal.audit.finding import Severity
from shoal.audit.reports.report import Report, counted
from shoal.audit.verdict import Outcome
from shoal.base.text import plural, shorten, visible
from shoal.cli.output import print_table
from shoal.observe.logs import note

COLUMNS = ["severity", "code", "count", "example", "fix"]
LONGEST_EXAMPLE = 80  # characters, so that one long URL does not push the fixes away


def print_summary(report: Report, store: str | None, earlier: str | None = None) -> None:
    """Print the findings to stdout, most serious first, and the rest to stderr. `earlier`: the crawl to compare
    with."""
    rows = []
    for count in report.codes:
        first = next(iter(report.examples.get(count.code, ())), None)
        example = "" if first is None else shorten(first.page or "(the whole site)", LONGEST_EXAMPLE)
        rows.append([count.severity.value, count.code, f"{count.count:,}", example, count.fix])
    if rows:
        print_table(COLUMNS, rows)
    missing = [*report.failed_analyzers, *report.skipped_analyzers]
    nothing = f"Nothing was found on {plural(report.pages, 'page')}." if not missing else "The others found nothing."
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
    for line in next_steps(report, store, earlier):
        note(line)


def missing_analyzers(report: Report) -> list[str]:
    """Return which analyzers failed or were skipped, and why; those with the same reason in one line."""
    lines = [
        f"{'Optional analyzer' if one.optional else 'Analyzer'} {one.analyzer} failed: {visible(one.error or '')}"
        for one in report.failed_analyzers
    ]
    reasons: dict[str, list[str]] = {}
    for one in report.skipped_analyzers:
        reasons.setdefault(one.skipped or "", []).append(one.analyzer)
    return lines + [f"Skipped {', '.join(names)}: {visible(reason)}" for reason, names in reasons.items()]


def next_steps(report: Report, store: str | None, earlier: str | None) -> list[str]:
    """Return what to do next: look at the findings, then keep them from coming back."""
    analysis = report.analysis
    where = ["--store", store] if store else []
    steps = []
    if report.codes:
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
