"""Redirects: loops, chains, those that lead to an error, and temporary ones."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzers.responses import LOOPS
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site

TEMPORARY = frozenset({302, 303, 307})
LONGEST = 20  # redirects that are followed through other records


class Redirects:
    name = "redirects"
    codes = BY_ANALYZER["redirects"]
    needs = Needs(links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        pages, errors = site.pages, site.pages.text("error_code")
        chains = {int(page): _chain(site, int(page)) for page in np.flatnonzero(pages.has("redirects"))}
        ends = {page: int(hops[-1]["status"]) for page, hops in chains.items()}
        loops = [page for page in range(len(pages)) if errors[page] in LOOPS] if any(errors) else []
        looping = set(loops)
        broken = [page for page, status in ends.items() if page not in looping and (status >= 400 or (status == 0))]
        long = [page for page, hops in chains.items() if len(hops) > 2 and page not in looping]
        temporary = [page for page, hops in chains.items() if any(hop["status"] in TEMPORARY for hop in hops[:-1])]
        for code, found in (
            ("redirect_loop", loops),
            ("redirect_broken", broken),
            ("redirect_chain", long),
            ("redirect_temporary", temporary),
        ):
            yield _found(site, code, found, chains)


def _chain(site: Site, page: int) -> list[dict[str, Any]]:
    """Return the redirects of a page, through the records of other pages, and the response at the end."""
    pages, hops, seen = site.pages, [], {page}
    while True:
        hops += pages.redirects(page)
        status = int(pages["status"][page])
        follows = 300 <= status < 400 and status != 304 and len(hops) <= LONGEST
        target = int(site.find([pages.answered_at(page)])[0]) if follows else -1
        further = -1 if target < 0 or site.link_targets is None else int(site.link_targets.page_of[target])
        if further < 0 or further in seen:
            break
        seen.add(further)
        page = further
    if follows and hops:  # the target was not fetched: out of scope, or forbidden
        return [*hops, {"url": pages.answered_at(page), "status": 200}]
    return [*hops, {"url": pages.answered_at(page), "status": status}]


def _found(site: Site, code: str, found: list[int], chains: dict[int, list[dict[str, Any]]]) -> Found:
    def evidence(place: int) -> dict[str, Any]:
        hops = chains.get(found[place]) or [*site.pages.redirects(found[place])]
        return {"redirects": hops[:LONGEST]}

    return Found(code, urls=[site.pages.url(page) for page in found], evidence=evidence)
