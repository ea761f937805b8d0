"""Searching crawls: a search that few of them match stops after a while, however many there are."""

from dataclasses import dataclass
from typing import Final

from shoal.base.clock import Clock
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.store import CrawlFilter

SCAN: Final = 2_000  # crawls that one query looks at
QUICK: Final = 0.05  # seconds after which a search says how far it got


@dataclass(frozen=True, slots=True)
class FoundCrawls:
    """Crawls that match, newest first. `next`: the number after which the search continues; None at the end."""

    crawls: list[CrawlStatus]
    next: int | None


class CrawlSearch:
    """Searches crawls in steps."""

    def __init__(self, crawls: Crawls, clock: Clock) -> None:
        self._crawls = crawls
        self._clock = clock

    async def find(
        self, wanted: CrawlFilter, *, after: int | None = None, limit: int = 50, seconds: float = QUICK
    ) -> FoundCrawls:
        """Return matching crawls, at most `limit`, older than the one with the number `after`."""
        until = self._clock.monotonic() + seconds
        before = await self._crawls.last_number() + 1 if after is None else after
        found: list[CrawlStatus] = []
        while before > 1:
            floor = max(0, before - SCAN)
            room = limit + 1 - len(found)
            found += await self._crawls.matching(wanted, after=before, limit=room, floor=floor)
            if len(found) > limit:
                return FoundCrawls(found[:limit], found[limit - 1].crawl.number)
            before = floor
            if before > 1 and self._clock.monotonic() > until:
                return FoundCrawls(found, before)
        return FoundCrawls(found, None)
