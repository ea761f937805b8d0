"""Reading the stored pages of a crawl."""

from shoal.base.database import Database
from shoal.pages.page import Page
from shoal.pages.store import PageFilter, PageStore


class Pages:
    """The stored pages of crawls."""

    def __init__(self, database: Database, store: PageStore) -> None:
        self._database = database
        self._store = store

    async def after(self, crawl: int, number: int, limit: int, which: PageFilter) -> list[tuple[int, Page]]:
        """Return matching pages of a crawl with their numbers, in storage order."""
        return await self._database.read(lambda tx: self._store.some_after(tx, crawl, number, limit, which))
