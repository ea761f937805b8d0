"""REST endpoint for statistics."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Generic, Literal, TypeVar

from shoal.access.token import TokenScope
from shoal.base.clock import Clock
from shoal.base.request_form import Form, describe
from shoal.fleet.view import PressureStatus
from shoal.observe.stats import HourlyStatsReader
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.resources.bot import BotSeen
from shoal.serve.resources.stats import BackPressure, Hour, Stats

T = TypeVar("T")

SHORTEST: Final = 2.0  # minimum number of seconds for which a figure is cached
SHARE: Final = 0.05  # maximum share of time spent on reading the figure


class Cached(Generic[T]):
    """The cached value of a figure. The value is cached for longer if reading it takes long."""

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, share: float = SHARE) -> None:
        self._read = read
        self._clock = clock
        self._share = share
        self._reading = asyncio.Lock()
        self._value: tuple[T, datetime] | None = None
        self._fresh_until = 0.0

    async def get(self) -> T:
        """Return the value; concurrent callers share one read."""
        return (await self.get_with_time())[0]

    async def get_with_time(self) -> tuple[T, datetime]:
        """Return the value, and when it was read."""
        async with self._reading:
            began = self._clock.monotonic()
            if self._value is None or began >= self._fresh_until:
                self._value = await self._read(), self._clock.now()
                ended = self._clock.monotonic()
                self._fresh_until = ended + max(SHORTEST, (ended - began) / self._share)
            return self._value

    def forget(self) -> None:
        """Drop the cached value, because the figure has just changed; the next `get` reads it again."""
        self._fresh_until = 0.0


@dataclass(frozen=True, slots=True)
class StateCounts:
    """The number of crawls by state, and of jobs by kind and state."""

    crawls: Cached[dict[str, int]]
    jobs: Cached[dict[str, dict[str, int]]]


MOST_BOTS = 100


class StatsQuery(Form, frozen=True, kw_only=True):
    hours: Annotated[int, describe("Number of hours to show, including the current one.", ge=1, le=720)] = 24
    kind: Annotated[Literal["page", "crawl", "analysis"] | None, describe("Kind of jobs in the hourly statistics.")] = (
        None
    )


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
        """The counts by state are refreshed at most every two seconds. The hourly statistics cover all controllers,
        workers and crawls of the store; they may be a few seconds old. They count the jobs that were created, done,
        failed, expired (dead letters), retried, or lost with their worker. They also show the average duration of
        fetches, the share of retried attempts, and the number of active bots. The back-pressure values are those of the
        controller that sends the response."""
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
