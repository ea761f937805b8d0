"""Pages that the server sends slowly."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site


class Speed:
    name = "speed"
    codes = BY_ANALYZER["speed"]
    needs = Needs()

    def __init__(self, slow_ms: float = 2_000) -> None:
        self._slow_ms = slow_ms

    def analyze(self, site: Site) -> Iterator[Found]:
        times = site.pages["duration_ms"]
        slow = np.flatnonzero((times > self._slow_ms) & (site.pages["status"] > 0))
        yield Found("slow_page", slow, evidence=lambda place: {"response_ms": round(float(times[slow[place]]), 1)})
