"""The priority of a job: the sum of the points of all rules, within bounds, with its parts."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import BadConfig
from shoal.plan.priority import RULES, PriorityFacts, PriorityRule, rate, read_priority_rules, read_rules

CALM = PriorityFacts(importance=50, staleness=0, error_rate=0, signal=0, overdue_seconds=0)


def test_a_policy_that_is_just_due_has_the_priority_of_its_base() -> None:
    assert rate(CALM).value == 50


def test_staleness_and_signals_raise_the_priority_and_failures_lower_it() -> None:
    stale = PriorityFacts(50, 3, 0, 0, 0)
    failing = PriorityFacts(50, 0, 1, 0, 0)
    hot = PriorityFacts(50, 0, 0, 30, 0)
    assert rate(stale).value == 65
    assert rate(failing).value == 30
    assert rate(hot).value == 80
    assert dict(rate(hot).parts) == {"importance": 50, "staleness": 0, "error_rate": 0, "signal": 30}


@given(st.integers(0, 100), st.floats(0, 1e9), st.floats(0, 1), st.floats(-1e9, 1e9))
def test_a_priority_is_always_from_0_to_100(base: int, staleness: float, errors: float, signal: float) -> None:
    assert 0 <= rate(PriorityFacts(base, staleness, errors, signal, 0)).value <= 100


def test_priority_rules_are_read_from_plain_data() -> None:
    rules = read_rules({"importance": {"per": 0.5}, "overdue_seconds": {"per": 0.01, "most": 10}}, "rules")
    assert rules == (PriorityRule("importance", 0.5, 100), PriorityRule("overdue_seconds", 0.01, 10))
    assert rate(PriorityFacts(50, 9, 1, 9, 500), rules).value == 30


def test_rules_come_from_a_file_and_are_built_in_without_one(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("[staleness]\nper = 10\nmost = 40\n")
    (tmp_path / "rules.json").write_text('{"staleness": {"per": 10, "most": 40}}')
    assert (
        read_priority_rules(tmp_path / "rules.toml")
        == read_priority_rules(tmp_path / "rules.json")
        == (PriorityRule("staleness", 10, 40),)
    )
    assert read_priority_rules(None) == RULES


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("rules.json", None, "which cannot be read (no such file"),
        ("rules.json", "{", "which is not JSON"),
        ("rules.toml", "[staleness", "which is not TOML"),
        ("rules.toml", "[staleness]\nper = nan", "staleness is not a rule"),
        ("rules.json", '{"stalenes": {"per": 1}}', "stalenes is not a fact that rules can use; use importance,"),
    ],
)
def test_a_file_that_has_no_rules_is_refused_by_its_name(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BadConfig) as refusal:
        read_priority_rules(tmp_path / name)
    assert refusal.value.message.startswith("SHOAL_PRIORITY_RULES")
    assert str(tmp_path / name) in refusal.value.message
    assert words in refusal.value.message


def test_a_file_of_rules_that_would_block_or_is_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rules.toml")
    with pytest.raises(BadConfig, match="it is not a regular file"):
        read_priority_rules(tmp_path / "rules.toml")
    with pytest.raises(BadConfig, match="it has more than 1,000,000 bytes"):
        read_priority_rules(Path("/dev/zero"))


@pytest.mark.parametrize(
    "values",
    [
        [],
        {},
        "x",
        {"nonsense": {"per": 1}},
        {"signal": 3},
        {"signal": {"per": "1"}},
        {"signal": {"per": 1, "most": -1}},
    ],
)
def test_bad_rules_are_refused_by_name(values: Any) -> None:
    with pytest.raises(BadConfig, match=r"^rules"):
        read_rules(values, "rules")
