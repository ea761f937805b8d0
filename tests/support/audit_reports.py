"""A report with hostile text in every place that a crawled site can reach, and strict checks of two formats."""

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.audit.artifacts import Artifact
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity, most_serious_first
from shoal.audit.gate import read_gate
from shoal.audit.reports.report import Report
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Outcome, RuleResult, Verdict
from shoal.base.ids import AnalysisId

SCRIPT = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
HOSTILE = f"{SCRIPT}\n::error::injected\r\n]]>&amp;|`@everyone [x](javascript:1) \x00\x1b[31m\u202e\ud800"
SITE = "https://shop.example/"
LEVELS = {"none", "note", "warning", "error"}


def page(path: str) -> str:
    return f"{SITE}{path}"


def count(code: str, severity: str, number: int, analyzer: str = "links") -> FindingCount:
    return FindingCount(analyzer, code, Severity(severity), f"Title of {code}.", f"Fix of {code}.", number, number)


def verdict_of(outcome: Outcome, reason: str | None = None) -> Verdict:
    rule = RuleResult("broken_links <= 0", "broken_links", "error", outcome, 3.0, 1.0, reason)
    warning = RuleResult("pages >= 9", "pages", "warning", Outcome.FAILED, 4.0, None, "pages is 4.")
    return Verdict(outcome, [reason] if reason else [], [rule, warning])


def report_with(verdict: Verdict | None = None, error: str | None = None, **changes: Any) -> Report:
    """Return a report of a small shop whose pages and analyzers say hostile things."""
    levels = [
        {"depth": depth, "2xx": 40 - 9 * depth, "3xx": depth, "4xx": 2 * depth, "5xx": depth % 2, "error": depth == 3}
        for depth in range(5)
    ]
    steps = zip([50, 100, 200, 500, 1000, 2000, 5000, 10000, None], [3, 30, 80, 25, 9, 4, 2, 1, 0], strict=True)
    folders = {"/": 4, "/shop/shoes/": 80, "/shop/hats/": 31, "/blog/2024/": 22, f"/{SCRIPT}/": 1}
    summary = {
        "status_by_depth": levels,
        "response_ms": [{"up_to_ms": limit, "pages": pages} for limit, pages in steps],
        "folders": [{"path": path, "pages": pages} for path, pages in folders.items()],
    }
    analysis = Analysis(
        number=1, id=AnalysisId("anl_1"), crawl=1, crawl_id="crl_1", project="shop", site=SITE,
        state=AnalysisState.FAILED if error else AnalysisState.SUCCESS, state_reason=None, error=error, findings=64,
        created_at=1_790_000_000_000_000, started_at=1_790_000_001_000_000, finished_at=1_790_000_009_000_000,
        options=AnalysisOptions(read_gate({"fail": ["broken_link"]}) if verdict else None),
        metrics={"pages": 138.0, "errors": 4.0, "warnings": 50.0, "notices": 10.0, "broken_links": 3.0,
                 "avg_response_ms": 173.4, "max_depth": 4.0}, summary=summary, verdict=verdict,
    )  # fmt: skip
    codes = [
        count("canonical_missing", "notice", 10, "canonicals"),
        count("broken_link", "error", 3),
        count("title_duplicate", "warning", 50, "titles"),
        count("house.unknown", "error", 1, "house"),
    ]
    examples = {
        "broken_link": [
            Finding("links", "broken_link", Severity.ERROR, page("gone"), 1, {"status": 404, "linked_from": [SITE]}),
            Finding("links", "broken_link", Severity.ERROR, page(f"?q={HOSTILE}"), -1, {"text": HOSTILE}),
            Finding("links", "broken_link", Severity.ERROR, f"javascript:{HOSTILE}", 5, {"hops": [{"a": 1}] * 9}),
        ],
        "title_duplicate": [Finding("titles", "title_duplicate", Severity.WARNING, SITE, 2, {"title": HOSTILE})],
        "canonical_missing": [],
        "house.unknown": [Finding("house", "house.unknown", Severity.ERROR, None, 3)],
    }
    outcomes = [
        AnalyzerOutcome("canonicals", None, 10, 4.5),
        AnalyzerOutcome("house", None, 1, 1.0, (Artifact("house-raw.txt", 12),)),
        AnalyzerOutcome("links", None, 3, 12.0),
        AnalyzerOutcome("speed", f"RuntimeError: {HOSTILE}", 0, 0.1),
        AnalyzerOutcome("titles", None, 50, 2.0),
    ]
    return replace(Report(analysis, most_serious_first(codes), outcomes, examples), **changes)


SARIF_KEYS = {
    "document": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"automationDetails", "invocations", "results", "columnKind", "properties"}),
    "driver": ({"name"}, {"semanticVersion", "rules"}),
    "rule": (
        {"id"},
        {"name", "shortDescription", "fullDescription", "help", "defaultConfiguration", "properties"},
    ),
    "invocation": ({"executionSuccessful"}, {"toolExecutionNotifications"}),
    "notification": ({"message"}, {"level", "descriptor"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "partialFingerprints", "properties"}),
}
"""The properties that SARIF 2.1.0 requires, and those of its optional ones that the report uses."""


def check_sarif(document: dict[str, Any]) -> None:
    """Check the properties, types and references that the schema of SARIF 2.1.0 demands of what the report uses."""
    _has(document, "document")
    assert document["version"] == "2.1.0"
    [run] = document["runs"]
    _has(run, "run")
    assert set(run["tool"]) == {"driver"}
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = run["tool"]["driver"]
    _has(driver, "driver")
    for rule in driver["rules"]:
        _has(rule, "rule")
        assert rule["defaultConfiguration"]["level"] in LEVELS
        assert all(set(rule[name]) == {"text"} for name in ("shortDescription", "fullDescription", "help"))
    names = [rule["id"] for rule in driver["rules"]]
    assert len(set(names)) == len(names)
    for invocation in run["invocations"]:
        _has(invocation, "invocation")
        for notification in invocation["toolExecutionNotifications"]:
            _has(notification, "notification")
            assert isinstance(notification["message"]["text"], str)
    for result in run["results"]:
        _has(result, "result")
        assert names[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in LEVELS
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        [location] = result["locations"]
        assert isinstance(location["physicalLocation"]["artifactLocation"]["uri"], str)


def _has(part: dict[str, Any], kind: str) -> None:
    required, optional = SARIF_KEYS[kind]
    assert required <= set(part) <= required | optional, (kind, set(part))


JUNIT = {
    "testsuites": ({"name", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped", "time", "timestamp"}, {"testcase", "properties"}),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"classname", "name", "time"}, {"failure", "error", "system-out"}),
    "failure": ({"message", "type"}, set()),
    "error": ({"message", "type"}, set()),
    "system-out": (set(), set()),
}
"""The attributes that every element of JUnit XML has here, and the elements that it may contain."""


def check_junit(text: str) -> ElementTree.Element:
    """Check a JUnit document as its common schema does: elements, attributes and that the counts are right."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, children = JUNIT[element.tag]
        assert set(element.attrib) == attributes, (element.tag, element.attrib)
        assert {child.tag for child in element} <= children
    for suite in root:
        cases = suite.findall("testcase")
        assert list(suite)[-len(cases) :] == cases, "properties come first"
        assert int(suite.attrib["tests"]) == len(cases)
        for kind, name in (("failure", "failures"), ("error", "errors")):
            assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{kind}"))
        assert len({case.attrib["name"] for case in cases}) == len(cases)
    for name in ("tests", "failures", "errors"):
        assert int(root.attrib[name]) == sum(int(suite.attrib[name]) for suite in root)
    return root
