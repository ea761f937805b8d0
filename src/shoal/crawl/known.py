"""The URLs that this walker brought to the store: exact and bounded. What is not here is asked of the store.

A page has sixty links and about one of them is new; looking the others up here costs a tenth of hashing them.
"""

from collections.abc import KeysView

from shoal.base.url import Url

MOST = 100_000  # URLs of one generation: about 15 MB


class KnownUrls:
    """Two generations: when the young one is full it becomes the old one, and the old one is forgotten.

    Only URLs that were reported to the store are here, so "known" is never wrong; "unknown" only costs a question.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._young: set[Url] = set()
        self._old: set[Url] = set()

    def add(self, urls: KeysView[Url]) -> set[Url]:
        """Those of the URLs that were unknown; they are known from now on."""
        unknown = urls - self._young
        if not unknown:
            return unknown
        self._young |= unknown
        fresh = unknown - self._old
        if len(self._young) >= self._most:
            self._old, self._young = self._young, set()
        return fresh
