"""Pages with the same text, or almost the same."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzers.texts import repeated
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Ids, Site
from shoal.extract.fingerprint import BINS, NEAR
from shoal.extract.flags import PageFlag

FEWEST_WORDS: Final = 30  # shorter texts are often alike, such as those of forms
NEIGHBOURS: Final = 16  # compared with each page, per rotation
ROTATIONS: Final = (0, 16, 32, 48)
"""Two fingerprints that differ in three bits agree in one of four bands of sixteen bits. Rotating each band to the
front and sorting brings such fingerprints together."""
ALMOST_SAME: Final = 0.9  # part of the word pairs of two texts that both have
_AT_ONCE: Final = 20_000  # pairs of sketches

Near = dict[int, tuple[int, float, int]]
"""A near duplicate of each page: its page, which part of their texts is the same, and the bits of their fingerprints
that differ."""


def _sketch(details: PageDetails) -> bytes | None:
    return bytes.fromhex(details.sketch) if len(details.sketch) == 2 * BINS else None


class Duplicates:
    name = "duplicates"
    codes = BY_ANALYZER["duplicates"]
    needs = Needs(pages=("canonical",), details={"sketch": _sketch}, links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        pages, sketches = site.pages, site.details[self.name]["sketch"]
        is_whole = pages["flags"] & PageFlag.PARSE_LIMIT == 0
        among = site.is_indexable & (pages["word_count"] >= FEWEST_WORDS) & is_whole & (pages["text_hash"] != 0)
        same, other, sizes = repeated(pages["text_hash"], among)
        yield Found(
            "content_duplicate",
            same,
            evidence=lambda place: {
                "pages": int(sizes[place]),
                "also_at": pages.answered_at(int(other[place])),
            },
        )
        is_same = np.zeros(len(pages), np.bool_)
        is_same[same] = True
        among &= np.fromiter((sketch is not None for sketch in sketches), np.bool_, len(sketches))
        _, first = np.unique(pages["text_hash"][among], return_index=True)
        near = nearest_of(pages["fingerprint"].view(np.uint64), sketches, np.flatnonzero(among)[first])
        found = np.array([page for page in near if not is_same[page]], np.intp)
        yield Found("content_near_duplicate", found, evidence=lambda place: _evidence(site, near, int(found[place])))


def nearest_of(prints: NDArray[np.uint64], sketches: Sequence[bytes], among: Ids) -> Near:
    """Return those of these pages that have a near duplicate among them.

    Each page is compared with its neighbours in four sorted orders, so the time is bounded whatever the site is; in a
    very dense cluster a pair may be missed, though not all pairs of a page. A fingerprint is decided by what pages
    have in common, so pages of one template may have the same: only the sketches tell whether most of the text is.
    """
    values = prints[among]
    found: Near = {}
    for shift in ROTATIONS:
        rotated = (values << np.uint64(shift)) | (values >> np.uint64((64 - shift) % 64)) if shift else values
        order = np.argsort(rotated)
        ordered, pages = values[order], among[order]
        for step in range(1, min(NEIGHBOURS + 1, len(ordered))):
            bits = np.bitwise_count(ordered[step:] ^ ordered[:-step])
            pairs = [
                place
                for place in np.flatnonzero(bits <= NEAR).tolist()
                if int(pages[place]) not in found or int(pages[place + step]) not in found
            ]
            for low in range(0, len(pairs), _AT_ONCE):
                places = np.array(pairs[low : low + _AT_ONCE], np.intp)
                ones, twos = pages[places].tolist(), pages[places + step].tolist()
                parts = _same_parts([sketches[page] for page in ones], [sketches[page] for page in twos])
                for place in np.flatnonzero(parts >= ALMOST_SAME).tolist():
                    measured = float(parts[place]), int(bits[places[place]])
                    found.setdefault(ones[place], (twos[place], *measured))
                    found.setdefault(twos[place], (ones[place], *measured))
    return found


def _same_parts(ones: Sequence[bytes], twos: Sequence[bytes]) -> NDArray[np.float64]:
    """Estimate which part of the word pairs of two texts is the same, for many texts: twice the common ones, divided by
    those of both. A bin that is empty in both sketches tells nothing."""
    mine = np.frombuffer(b"".join(ones), np.uint8).reshape(-1, BINS)
    theirs = np.frombuffer(b"".join(twos), np.uint8).reshape(-1, BINS)
    filled = ((mine != 0) | (theirs != 0)).sum(axis=1)
    same = ((mine == theirs) & (mine != 0)).sum(axis=1)
    parts: NDArray[np.float64] = 2 * same / np.maximum(filled + same, 1)
    return parts


def _evidence(site: Site, near: Near, page: int) -> dict[str, Any]:
    other, part, bits = near[page]
    return {"similar_to": site.pages.answered_at(other), "same_percent": round(100 * part), "different_bits": bits}
