"""Pages with the same text, or almost the same, by their similarity hash."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzers.texts import repeated
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site
from shoal.extract.fingerprint import NEAR

FEWEST_WORDS: Final = 30  # hashes of shorter texts say little
NEIGHBOURS: Final = 16  # compared with each page, per rotation
ROTATIONS: Final = (0, 16, 32, 48)
"""Two hashes that differ in three bits agree in one of four bands of sixteen bits. Rotating each band to the front and
sorting brings such hashes together."""


class Duplicates:
    name = "duplicates"
    codes = BY_ANALYZER["duplicates"]
    needs = Needs(pages=("canonical",), links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        prints = site.pages["fingerprint"].view(np.uint64)
        among = site.is_indexable & (site.pages["word_count"] >= FEWEST_WORDS) & (prints != 0)
        # Equal hashes and equal lengths: the chance that the texts still differ is negligible.
        exact = prints ^ (site.pages["word_count"].astype(np.uint64) << np.uint64(40))
        same, other, sizes = repeated(exact, among)
        yield Found(
            "content_duplicate",
            same,
            evidence=lambda place: {
                "pages": int(sizes[place]),
                "also_at": site.pages.answered_at(int(other[place])),
            },
        )
        is_same = np.zeros(len(site.pages), np.bool_)
        is_same[same] = True
        near = nearest_of(prints, np.flatnonzero(among))
        pages = np.array([page for page in near if not is_same[page]], np.intp)
        yield Found("content_near_duplicate", pages, evidence=lambda place: _evidence(site, near, int(pages[place])))


def nearest_of(prints: NDArray[np.uint64], among: NDArray[np.intp]) -> dict[int, tuple[int, int]]:
    """Return pages that have a near duplicate, each with one of them and the number of different bits.

    Each page is compared with its neighbours in four sorted orders, so the time is bounded whatever the site is; in a
    very dense cluster a pair may be missed, though not all pairs of a page.
    """
    values, first = np.unique(prints[among], return_index=True)
    representatives = among[first]
    found: dict[int, tuple[int, int]] = {}
    for shift in ROTATIONS:
        rotated = (values << np.uint64(shift)) | (values >> np.uint64((64 - shift) % 64)) if shift else values
        order = np.argsort(rotated)
        ordered = values[order]
        for step in range(1, min(NEIGHBOURS + 1, len(ordered))):
            bits = np.bitwise_count(ordered[step:] ^ ordered[:-step])
            for place in np.flatnonzero(bits <= NEAR).tolist():
                one, two = int(representatives[order[place]]), int(representatives[order[place + step]])
                found.setdefault(one, (two, int(bits[place])))
                found.setdefault(two, (one, int(bits[place])))
    return found


def _evidence(site: Site, near: dict[int, tuple[int, int]], page: int) -> dict[str, Any]:
    other, bits = near[page]
    return {"similar_to": site.pages.answered_at(other), "different_bits": bits}
