"""Quality gates: the rules that a crawl must meet, as data. They are validated strictly and never run as code. Pure."""

import re
from collections.abc import Mapping
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, Final, Literal

import orjson
from msgspec import Meta, field

from shoal.audit.codes import CODES, NAMED, SUMS
from shoal.base.errors import InvalidInput
from shoal.base.parsing import read_toml
from shoal.base.request_form import Form, describe
from shoal.base.text import nearest, shorten

Op = Literal["<", "<=", ">", ">=", "==", "!="]
RuleSeverity = Literal["error", "warning"]
Word = Annotated[str, Meta(min_length=1, max_length=100)]
Codes = Annotated[list[Word], Meta(max_length=500)]
Percent = Annotated[float, Meta(ge=0, le=100)]

MOST_RULES: Final = 200
LARGEST_FILE: Final = 1_000_000
_OF_PLUGIN = re.compile(r"[a-z][a-z0-9_]{0,63}\.[a-z][a-z0-9_]{0,63}")


class GateRule(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition that must hold: `metric op threshold`, or a limit on the increase against the baseline."""

    metric: Annotated[Word, describe("Metric or finding code to compare.")]
    op: Annotated[Op | None, describe("Comparison operator; the rule holds if `metric op threshold` is true.")] = None
    threshold: Annotated[float | None, describe("Value to compare the metric with.")] = None
    max_increase: Annotated[
        float | None, describe("Maximum increase against the baseline, instead of op and threshold.")
    ] = None
    severity: Annotated[
        RuleSeverity, describe("`warning`: report the rule, but do not fail the gate because of it.")
    ] = "error"

    def checked(self, place: str) -> "GateRule":
        """Return the rule if it is complete; errors name it by its place in the gate."""
        check_metric(self.metric, f"{place}.metric")
        compares = self.op is not None or self.threshold is not None
        if compares == (self.max_increase is not None):
            raise InvalidInput(
                place,
                "needs either op and threshold, or max_increase",
                'write op = "<=" and threshold = 0, for example',
            )
        if compares and (self.op is None or self.threshold is None):
            lacking = "op" if self.op is None else "threshold"
            raise InvalidInput(f"{place}.{lacking}", "is missing", "op and threshold belong together")
        for name in ("threshold", "max_increase"):
            value = getattr(self, name)
            if value is not None and not isfinite(value):
                raise InvalidInput(f"{place}.{name}", "is not a finite number", "give a number")
        if self.max_increase is not None and self.max_increase < 0:
            raise InvalidInput(f"{place}.max_increase", "is below zero", "give 0 or more")
        return self

    @property
    def condition(self) -> str:
        """The rule in words, as it was written."""
        if self.max_increase is not None:
            return f"{self.metric} increases by at most {self.max_increase:g}"
        return f"{self.metric} {self.op} {self.threshold:g}"


class Gate(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of a gate. Findings with an ignored code do not count for any rule."""

    rules: Annotated[list[GateRule], describe("Conditions that must hold.", max_length=MOST_RULES)] = field(
        default_factory=list
    )
    ignore: Annotated[Codes, describe("Finding codes that the gate ignores.")] = field(default_factory=list)
    fail: Annotated[
        Codes, describe("Finding codes that fail the gate; a single finding with one of these codes is enough.")
    ] = field(default_factory=list)
    min_pages: Annotated[
        int, describe("Minimum number of pages; with fewer, the verdict is inconclusive.", ge=0, le=10**12)
    ] = 1
    min_pages_percent: Annotated[
        Percent,
        describe("Minimum number of pages, in percent of the baseline; with fewer, the verdict is inconclusive."),
    ] = 50.0

    raw: ClassVar = frozenset({"rules"})

    def checked(self) -> "Gate":
        """Return the gate if its rules can all hold at the same time."""
        if not self.rules and not self.fail:
            raise InvalidInput(
                "rules", "are missing, so the gate would judge nothing", "add a rule, or finding codes to `fail`"
            )
        for place, rule in enumerate(self.rules):
            rule.checked(f"rules[{place}]")
        for name in ("ignore", "fail"):
            for place, code in enumerate(getattr(self, name)):
                _check_code(code, f"{name}[{place}]")
        self._check_ignored()
        self._check_ranges()
        return self

    def _check_ignored(self) -> None:
        ignored = set(self.ignore)
        for place, code in enumerate(self.fail):
            if code in ignored:
                raise InvalidInput(f"fail[{place}]", f"is {code}, which the gate ignores", "remove it from one list")
        for place, rule in enumerate(self.rules):
            if rule.metric in ignored or (rule.metric in SUMS and ignored.issuperset(SUMS[rule.metric])):
                raise InvalidInput(
                    f"rules[{place}].metric", f"is {rule.metric}, which the gate ignores", "remove the rule or the code"
                )

    def _check_ranges(self) -> None:
        """Refuse rules about one metric that no value can meet, such as `pages > 10` and `pages < 5`."""
        for metric in {rule.metric for rule in self.rules}:
            rules = [rule for rule in self.rules if rule.metric == metric and rule.op is not None]
            if rules and not _can_hold(rules):
                contradicting = " and ".join(rule.condition for rule in rules)
                raise InvalidInput("rules", f"contradict each other: {contradicting}", "remove one of them")


def _can_hold(rules: list[GateRule]) -> bool:
    """Return whether a number of at least zero meets all rules."""
    low, low_open, high, high_open = 0.0, False, inf, False
    for rule in rules:
        value = rule.threshold or 0.0
        if rule.op in (">", ">=", "==") and (value, rule.op == ">") > (low, low_open):
            low, low_open = value, rule.op == ">"
        if rule.op in ("<", "<=", "==") and (value, rule.op != "<") < (high, not high_open):
            high, high_open = value, rule.op == "<"
    if low > high or (low == high and (low_open or high_open)):
        return False
    return low < high or all(rule.op != "!=" or rule.threshold != low for rule in rules)


def read_gate(values: Any, place: str = "gate") -> Gate:
    """Validate a gate that came as JSON or TOML; errors name the field."""
    if not isinstance(values, Mapping):
        raise InvalidInput(place, "is not an object", "give an object with rules")
    rules = values.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise InvalidInput("rules", "is not a list of objects", "write each rule as [[rules]]")
    read = [
        GateRule.read(rule, called=lambda name, at=at: f"rules[{at}].{name}")  # type: ignore[misc]
        for at, rule in enumerate(rules[: MOST_RULES + 1])
    ]
    rest = Gate.read({name: value for name, value in values.items() if name != "rules"})
    if len(read) > MOST_RULES:
        raise InvalidInput("rules", f"has more than {MOST_RULES} entries", "split the gate")
    return Gate(
        rules=read, ignore=rest.ignore, fail=rest.fail, min_pages=rest.min_pages,
        min_pages_percent=rest.min_pages_percent,
    ).checked()  # fmt: skip


def parse_gate(text: str, name: str) -> Gate:
    """Parse the text of a gate file: JSON if its name ends in `.json`, else TOML."""
    if len(text) > LARGEST_FILE:
        raise InvalidInput(name, "is larger than 1 MB", "give a file with rules")
    try:
        values = orjson.loads(text) if name.lower().endswith(".json") else read_toml(text)
    except ValueError as error:
        kind = "JSON" if name.lower().endswith(".json") else "TOML"
        raise InvalidInput(name, f"is not valid {kind} ({shorten(error, 200)})", "correct it") from None
    return read_gate(values, name)


def check_metric(name: str, place: str) -> None:
    """Refuse a metric that no analyzer measures. Metrics of plug-ins have the form `analyzer.code`; only workers know
    them."""
    known = [*NAMED, *CODES]
    if name in NAMED or name in CODES or _OF_PLUGIN.fullmatch(name):
        return
    raise InvalidInput(place, f'is "{shorten(name)}", which is not a metric', _suggestion(name, known))


def _check_code(code: str, place: str) -> None:
    if code in CODES or _OF_PLUGIN.fullmatch(code):
        return
    raise InvalidInput(place, f'is "{shorten(code)}", which is not a finding code', _suggestion(code, list(CODES)))


def _suggestion(name: str, known: list[str]) -> str:
    meant = nearest(name, known)
    return f'use "{meant}", for example' if meant else "see the reference of findings and metrics"
