"""Unchanged pages (304): their facts and links come from the previous crawl, as many as one commit can take."""

from typing import TYPE_CHECKING

from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.previous_crawl import PreviousCrawl
from shoal.crawl.frontier.values import Settled, WalkerBatch

if TYPE_CHECKING:
    from shoal.pages.warc import BodyRecorder

FEWEST = 10  # pages read at once; the number of their links is not known in advance
MOST = 1_000
SMALL_PART = 4  # if the links of one read fill at most a quarter of a commit, the next read takes twice as many pages


class NotModifiedPages:
    """Completes the unchanged pages of one walker from the previous crawl."""

    def __init__(self, previous: PreviousCrawl, reader: PageReader, bodies: "BodyRecorder | None") -> None:
        self._previous = previous
        self._reader = reader
        self._bodies = bodies
        self._at_once = FEWEST

    async def recall(self, batch: WalkerBatch, most: int) -> list[Settled]:
        """Complete the unchanged pages of a batch until it has `most` URLs. Remove and return the other pages."""
        left = batch.unchanged
        while left and batch.weight < most:
            before = batch.weight
            now, left = left[: self._at_once], left[self._at_once :]
            await self._recall(now, batch)
            is_small = batch.weight - before <= most // SMALL_PART
            self._at_once = min(2 * self._at_once, MOST) if is_small else FEWEST
        if left:
            later = set(map(id, left))
            batch.settled = [done for done in batch.settled if id(done) not in later]
        return left

    async def _recall(self, pages: list[Settled], batch: WalkerBatch) -> None:
        recalled = await self._previous.recall([done.task for done in pages])
        for done in pages:
            known = recalled.get((done.task.key, done.task.chk))
            self._reader.recall(done, known, batch)
            if self._bodies is not None and known is not None and done.page is not None:
                self._bodies.recall(done.page, known.page)
