"""Titles, descriptions, headings, images and texts of pages, and which of them repeat."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Ids, Mask, Site
from shoal.extract.fingerprint import BINS, NEAR
from shoal.extract.flags import PageFlag


def _skip(details: PageDetails) -> str | None:
    """Return the first place where the headings skip a level, such as `h2 to h4`."""
    levels = [heading.level for heading in details.headings]
    return next((f"h{one} to h{two}" for one, two in pairwise(levels) if two > one + 1), None)


class Headings:
    name = "headings"
    codes = BY_ANALYZER["headings"]
    needs = Needs(
        details={
            "h1": lambda details: [heading.level for heading in details.headings].count(1),
            "empty": lambda details: [heading.text for heading in details.headings].count(""),
            "skip": _skip,
        }
    )

    def analyze(self, site: Site) -> Iterator[Found]:
        is_html, h1 = site.pages.is_html, site.numbers_of(self.name, "h1")
        yield Found("h1_missing", np.flatnonzero(is_html & (h1 == 0)))
        several = np.flatnonzero(is_html & (h1 > 1))
        yield Found("h1_multiple", several, evidence=lambda place: {"h1": int(h1[several[place]])})
        counts = site.numbers_of(self.name, "empty")
        empty = np.flatnonzero(is_html & (counts > 0))
        yield Found("heading_empty", empty, evidence=lambda place: {"headings": int(counts[empty[place]])})
        skips = site.details[self.name]["skip"]
        skipped = np.flatnonzero(is_html & np.fromiter((skip is not None for skip in skips), np.bool_, len(skips)))
        yield Found("heading_skipped", skipped, evidence=lambda place: {"levels": skips[int(skipped[place])]})


def lengths(site: Site, column: str) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Return the length of each text in characters; 0 where there is none."""
    return np.fromiter((len(text) if text else 0 for text in site.pages.text(column)), np.int32, len(site.pages))


def missing(site: Site, code: str, column: str) -> Found:
    """Return the indexable pages that lack this text."""
    return Found(code, np.flatnonzero(site.is_indexable & (lengths(site, column) == 0)))


def of_length(site: Site, code: str, column: str, low: int, high: int) -> Found:
    """Return HTML pages whose text is from `low` to `high` characters long."""
    size, texts = lengths(site, column), site.pages.text(column)
    found = np.flatnonzero(site.pages.is_html & (size >= low) & (size <= high))
    return Found(code, found, evidence=lambda place: _text(texts[int(found[place])]))


def duplicates(site: Site, code: str, column: str) -> Found:
    """Return indexable pages that share their text with another page."""
    texts = site.pages.text(column)
    hashes = site.pages.hashes(column)
    pages, first, sizes = repeated(hashes, site.is_indexable & (lengths(site, column) > 0))
    return Found(
        code,
        pages,
        evidence=lambda place: {
            **_text(texts[int(pages[place])]),
            "pages": int(sizes[place]),
            "also_at": site.pages.answered_at(int(first[place])),
        },
    )


def repeated(values: "np.ndarray[Any, Any]", among: Mask) -> tuple[Ids, Ids, "np.ndarray[Any, np.dtype[np.intp]]"]:
    """Return the pages that share their value with another page; for each of them, one other page and the number of
    pages with that value."""
    pages = np.flatnonzero(among)
    _, group, count = np.unique(values[pages], return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    starts = np.concatenate([[0], np.cumsum(count)[:-1]]) if len(count) else np.zeros(0, np.intp)
    first, second = pages[order[starts]], pages[order[np.minimum(starts + 1, len(order) - 1)]] if len(order) else pages
    is_shared = count[group] > 1
    found, group = pages[is_shared], group[is_shared]
    others = np.where(first[group] == found, second[group], first[group])
    return found, others, count[group]


def _text(text: str | None) -> dict[str, Any]:
    return {"text": (text or "")[:200], "length": len(text or "")}


LONGEST_TITLE = 65  # characters that search results show
SHORTEST = 10
_ENDLESS = 10**6


class Titles:
    name = "titles"
    codes = BY_ANALYZER["titles"]
    needs = Needs(pages=("title", "canonical"), details={"titles": lambda details: len(details.titles)}, links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        yield missing(site, "title_missing", "title")
        yield duplicates(site, "title_duplicate", "title")
        yield of_length(site, "title_too_long", "title", LONGEST_TITLE + 1, _ENDLESS)
        yield of_length(site, "title_too_short", "title", 1, SHORTEST - 1)
        counts = site.numbers_of(self.name, "titles")
        several = np.flatnonzero(site.pages.is_html & (counts > 1))
        yield Found("title_multiple", several, evidence=lambda place: {"titles": int(counts[several[place]])})


LONGEST_DESCRIPTION = 170  # characters


class Descriptions:
    name = "descriptions"
    codes = BY_ANALYZER["descriptions"]
    needs = Needs(pages=("description", "canonical"), links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        yield missing(site, "description_missing", "description")
        yield duplicates(site, "description_duplicate", "description")
        yield of_length(site, "description_too_long", "description", LONGEST_DESCRIPTION + 1, _ENDLESS)


class ThinContent:
    name = "thin_content"
    codes = BY_ANALYZER["thin_content"]
    needs = Needs(pages=("canonical",), links=True)

    def __init__(self, fewest_words: int = 50) -> None:
        self._fewest_words = fewest_words

    def analyze(self, site: Site) -> Iterator[Found]:
        words = site.pages["word_count"]
        thin = np.flatnonzero(site.is_indexable & (words < self._fewest_words))
        yield Found("thin_content", thin, evidence=lambda place: {"words": int(words[thin[place]])})


MOST_URLS = 5  # in the evidence


def _silent(details: PageDetails) -> list[str] | None:
    return [image.url for image in details.images if image.alt is None] or None


class Images:
    name = "images"
    codes = BY_ANALYZER["images"]
    needs = Needs(details={"silent": _silent})

    def analyze(self, site: Site) -> Iterator[Found]:
        urls = site.details[self.name]["silent"]
        has = np.fromiter((one is not None for one in urls), np.bool_, len(urls))
        found = np.flatnonzero(has & site.pages.is_html)
        yield Found(
            "image_alt_missing",
            found,
            evidence=lambda place: {
                "images": len(urls[int(found[place])]),
                "urls": urls[int(found[place])][:MOST_URLS],
            },
        )


FEWEST_WORDS: Final = 30  # shorter texts are often alike, such as those of forms
NEIGHBOURS: Final = 16  # pages that are compared with each page, per rotation
ROTATIONS: Final = (0, 16, 32, 48)
"""Two fingerprints that differ in three bits agree in at least one of four bands of sixteen bits. Rotating each band to
the front and sorting brings such fingerprints together."""
ALMOST_SAME: Final = 0.9  # minimum share of word pairs that two texts have in common
_AT_ONCE: Final = 20_000  # pairs of sketches

Near = dict[int, tuple[int, float, int]]
"""A near duplicate of each page: the number of the other page, the share of their texts that is the same, and how many
bits of their fingerprints differ."""


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
    """Return the pages that have a near duplicate among the given pages.

    Each page is compared with its neighbours in four sorted orders, so the time is bounded for every site. In a very
    dense cluster, some near duplicates of a page may be missed, but never all of them. Equal fingerprints are not
    enough: pages with the same template may have the same fingerprint, and only the sketches show whether most of the
    text is the same.
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
    """Estimate how similar each text in `ones` is to its counterpart in `twos`: twice the number of word pairs that
    both have, divided by the total number of word pairs in both. A bin that is empty in both sketches is ignored."""
    mine = np.frombuffer(b"".join(ones), np.uint8).reshape(-1, BINS)
    theirs = np.frombuffer(b"".join(twos), np.uint8).reshape(-1, BINS)
    filled = ((mine != 0) | (theirs != 0)).sum(axis=1)
    same = ((mine == theirs) & (mine != 0)).sum(axis=1)
    parts: NDArray[np.float64] = 2 * same / np.maximum(filled + same, 1)
    return parts


def _evidence(site: Site, near: Near, page: int) -> dict[str, Any]:
    other, part, bits = near[page]
    return {"similar_to": site.pages.answered_at(other), "same_percent": round(100 * part), "different_bits": bits}
