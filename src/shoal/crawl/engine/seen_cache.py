"""A bounded cache of the URLs that this walker has sent to the store, with their keys. The store checks all others.

A page has about sixty links, of which one is new. Looking the others up here costs a tenth of hashing them.
"""

from collections.abc import Collection, Container, Sequence
from typing import cast

from shoal.base.url import Url
from shoal.crawl.frontier.values import digest_of, key_in

MOST_INSIDE = 50_000  # URLs per generation: about 10 MB
MOST_OUTSIDE = 10_000  # most of them occur once, the others on every page
MOST_EACH = 200  # characters, on average: fewer URLs are cached if they are longer
PACKED = 8  # bytes at the start of a digest: its packed key

Key = tuple[int, int]


class Generations:
    """Two generations of URLs: when the young one is full, it replaces the old one."""

    __slots__ = ("_most", "length", "old", "young")

    def __init__(self, most: int) -> None:
        self._most = most
        self.length = 0  # total length of the young URLs, in characters
        self.young: dict[Url, bytes] = {}
        self.old: dict[Url, bytes] = {}

    def grow_old(self) -> None:
        """Start a new generation if the young one is full."""
        if len(self.young) >= self._most or self.length >= self._most * MOST_EACH:
            self.old, self.young, self.length = self.young, {}, 0


class SeenCache:
    """Caches URLs in scope and out of scope apart, so that the many that occur only once evict no others.

    It holds only URLs that were sent to the store, so a hit is always right, and a miss only costs a query. Keys are
    stored packed, as in the link blob of a page.
    """

    def __init__(self, key_seed: int, inside: int = MOST_INSIDE, outside: int = MOST_OUTSIDE) -> None:
        self._key_seed = key_seed
        self._inside = Generations(inside)
        self._outside = Generations(outside)

    @property
    def texts(self) -> Container[str]:
        """Strings that are known to be canonical URLs."""
        return self._inside.young

    def add(self, urls: Collection[Url], in_scope: Sequence[bool]) -> tuple[list[bytes], dict[Url, Key]]:
        """Add distinct URLs. Return their packed keys, and the keys of those that were not in the cache."""
        keys = list(map(self._inside.young.get, urls))
        unknown = self._fill(urls, in_scope, keys) if None in keys else {}
        return cast("list[bytes]", keys), unknown

    def packed(self, url: Url) -> bytes:
        """Return the packed key of a URL without adding it."""
        return digest_of(url, self._key_seed)[:PACKED]

    def _fill(self, urls: Collection[Url], in_scope: Sequence[bool], keys: list[bytes | None]) -> dict[Url, Key]:
        sides, seed = (self._outside, self._inside), self._key_seed
        unknown: dict[Url, Key] = {}
        for place, url in enumerate(urls):
            if keys[place] is None:
                side = sides[in_scope[place]]
                packed = side.young.get(url) or side.old.get(url)
                if packed is None:
                    digest = digest_of(url, seed)
                    unknown[url] = key_in(digest)
                    packed = digest[:PACKED]
                side.young[url] = keys[place] = packed
                side.length += len(url)
        for side in sides:
            side.grow_old()
        return unknown
