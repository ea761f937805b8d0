"""Links to pages that are broken, unreachable or moved, each with the pages that link there."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzers.responses import LOOPS
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Ids, Mask, Site

MOST_SOURCES = 10  # linking pages in the evidence


class Links:
    name = "links"
    codes = BY_ANALYZER["links"]
    needs = Needs(links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        assert site.links is not None
        targets = site.links.link_targets
        pages, page_of = site.pages, targets.page_of
        is_linked = (site.links.counts > 0) & (page_of >= 0)
        status = np.where(page_of >= 0, pages["status"][page_of], 0) if len(pages) else np.zeros(len(targets), np.int16)
        is_loop = np.fromiter((code in LOOPS for code in pages.text("error_code")), np.bool_, len(pages))
        # 429 says that we were too fast, not that the page is gone.
        is_broken = is_linked & (status >= 400) & (status < 500) & (status != 429)
        is_silent = is_linked & (status == 0) & ~is_loop[page_of]
        is_moved = is_linked & (status > 0) & (status < 400)
        is_moved[: len(pages)] &= pages.is_redirected
        is_moved[len(pages) :] = False
        for code, mask in (
            ("broken_link", is_broken),
            ("link_to_unreachable", is_silent),
            ("link_to_redirect", is_moved),
        ):
            yield found_links(site, code, mask)


def found_links(site: Site, code: str, wanted: Mask) -> Found:
    """Return a finding for each of these targets, with the pages that link there."""
    assert site.links is not None
    graph, pages = site.links, site.pages
    targets: Ids = np.flatnonzero(wanted)
    sources = graph.sources(wanted, MOST_SOURCES) if len(targets) else {}

    def evidence(place: int) -> dict[str, Any]:
        target = int(targets[place])
        page = int(graph.link_targets.page_of[target])
        facts: dict[str, Any] = {}
        if page >= 0:
            status, error = int(pages["status"][page]), pages.text("error_code")[page]
            facts = {"status": status} if status else {"error": error}
            if code == "link_to_redirect":
                facts["redirects_to"] = pages.answered_at(page)
        linking = [pages.answered_at(source) for source in sources.get(target, [])]
        return {**facts, "links": int(graph.counts[target]), "linked_from": linking}

    return Found(code, urls=[site.url_of(int(target)) for target in targets], evidence=evidence)
