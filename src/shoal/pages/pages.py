"""Reading the stored pages of a crawl."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.base.clock import Clock, SystemClock
from shoal.base.database import Database
from shoal.base.url import Url
from shoal.pages.links import pack_key, unpack
from shoal.pages.page import Page
from shoal.pages.store import SCAN, PageFilter, PageStore

BLOBS: Final = 2_000  # pages whose links one query reads
QUICK: Final = 0.05  # seconds after which a search says how far it got


@dataclass(frozen=True, slots=True)
class FoundPages:
    """Pages that match a filter. `next`: where the search continues; None if the whole crawl was searched."""

    pages: list[tuple[int, Page]]
    next: int | None


@dataclass(slots=True)
class Referrers:
    """The pages that link to some URLs, by the key of the target; not all of them if the time was up."""

    sources: dict[int, list[Url]] = field(default_factory=dict)
    is_complete: bool = False
    searched: int = 0  # pages


class Pages:
    """The stored pages of crawls."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self._database = database
        self._store = PageStore()
        self._clock = clock or SystemClock()

    async def search(
        self, crawl: int, number: int, limit: int, which: PageFilter, seconds: float = QUICK
    ) -> FoundPages:
        """Return the next matching pages. A filter that few pages match stops after a while, however large the crawl
        is, and says where to continue."""
        until = self._clock.monotonic() + seconds
        found: list[tuple[int, Page]] = []
        while True:
            start, room = number, limit - len(found)
            some, last = await self._database.read(
                lambda tx: self._store.search(tx, crawl, start, room, which, SCAN)  # noqa: B023 - awaited at once
            )
            found += some
            if len(found) >= limit:
                return FoundPages(found, found[-1][0])
            if last is None:
                return FoundPages(found, None)
            number = last
            if self._clock.monotonic() > until:
                return FoundPages(found, number)

    async def all(self, crawl: int, which: PageFilter) -> AsyncIterator[list[Page]]:
        """Yield every matching page, in batches."""
        number: int | None = 0
        while number is not None:
            found = await self.search(crawl, number, 500, which)
            if found.pages:
                yield [page for _, page in found.pages]
            number = found.next

    async def get(self, crawl: int, number: int) -> Page | None:
        return await self._database.read(lambda tx: self._store.numbered(tx, crawl, number))

    async def of_keys(self, crawl: int, keys: list[int]) -> list[Page]:
        """Return the pages with these keys."""
        found = await self._database.read(lambda tx: self._store.of_keys(tx, crawl, keys))
        return [page for _, _, page in found]

    async def urls_of(self, crawl: int, keys: list[int]) -> dict[int, Url]:
        """Return the URLs of the pages with these keys; keys without a page are omitted."""
        return await self._database.read(lambda tx: self._store.urls_of(tx, crawl, keys))

    async def referrers(self, crawl: int, keys: Collection[int], most: int, seconds: float) -> Referrers:
        """Return pages that link to the pages with these keys, a limited number for each. Links are stored with their
        source, so this reads the links of the whole crawl, or as many as it can in the given time."""
        until, found, number = self._clock.monotonic() + seconds, Referrers(), 0
        wanted = {key: pack_key(key) for key in keys}
        sources: dict[int, list[int]] = {key: [] for key in wanted}
        while wanted and self._clock.monotonic() < until:
            start = number
            blobs = await self._database.read(
                lambda tx: self._store.links_after(tx, crawl, start, BLOBS)  # noqa: B023 - awaited at once
            )
            for source, key in await asyncio.to_thread(_links_to, wanted, blobs):
                if len(sources[key]) < most:
                    sources[key].append(source)
            wanted = {key: packed for key, packed in wanted.items() if len(sources[key]) < most}
            found.searched += len(blobs)
            if len(blobs) < BLOBS:
                found.is_complete = True
                break
            number = blobs[-1][0]
        found.is_complete = found.is_complete or not wanted  # as many were found as are shown
        urls = await self.urls_of(crawl, sorted({source for some in sources.values() for source in some}))
        found.sources = {key: [urls[one] for one in some if one in urls] for key, some in sources.items()}
        return found


def _links_to(wanted: Mapping[int, bytes], blobs: Iterable[tuple[int, int, bytes]]) -> list[tuple[int, int]]:
    """Return source and target of the links to the wanted keys. Searching for the bytes of a key is several times as
    fast as reading all keys, but they may also match across two neighbouring keys."""
    found = []
    for _, source, blob in blobs:
        near = [key for key, packed in wanted.items() if packed in blob]
        found += [(source, key) for key in near and set(near).intersection(unpack(blob).keys)]
    return found
