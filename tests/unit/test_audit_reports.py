"""Reports of an analysis: each format is valid, complete, and keeps the text of a hostile site text."""

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import msgspec
import orjson
import pytest

from shoal.audit.codes import BY_ANALYZER
from shoal.audit.reports.formats import FORMATS, FormatName
from shoal.audit.reports.html import response_times, site_tree, status_by_depth
from shoal.audit.reports.report import AuditReport, Report, in_short, schema
from shoal.audit.verdict import Outcome, Verdict
from tests.support.audit_reports import HOSTILE, SITE, check_junit, check_sarif, report_with, verdict_of

REASON = "broken_links is 3; the gate demands <= 0."
FAILED = verdict_of(Outcome.FAILED, REASON)


def written(name: FormatName, report: Report) -> str:
    text = FORMATS[name].write(report)
    text.encode()  # whatever the pages say, it can be written to a file
    return text


@pytest.mark.parametrize("verdict", [None, FAILED, verdict_of(Outcome.PASSED), verdict_of(Outcome.INCONCLUSIVE, "few")])
@pytest.mark.parametrize("error", [None, HOSTILE])
def test_every_report_is_valid_sarif_junit_and_json(verdict: Verdict | None, error: str | None) -> None:
    report = report_with(verdict, error)
    check_sarif(orjson.loads(written("sarif", report)))
    check_junit(written("junit", report))
    msgspec.json.decode(written("json", report), type=AuditReport)
    assert written("html", report).startswith("<!doctype html>")


def test_sarif_has_a_rule_per_code_and_a_fingerprint_per_finding() -> None:
    [run] = orjson.loads(written("sarif", report_with()))["runs"]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert rules["title_duplicate"]["defaultConfiguration"] == {"level": "warning"}
    assert rules["title_duplicate"]["properties"]["count"] == 50
    assert rules["canonical_missing"]["defaultConfiguration"] == {"level": "note"}
    first = run["results"][0]
    assert (first["ruleId"], first["partialFingerprints"]) == ("broken_link", {"shoalFinding/v1": "0000000000000001"})
    assert first["message"]["text"] == f"Title of broken_link. status: 404; linked from: {SITE}"
    whole_site = next(one for one in run["results"] if one["ruleId"] == "house.unknown")
    assert whole_site["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == SITE
    assert not run["invocations"][0]["executionSuccessful"]  # an analyzer failed
    uris = [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in run["results"]]
    assert all(re.fullmatch(r"[!-~]+", uri) and not re.search(r'[<>"\\^`{|}]', uri) for uri in uris)


def cases(report: Report) -> dict[str, ElementTree.Element]:
    root = check_junit(written("junit", report))
    return {f"{suite.get('name')}/{case.get('name')}": case for suite in root for case in suite.findall("testcase")}


def test_without_a_gate_junit_fails_codes_of_severity_error() -> None:
    found = cases(report_with())
    assert [name for name, case in found.items() if case.find("failure") is not None] == [
        "house/house.unknown",
        "links/broken_link",
    ]
    assert len([name for name in found if name.startswith("links/")]) == len(BY_ANALYZER["links"])  # the others pass
    assert found["speed/runs"].find("error") is not None
    text = found["titles/title_duplicate"].findtext("system-out")
    assert text is not None
    assert text.startswith("warning: Title of title_duplicate. (50)")
    assert "and 49 more" in text


def test_with_a_gate_junit_fails_its_rules_only() -> None:
    found = cases(report_with(FAILED))
    failed = [(name, case.find("failure")) for name, case in found.items() if case.find("failure") is not None]
    assert [(name, None if why is None else why.get("message")) for name, why in failed] == [
        ("gate/broken_links <= 0", REASON)
    ]
    assert found["gate/pages >= 9"].findtext("system-out") == "pages is 4."  # a warning does not fail
    assert not [name for name, case in cases(report_with(verdict_of(Outcome.PASSED))).items() if case.find("failure")]
    unclear = cases(report_with(verdict_of(Outcome.INCONCLUSIVE, "Too few pages.")))
    why = unclear["gate/the crawl can be judged"].find("error")
    assert why is not None
    assert (why.get("type"), why.get("message")) == ("inconclusive", "Too few pages.")


def test_annotations_are_one_line_each_and_cannot_be_injected() -> None:
    report = report_with(FAILED)
    report.examples["broken_link"] = report.examples["broken_link"][1:]  # type: ignore[index]
    lines = written("annotations", report).splitlines()
    assert lines[0].startswith("::error title=Audit::Gate failed: 4 errors, 50 warnings, 10 notices on 138 pages.")
    assert len(lines) == 2 + len(report.codes)  # the verdict, what was not checked, and the codes
    assert all(re.match(r"::(error|warning|notice) title=[^:,]*::", line) for line in lines)
    assert "␊::error::injected" in lines[1]


def test_annotations_stay_below_what_a_forge_shows() -> None:
    codes = list(report_with().codes) * 30
    lines = written("annotations", report_with(FAILED, codes=codes)).splitlines()
    assert [sum(line.startswith(f"::{kind} ") for line in lines) for kind in ("error", "warning", "notice")] == [10] * 3


def test_markdown_escapes_markup_mentions_and_table_cells() -> None:
    report = report_with(FAILED)
    report.examples["broken_link"] = report.examples["broken_link"][1:]  # type: ignore[index]
    text = written("markdown", report)
    row = next(line for line in text.splitlines() if "`broken_link`" in line)
    assert row.count("|") == 6
    outside = re.sub(r"`[^`\n]*`", "", text)
    assert "@everyone" not in outside
    assert not re.search(r"(?<!\\)[<>\[]", outside)
    assert "❌ Gate failed" in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def tags_of(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(text)
    return parser.tags


def test_html_loads_nothing_and_runs_nothing() -> None:
    tags = tags_of(written("html", report_with(FAILED, HOSTILE)) + written("html", report_with(FAILED)))
    names = {tag for tag, _ in tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "form", "base", "image", "use"}
    assert not [attrs for _, attrs in tags for name in attrs if name.startswith("on") or name == "src"]
    assert {(attrs["href"] or "").partition(":")[0] for tag, attrs in tags if tag == "a"} <= {
        "https",
        *(f"#{code.code}" for code in report_with().codes),
    }
    [policy] = {attrs["content"] for tag, attrs in tags if "http-equiv" in attrs}
    assert policy is not None
    assert policy.startswith("default-src 'none';")


def test_html_is_a_document_for_everybody() -> None:
    tags = tags_of(written("html", report_with(FAILED)))
    assert ("html", {"lang": "en"}) in tags
    assert [tag for tag, _ in tags if tag in ("h1", "main", "title")][:3] == ["title", "main", "h1"]
    assert all("scope" in attrs for tag, attrs in tags if tag == "th")
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labels = {attrs["aria-labelledby"] for _, attrs in tags if "aria-labelledby" in attrs}
    assert labels <= set(ids)
    assert [attrs["role"] for tag, attrs in tags if tag == "svg"] == ["img", "img"]


def test_a_report_of_an_empty_analysis_is_complete() -> None:
    for name in FORMATS:
        written(name, report_with(codes=[], outcomes=[], examples={}))


def test_charts_show_every_number_within_their_frame() -> None:
    summary: dict[str, Any] = report_with().analysis.summary or {}
    chart = status_by_depth(summary)
    assert sum(sum(values.values()) for _, values in chart.rows) == sum(
        int(bar.label.split(": ")[1].split(" ")[0]) for bar in chart.bars
    )
    for bar in [*chart.bars, *response_times(summary).bars]:
        assert bar.x >= 0
        assert bar.y >= 0
        assert bar.y + bar.height <= 240
        assert bar.x + bar.width <= 640
    deep = [{"depth": depth, "2xx": 1, "3xx": 0, "4xx": 0, "5xx": 0, "error": 0} for depth in range(900)]
    rows = status_by_depth({"status_by_depth": deep}).rows
    assert (len(rows), rows[-1]) == (
        25,
        ("24+", {"2xx": 876, "unchanged": 0, "3xx": 0, "4xx": 0, "5xx": 0, "error": 0}),
    )
    [(_, counts), unlinked] = status_by_depth({"status_by_depth": [deep[0], {**deep[0], "depth": None}]}).rows
    assert unlinked == ("no link", counts)


def test_the_site_tree_adds_up_pages_of_folders() -> None:
    [root] = site_tree(report_with().analysis.summary or {})
    assert (root.name, root.pages) == ("/", 138)
    assert [(one.name, one.pages) for one in root.children[:2]] == [("shop/", 111), ("blog/", 22)]


def test_the_result_in_short() -> None:
    assert in_short(report_with()) == "4 errors, 50 warnings, 10 notices on 138 pages"
    assert in_short(report_with(error="no\nluck")) == "Analysis failed: no␊luck"
    failed = report_with(error="Exit code 3: no dictionary.")
    for kind in ("markdown", "annotations"):
        assert "no dictionary." in written(kind, failed)
        assert "no dictionary.." not in written(kind, failed)


def test_the_published_schema_describes_the_report() -> None:
    published = schema()
    described = published["$defs"]["AuditReport"]["properties"]
    assert set(described) == set(orjson.loads(written("json", report_with(FAILED))))


def test_pages_without_a_response_and_what_was_not_checked_are_named_beside_the_others() -> None:
    report = report_with(None, None)
    assert report.analysis.metrics is not None
    report.analysis.metrics["failed_pages"] = 2.0
    assert in_short(report).endswith("on 138 pages (2 more gave no response)")
    html = written("html", report)
    assert re.search(r"pages without a response</dt><dd>2<", html)
    assert "links to other sites, #fragments of links, images" in html  # of an analysis that did not count them
    assert "Not checked" in written("markdown", report)


def test_every_report_names_what_was_not_checked_and_how_to_crawl_what_is_in_quarantine() -> None:
    released = "268 URLs were not crawled. Release them with `shoal crawls release crl_1 PATTERN`."
    report = report_with(FAILED, quarantine=released)
    assert report.analysis.metrics is not None
    report.analysis.metrics["quarantined_urls"] = 268.0  # the analysis is older than the list of what was not checked
    assert report.not_checked.startswith(
        "links to other sites, pages in quarantine as a crawler trap (268), #fragments"
    )
    for name in FORMATS:
        text = written(name, report).replace("\\", "")
        assert "268" in text, name
        assert "shoal crawls release crl_1 PATTERN" in text, name
    [suite, *_] = check_junit(written("junit", report))
    names = {one.get("name"): one.get("value") for one in suite.findall("properties/property")}
    assert names == {"not_checked": report.not_checked, "quarantine": released}
    assert orjson.loads(written("json", report))["summary"]["not_checked"]["quarantined"] == 268
    assert (
        f"::notice title=Not checked::{report.not_checked}. {released}" in written("annotations", report).splitlines()
    )
