"""The URLs that this walker brought to the store, with their keys: exact and bounded. What is not here is asked of the
store.

A page has sixty links and about one of them is new; looking the others up here costs a tenth of hashing them.
"""

from collections.abc import Collection, Container
from typing import cast

from shoal.base.url import Url
from shoal.crawl.frontier import digest_of, key_in

MOST = 100_000  # URLs of one generation: about 20 MB
PACKED = 8  # bytes at the head of a digest: its key, packed

Key = tuple[int, int]


class KnownUrls:
    """Two generations: when the young one is full it becomes the old one, and the old one is forgotten.

    Only URLs that were reported to the store are here, so "known" is never wrong; "unknown" only costs a question. Keys
    are kept packed, as the link blob of a page holds them.
    """

    def __init__(self, key_seed: int, most: int = MOST) -> None:
        self._key_seed = key_seed
        self._most = most
        self._young: dict[Url, bytes] = {}
        self._old: dict[Url, bytes] = {}

    @property
    def texts(self) -> Container[str]:
        """Texts that are canonical URLs."""
        return self._young

    def add(self, urls: Collection[Url]) -> tuple[list[bytes], dict[Url, Key]]:
        """The packed keys of distinct URLs, and those of them that were unknown: they are known from now on."""
        keys = list(map(self._young.get, urls))
        unknown = self._fill(urls, keys) if None in keys else {}
        return cast("list[bytes]", keys), unknown

    def packed(self, url: Url) -> bytes:
        """The packed key of a URL, known or not; it stays what it is."""
        return self._young.get(url) or self._old.get(url) or digest_of(url, self._key_seed)[:PACKED]

    def _fill(self, urls: Collection[Url], keys: list[bytes | None]) -> dict[Url, Key]:
        young, old, seed = self._young, self._old, self._key_seed
        unknown: dict[Url, Key] = {}
        for place, url in enumerate(urls):
            if keys[place] is None:
                packed = old.get(url) if old else None
                if packed is None:
                    digest = digest_of(url, seed)
                    unknown[url] = key_in(digest)
                    packed = digest[:PACKED]
                young[url] = keys[place] = packed
        if len(young) >= self._most:
            self._old, self._young = young, {}
        return unknown
