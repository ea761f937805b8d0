"""REST endpoint for statistics."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from shoal.access.token import TokenScope
from shoal.base.request_form import Form, describe
from shoal.fleet.view import PressureStatus
from shoal.observe.stats import HourlyStatsReader
from shoal.serve.cached import StateCounts
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.resources.bot import BotSeen
from shoal.serve.resources.stats import BackPressure, Hour, Stats

MOST_BOTS = 100


class StatsQuery(Form, frozen=True, kw_only=True):
    hours: Annotated[int, describe("Number of hours to show, including the current one.", ge=1, le=720)] = 24
    kind: Annotated[Literal["page", "crawl", "analysis"] | None, describe("Only this kind of jobs per hour.")] = None


class StatsApi:
    """`/api/v1/stats`."""

    def __init__(
        self, counts: StateCounts, hourly: HourlyStatsReader, pressure: Callable[[], Sequence[PressureStatus]]
    ) -> None:
        self._counts = counts
        self._hourly = hourly
        self._pressure = pressure

    @endpoint(
        "GET",
        "/api/v1/stats",
        scope=TokenScope.READ,
        summary="Show the number of crawls and jobs by state, and hourly statistics.",
        query=StatsQuery,
        response=Stats,
    )
    async def show_stats(self, request: EndpointRequest[Nothing, StatsQuery]) -> Stats:
        """The counts by state are refreshed at most every two seconds. The hourly statistics are collected by
        controllers, workers and crawls in other processes, and a few seconds late: jobs created, done, failed, expired
        (dead letters), retried and lost with their worker, the average duration of fetches, the share of retried
        attempts, and the active bots. Back-pressure is that of the controller that answers."""
        crawls, crawls_at = await self._counts.crawls.get_with_time()
        jobs, jobs_at = await self._counts.jobs.get_with_time()
        hours, bots = await self._hourly.read(request.query.hours, request.query.kind, MOST_BOTS)
        return Stats(
            crawls=crawls,
            jobs=jobs,
            at=min(crawls_at, jobs_at),
            hours=[Hour.of(one) for one in hours],
            bots=[BotSeen.of(one) for one in bots],
            back_pressure=[BackPressure.of(one) for one in self._pressure()],
        )
