"""REST for how many there are of what."""

import asyncio
from typing import Annotated, Any, Literal

from shoal.access.scopes import TokenScope
from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.request_form import Form, describe
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.observe.hourly_stats import HourlyStatsStore
from shoal.queue.job_admin import JobAdmin
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json

FRESH_SECONDS = 2.0  # an answer is given again for so long: counting reads every row


MOST_BOTS = 100  # that are listed


class StatsWanted(Form, frozen=True, kw_only=True):
    hours: Annotated[int, describe("So many hours back, this one included.", ge=1, le=720)] = 24
    kind: Annotated[Literal["page", "crawl", "analysis"] | None, describe("Only jobs of this kind, hour by hour.")] = (
        None
    )


class StatsApi:
    """`/api/v1/stats`."""

    def __init__(
        self, crawls: Crawls, jobs: JobAdmin, database: Database, hours: HourlyStatsStore, clock: Clock
    ) -> None:
        self._crawls = crawls
        self._jobs = jobs
        self._database = database
        self._hours = hours
        self._clock = clock
        self._counting = asyncio.Lock()
        self._counted_at = -FRESH_SECONDS
        self._counted: dict[str, Any] = {}

    @endpoint(
        "GET",
        "/api/v1/stats",
        scope=TokenScope.READ,
        summary="Count crawls and jobs by their states, and what happened hour by hour.",
        query=StatsWanted,
        answer=schemas.Stats,
        response_example=examples.STATS,
    )
    async def show_stats(self, ask: EndpointRequest[Nothing, StatsWanted]) -> Json:
        """States are counted anew every two seconds at most. What happened by the hour is what controllers and workers
        saw, and a few seconds late: jobs created, done, failed, expired (dead letters), retried, lost with their
        worker; the average duration of fetches, the part of attempts that were retried, and the bots that asked."""
        async with self._counting:  # those who ask meanwhile get what it finds
            if self._clock.monotonic() - self._counted_at >= FRESH_SECONDS:
                crawls, jobs = await self._crawls.count(), await self._jobs.count()
                self._counted = {"crawls": crawls, "jobs": jobs, "at": self._clock.now()}
                self._counted_at = self._clock.monotonic()
        return Json(self._counted | await self._database.read(lambda tx: self._by_hour(tx, ask.query)))

    async def _by_hour(self, tx: Tx, query: StatsWanted) -> dict[str, Any]:
        hours = await self._hours.since(tx, query.hours, query.kind)
        bots = await self._hours.bots(tx, query.hours, MOST_BOTS)
        return {"hours": [one.answer() for one in hours], "bots": [one.answer() for one in bots]}
