"""The URLs that this walker brought to the store, with their keys: exact and bounded. What is not here is asked of the
store.

A page has sixty links and about one of them is new; looking the others up here costs a tenth of hashing them.
"""

from collections.abc import Iterable
from typing import cast

from shoal.base.url import Url
from shoal.crawl.frontier import key_of
from shoal.pages.links import pack_key

MOST = 100_000  # URLs of one generation: about 20 MB

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

    def add(self, urls: Iterable[Url]) -> tuple[list[bytes], dict[Url, Key]]:
        """The packed keys of distinct URLs, and those of them that were unknown: they are known from now on."""
        urls = list(urls)
        keys = list(map(self._young.get, urls))
        unknown = self._fill(urls, keys) if None in keys else {}
        return cast("list[bytes]", keys), unknown

    def packed(self, url: Url) -> bytes:
        """The packed key of a URL, known or not; it stays what it is."""
        return self._young.get(url) or self._old.get(url) or pack_key(key_of(url, self._key_seed)[0])

    def _fill(self, urls: list[Url], keys: list[bytes | None]) -> dict[Url, Key]:
        unknown: dict[Url, Key] = {}
        for place, url in enumerate(urls):
            if keys[place] is None:
                packed = self._old.get(url)
                if packed is None:
                    unknown[url] = key = key_of(url, self._key_seed)
                    packed = pack_key(key[0])
                self._young[url] = keys[place] = packed
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        return unknown
