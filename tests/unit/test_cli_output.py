"""API responses formatted for people."""

import json
from typing import Any

import pytest

from shoal.cli.output import Columns, facts_of, print_list, shown


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


def test_a_list_has_a_column_per_field_or_function_and_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"id": "a", "made_at": "2026-03-01T09:00:00.123456Z", "parts": 2, "end": None}]
    columns: Columns = {"id": "id", "made": "made_at", "twice": lambda one: 2 * one["parts"], "end": "end"}
    print_list(items, "MTI", columns, as_json=False)
    printed = capsys.readouterr()
    assert printed.out == "ID  MADE                  TWICE  END\na   2026-03-01T09:00:00Z  4\n"
    assert "raise --limit" in printed.err
    print_list(items, None, columns, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"items": items, "next": None}
    assert not printed.err
