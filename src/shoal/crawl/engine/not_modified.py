"""The recaller: gives unchanged pages what an earlier crawl knew of them, as many as one commit has room for."""

from typing import Protocol

from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.previous_crawl import PreviousCrawl
from shoal.crawl.frontier.values import Settled, WalkerBatch
from shoal.pages.page import Page

FEWEST = 10  # pages of one reading: nobody knows before how many links they have
MOST = 1_000
SMALL_PART = 4  # of what a commit may bring: while a reading gives no more, the next one asks for twice as many pages


class BodySource(Protocol):
    """Where bodies are kept that still hold."""

    def recall(self, page: Page, earlier: Page) -> None: ...


class NotModifiedPages:
    """Recalls the unchanged pages of one walker."""

    def __init__(self, earlier: PreviousCrawl, reader: PageReader, shelf: BodySource | None) -> None:
        self._earlier = earlier
        self._reader = reader
        self._shelf = shelf
        self._at_once = FEWEST

    async def recall(self, report: WalkerBatch, most: int) -> list[Settled]:
        """Recall the unchanged pages of a report until it has so many URLs; the others leave it, and are answered."""
        left = report.unchanged
        while left and report.weight < most:
            before = report.weight
            now, left = left[: self._at_once], left[self._at_once :]
            await self._recall(now, report)
            is_small = report.weight - before <= most // SMALL_PART
            self._at_once = min(2 * self._at_once, MOST) if is_small else FEWEST
        if left:
            later = set(map(id, left))
            report.settled = [done for done in report.settled if id(done) not in later]
        return left

    async def _recall(self, pages: list[Settled], report: WalkerBatch) -> None:
        recalled = await self._earlier.recall([done.task for done in pages])
        for done in pages:
            known = recalled.get((done.task.key, done.task.chk))
            self._reader.recall(done, known, report)
            if self._shelf is not None and known is not None and done.page is not None:
                self._shelf.recall(done.page, known.page)
