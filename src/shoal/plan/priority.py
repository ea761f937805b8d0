"""The priority of a policy's job, and the rules of the operator that change it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from shoal.base.errors import BadConfig
from shoal.base.parsing import read_config_file, read_toml
from shoal.base.text import shorten

LOWEST, HIGHEST = 0, 100


@dataclass(frozen=True, slots=True)
class PriorityFacts:
    """The values from which the rules compute points."""

    importance: int  # `priority_base` of the policy
    staleness: float  # time since the last success, in schedule intervals; 0 right after a success, 1 when due
    error_rate: float  # error rate of its last runs, 0 to 1
    signal: float  # sum of the boosts of its URL and labels
    overdue_seconds: float


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """Points for one of the `PriorityFacts`: `per` points for each unit, at most `most` and at least -`most`."""

    fact: str
    per: float
    most: float


@dataclass(frozen=True, slots=True)
class Priority:
    """A priority, and the parts whose sum it is."""

    value: int
    parts: tuple[tuple[str, float], ...]


RULES = (
    PriorityRule("importance", 1, 100),
    PriorityRule("staleness", 5, 20),
    PriorityRule("error_rate", -20, 20),
    PriorityRule("signal", 1, 50),
)
FACTS = tuple(PriorityFacts.__slots__)


def rate(facts: PriorityFacts, rules: tuple[PriorityRule, ...] = RULES) -> Priority:
    """Sum the points of all rules."""
    parts = []
    for rule in rules:
        points = rule.per * getattr(facts, rule.fact)
        parts.append((rule.fact, round(max(-rule.most, min(rule.most, points)), 1)))
    total = round(sum(points for _, points in parts))
    return Priority(max(LOWEST, min(HIGHEST, total)), tuple(parts))


def read_rules(values: Any, name: str) -> tuple[PriorityRule, ...]:
    """Parse an operator's rules: `{"staleness": {"per": 5, "limit": 20}}`; `most` is accepted as an alternative name
    for `limit`. A fact without a rule adds no points. Error messages start with `name`."""
    if not isinstance(values, dict) or not values:
        raise BadConfig(name, "has no rules", 'write them as {"staleness": {"per": 5, "limit": 20}}')
    return tuple(_read_rule(fact, rule, name) for fact, rule in values.items())


def _read_rule(fact: str, rule: Any, name: str) -> PriorityRule:
    if fact not in FACTS:
        raise BadConfig(f"{name} {shorten(fact)}", "is not a fact that rules can use", f"use {', '.join(FACTS)}")
    numbers = rule if isinstance(rule, dict) else {}
    per, most = numbers.get("per", None), numbers.get("limit", numbers.get("most", HIGHEST))
    if (
        set(numbers) not in ({"per"}, {"per", "limit"}, {"per", "most"})
        or not _is_number(per)
        or not _is_number(most)
        or most < 0
    ):
        raise BadConfig(f"{name} {fact}", "is not a rule", 'write it as {"per": 5, "limit": 20}')
    return PriorityRule(fact, per, most)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e6


SETTING = "SHOAL_PRIORITY_RULES"


def read_priority_rules(path: Path | None) -> tuple[PriorityRule, ...]:
    """Return the rules in a file, which is TOML if its name ends with `.toml`, otherwise JSON. Without a file, return
    the built-in rules."""
    return RULES if path is None else read_rules(_read(path), f"{SETTING} ({path}):")


def _read(path: Path) -> Any:
    try:
        data = read_config_file(path)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise BadConfig(SETTING, f"names {path}, which cannot be read ({why})", "use a readable file") from None
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        return read_toml(data.decode()) if kind == "TOML" else orjson.loads(data)
    except ValueError as error:  # invalid TOML, JSON or UTF-8
        problem = f"names {path}, which is not {kind} ({shorten(error, 200)})"
        raise BadConfig(SETTING, problem, "correct that line") from None
