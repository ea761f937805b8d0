"""Meta descriptions: missing, shared, too long."""

from collections.abc import Iterator

from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzers.texts import duplicates, missing, of_length
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site

LONGEST = 170  # characters
_ENDLESS = 10**6


class Descriptions:
    name = "descriptions"
    codes = BY_ANALYZER["descriptions"]
    needs = Needs(pages=("description", "canonical"), links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        yield missing(site, "description_missing", "description")
        yield duplicates(site, "description_duplicate", "description")
        yield of_length(site, "description_too_long", "description", LONGEST + 1, _ENDLESS)
