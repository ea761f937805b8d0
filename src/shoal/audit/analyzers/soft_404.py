"""Pages that say "not found" and answer 200."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import re2

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site

# RE2 searches for all alternatives in one pass, in linear time.
_SAYS_SO: Final = re2.compile(
    r"(?i)\b404\b|\bnot found\b|\b(page|seite|product) (does not|doesn't) exist\b|\bnicht gefunden\b|\bintrouvable\b"
    r"|\bno encontrad[oa]\b|\bnon trovata\b|\bn[ãa]o encontrada\b|\bniet gevonden\b|ページが見つかりません|页面不存在"
)
FEWEST_WORDS: Final = 5  # an error page with fewer words is not compared with others


class Soft404:
    name = "soft_404"
    codes = BY_ANALYZER["soft_404"]
    needs = Needs(pages=("title", "h1"))

    def analyze(self, site: Site) -> Iterator[Found]:
        pages = site.pages
        says = self._saying(site, "title") | self._saying(site, "h1")
        prints, words = pages["fingerprint"], pages["word_count"]
        is_error = np.isin(pages["status"], (404, 410)) & (words >= FEWEST_WORDS)
        alike = np.isin(prints, np.unique(prints[is_error & (prints != 0)])) & (words >= FEWEST_WORDS)
        found = np.flatnonzero(pages.is_html & (says | alike))
        titles = pages.text("title")
        yield Found(
            "soft_404",
            found,
            evidence=lambda place: {
                "title": (titles[int(found[place])] or "")[:200],
                "why": "says so" if says[found[place]] else "the same text as a page that answers 404",
            },
        )

    @staticmethod
    def _saying(site: Site, column: str) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Return which texts say "not found". All texts are searched at once, one per line: a separate call for each
        would take longer than its search."""
        texts = [text or "" for text in site.pages.text(column)]
        ends = np.cumsum(np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts)))
        found = np.zeros(len(texts), np.bool_)
        starts = [match.start() for match in _SAYS_SO.finditer("\n".join(texts))]
        found[np.searchsorted(ends, starts, side="right")] = True
        return found
