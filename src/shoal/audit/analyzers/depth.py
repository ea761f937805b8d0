"""Pages that are many clicks away from the start."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site


class Depth:
    name = "depth"
    codes = BY_ANALYZER["depth"]
    needs = Needs(links=True)

    def __init__(self, deepest: int = 4) -> None:
        self._deepest = deepest

    def analyze(self, site: Site) -> Iterator[Found]:
        clicks = site.clicks
        deep = np.flatnonzero(site.pages.is_html & (clicks > self._deepest))
        yield Found("page_too_deep", deep, evidence=lambda place: {"clicks": int(clicks[deep[place]])})
