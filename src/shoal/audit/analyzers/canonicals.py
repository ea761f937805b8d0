"""Canonical URLs: missing, broken, redirecting, chained, conflicting."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Site
from shoal.extract.response_headers import canonical_of


def _declared(details: PageDetails) -> tuple[list[str], str | None] | None:
    """Return the canonical URLs in the page and its Link header, unless there is clearly one."""
    header = details.headers.get("link")
    return (details.canonicals, header) if header is not None or len(details.canonicals) > 1 else None


class Canonicals:
    name = "canonicals"
    codes = BY_ANALYZER["canonicals"]
    needs = Needs(
        pages=("canonical",),
        details={"declared": _declared},
        links=True,
        urls=lambda site: site.unknown_canonicals.values(),
    )

    def analyze(self, site: Site) -> Iterator[Found]:
        pages, target = site.pages, site.canonical_pages
        own = np.arange(len(pages))
        candidates = pages.is_html & ~pages.is_noindex
        yield Found("canonical_missing", np.flatnonzero(candidates & ~pages.has("canonical")))
        known = pages.is_html & (target >= 0) & (target != own)
        other = np.where(known, target, 0)
        status = pages["status"][other] if len(pages) else np.zeros(0)
        is_moved = known & site.canonical_moves
        is_broken = known & ((status >= 400) | (status == 0))
        is_chain = known & ~is_broken & (target[other] >= 0) & (target[other] != other)
        for page, url in site.unknown_canonicals.items():
            if answer := site.asked.get(url):
                is_broken[page], is_moved[page] = answer.is_broken, answer.moved
        yield self._found(site, "canonical_broken", is_broken)
        yield self._found(site, "canonical_redirect", is_moved & ~is_broken)
        yield self._found(site, "canonical_chain", is_chain)
        yield self._conflicts(site)

    def _found(self, site: Site, code: str, mask: Any) -> Found:
        found, written = np.flatnonzero(mask), site.pages.text("canonical")

        def evidence(place: int) -> dict[str, Any]:
            page = int(found[place])
            target = int(site.canonical_pages[page])
            if target < 0:
                return {"canonical": written[page], **site.asked[site.unknown_canonicals[page]].outcome}
            return {"canonical": written[page], "status": int(site.pages["status"][target])}

        return Found(code, found, evidence=evidence)

    def _conflicts(self, site: Site) -> Found:
        conflicts: dict[int, list[str]] = {}
        for page, declared in enumerate(site.details[self.name]["declared"]):
            if declared is not None and site.pages.is_html[page]:
                written, header = declared
                url = site.pages.answered_at(page)
                in_header = None if header is None else canonical_of([header], url)
                urls = site.urls.resolve(url, [*written, *([in_header] if in_header else [])])
                if len(set(urls)) > 1:
                    conflicts[page] = sorted({url for url in urls if url is not None})
        found = np.array(list(conflicts), np.intp)
        return Found(
            "canonical_conflict", found, evidence=lambda place: {"canonicals": conflicts[int(found[place])][:5]}
        )
