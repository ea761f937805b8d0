"""The report as an HTML page, with its charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal import __version__
from shoal.audit.finding import Severity
from shoal.audit.reports.report import Report, counted, evidence_in_words
from shoal.audit.verdict import VERDICTS, Outcome
from shoal.base.clock import from_micros
from shoal.base.text import encodable, visible

if TYPE_CHECKING:
    from jinja2 import Template


WIDTH: Final = 640.0
HEIGHT: Final = 240.0
LEFT, BOTTOM, TOP = 48.0, 28.0, 12.0  # room for the labels of the axes
MOST_COLUMNS: Final = 25
STATUS_KINDS: Final = {
    **{kind: kind for kind in ("2xx", "unchanged", "3xx", "4xx", "5xx")},
    "error": "no response",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle. `kind` names its colour, `label` is its tooltip and is read by screen readers."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Stacked columns over a horizontal axis. `rows` are the numbers behind them, for the table below the chart."""

    title: str
    axis: str
    bars: Sequence[Bar]
    names: Sequence[Label]
    grid: Sequence[Label]
    kinds: Mapping[str, str]  # the label of each kind that occurs
    rows: Sequence[tuple[str, Mapping[str, int]]]


@dataclass(slots=True)
class Folder:
    """A folder of the site. `pages` includes those below it."""

    name: str
    pages: int = 0
    below: "dict[str, Folder]" = field(default_factory=dict)

    @property
    def children(self) -> "list[Folder]":
        return sorted(self.below.values(), key=lambda folder: (-folder.pages, folder.name))


def status_by_depth(summary: Mapping[str, Any]) -> Chart:
    """Return columns of pages by depth, stacked by status class. The last column adds up all deeper levels; pages that
    no links lead to have a separate column."""
    counted = [row for row in summary.get("status_by_depth", ()) if row["depth"] is not None]
    groups = [(str(row["depth"]), [row]) for row in counted[: MOST_COLUMNS - 1]]
    if rest := counted[MOST_COLUMNS - 1 :]:
        groups.append((str(rest[0]["depth"]) + ("+" if len(rest) > 1 else ""), rest))
    if unlinked := [row for row in summary.get("status_by_depth", ()) if row["depth"] is None]:
        groups.append(("no link", unlinked))
    rows = [
        (name, {kind: sum(int(row.get(kind, 0)) for row in group) for kind in STATUS_KINDS}) for name, group in groups
    ]
    return _columns("Status by depth", "clicks from the start", rows, STATUS_KINDS)


def response_times(summary: Mapping[str, Any]) -> Chart:
    """Return columns of pages by response time."""
    steps = list(summary.get("response_ms", ()))
    rows, lower = [], 0
    for step in steps:
        limit = step["up_to_ms"]
        name = f"> {_time(lower)}" if limit is None else f"≤ {_time(limit)}"
        rows.append((name, {"pages": int(step["pages"])}))
        lower = limit or lower
    return _columns("Response times", "time until the page was received", rows, {"pages": "pages"})


def site_tree(summary: Mapping[str, Any]) -> list[Folder]:
    """Return the folders below the root, the largest first."""
    root = Folder("/")
    for row in summary.get("folders", ()):
        names = [name for name in str(row["path"]).split("/") if name]
        folder, pages = root, int(row["pages"])
        folder.pages += pages
        for name in names:
            folder = folder.below.setdefault(name, Folder(f"{name}/"))
            folder.pages += pages
    return [root] if root.pages else []


def _columns(title: str, axis: str, rows: list[tuple[str, dict[str, int]]], kinds: Mapping[str, str]) -> Chart:
    top = _round_up(max((sum(values.values()) for _, values in rows), default=0))
    span, height = (WIDTH - LEFT) / max(len(rows), 1), HEIGHT - TOP - BOTTOM
    bars, names = [], []
    for place, (name, values) in enumerate(rows):
        x, y = LEFT + span * (place + 0.15), HEIGHT - BOTTOM
        for kind, number in values.items():
            tall = height * number / top
            if number:
                y -= tall
                label = f"{name}: {number:,} {kinds[kind]}"
                bars.append(Bar(round(x, 2), round(y, 2), round(span * 0.7, 2), round(max(tall, 1), 2), kind, label))
        names.append(Label(round(LEFT + span * (place + 0.5), 2), HEIGHT - BOTTOM + 18, name))
    lines = [Label(LEFT, round(HEIGHT - BOTTOM - height * part / 2, 2), _number(top * part / 2)) for part in range(3)]
    used = {kind: label for kind, label in kinds.items() if any(values[kind] for _, values in rows)}
    return Chart(title, axis, bars, names, lines, used, rows)


def _round_up(most: int) -> int:
    """Return the end of an axis: 2, 4 or 10 times a power of ten, so that half of it is a round number, too."""
    step = 1
    while True:
        for factor in (2, 4, 10):
            if most <= step * factor:
                return step * factor
        step *= 10


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:,g}"


def _time(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:g} s"


TEMPLATES: Final = Path(__file__).parent / "templates"
CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The policy allows only the document's own styles, so text from a crawled page cannot load or run anything."""

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
        charts=[status_by_depth(summary), response_times(summary)],
        tree=site_tree(summary),
        size=(WIDTH, HEIGHT),
        left=LEFT,
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
