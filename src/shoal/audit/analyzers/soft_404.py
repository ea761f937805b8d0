"""Pages that answer 200 though they do not exist, and pages that only say so."""

import secrets
from collections.abc import Iterator
from typing import Final

import numpy as np
import re2

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Mask, Site
from shoal.extract.page import extract

# RE2 searches for all alternatives in one pass, in linear time.
_SAYS_SO: Final = re2.compile(
    r"(?i)\b404\b|\bnot found\b|\b(page|seite|product) (does not|doesn't) exist\b|\bnicht gefunden\b|\bintrouvable\b"
    r"|\bno encontrad[oa]\b|\bnon trovata\b|\bn[ãa]o encontrada\b|\bniet gevonden\b|ページが見つかりません|页面不存在"
)
FEWEST_WORDS: Final = 5  # an error page with fewer words is not compared with others
SIMILAR_LENGTH: Final = 0.2  # part of its words by which a page may be longer or shorter, such as by its path


class Soft404:
    """Compares pages with what their host answers for a path that does not exist, and with pages that answer 404."""

    name = "soft_404"
    codes = BY_ANALYZER["soft_404"]

    def __init__(self) -> None:
        self._path = f"/{secrets.token_hex(16)}"
        self.needs = Needs(pages=("title", "h1"), probes=(self._path,))

    def analyze(self, site: Site) -> Iterator[Found]:
        pages = site.pages
        hashes, words = pages["text_hash"], pages["word_count"]
        is_error = np.isin(pages["status"], (404, 410)) & (words >= FEWEST_WORDS) & (hashes != 0)
        starts = pages.is_html & self._starts(site)
        missing = np.setdiff1d(hashes[is_error], hashes[starts])  # some sites show their start page with a 404
        same = pages.is_html & np.isin(hashes, missing) | self._as_for_nothing(site, starts)
        titles, found = pages.text("title"), np.flatnonzero(same)
        yield Found("soft_404", found, evidence=lambda place: {"title": (titles[int(found[place])] or "")[:200]})
        says = self._saying(site, "title") | self._saying(site, "h1")
        told = np.flatnonzero(pages.is_html & says & ~same)
        yield Found("soft_404_title", told, evidence=lambda place: {"title": (titles[int(told[place])] or "")[:200]})

    @staticmethod
    def _starts(site: Site) -> Mask:
        """Mark seeds, and the page `/` of each host."""
        roots = {f"{origin}/" for origin in site.origins}
        is_root: Mask = np.fromiter((url in roots for url in site.pages.text("url")), np.bool_, len(site.pages))
        is_root |= site.pages["depth"] == 0
        return is_root

    def _as_for_nothing(self, site: Site, starts: Mask) -> Mask:
        """Mark the pages that are what their host shows for a path that does not exist: the same text, or the same
        title and heading above about as many words, because such pages often name the path."""
        pages, found = site.pages, np.zeros(len(site.pages), np.bool_)
        hashes, words = pages["text_hash"], pages["word_count"]
        titles, headings = pages.hashes("title"), pages.hashes("h1")
        for host in site.origins:
            answer = site.probes.get(host + self._path)
            if answer is None or answer.status is None:
                continue
            facts = extract(answer.body, answer.content_type)
            if facts.word_count is None or facts.word_count < FEWEST_WORDS:
                continue
            alike = hashes == facts.text_hash
            if facts.title and facts.h1:
                is_similar = np.abs(words - facts.word_count) <= SIMILAR_LENGTH * facts.word_count
                alike |= (titles == hash(facts.title)) & (headings == hash(facts.h1)) & is_similar
            alike &= pages.is_html
            alike[alike] = [pages.answered_at(page).startswith(f"{host}/") for page in np.flatnonzero(alike).tolist()]
            if not (alike & starts).any():  # an application that answers every path with its start page
                found |= alike
        return found

    @staticmethod
    def _saying(site: Site, column: str) -> Mask:
        """Return which texts say "not found". All texts are searched at once, one per line: a separate call for each
        would take longer than its search."""
        texts = [text or "" for text in site.pages.text(column)]
        ends = np.cumsum(np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts)))
        found = np.zeros(len(texts), np.bool_)
        starts = [match.start() for match in _SAYS_SO.finditer("\n".join(texts))]
        found[np.searchsorted(ends, starts, side="right")] = True
        return found
