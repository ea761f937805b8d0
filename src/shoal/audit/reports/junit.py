"""The report as JUnit XML, which most CI systems show: a test per rule of the gate and per finding code.

With a gate, only its rules fail; without one, every code of severity error does. An analyzer that failed is an error;
one that does not apply to the crawl is skipped.
"""

import re
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree

from shoal.audit.codes import BY_ANALYZER
from shoal.audit.finding import Finding, FindingCount, Severity
from shoal.audit.reports.report import Report, evidence_in_words
from shoal.audit.verdict import Outcome
from shoal.base.clock import from_micros
from shoal.base.text import visible

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
    """Set the attributes of a suite that count its tests, in the order in which tools expect them."""
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
