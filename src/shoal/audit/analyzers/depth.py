"""Pages that are many clicks away from the start."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import LinkGraph, Site


class Depth:
    """Counts clicks along the links: the depth of a record is that of the first way the crawl found, which may have
    been a sitemap."""

    name = "depth"
    codes = BY_ANALYZER["depth"]
    needs = Needs(links=True)

    def __init__(self, deepest: int = 4) -> None:
        self._deepest = deepest

    def analyze(self, site: Site) -> Iterator[Found]:
        assert site.links is not None
        clicks = clicks_to_pages(site.links, np.flatnonzero(site.pages["depth"] == 0))
        deep = np.flatnonzero(site.pages.is_html & (clicks > self._deepest))
        yield Found("page_too_deep", deep, evidence=lambda place: {"clicks": int(clicks[deep[place]])})


def clicks_to_pages(graph: LinkGraph, seeds: NDArray[np.intp]) -> NDArray[np.int32]:
    """Return the number of clicks from the nearest seed to each page; -1 if no way of links leads there."""
    pages = len(graph.offsets) - 1
    clicks = np.full(pages, -1, np.int32)
    clicks[seeds] = 0
    front, distance = seeds, 0
    padded = np.append(graph.link_targets.page_of, np.int32(-1))  # the entry of -1
    while len(front):
        distance += 1
        starts, sizes = graph.offsets[front], np.diff(graph.offsets)[front]
        reached = np.zeros(pages + 1, np.bool_)
        for first in range(0, len(front), _AT_ONCE):
            size = sizes[first : first + _AT_ONCE]
            begin = np.repeat(starts[first : first + _AT_ONCE] - np.concatenate([[0], np.cumsum(size)[:-1]]), size)
            reached[padded[graph.targets[begin + np.arange(size.sum())]]] = True
        front = np.flatnonzero(reached[:pages] & (clicks < 0))
        clicks[front] = distance
    return clicks


_AT_ONCE = 50_000  # pages
