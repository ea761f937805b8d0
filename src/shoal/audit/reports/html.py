"""The report as one HTML file that needs neither a network nor scripts."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal import __version__
from shoal.audit.finding import Severity
from shoal.audit.reports import charts
from shoal.audit.reports.report import Report, counted, evidence_in_words
from shoal.audit.verdict import VERDICTS, Outcome
from shoal.base.clock import from_micros
from shoal.base.text import encodable, visible

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES: Final = Path(__file__).parent / "templates"
CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The document allows itself nothing but its own styles, so that no text of a page can load or run anything."""

MARKS: Final = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.INCONCLUSIVE: "?"}
SHOWN_METRICS: Final = {
    "pages": "pages with a response",
    "failed_pages": "pages without a response",
    "errors": "errors",
    "warnings": "warnings",
    "notices": "notices",
    "broken_links": "broken or unreachable links",
    "server_errors": "server errors",
    "avg_response_ms": "ms average response",
    "max_depth": "clicks to the deepest page",
}


def to_html(report: Report) -> str:
    """Return the document. Everything in it that does not come from the template is escaped."""
    analysis, summary = report.analysis, report.analysis.summary or {}
    by_severity = report.by_severity()
    return _template().render(
        report=report,
        analysis=analysis,
        found=counted(report),
        verdict="No gate" if report.outcome is None else VERDICTS[report.outcome],
        mark=MARKS.get(report.outcome, ""),  # type: ignore[arg-type]
        outcome=report.outcome or "none",
        policy=CONTENT_POLICY,
        version=__version__,
        created=from_micros(analysis.created_at).strftime("%Y-%m-%d %H:%M UTC"),
        metrics={text: (analysis.metrics or {}).get(name, 0.0) for name, text in SHOWN_METRICS.items()},
        by_severity=by_severity,
        most=max(by_severity.values(), default=0) or 1,
        severities=list(Severity),
        charts=[charts.status_by_depth(summary), charts.response_times(summary)],
        tree=charts.site_tree(summary),
        size=(charts.WIDTH, charts.HEIGHT),
        left=charts.LEFT,
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # most commands never write a report

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"evidence": evidence_in_words, "visible": visible, "link": _link}
    return environment.get_template("report.html")


def _link(url: str | None) -> str | None:
    """Return a URL that is safe to follow; None for others, which are shown as text."""
    return encodable(url) if url is not None and url.startswith(("http://", "https://")) else None
