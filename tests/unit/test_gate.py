"""Gates: what is refused and why, and the verdict for every kind of rule and circumstance."""

import time
from typing import Any

import pytest

from shoal.audit.codes import ANALYZER_OF, CODES, NAMED, SUMS, is_timing
from shoal.audit.finding import AnalyzerOutcome, FindingCount, Severity
from shoal.audit.gate import GateRule, parse_gate, read_gate
from shoal.audit.verdict import GateInput, Outcome, Verdict, judge
from shoal.base.errors import InvalidInput

P, F, U = Outcome.PASSED, Outcome.FAILED, Outcome.INCONCLUSIVE


def measured(analyzers: dict[str, str | None] | None = None, **metrics: float) -> GateInput:
    """The metrics of an analysis of a hundred good pages, with some of them replaced."""
    values = dict.fromkeys([*NAMED, *CODES], 0.0) | {"pages": 100.0} | metrics
    counts = [
        FindingCount(ANALYZER_OF[code], code, CODES[code].severity, "", "", int(values[code]), 0)
        for code in CODES
        if values[code]
    ]
    ran: dict[str, str | None] = dict.fromkeys(ANALYZER_OF.values()) | (analyzers or {})
    return GateInput(values, counts, [AnalyzerOutcome(name, error, 0, 0.0) for name, error in ran.items()])


def rule(metric: str, op: str, threshold: float, **more: Any) -> dict[str, Any]:
    return {"metric": metric, "op": op, "threshold": threshold, **more}


@pytest.mark.parametrize(
    ("op", "threshold", "outcome"),
    [
        *(("<", 5, F), ("<", 6, P), ("<=", 5, P), ("<=", 4, F), (">", 4, P), (">", 5, F)),
        *((">=", 5, P), (">=", 6, F), ("==", 5, P), ("==", 4, F), ("!=", 5, F), ("!=", 4, P)),
    ],
)
def test_a_rule_must_hold(op: str, threshold: float, outcome: Outcome) -> None:
    verdict = judge(read_gate({"rules": [rule("broken_links", op, threshold)]}), measured(broken_links=5))
    assert verdict.outcome is outcome
    assert (verdict.rules[0].value, verdict.rules[0].outcome) == (5, outcome)
    assert bool(verdict.reasons) is (outcome is F)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = " + "1" * 5_000, "is not valid TOML"),
        ("min_pages = " + "1" * 4_000, "a number of more than 64 bits"),
        ("[[rules]]\nmetric = 'pages'\nop = '>'\nthreshold = " + "1" * 4_000, "a number of more than 64 bits"),
        ("[[rules]]\nmetric = 'pages'\nop = '>'\nthreshold = 0x" + "f" * 9_000, "a number of more than 64 bits"),
        ("x = [[[{y = 0b1" + "0" * 900_000 + "}]]]", "a number of more than 64 bits"),
        ("a." * 300_000 + "a = 1", "a key has more than 50 parts"),
        ('"a" . ' * 100_000 + "a = 1", "a key has more than 50 parts"),
        (r'"\"".' * 100_000 + "a = 1", "a key has more than 50 parts"),
        ("x = {" + "a." * 300_000 + "a = 1}", "a key has more than 50 parts"),
        ("[" + "a." * 300_000 + "a]", "a key has more than 50 parts"),
        ("x = " + "[" * 100_000, "is nested too deeply"),
        ("x = 1 # " + "a" * 1_000_000, "is larger than 1 MB"),
    ],
)
def test_a_hostile_gate_file_is_refused_at_once(text: str, says: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidInput, match=says):
        parse_gate(text, "gate.toml")
    assert time.process_time() - began < 2


def test_a_rule_of_severity_warning_is_reported_and_fails_nothing() -> None:
    gate = read_gate({"rules": [rule("notices", "<=", 0, severity="warning"), rule("errors", "<=", 0)]})
    verdict = judge(gate, measured(notices=3))
    assert verdict.outcome is P
    assert [one.outcome for one in verdict.rules] == [F, P]
    assert verdict.rules[0].reason == "notices is 3; the gate demands <= 0."


def test_one_finding_of_a_code_to_fail_is_enough() -> None:
    gate = read_gate({"fail": ["redirect_loop"]})
    assert judge(gate, measured()).outcome is P
    assert judge(gate, measured(redirect_loop=1)).outcome is F


def test_findings_of_ignored_codes_count_for_no_rule() -> None:
    gate = read_gate(
        {"rules": [rule("errors", "<=", 0), rule("broken_links", "<=", 1), rule("findings", "<=", 1)],
         "ignore": ["broken_link"]}
    )  # fmt: skip
    found = measured(broken_link=4, link_to_unreachable=1, broken_links=5, errors=5, findings=5)
    verdict = judge(gate, found)
    assert [one.value for one in verdict.rules] == [1, 1, 1]
    assert verdict.outcome is F


@pytest.mark.parametrize(("now", "outcome"), [(2, P), (5, P), (6, F)])
def test_an_increase_is_limited_against_the_baseline(now: int, outcome: Outcome) -> None:
    gate = read_gate({"rules": [{"metric": "server_errors", "max_increase": 2}]})
    verdict = judge(gate, measured(server_errors=now), measured(server_errors=3))
    assert (verdict.outcome, verdict.rules[0].baseline) == (outcome, 3)


def test_an_increase_without_a_baseline_is_inconclusive() -> None:
    verdict = judge(read_gate({"rules": [{"metric": "errors", "max_increase": 0}]}), measured(errors=3))
    assert (verdict.outcome, verdict.rules[0].value) == (U, 3)
    assert verdict.reasons == ["errors cannot be compared: there is no baseline."]


@pytest.mark.parametrize(
    ("metrics", "baseline", "says"),
    [
        ({"pages": 0.0}, None, "The crawl has 0 pages; the gate needs 1."),
        ({"pages": 49.0}, 100.0, "The crawl has 49 pages, less than 50 % of the 100 pages of the baseline."),
        ({"blocked_pages": 50.0}, None, "The site refused the crawler: 50 of 100 pages"),
        ({"quarantined_urls": 100.0}, None, "The crawl ran into a trap: 100 URLs were quarantined"),
    ],
)
def test_a_crawl_that_says_too_little_can_neither_pass_nor_fail(
    metrics: dict[str, float], baseline: float | None, says: str
) -> None:
    before = None if baseline is None else measured(pages=baseline)
    for errors in (0, 7):
        verdict = judge(read_gate({"rules": [rule("errors", "<=", 0)]}), measured(**metrics, errors=errors), before)
        assert verdict.outcome is U
        assert verdict.reasons[0].startswith(says)
        assert verdict.rules[0].value == errors


@pytest.mark.parametrize("metric", ["broken_links", "broken_link", "errors", "findings"])
def test_a_metric_whose_analyzer_failed_is_not_measured(metric: str) -> None:
    found = measured({"links": "RuntimeError: no"})
    verdict = judge(read_gate({"rules": [rule(metric, "<=", 0), rule("pages", ">", 1)]}), found)
    assert verdict.outcome is U
    assert 'analyzer "links" failed (RuntimeError: no).' in verdict.reasons[0]
    worse = judge(read_gate({"rules": [rule(metric, "<=", 0), rule("pages", ">", 1000)]}), found)
    assert worse.outcome is F, "another rule fails for certain"


def test_metrics_of_plug_ins_count_from_zero_if_the_plug_in_ran() -> None:
    gate = read_gate({"rules": [rule("spelling.mistake", "<=", 0)]})
    assert judge(gate, measured({"spelling": None})).outcome is P
    found = measured({"spelling": None})
    assert judge(gate, GateInput(found.metrics | {"spelling.mistake": 2}, found.counts, found.outcomes)).outcome is F
    assert judge(gate, measured()).outcome is U


def test_a_verdict_is_restored_from_what_is_stored() -> None:
    verdict = judge(read_gate({"rules": [rule("errors", "<=", 0)]}), measured(errors=1))
    assert Verdict.of(verdict.to_dict()) == verdict


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "rules are missing"),
        ([], "gate is not an object"),
        ({"rules": 3}, "rules is not a list of objects"),
        (
            {"rules": [rule("broken_linkz", "<=", 0)]},
            'rules[0].metric is "broken_linkz", which is not a metric; use "broken_link"',
        ),
        ({"rules": [rule("pages", "=<", 0)]}, "rules[0].op cannot be '=<'"),
        ({"rules": [rule("pages", "<=", "many")]}, "rules[0].threshold cannot be 'many'; give a number"),  # type: ignore[arg-type]
        ({"rules": [{"metric": "pages", "op": "<="}]}, "rules[0].threshold is missing"),
        ({"rules": [{"metric": "pages"}]}, "rules[0] needs either op and threshold, or max_increase"),
        ({"rules": [rule("pages", "<=", 1, max_increase=1)]}, "rules[0] needs either"),
        ({"rules": [{"metric": "pages", "max_increase": -1}]}, "rules[0].max_increase is below zero"),
        ({"rules": [rule("pages", "<", float("inf"))]}, "rules[0].threshold is not a finite number"),
        ({"rules": [rule("pages", "<=", 1, servity="error")]}, "rules[0].servity"),
        ({"rules": [rule("pages", "<=", 1)], "ignored": []}, "ignored"),
        ({"rules": [rule("pages", ">", 10), rule("pages", "<", 5)]}, "rules contradict each other: pages > 10 and"),
        ({"rules": [rule("pages", "==", 1), rule("pages", "!=", 1)]}, "rules contradict"),
        ({"rules": [rule("pages", "<", 0)]}, "rules contradict"),
        ({"fail": ["broken_link"], "ignore": ["broken_link"]}, "fail[0] is broken_link, which the gate ignores"),
        ({"rules": [rule("server_errors", "<", 1)], "ignore": ["server_error"]}, "rules[0].metric is server_errors"),
        ({"fail": ["broken"]}, 'fail[0] is "broken", which is not a finding code; use "broken_link", for example'),
    ],
)  # fmt: skip
def test_a_bad_gate_is_refused_with_the_field_and_the_fix(values: Any, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_gate(values)
    assert refused.value.message.startswith(says)


@pytest.mark.parametrize(
    "rules",
    [
        [rule("pages", ">=", 5), rule("pages", "<=", 5)],
        [rule("pages", ">", 1), rule("pages", "<", 2)],
        [rule("pages", "!=", 1), rule("pages", "!=", 2)],
        [rule("pages", "<=", 5), rule("pages", "<", 3), rule("pages", ">", 2)],
    ],
)
def test_rules_that_can_hold_together_are_accepted(rules: list[dict[str, Any]]) -> None:
    assert len(read_gate({"rules": rules}).rules) == len(rules)


def test_files_are_toml_or_json() -> None:
    toml = parse_gate('fail = ["broken_link"]\n[[rules]]\nmetric = "pages"\nop = ">="\nthreshold = 2\n', "gate.toml")
    json = parse_gate(
        '{"fail": ["broken_link"], "rules": [{"metric": "pages", "op": ">=", "threshold": 2}]}', "gate.json"
    )
    assert toml == json
    assert toml.rules == [GateRule(metric="pages", op=">=", threshold=2)]
    for name, kind in (("gate.toml", "TOML"), ("gate.json", "JSON")):
        with pytest.raises(InvalidInput, match=f"{name} is not valid {kind}"):
            parse_gate("[[rules", name)
    with pytest.raises(InvalidInput, match="larger than 1 MB"):
        parse_gate("#" * 1_000_001, "gate.toml")


def test_sums_and_timings_are_made_of_codes() -> None:
    assert {code for codes in SUMS.values() for code in codes} <= CODES.keys()
    assert is_timing("slow_page")
    assert not is_timing("broken_link")


def test_codes_say_what_is_wrong_and_how_to_fix_it() -> None:
    for code in CODES.values():
        assert code.severity in Severity
        assert code.title.endswith(".")
        assert code.fix.endswith(".")
