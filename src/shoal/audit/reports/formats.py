"""The formats of reports by name, and the report as Markdown."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from shoal.audit.reports.ci import to_annotations, to_junit, to_sarif
from shoal.audit.reports.html import to_html
from shoal.audit.reports.report import Report, in_short, to_json
from shoal.audit.verdict import VERDICTS, Outcome
from shoal.base.text import visible
from shoal.pages.export.part_file import ends_of

MOST_CODES: Final = 25
LONGEST_URL: Final = 200
MARKS: Final = {Outcome.PASSED: "✅", Outcome.FAILED: "❌", Outcome.INCONCLUSIVE: "⚠️"}
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()<>#+!|~&-])")


def to_markdown(report: Report) -> str:
    """Return the verdict, the rules that did not pass, and the codes that were found, most serious first."""
    analysis, outcome = report.analysis, report.outcome
    title = "Audit" if outcome is None else f"{MARKS[outcome]} {VERDICTS[outcome]}"
    lines = [f"## {title}: {_code(analysis.site)}", "", _plain(f"{in_short(report)}."), ""]
    if analysis.verdict is not None:
        lines += [f"- {_plain(reason)}" for reason in analysis.verdict.reasons]
        if analysis.verdict.rules:
            lines += ["", "| rule | measured | baseline | outcome |", "|---|--:|--:|---|"]
        for rule in analysis.verdict.rules:
            value = "" if rule.value is None else f"{rule.value:g}"
            earlier = "" if rule.baseline is None else f"{rule.baseline:g}"
            only = " (warning only)" if rule.severity == "warning" and rule.outcome is not Outcome.PASSED else ""
            lines.append(f"| {_code(rule.condition)} | {value} | {earlier} | {rule.outcome}{only} |")
        lines.append("")
    if report.codes:
        lines += ["| severity | code | count | example | fix |", "|---|---|--:|---|---|"]
    for count in report.codes[:MOST_CODES]:
        example = next((one.page for one in report.examples.get(count.code, ()) if one.page), None)
        shown = "" if example is None else _code(example)
        lines.append(f"| {count.severity} | `{count.code}` | {count.count:,} | {shown} | {_plain(count.fix)} |")
    if len(report.codes) > MOST_CODES:
        lines += ["", f"{len(report.codes) - MOST_CODES} more codes are in the full report."]
    for skipped in report.skipped_analyzers:
        lines += ["", f"Analyzer {_code(skipped.analyzer)} was skipped: {_plain(skipped.skipped or '')}"]
    for failed in report.failed_analyzers:
        lines += ["", f"Analyzer {_code(failed.analyzer)} failed: {_plain(failed.error or '')}"]
    lines += ["", _plain(report.not_checked_text)]
    lines += ["", f"Analysis {_code(analysis.id)} of crawl {_code(analysis.crawl_id)}."]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Escape text so that none of it is markup. Zero-width spaces keep forges from turning the text into mentions and
    links."""
    return _SPECIAL.sub(r"\\\1", visible(text)).replace("@", "@\u200b").replace("://", ":\u200b//")


def _code(text: str) -> str:
    """Quote untrusted text as code; in a table a vertical bar would end the cell, even within code."""
    shown = visible(text)[:LONGEST_URL].replace("`", "'").replace("|", "%7C")
    return f"`{shown}`"


FormatName = Literal["html", "json", "junit", "sarif", "markdown", "annotations"]


@dataclass(frozen=True, slots=True)
class ReportFormat:
    """A report format. `most_per_code`: the maximum number of findings of one code in the report; `mark`: text near the
    beginning or the end of each report, by which Shoal recognizes its own reports."""

    media_type: str
    most_per_code: int
    write: Callable[[Report], str]
    mark: str

    def may_replace(self, name: str) -> bool:
        """Return whether a file looks like a report in this format."""
        return re.search(self.mark.encode(), ends_of(name)) is not None


FORMATS: Final[Mapping[FormatName, ReportFormat]] = {
    "html": ReportFormat("text/html; charset=utf-8", 20, to_html, r'<meta name="generator" content="Shoal '),
    "json": ReportFormat("application/json", 1_000, to_json, r'"generator": ?"Shoal '),
    "junit": ReportFormat("application/xml", 20, to_junit, r'<testsuites name="Audit of '),
    "sarif": ReportFormat("application/sarif+json", 200, to_sarif, r'"name": ?"Shoal"'),
    "markdown": ReportFormat(
        "text/markdown; charset=utf-8", 1, to_markdown, r"\nAnalysis `[^`\n]+` of crawl `[^`\n]+`\.\n\Z"
    ),
    "annotations": ReportFormat("text/plain; charset=utf-8", 1, to_annotations, "^::"),
}
