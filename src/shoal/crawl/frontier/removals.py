"""Removals of crawls that go on after the request that asked for them: a million pages take minutes."""

import asyncio
from dataclasses import dataclass
from typing import Final

from shoal.access.audit_log import AuditHook
from shoal.crawl.frontier.admin import FrontierAdmin

AT_ONCE: Final = 2  # removals that work on the store; further ones wait for their turn


@dataclass(slots=True)
class _Removal:
    """A removal in progress."""

    task: "asyncio.Task[None]"
    rows: int = 0  # removed so far


class CrawlRemovals:
    """The removals of this process. One that its process did not finish is continued by the next request for it."""

    def __init__(self, admin: FrontierAdmin) -> None:
        self._admin = admin
        self._running: dict[str, _Removal] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    def is_running(self, crawl_id: str) -> bool:
        """Return whether this process is removing the crawl, or is about to."""
        removal = self._running.get(crawl_id)
        return removal is not None and not removal.task.done()

    async def remove(self, crawl_id: str, seconds: float, audit: AuditHook) -> int | None:
        """Remove a crawl that has ended. After some seconds, return how many rows were removed so far, and go on; None
        if the crawl is gone."""
        removal = self._running.get(crawl_id) or self._begin(crawl_id, audit)
        done, _ = await asyncio.wait({removal.task}, timeout=seconds)
        if not done:
            return removal.rows
        self._running.pop(crawl_id, None)
        return removal.task.result()

    def _begin(self, crawl_id: str, audit: AuditHook) -> _Removal:
        def count(rows: int) -> None:
            removal.rows += rows

        async def erase() -> None:
            async with self._turns:
                await self._admin.erase(crawl_id, audit=audit, progress=count)

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and task.exception() is None:  # an error is kept for the next request
                self._running.pop(crawl_id, None)

        removal = _Removal(asyncio.create_task(erase()))
        self._running[crawl_id] = removal
        removal.task.add_done_callback(ended)
        return removal
