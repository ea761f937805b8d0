"""The formats of a report, by the name under which the API and the command line know them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from shoal.audit.reports.annotations import to_annotations
from shoal.audit.reports.html import to_html
from shoal.audit.reports.json_report import to_json
from shoal.audit.reports.junit import to_junit
from shoal.audit.reports.markdown import to_markdown
from shoal.audit.reports.report import Report
from shoal.audit.reports.sarif import to_sarif

FormatName = Literal["html", "json", "junit", "sarif", "markdown", "annotations"]


@dataclass(frozen=True, slots=True)
class ReportFormat:
    """How a report is written. `most_per_code`: the findings of one code that it lists."""

    media_type: str
    most_per_code: int
    write: Callable[[Report], str]


FORMATS: Final[Mapping[FormatName, ReportFormat]] = {
    "html": ReportFormat("text/html; charset=utf-8", 20, to_html),
    "json": ReportFormat("application/json", 1_000, to_json),
    "junit": ReportFormat("application/xml", 20, to_junit),
    "sarif": ReportFormat("application/sarif+json", 200, to_sarif),
    "markdown": ReportFormat("text/markdown; charset=utf-8", 1, to_markdown),
    "annotations": ReportFormat("text/plain; charset=utf-8", 1, to_annotations),
}
