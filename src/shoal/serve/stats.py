"""REST for how many there are of what."""

import asyncio
from typing import Any

from shoal.access.scopes import Scope
from shoal.base.clock import Clock
from shoal.crawl.crawls import Crawls
from shoal.queue.jobs import Jobs
from shoal.serve import examples, shapes
from shoal.serve.endpoint import Ask, Nothing, endpoint
from shoal.serve.problems import Json

FRESH_SECONDS = 2.0  # an answer is given again for so long: counting reads every row


class StatsApi:
    """`/api/v1/stats`."""

    def __init__(self, crawls: Crawls, jobs: Jobs, clock: Clock) -> None:
        self._crawls = crawls
        self._jobs = jobs
        self._clock = clock
        self._counting = asyncio.Lock()
        self._counted_at = -FRESH_SECONDS
        self._counted: dict[str, Any] = {}

    @endpoint(
        "GET",
        "/api/v1/stats",
        scope=Scope.READ,
        says="Count crawls and jobs by their states.",
        answer=shapes.Stats,
        answers=examples.STATS,
    )
    async def show_stats(self, ask: Ask[Nothing, Nothing]) -> Json:
        """Counted anew every two seconds at most."""
        async with self._counting:  # those who ask meanwhile get what it finds
            if self._clock.monotonic() - self._counted_at >= FRESH_SECONDS:
                crawls, jobs = await self._crawls.count(), await self._jobs.count()
                self._counted = {"crawls": crawls, "jobs": jobs, "at": self._clock.now()}
                self._counted_at = self._clock.monotonic()
        return Json(self._counted)
