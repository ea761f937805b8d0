"""Headings: h1 missing or repeated, empty headings, skipped levels."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Site


def _skip(details: PageDetails) -> str | None:
    """Return the first place where the levels skip one, such as `h2 to h4`."""
    levels = [heading.level for heading in details.headings]
    return next((f"h{one} to h{two}" for one, two in pairwise(levels) if two > one + 1), None)


class Headings:
    name = "headings"
    codes = BY_ANALYZER["headings"]
    needs = Needs(
        details={
            "h1": lambda details: [heading.level for heading in details.headings].count(1),
            "empty": lambda details: [heading.text for heading in details.headings].count(""),
            "skip": _skip,
        }
    )

    def analyze(self, site: Site) -> Iterator[Found]:
        is_html, h1 = site.pages.is_html, site.numbers_of(self.name, "h1")
        yield Found("h1_missing", np.flatnonzero(is_html & (h1 == 0)))
        several = np.flatnonzero(is_html & (h1 > 1))
        yield Found("h1_multiple", several, evidence=lambda place: {"h1": int(h1[several[place]])})
        counts = site.numbers_of(self.name, "empty")
        empty = np.flatnonzero(is_html & (counts > 0))
        yield Found("heading_empty", empty, evidence=lambda place: {"headings": int(counts[empty[place]])})
        skips = site.details[self.name]["skip"]
        skipped = np.flatnonzero(is_html & np.fromiter((skip is not None for skip in skips), np.bool_, len(skips)))
        yield Found("heading_skipped", skipped, evidence=lambda place: {"levels": skips[int(skipped[place])]})
