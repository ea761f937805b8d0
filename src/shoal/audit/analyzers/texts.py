"""Text columns that should be there, be unique, and have a certain length: shared by titles and descriptions."""

from typing import Any

import numpy as np

from shoal.audit.analyzer import Found
from shoal.audit.site import Ids, Mask, Site


def lengths(site: Site, column: str) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Return the length of each text in characters; 0 where there is none."""
    return np.fromiter((len(text) if text else 0 for text in site.pages.text(column)), np.int32, len(site.pages))


def missing(site: Site, code: str, column: str) -> Found:
    """Return indexable pages without the text."""
    return Found(code, np.flatnonzero(site.is_indexable & (lengths(site, column) == 0)))


def of_length(site: Site, code: str, column: str, low: int, high: int) -> Found:
    """Return HTML pages whose text is from `low` to `high` characters long."""
    size, texts = lengths(site, column), site.pages.text(column)
    found = np.flatnonzero(site.pages.is_html & (size >= low) & (size <= high))
    return Found(code, found, evidence=lambda place: _text(texts[int(found[place])]))


def duplicates(site: Site, code: str, column: str) -> Found:
    """Return indexable pages that share their text with another one."""
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
    """Return the pages that share their value with another page; for each, one such page and the number of pages with
    that value."""
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
