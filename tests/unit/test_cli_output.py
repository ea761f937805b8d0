"""API responses formatted for people."""

from typing import Any

import pytest

from shoal.cli.output import facts_of, shown


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, ""),
        ("", ""),
        (0, "0"),
        (True, "yes"),
        (False, "no"),
        (4.38179, "4.38"),
        (1234.5, "1,234"),
        ("2026-03-01T09:00:00.123456Z", "2026-03-01T09:00:00Z"),
        ("2026-03-01T09:00:00Z", "2026-03-01T09:00:00Z"),
        ("at 2026-03-01T09:00:00.123456Z", "at 2026-03-01T09:00:00.123456Z"),
        (["a", "b"], "a, b"),
        ([], ""),
        (
            {"other_host": 3, "none": None, "seen_at": "2026-03-01T09:00:00.1Z"},
            "other_host 3, seen_at 2026-03-01T09:00:00Z",
        ),
    ],
)
def test_a_value_is_shown_for_people(value: Any, says: str) -> None:
    assert shown(value) == says


def test_empty_values_are_left_out() -> None:
    told = facts_of({"id": "x", "started_at": None, "max_pages": 5, "labels": {}}, without=("id",))
    assert told == [("Max pages", "5")]
