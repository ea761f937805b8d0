"""Titles: missing, shared, too long, too short, several."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzers.texts import duplicates, missing, of_length
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site

LONGEST = 65  # characters that search results show
SHORTEST = 10
_ENDLESS = 10**6


class Titles:
    name = "titles"
    codes = BY_ANALYZER["titles"]
    needs = Needs(pages=("title", "canonical"), details={"titles": lambda details: len(details.titles)}, links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        yield missing(site, "title_missing", "title")
        yield duplicates(site, "title_duplicate", "title")
        yield of_length(site, "title_too_long", "title", LONGEST + 1, _ENDLESS)
        yield of_length(site, "title_too_short", "title", 1, SHORTEST - 1)
        counts = site.numbers_of(self.name, "titles")
        several = np.flatnonzero(site.pages.is_html & (counts > 1))
        yield Found("title_multiple", several, evidence=lambda place: {"titles": int(counts[several[place]])})
