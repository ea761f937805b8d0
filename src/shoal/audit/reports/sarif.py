"""The report as SARIF 2.1.0, for code scanning: a rule per finding code, a result per finding."""

from typing import Any, Final
from urllib.parse import quote

import orjson

from shoal import __version__
from shoal.audit.finding import Finding, FindingCount, Severity
from shoal.audit.reports.report import Report, evidence_in_words
from shoal.base.text import json_of

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTICE: "note"}
FINGERPRINT: Final = "shoalFinding/v1"


def to_sarif(report: Report) -> str:
    """Return a SARIF document with one run. `properties.count` of a rule is the exact number of its findings."""
    analysis = report.analysis
    results = [
        _result(place, count, finding, analysis.site)
        for place, count in enumerate(report.codes)
        for finding in report.examples.get(count.code, ())
    ]
    run = {
        "tool": {
            "driver": {
                "name": "Shoal",
                "semanticVersion": __version__,
                "rules": [_rule(count) for count in report.codes],
            }
        },
        "automationDetails": {"id": f"shoal/{analysis.project}/{analysis.id}"},
        "invocations": [
            {
                "executionSuccessful": analysis.error is None and not report.failed_analyzers,
                "toolExecutionNotifications": [
                    {
                        "level": "error",
                        "message": {"text": f"Analyzer {outcome.analyzer} failed: {outcome.error}"},
                        "descriptor": {"id": "analyzer_failed"},
                    }
                    for outcome in report.failed_analyzers
                ]
                + [
                    {
                        "level": "note",
                        "message": {"text": f"Analyzer {outcome.analyzer} was skipped: {outcome.skipped}"},
                        "descriptor": {"id": "analyzer_skipped"},
                    }
                    for outcome in report.skipped_analyzers
                ]
                + ([{"level": "error", "message": {"text": analysis.error}}] if analysis.error is not None else []),
            }
        ],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {
            "site": analysis.site,
            "verdict": report.outcome,
            "pages": report.pages,
            "notChecked": report.not_checked,
            **({"quarantine": report.quarantine} if report.quarantine else {}),
        },
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_of(document, orjson.OPT_INDENT_2).decode() + "\n"


def _rule(count: FindingCount) -> dict[str, Any]:
    return {
        "id": count.code,
        "name": "".join(word.capitalize() for word in count.code.replace(".", "_").split("_")),
        "shortDescription": {"text": count.title},
        "fullDescription": {"text": count.title},
        "help": {"text": count.fix},
        "defaultConfiguration": {"level": LEVELS[count.severity]},
        "properties": {"analyzer": count.analyzer, "count": count.count, "tags": ["site-audit", count.analyzer]},
    }


def _result(place: int, count: FindingCount, finding: Finding, site: str) -> dict[str, Any]:
    """Return a finding. Code scanning requires a location, so one about the whole site gets the start of the site."""
    evidence = evidence_in_words(finding.evidence)
    return {
        "ruleId": count.code,
        "ruleIndex": place,
        "level": LEVELS[count.severity],
        "message": {"text": f"{count.title} {evidence}".strip()},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(finding.page or site)}}}],
        "partialFingerprints": {FINGERPRINT: finding.identifier},
        "properties": {"evidence": finding.evidence},
    }


def _uri(url: str) -> str:
    """Encode the characters that a URI must not contain, though browsers accept them in a URL."""
    return quote(url, safe="%/:?#[]@!$&'()*+,;=~", errors="replace")
