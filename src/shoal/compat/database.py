"""The queue for asynchronous code with a PostgreSQL pool of its own. The tables are Shoal's, made if absent."""

import asyncio
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shoal.app import on_given
from shoal.compat.memory import url_of, urls_of
from shoal.compat.scan import Scan
from shoal.settings_loader import load

if TYPE_CHECKING:
    import asyncpg

    from shoal.app import SqlDatabase


class DatabaseUrlQueueManager:
    """A queue for any number of tasks and processes. What `next` gives stays its caller's until `mark_completed`, or
    until the process dies: then it comes back. `db_pool` may also be an open database of Shoal's; neither is closed."""

    def __init__(self, scan_id: str, db_pool: "asyncpg.Pool | SqlDatabase") -> None:
        self.scan_id = scan_id
        self.db_pool = db_pool
        self._max_depth: int | None = None
        self._opening = asyncio.Lock()
        self._scan: Scan | None = None

    async def initialize_scan(self, seeds: list[str], max_depth: int = 3) -> None:
        """Make the scan, or add its seeds to the one that exists."""
        scan = await self._opened()
        urls = urls_of(seeds)
        self._max_depth = max_depth
        if not await scan.begin(urls, max_depth):
            await scan.add(urls)

    async def add(self, url: str, depth: int = 0) -> bool:
        """Whether the URL waits, or did before. A store that is out of reach raises."""
        found = url_of(url)
        if found is None:
            return False
        scan = await self._opened()
        if await scan.add([found], depth) is not None:
            return True
        return self._max_depth is not None and await scan.begin([found], self._max_depth)

    async def next(self) -> str | None:
        """The next URL, or None."""
        return await (await self._opened()).next(settling=False)

    async def mark_completed(self, url: str) -> None:
        """The URL is done. One that this manager was not given, or lost, stays as it is."""
        found = url_of(url)
        if found is not None:
            await (await self._opened()).settle(found)

    async def aclose(self) -> None:
        """Let others have what was given and not completed, at once."""
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
                self._scan = Scan(await on_given(settings, given), self.scan_id)
                weakref.finalize(self, self._scan.let_go)
            return self._scan
