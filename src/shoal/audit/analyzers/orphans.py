"""Pages that only a sitemap lists, and pages that no sitemap lists."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site


class Orphans:
    name = "orphans"
    codes = BY_ANALYZER["orphans"]
    needs = Needs(pages=("canonical",), links=True, sitemap=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        assert site.links is not None
        pages = site.pages
        is_linked = np.zeros(len(pages), np.bool_)
        page_of = site.links.link_targets.page_of[site.links.followed_counts > 0]
        is_linked[page_of[page_of >= 0]] = True
        yield Found("orphan_page", np.flatnonzero(pages.is_html & site.in_sitemap & ~is_linked & (pages["depth"] > 0)))
        if any(len(sitemap.entries) for sitemap in site.sitemaps):
            yield Found("sitemap_missing_page", np.flatnonzero(site.is_indexable & ~site.in_sitemap))
