"""Reports for CI systems: JUnit, SARIF, and annotations of a job's log."""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

import orjson

from shoal import __version__
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.finding import Finding, FindingCount, Severity
from shoal.audit.reports.report import Report, evidence_in_words, in_short
from shoal.audit.verdict import Outcome
from shoal.base.clock import from_micros
from shoal.base.text import json_of, visible

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Element = ElementTree.Element


def to_junit(report: Report) -> str:
    """Return a JUnit document."""
    root = ElementTree.Element("testsuites", name=_text(f"Audit of {report.analysis.site}"))
    if report.analysis.error is not None:
        _analysis_suite(root, report.analysis.error)
    if report.analysis.verdict is not None:
        _gate_suite(root, report)
    for name in sorted({outcome.analyzer for outcome in report.outcomes}):
        _analyzer_suite(root, report, name)
    _say_what_was_not_checked(root, report)
    for suite in root:
        _count(suite, report)
    for total in ("tests", "failures", "errors"):
        root.set(total, str(sum(int(suite.get(total, 0)) for suite in root)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _say_what_was_not_checked(root: Element, report: Report) -> None:
    """Add properties to the first suite, because the common schema allows them in suites only."""
    suite = root[0] if len(root) else ElementTree.SubElement(root, "testsuite", name="analysis")
    properties = ElementTree.Element("properties")
    suite.insert(0, properties)
    ElementTree.SubElement(properties, "property", name="not_checked", value=_text(report.not_checked))
    if report.quarantine:
        ElementTree.SubElement(properties, "property", name="quarantine", value=_text(report.quarantine))


def _analysis_suite(root: Element, error: str) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name="analysis")
    case = ElementTree.SubElement(suite, "testcase", classname="analysis", name="completes")
    ElementTree.SubElement(case, "error", message=_text(error), type="analysis_failed")


def _gate_suite(root: Element, report: Report) -> None:
    """Add a test per rule, and one for a verdict that no rule explains, such as a crawl with too few pages."""
    verdict = report.analysis.verdict
    assert verdict is not None
    suite = ElementTree.SubElement(root, "testsuite", name="gate")
    for rule in verdict.rules:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=_text(rule.condition))
        if rule.outcome is Outcome.PASSED:
            continue
        reason = _text(rule.reason or rule.condition)
        if rule.severity == "warning":
            ElementTree.SubElement(case, "system-out").text = reason
        else:
            kind = "failure" if rule.outcome is Outcome.FAILED else "error"
            ElementTree.SubElement(case, kind, message=reason, type=rule.outcome.value)
    if verdict.outcome is Outcome.INCONCLUSIVE:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name="the crawl can be judged")
        message = _text(" ".join(verdict.reasons))
        ElementTree.SubElement(case, "error", message=message, type=verdict.outcome.value)


def _analyzer_suite(root: Element, report: Report, analyzer: str) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_text(analyzer))
    outcome = next(outcome for outcome in report.outcomes if outcome.analyzer == analyzer)
    if outcome.error is not None or outcome.skipped is not None:
        case = ElementTree.SubElement(suite, "testcase", classname=_text(analyzer), name="runs")
        if outcome.error is not None:
            ElementTree.SubElement(case, "error", message=_text(outcome.error), type="analyzer_failed")
        else:
            ElementTree.SubElement(case, "skipped", message=_text(outcome.skipped or ""))
        return
    found = {count.code: count for count in report.codes if count.analyzer == analyzer}
    known = [code.code for code in BY_ANALYZER.get(analyzer, ())]
    for code in [*known, *(code for code in found if code not in known)]:
        case = ElementTree.SubElement(suite, "testcase", classname=_text(analyzer), name=_text(code))
        if code in found:
            _note_findings(case, found[code], report.examples.get(code, ()), fails=report.outcome is None)


def _note_findings(case: Element, count: FindingCount, examples: Sequence[Finding], *, fails: bool) -> None:
    lines = []
    for one in examples:
        where = "the whole site" if one.page is None else visible(one.page)
        lines.append(f"{where}: {evidence_in_words(one.evidence)}" if one.evidence else where)
    if count.count > len(lines):
        lines.append(f"and {count.count - len(lines):,} more")
    message = f"{count.title} ({count.count:,})"
    text = _text("\n".join([*lines, f"Fix: {count.fix}"]))
    if fails and count.severity is Severity.ERROR:
        ElementTree.SubElement(case, "failure", message=_text(message), type=_text(count.code)).text = text
    else:
        ElementTree.SubElement(case, "system-out").text = _text(f"{count.severity}: {message}\n{text}")


def _count(suite: Element, report: Report) -> None:
    """Set the test counts of a suite as attributes, in the order in which tools expect them."""
    outcome = next((one for one in report.outcomes if one.analyzer == suite.get("name")), None)
    seconds = 0.0 if outcome is None else outcome.duration_ms / 1000
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", f"{seconds:.3f}")
    suite.set("timestamp", from_micros(report.analysis.created_at).strftime("%Y-%m-%dT%H:%M:%S"))
    for case in cases:
        case.set("time", f"{seconds / len(cases):.3f}")


def _text(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


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
    """Return a finding. Code scanning requires a location, so a finding about the whole site gets the URL at which the
    site starts."""
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


MOST_SHOWN: Final = 10  # annotations of each kind; GitHub ignores further annotations of a step
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
    """Return a workflow command. Text from pages cannot start a second command, because line ends are removed and the
    text is escaped."""
    return f"::{kind} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
