"""REST endpoint for statistics."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from shoal.access.scopes import TokenScope
from shoal.base.clock import Clock
from shoal.base.request_form import Form, describe
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.fleet.pressure import PressureStatus
from shoal.observe.hourly_stats import HourlyStatsReader
from shoal.queue.job_admin import JobAdmin
from shoal.serve import examples, schemas, to_api
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint

FRESH_SECONDS = 2.0  # counts are cached that long, because counting reads every row
MOST_BOTS = 100


class StatsQuery(Form, frozen=True, kw_only=True):
    hours: Annotated[int, describe("Number of hours to show, including the current one.", ge=1, le=720)] = 24
    kind: Annotated[Literal["page", "crawl", "analysis"] | None, describe("Only this kind of jobs per hour.")] = None


class StatsApi:
    """`/api/v1/stats`."""

    def __init__(
        self,
        crawls: Crawls,
        jobs: JobAdmin,
        hourly: HourlyStatsReader,
        clock: Clock,
        pressure: Callable[[], Sequence[PressureStatus]],
    ) -> None:
        self._crawls = crawls
        self._jobs = jobs
        self._hourly = hourly
        self._clock = clock
        self._pressure = pressure
        self._counting = asyncio.Lock()
        self._counted_at = -FRESH_SECONDS
        self._counts: dict[str, Any] = {}

    @endpoint(
        "GET",
        "/api/v1/stats",
        scope=TokenScope.READ,
        summary="Show the number of crawls and jobs by state, and hourly statistics.",
        query=StatsQuery,
        response=schemas.Stats,
        response_example=examples.STATS,
    )
    async def show_stats(self, request: EndpointRequest[Nothing, StatsQuery]) -> schemas.Stats:
        """The counts by state are refreshed at most every two seconds. The hourly statistics are collected by
        controllers and workers, and a few seconds late: jobs created, done, failed, expired (dead letters), retried and
        lost with their worker, the average duration of fetches, the share of retried attempts, and the active bots.
        Back-pressure is that of the controller that answers."""
        async with self._counting:  # concurrent requests share one count
            if self._clock.monotonic() - self._counted_at >= FRESH_SECONDS:
                crawls, jobs = await self._crawls.count(), await self._jobs.count()
                self._counts = {"crawls": crawls, "jobs": jobs, "at": self._clock.now()}
                self._counted_at = self._clock.monotonic()
        hours, bots = await self._hourly.read(request.query.hours, request.query.kind, MOST_BOTS)
        return schemas.Stats(
            **self._counts,
            hours=[to_api.hour(one) for one in hours],
            bots=[to_api.bot_seen(one) for one in bots],
            back_pressure=[to_api.back_pressure(one) for one in self._pressure()],
        )
