"""Analyzers of the structure of a site: clicks from the seeds, orphans, the form of URLs."""

import re
from collections.abc import Iterator
from typing import Final

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


_SPLIT: Final = re.compile(r"[a-z]+://[^/?#]*(/[^?#]*)?(\?[^#]*)?")
LONGEST: Final = 200
MOST_PARAMETERS: Final = 3


def problems(url: str) -> Iterator[str]:
    """Yield the code of each problem of a URL."""
    if len(url) > LONGEST:
        yield "url_too_long"
    match = _SPLIT.match(url)
    path, query = (match[1] or "", match[2] or "") if match else ("", "")
    bare = re.sub(r"%[0-9A-Fa-f]{2}", "", path) if "%" in path else path
    if bare != bare.lower():
        yield "url_uppercase"
    if "_" in path:
        yield "url_underscore"
    if not path.isascii() or re.search(r"%[89A-Fa-f][0-9A-Fa-f]", path):
        yield "url_not_ascii"
    if query.count("=") > MOST_PARAMETERS:
        yield "url_many_parameters"
    if "//" in path:
        yield "url_double_slash"


class Urls:
    name = "urls"
    codes = BY_ANALYZER["urls"]
    needs = Needs()

    def analyze(self, site: Site) -> Iterator[Found]:
        found: dict[str, list[int]] = {code.code: [] for code in self.codes}
        answered_at = site.pages.answered_at
        for page in np.flatnonzero(site.pages.is_html).tolist():
            for code in problems(answered_at(page)):
                found[code].append(page)
        for code, pages in found.items():
            yield Found(code, np.array(pages, np.intp))
