"""The URLs that this walker brought to the store, with their keys: exact and bounded. What is not here is asked of the
store.

A page has sixty links and about one of them is new; looking the others up here costs a tenth of hashing them.
"""

from collections.abc import Collection, Container, Sequence
from typing import cast

from shoal.base.url import Url
from shoal.crawl.frontier.values import digest_of, key_in

MOST_INSIDE = 50_000  # URLs of one generation: about 10 MB
MOST_OUTSIDE = 10_000  # most of them are met once, the others on every page
MOST_EACH = 200  # characters, on average: where URLs are longer, fewer of them are known
PACKED = 8  # bytes at the head of a digest: its key, packed

Key = tuple[int, int]


class Generations:
    """Two of them: when the young one is full it becomes the old one, and the old one is forgotten."""

    __slots__ = ("_most", "length", "old", "young")

    def __init__(self, most: int) -> None:
        self._most = most
        self.length = 0  # of the young ones, in characters
        self.young: dict[Url, bytes] = {}
        self.old: dict[Url, bytes] = {}

    def grow_old(self) -> None:
        if len(self.young) >= self._most or self.length >= self._most * MOST_EACH:
            self.old, self.young, self.length = self.young, {}, 0


class SeenCache:
    """URLs inside the crawl and outside of it apart, so that the many that are met only once push no others out.

    Only URLs that were reported to the store are here, so "known" is never wrong; "unknown" only costs a question. Keys
    are kept packed, as the link blob of a page holds them.
    """

    def __init__(self, key_seed: int, inside: int = MOST_INSIDE, outside: int = MOST_OUTSIDE) -> None:
        self._key_seed = key_seed
        self._inside = Generations(inside)
        self._outside = Generations(outside)

    @property
    def texts(self) -> Container[str]:
        """Texts that are canonical URLs."""
        return self._inside.young

    def add(self, urls: Collection[Url], insides: Sequence[bool]) -> tuple[list[bytes], dict[Url, Key]]:
        """The packed keys of distinct URLs, and those of them that were unknown: they are known from now on."""
        keys = list(map(self._inside.young.get, urls))
        unknown = self._fill(urls, insides, keys) if None in keys else {}
        return cast("list[bytes]", keys), unknown

    def packed(self, url: Url) -> bytes:
        """The packed key of a URL, known or not; it stays what it is."""
        return digest_of(url, self._key_seed)[:PACKED]

    def _fill(self, urls: Collection[Url], insides: Sequence[bool], keys: list[bytes | None]) -> dict[Url, Key]:
        sides, seed = (self._outside, self._inside), self._key_seed
        unknown: dict[Url, Key] = {}
        for place, url in enumerate(urls):
            if keys[place] is None:
                side = sides[insides[place]]
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
