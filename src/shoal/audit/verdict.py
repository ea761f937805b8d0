"""The verdict of a gate: passed, failed or inconclusive, with the measured value of every rule. Pure."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from shoal.audit.codes import ANALYZER_OF, BY_SEVERITY, SUMS, Metrics
from shoal.audit.finding import AnalyzerOutcome, FindingCount
from shoal.audit.gate import Gate, GateRule
from shoal.base.text import message

BLOCKED_SHARE: Final = 0.5  # share of all pages
TRAPPED_SHARE: Final = 1.0  # quarantined URLs per page

_HOLDS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

TOO_FEW_PAGES: Final = message("The crawl has {pages} pages; the gate needs {needed}.")
FEWER_THAN_BASELINE: Final = message(
    "The crawl has {pages} pages, less than {percent} % of the {before} pages of the baseline."
)
BLOCKED: Final = message("The site refused the crawler: {blocked} of {pages} pages answered 401, 403, 407, 429 or 503.")
TRAPPED: Final = message("The crawl ran into a trap: {trapped} URLs were quarantined, and {pages} pages fetched.")
NOT_MEASURED: Final = message("{metric} was not measured: {why}")
NOT_HELD: Final = message("{metric} is {value}; the gate demands {demand}.")
NOT_COMPARED: Final = message("{metric} cannot be compared: there is no baseline.")
ROSE: Final = message("{metric} rose from {before} to {value}; the gate allows an increase of {most}.")
REASONS: Final = (
    TOO_FEW_PAGES,
    FEWER_THAN_BASELINE,
    BLOCKED,
    TRAPPED,
    NOT_MEASURED,
    NOT_HELD,
    NOT_COMPARED,
    ROSE,
)
"""The texts of the reasons in verdicts, which are stored in English."""


class Outcome(StrEnum):
    """The outcome of a gate, and of each of its rules."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"  # the crawl shows too little of the site to pass or fail


LABELS: Final[Mapping[Outcome, str]] = {
    Outcome.PASSED: message("Passed"),
    Outcome.FAILED: message("Failed"),
    Outcome.INCONCLUSIVE: message("Inconclusive"),
}
VERDICTS: Final[Mapping[Outcome, str]] = {
    Outcome.PASSED: message("Gate passed"),
    Outcome.FAILED: message("Gate failed"),
    Outcome.INCONCLUSIVE: message("Gate inconclusive"),
}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule and its measured value. `value` is None if the metric could not be measured; `reason` says why the rule
    did not pass."""

    condition: str
    metric: str
    severity: str
    outcome: Outcome
    value: float | None
    baseline: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a gate. `reasons` are sentences for people; empty if the gate passed."""

    outcome: Outcome
    reasons: list[str] = field(default_factory=list)
    rules: list[RuleResult] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """Why rules that cannot fail the gate did not pass."""
        return [rule.reason for rule in self.rules if rule.severity == "warning" and rule.reason is not None]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Restore a verdict from the output of `to_dict`."""
        rules = [RuleResult(**{**rule, "outcome": Outcome(rule["outcome"])}) for rule in values["rules"]]
        return cls(Outcome(values["outcome"]), list(values["reasons"]), rules)


@dataclass(frozen=True, slots=True)
class GateInput:
    """The input of a gate: the metrics of an analysis, the counts of its findings, and how its analyzers ended."""

    metrics: Metrics
    counts: Sequence[FindingCount]
    outcomes: Sequence[AnalyzerOutcome]

    def without(self, ignored: list[str]) -> Metrics:
        """Return the metrics as they would be without the findings of some codes."""
        metrics, out = dict(self.metrics), set(ignored)
        for count in self.counts:
            if count.code in out:
                metrics["findings"] -= count.count
                metrics[f"{count.severity}s"] -= count.count
                for name, codes in SUMS.items():
                    if count.code in codes:
                        metrics[name] -= count.count
        return metrics


def judge(gate: Gate, measured: GateInput, baseline: GateInput | None = None) -> Verdict:
    """Compare the metrics of an analysis with the rules of a gate.

    If the crawl shows too little of the site, the verdict is inconclusive, whatever the rules say. Otherwise, one
    failed rule fails the gate. If no rule failed, the verdict is inconclusive if a rule could not be measured, or if an
    analyzer that is not optional failed.
    """
    metrics = measured.without(gate.ignore)
    before = None if baseline is None else baseline.without(gate.ignore)
    no_findings = (GateRule(metric=code, op="==", threshold=0) for code in gate.fail)
    rules = [_judge_rule(rule, metrics, before, measured) for rule in (*gate.rules, *no_findings)]
    doubts = _doubts(gate, measured.metrics, None if baseline is None else baseline.metrics)
    if doubts:
        return Verdict(Outcome.INCONCLUSIVE, doubts, rules)
    decisive = [rule for rule in rules if rule.severity == "error"]
    for outcome in (Outcome.FAILED, Outcome.INCONCLUSIVE):
        reasons = [rule.reason or rule.condition for rule in decisive if rule.outcome is outcome]
        if reasons:
            return Verdict(outcome, reasons, rules)
    if failed := [f'Analyzer "{one.analyzer}" {one.missing}.' for one in measured.outcomes if one.fails_analysis]:
        return Verdict(Outcome.INCONCLUSIVE, failed, rules)
    return Verdict(Outcome.PASSED, [], rules)


def _doubts(gate: Gate, metrics: Metrics, baseline: Metrics | None) -> list[str]:
    """Return why the crawl shows too little of the site to be judged."""
    pages, doubts = metrics["pages"], []
    blocked, trapped = metrics["blocked_pages"], metrics["quarantined_urls"]
    if pages < gate.min_pages:
        doubts.append(TOO_FEW_PAGES.format(pages=f"{pages:g}", needed=gate.min_pages))
    if baseline is not None and pages < baseline["pages"] * gate.min_pages_percent / 100:
        percent, before = f"{gate.min_pages_percent:g}", f"{baseline['pages']:g}"
        doubts.append(FEWER_THAN_BASELINE.format(pages=f"{pages:g}", percent=percent, before=before))
    if pages and blocked >= pages * BLOCKED_SHARE:
        doubts.append(BLOCKED.format(blocked=f"{blocked:g}", pages=f"{pages:g}"))
    if trapped and trapped >= pages * TRAPPED_SHARE:
        doubts.append(TRAPPED.format(trapped=f"{trapped:g}", pages=f"{pages:g}"))
    return doubts


def _judge_rule(rule: GateRule, metrics: Metrics, baseline: Metrics | None, measured: GateInput) -> RuleResult:
    def result(outcome: Outcome, value: float | None, reason: str | None, earlier: float | None = None) -> RuleResult:
        return RuleResult(rule.condition, rule.metric, rule.severity, outcome, value, earlier, reason)

    missing = _missing(rule.metric, measured)
    if missing is not None:
        return result(Outcome.INCONCLUSIVE, None, NOT_MEASURED.format(metric=rule.metric, why=missing))
    value = metrics.get(rule.metric, 0.0)
    if rule.op is not None and rule.threshold is not None:
        holds = _HOLDS[rule.op](value, rule.threshold)
        demand = f"{rule.op} {rule.threshold:g}"
        reason = NOT_HELD.format(metric=rule.metric, value=f"{value:g}", demand=demand)
        return result(_outcome(holds), value, None if holds else reason)
    if baseline is None:
        return result(Outcome.INCONCLUSIVE, value, NOT_COMPARED.format(metric=rule.metric))
    earlier, most = baseline.get(rule.metric, 0.0), rule.max_increase or 0.0
    holds = value - earlier <= most
    reason = ROSE.format(metric=rule.metric, before=f"{earlier:g}", value=f"{value:g}", most=f"{most:g}")
    return result(_outcome(holds), value, None if holds else reason, earlier)


def _outcome(holds: bool) -> Outcome:
    return Outcome.PASSED if holds else Outcome.FAILED


def _missing(metric: str, measured: GateInput) -> str | None:
    """Return why a metric has no value: an analyzer that it depends on failed, was skipped, or did not run."""
    missing = {one.analyzer: one.missing for one in measured.outcomes if one.missing is not None}
    if metric in BY_SEVERITY or metric == "findings":
        needed = list(missing)
    else:
        needed = [ANALYZER_OF.get(code, code.partition(".")[0]) for code in SUMS.get(metric, (metric,))]
    for name in needed:
        if name in missing:
            return f'analyzer "{name}" {missing[name]}.'
    if "." in metric and needed[0] not in {one.analyzer for one in measured.outcomes}:
        return f'analyzer "{needed[0]}" is not installed where the analysis ran.'
    return None
