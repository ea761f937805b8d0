"""Contradictions between noindex, canonical URLs, sitemaps and robots.txt."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site


class Indexability:
    name = "indexability"
    codes = BY_ANALYZER["indexability"]
    needs = Needs(pages=("canonical",), links=True, sitemap=True, blocked=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        pages, target = site.pages, site.canonical_pages
        own, noindex, is_html = np.arange(len(pages)), pages.is_noindex, pages.is_html
        points_away = is_html & site.points_away
        yield self._found(site, "noindex_with_canonical", noindex & points_away)
        known = points_away & (target >= 0)
        yield self._found(site, "canonical_to_noindex", known & ~noindex & noindex[np.where(known, target, 0)])
        listed, status = site.in_sitemap, pages["status"]
        moved = site.is_listed_itself & pages.is_redirected
        yield self._found(site, "sitemap_noindex", listed & is_html & noindex)
        yield self._found(site, "sitemap_not_canonical", listed & points_away & (target != own) & ~noindex)
        broken = np.flatnonzero(site.is_listed_itself & ((status >= 400) | (status == 0)) & (status != 429))
        errors = pages.text("error_code")
        yield Found(
            "sitemap_error",
            urls=[pages.url(int(page)) for page in broken],
            evidence=lambda place: {
                "status": int(status[broken[place]]) or None,
                "error": errors[int(broken[place])],
            },
        )
        redirects = np.flatnonzero(moved & (status > 0) & (status < 400))
        yield Found(
            "sitemap_redirect",
            urls=[pages.url(int(page)) for page in redirects],
            evidence=lambda place: {"redirects_to": pages.answered_at(int(redirects[place]))},
        )
        yield self._blocked(site)

    @staticmethod
    def _blocked(site: Site) -> Found:
        """Return the sitemaps that list forbidden URLs; the text of such a URL is known only if a page links to it."""
        assert site.link_targets is not None
        found: list[tuple[str, int, list[str]]] = []
        for sitemap in site.sitemaps:
            targets = site.link_targets.find(sitemap.entries)
            blocked = targets[(targets >= 0) & site.link_targets.is_blocked[targets]].tolist()
            if blocked:
                known = [url for target in blocked[:100] if (url := site.url_of(target)) is not None]
                found.append((sitemap.url, len(blocked), known[:5]))
        return Found(
            "sitemap_blocked",
            urls=[url for url, _, _ in found],
            evidence=lambda place: {"urls": found[place][1], "examples": found[place][2]},
        )

    @staticmethod
    def _found(site: Site, code: str, mask: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Found:
        found, robots, canonical = np.flatnonzero(mask), site.pages.text("robots"), site.pages.text("canonical")

        def evidence(place: int) -> dict[str, str]:
            page = int(found[place])
            values = {"robots": robots[page], "canonical": canonical[page]}
            return {name: value for name, value in values.items() if value is not None}

        return Found(code, found, evidence=evidence)
