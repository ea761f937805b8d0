"""The table of faults: every number is there, and every test that it names exists."""

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
FAULTS: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "faults.toml").read_text())
RANGES = (
    ("F", 1, 66),
    ("F", 69, 73),
    ("F", 77, 77),
    ("W", 1, 6),
    ("B", 1, 80),
    ("B", 82, 90),
    ("B", 92, 93),
)  # a new number: a range here, a row in the table
NUMBERS = [f"{letter}{number}" for letter, first, last in RANGES for number in range(first, last + 1)]


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def test_every_fault_of_the_list_is_in_the_table() -> None:
    assert [number for number in NUMBERS if number not in FAULTS] == []


def test_a_fault_is_held_by_tests_that_exist_or_says_what_it_waits_for() -> None:
    for number, fault in FAULTS.items():
        named = fault.get("tests", [])
        assert fault["what"], number
        assert bool(named) != bool(fault.get("waits")), f"{number} needs tests, or what they wait for"
        for test in named:
            path, _, name = test.partition("::")
            assert name in names_in(path), f"{number}: {test}"


def test_no_row_has_a_number_that_is_in_no_range() -> None:
    assert [number for number in FAULTS if number not in NUMBERS] == []
