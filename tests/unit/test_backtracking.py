"""No regular expression of the project can be made slow by input (ReDoS): all of them are collected and analysed."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import shoal
from shoal.base.url import Canonicalizer, UrlRules
from tests.support.backtracking import suspicions

DEEPEST = 3  # collections within collections


def patterns_in(value: Any, depth: int = 0) -> Iterator["re.Pattern[Any]"]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Canonicalizer):
        yield from patterns_in(list(vars(value).values()))
    elif isinstance(value, tuple | list | dict) and depth < DEEPEST:
        for part in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(part, depth + 1)


def all_patterns() -> dict[str, "re.Pattern[Any]"]:
    found: dict[str, re.Pattern[Any]] = {}
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                for pattern in patterns_in(value):
                    if pattern not in found.values():
                        found[f"{module.name}.{name}.{len(found)}"] = pattern
    rules = UrlRules(drop=("a*", "ab*", "abc"), keep=("aa*", "x"))
    found |= {f"Canonicalizer.{place}": one for place, one in enumerate(patterns_in(Canonicalizer(rules)))}
    return found


PATTERNS = all_patterns()
HARMLESS = {
    "shoal.base.parsing._BUCKET": "61 ways at most, and only operators write settings",
    "shoal.extract.tree._FORMATTING": "at most six characters, compared once, where a possessive repeat has ended",
}


def test_the_patterns_were_found() -> None:
    assert len(PATTERNS) > 80


def test_no_pattern_goes_back_over_what_it_has_read() -> None:
    for where, pattern in PATTERNS.items():
        found = suspicions(pattern)
        assert not found or where.rpartition(".")[0] in HARMLESS, (where, pattern.pattern, found)


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(a|a)*b", r"(?:a|aa)*c", r"\s*,?\s*x", r"(.*?)(?: at (.*))?", r"(a*b?)*c"]
)
def test_known_slow_patterns_are_recognised(pattern: str) -> None:
    assert suspicions(re.compile(pattern))


@pytest.mark.parametrize(
    "pattern", [r"a+b", r"(?:/[a-z]+)*/?", r"\s*=\s*", r"(?:\\.|[^\\])*", r"(?:a++)+", r"\d{1,3}x"]
)
def test_linear_shapes_are_left_alone(pattern: str) -> None:
    assert not suspicions(re.compile(pattern))
