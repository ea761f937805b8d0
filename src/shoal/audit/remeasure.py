"""Measure slow pages again before a response time fails a gate: one slow moment must not fail a release."""

from collections.abc import Sequence

import numpy as np

from shoal.audit.analyzer_run import AnalyzerResult
from shoal.audit.metrics import is_timing
from shoal.audit.prober import Prober
from shoal.audit.site import Site
from shoal.audit.verdict import Outcome, Verdict


def needs_second_look(verdict: Verdict) -> bool:
    """Return whether a rule about response times fails the gate."""
    return any(
        rule.outcome is Outcome.FAILED and rule.severity == "error" and is_timing(rule.metric) for rule in verdict.rules
    )


async def measure_again(site: Site, prober: Prober, most: int) -> int:
    """Request the slowest pages again and put the shorter time into the columns; return how many got faster."""
    times = site.pages["duration_ms"]
    known = np.flatnonzero(~np.isnan(times) & (site.pages["status"] > 0))
    slowest = known[np.argsort(-times[known], kind="stable")[:most]].tolist()
    answers = await prober.probe([site.pages.answered_at(page) for page in slowest])
    faster = 0
    for page, answer in zip(slowest, answers, strict=True):
        if answer.duration_ms is not None and answer.duration_ms < times[page]:
            times[page] = answer.duration_ms
            faster += 1
    return faster


def with_result(results: Sequence[AnalyzerResult], new: AnalyzerResult) -> list[AnalyzerResult]:
    """Return the results after replacing that of one analyzer."""
    kept = [result for result in results if result.outcome.analyzer != new.outcome.analyzer]
    return [*kept, new]
