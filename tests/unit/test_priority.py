"""How much a job matters: the sum of what each rule gives, kept within bounds, with its parts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import InvalidInput
from shoal.plan.priority import Facts, Rule, rate, read_rules

CALM = Facts(importance=50, staleness=0, error_rate=0, signal=0, overdue_seconds=0)


def test_a_policy_that_is_just_due_has_the_priority_of_its_base() -> None:
    assert rate(CALM).value == 50


def test_what_is_stale_rises_what_fails_falls_and_a_signal_counts() -> None:
    stale = Facts(50, 3, 0, 0, 0)
    failing = Facts(50, 0, 1, 0, 0)
    hot = Facts(50, 0, 0, 30, 0)
    assert rate(stale).value == 65
    assert rate(failing).value == 30
    assert rate(hot).value == 80
    assert dict(rate(hot).parts) == {"importance": 50, "staleness": 0, "error_rate": 0, "signal": 30}


@given(st.integers(0, 100), st.floats(0, 1e9), st.floats(0, 1), st.floats(-1e9, 1e9))
def test_a_priority_is_always_from_0_to_100(base: int, staleness: float, errors: float, signal: float) -> None:
    assert 0 <= rate(Facts(base, staleness, errors, signal, 0)).value <= 100


def test_rules_are_data() -> None:
    rules = read_rules({"importance": {"per": 0.5}, "overdue_seconds": {"per": 0.01, "most": 10}}, "rules")
    assert rules == (Rule("importance", 0.5, 100), Rule("overdue_seconds", 0.01, 10))
    assert rate(Facts(50, 9, 1, 9, 500), rules).value == 30


@pytest.mark.parametrize(
    "values",
    [[], "x", {"nonsense": {"per": 1}}, {"signal": 3}, {"signal": {"per": "1"}}, {"signal": {"per": 1, "most": -1}}],
)
def test_bad_rules_are_refused_by_name(values: Any) -> None:
    with pytest.raises(InvalidInput, match="rules"):
        read_rules(values, "rules")
