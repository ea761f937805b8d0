"""The queue for asynchronous code that brings its own PostgreSQL pool. It uses Shoal's tables and creates them if
absent."""

import asyncio
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shoal.app import attach
from shoal.base.settings_loader import load
from shoal.compat.memory import url_of, urls_of
from shoal.compat.scan import Scan

if TYPE_CHECKING:
    import asyncpg

    from shoal.app.drivers import SqlDatabase


class DatabaseUrlQueueManager:
    """A queue for any number of tasks and processes. A URL from `next` belongs to its caller until `mark_completed`; if
    the process dies first, it is handed out again. `db_pool` may also be an open Shoal database; neither is closed."""

    def __init__(self, scan_id: str, db_pool: "asyncpg.Pool | SqlDatabase") -> None:
        self.scan_id = scan_id
        self.db_pool = db_pool
        self._max_depth: int | None = None
        self._opening = asyncio.Lock()
        self._scan: Scan | None = None

    async def initialize_scan(self, seeds: list[str], max_depth: int = 3) -> None:
        """Create the scan, or add the seeds to the existing one."""
        scan = await self._opened()
        urls = urls_of(seeds)
        self._max_depth = max_depth
        if not await scan.begin(urls, max_depth, "sql"):
            await scan.add(urls)

    async def add(self, url: str, depth: int = 0) -> bool:
        """Add a URL; return True if it is in the scan, even if it was before. Raises if the store is unavailable."""
        found = url_of(url)
        if found is None:
            return False
        scan = await self._opened()
        if await scan.add([found], depth) is not None:
            return True
        return self._max_depth is not None and await scan.begin([found], self._max_depth, "sql")

    async def next(self) -> str | None:
        """Return the next URL, or None."""
        return await (await self._opened()).next(settling=False)

    async def mark_completed(self, url: str) -> None:
        """Mark a URL as completed. A URL that this manager did not get, or has lost, is left unchanged."""
        found = url_of(url)
        if found is not None:
            await (await self._opened()).settle(found)

    async def aclose(self) -> None:
        """Put URLs that were handed out but not completed back into the queue, without waiting for their lease to
        expire."""
        if self._scan is not None:
            await self._scan.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _opened(self) -> Scan:
        async with self._opening:
            if self._scan is None:
                settings, given = load().settings, self.db_pool
                self._scan = Scan(await attach(settings, given), self.scan_id)
                weakref.finalize(self, self._scan.let_go)
            return self._scan
