"""Measure slow pages again before a response time fails a gate: one slow moment must not fail a release."""

from datetime import timedelta
from typing import Final

import numpy as np

from shoal.audit.metrics import is_timing
from shoal.audit.prober import Prober, Progress
from shoal.audit.site import Site
from shoal.audit.verdict import Outcome, Verdict

LONGEST_MEASURING: Final = timedelta(minutes=2)


def needs_second_look(verdict: Verdict) -> bool:
    """Return whether a rule about response times fails the gate."""
    return any(
        rule.outcome is Outcome.FAILED and rule.severity == "error" and is_timing(rule.metric) for rule in verdict.rules
    )


async def measure_again(site: Site, prober: Prober, most: int, progress: Progress) -> int:
    """Request the slowest pages again and put the shorter time into the columns; return how many got faster."""
    times = site.pages["duration_ms"]
    known = np.flatnonzero(~np.isnan(times) & (site.pages["status"] > 0))
    slowest = known[np.argsort(-times[known], kind="stable")[:most]].tolist()
    urls = [site.pages.answered_at(page) for page in slowest]
    answers = await prober.probe(urls, LONGEST_MEASURING, progress)
    faster = 0
    for page, url in zip(slowest, urls, strict=True):
        answer = answers.get(url)
        if answer is not None and answer.duration_ms is not None and answer.duration_ms < times[page]:
            times[page] = answer.duration_ms
            faster += 1
    return faster
