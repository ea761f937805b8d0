"""The comparison of two crawls in the console: new and missing URLs, and what changed of the others.

It answers at once, also while a crawl is running: it reads only outlines of pages, and stops at a limit. `audit.diff`
compares everything, page fields and findings, without a limit, but only crawls that have ended, and one pair at a time.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from shoal.base.database import Database
from shoal.pages.page import NOT_MODIFIED
from shoal.pages.store import PageOutline, PageStore

BATCH: Final = 2_000
MOST_PAGES: Final = 200_000  # pages of each crawl; those of one crawl are held in memory
SHOWN: Final = 100  # examples of each kind
FIELDS: Final = ("robots", "canonical", "title")


@dataclass(frozen=True, slots=True)
class PageChange:
    """A page in both crawls, or in one of them."""

    url: str
    before: PageOutline | None
    after: PageOutline | None


@dataclass(slots=True)
class ChangeList:
    """How many pages changed in one way, and the first of them."""

    count: int = 0
    first: list[PageChange] = field(default_factory=list)

    def add(self, before: PageOutline | None, after: PageOutline | None) -> None:
        self.count += 1
        known = after or before
        if len(self.first) < SHOWN and known is not None:
            self.first.append(PageChange(known.url, before, after))


@dataclass(slots=True)
class Comparison:
    """The differences between two crawls. A page whose status changed is in no other list, and one is in `content` only
    if nothing else explains the change. 304 confirms the page of an earlier crawl, so it equals 200."""

    new: ChangeList = field(default_factory=ChangeList)
    missing: ChangeList = field(default_factory=ChangeList)
    status: ChangeList = field(default_factory=ChangeList)
    robots: ChangeList = field(default_factory=ChangeList)
    canonical: ChangeList = field(default_factory=ChangeList)
    title: ChangeList = field(default_factory=ChangeList)
    content: ChangeList = field(default_factory=ChangeList)
    same: int = 0
    is_complete: bool = True

    def add(self, before: PageOutline, after: PageOutline) -> None:
        if _confirmed(before.status) != _confirmed(after.status):
            self.status.add(before, after)
            return
        changed = [name for name in FIELDS if getattr(before, name) != getattr(after, name)]
        for name in changed:
            getattr(self, name).add(before, after)
        if changed:
            return
        if before.content_hash != after.content_hash:
            self.content.add(before, after)
        else:
            self.same += 1


def _confirmed(status: int | None) -> int | None:
    return 200 if status == NOT_MODIFIED else status


class PageComparer:
    """Compares two crawls for the console."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = PageStore()

    async def compare(self, before: int, after: int, most: int = MOST_PAGES) -> Comparison:
        """Compare two crawls, reading at most `most` pages of each."""
        found, old = Comparison(), dict[str, PageOutline]()
        async for page in self._outlines(before):
            if len(old) >= most:
                found.is_complete = False
                break
            old[page.url] = page
        count = 0
        async for page in self._outlines(after):
            count += 1
            if count > most:
                found.is_complete = False
                break
            earlier = old.pop(page.url, None)
            if earlier is not None:
                found.add(earlier, page)
            elif found.is_complete:  # else it may be among those that were not read
                found.new.add(None, page)
        for page in old.values() if found.is_complete else ():
            found.missing.add(page, None)
        return found

    async def _outlines(self, crawl: int) -> AsyncIterator[PageOutline]:
        number = 0
        while True:
            start = number
            batch = await self._database.read(
                lambda tx: self._store.outlines_after(tx, crawl, start, BATCH)  # noqa: B023 - awaited at once
            )
            for page in batch:
                yield page
            if len(batch) < BATCH:
                return
            number = batch[-1].number
