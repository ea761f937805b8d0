"""The output of `shoal audit`: the table on stdout, the verdict and what to do next on stderr."""

from dataclasses import replace

import pytest

from shoal.audit.finding import Finding, Severity
from shoal.audit.reports.report import Report
from shoal.audit.verdict import Outcome, RuleResult, Verdict
from shoal.cli.audit import LONGEST_EXAMPLE, print_summary
from tests.support.audit_reports import SITE, report_with

FAILED = Verdict(
    Outcome.FAILED,
    ["broken_links is 2; the gate demands <= 0."],
    [
        RuleResult("broken_links <= 0", "broken_links", "error", Outcome.FAILED, 2.0, None, "broken_links is 2; …"),
        RuleResult("pages > 9", "pages", "warning", Outcome.FAILED, 7.0, None, "pages is 7; the gate demands > 9."),
        RuleResult("errors <= 9", "errors", "warning", Outcome.PASSED, 1.0),
    ],
)


def printed(report: Report, capsys: pytest.CaptureFixture[str], earlier: str | None = None) -> tuple[str, str]:
    print_summary(report, None, earlier)
    return capsys.readouterr()


def test_a_long_url_does_not_push_the_fixes_away(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_with()
    long = Finding("links", "broken_link", Severity.ERROR, f"{SITE}{'long/' * 100}", 1)
    out, _ = printed(replace(report, examples={**report.examples, "broken_link": [long]}), capsys)
    header, *rows = out.splitlines()
    assert header.index("FIX") - header.index("EXAMPLE") <= LONGEST_EXAMPLE + 3  # an ellipsis and a gap
    [row] = [row for row in rows if " broken_link " in row]
    assert "/long…  " in row
    assert "(the whole site)" in out


def test_rules_that_only_warn_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = printed(report_with(FAILED), capsys)
    lines = err.splitlines()
    at = lines.index("Gate: failed")
    assert lines[at + 1 : at + 3] == [
        "  broken_links is 2; the gate demands <= 0.",
        "  Warning: pages is 7; the gate demands > 9.",
    ]


def test_the_next_step_names_the_crawl_of_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = printed(report_with(FAILED), capsys)
    assert "What changed since an earlier crawl: `shoal crawls diff EARLIER " in err
    _, err = printed(report_with(FAILED), capsys, "crl_before")
    assert "What changed since the baseline: `shoal crawls diff crl_before " in err
    _, err = printed(report_with(), capsys)
    assert "To fail a build on errors, write `fail = [" in err


def test_a_report_that_was_just_written_is_not_advised(capsys: pytest.CaptureFixture[str]) -> None:
    advice = "Every page with its evidence: `shoal analyses report "
    print_summary(report_with(), None)
    assert advice in capsys.readouterr().err
    print_summary(report_with(), None, has_full_report=True)
    assert advice not in capsys.readouterr().err
