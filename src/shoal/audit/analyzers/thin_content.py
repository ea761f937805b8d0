"""Pages with very few words."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site


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
