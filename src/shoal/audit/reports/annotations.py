"""The report as annotations of GitHub Actions: lines on stdout that the workflow shows beside its log."""

from typing import Final

from shoal.audit.finding import Severity
from shoal.audit.reports.report import Report, in_short
from shoal.audit.verdict import Outcome
from shoal.base.text import visible

MOST_SHOWN: Final = 10  # annotations of each kind; GitHub ignores further ones of a step
KINDS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTICE: "notice"}


def to_annotations(report: Report) -> str:
    """Return one workflow command per line: the verdict first, then finding codes, most serious first. The first notice
    says what was not checked."""
    lines: dict[str, list[str]] = {kind: [] for kind in KINDS.values()}
    lines["notice"].append(_command("notice", "Not checked", report.not_checked_text.removeprefix("Not checked: ")))
    if report.analysis.error is not None or report.outcome in (Outcome.FAILED, Outcome.INCONCLUSIVE):
        verdict = report.analysis.verdict
        reasons = [] if verdict is None else verdict.reasons
        lines["error"].append(_command("error", "Audit", " ".join([f"{in_short(report)}.", *reasons])))
    for count in report.codes:
        example = next((one.page for one in report.examples.get(count.code, ()) if one.page), None)
        where = f" For example: {example}" if example else ""
        title = f"{count.code} ({count.count:,})"
        lines[KINDS[count.severity]].append(_command(KINDS[count.severity], title, f"{count.title} {count.fix}{where}"))
    return "".join(f"{line}\n" for kind in lines.values() for line in kind[:MOST_SHOWN])


def _command(kind: str, title: str, message: str) -> str:
    """Return a workflow command. Page text cannot start another one: it has no line ends, and is escaped."""
    return f"::{kind} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
