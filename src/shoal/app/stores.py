"""The stores of all packages, on the database of record."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.base.clock import Clock, SystemClock
from shoal.base.errors import BackendUnavailable
from shoal.base.extras import require
from shoal.base.settings import RedisSettings, Settings
from shoal.base.signals import Signals
from shoal.crawl.frontier.sql_frontier import SqlFrontier
from shoal.crawl.store import ByDriver, FrontierStore
from shoal.queue.lanes import Availability, Lanes
from shoal.queue.store import JobStore

if TYPE_CHECKING:
    from shoal.crawl.frontier.admin_store import FrontierAdminStore
    from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin
    from shoal.drivers.redis.connection import RedisClient
    from shoal.drivers.redis.frontier import RedisFrontier
    from shoal.drivers.redis.lane_repair import AbandonedLanes
    from shoal.drivers.redis.lane_server import LaneServer
    from shoal.drivers.redis.server_check import WatchedRedis
    from shoal.drivers.redis.single_calls import SingleCalls
    from shoal.queue.job_admin_store import JobAdminStore


class Stores:
    """One store per contract, built on first use and shared. The modules of stores that a crawl does not need are also
    imported on first use.

    `dialect` is the SQL dialect of the database. The settings choose the drivers and their options.
    """

    def __init__(self, dialect: str, settings: Settings, clock: Clock, signals: Signals) -> None:
        if settings.redis.url:
            require("redis", "REDIS_URL")
        self._dialect = dialect
        self.settings = settings
        self.clock = clock
        self.signals = signals

    @cached_property
    def jobs(self) -> JobStore:
        return JobStore(self._dialect, self.settings.queue.ageing, self._available)

    @cached_property
    def lanes(self) -> Lanes:
        if self.settings.redis.lanes == "sql":
            return self.jobs.lanes
        from shoal.drivers.redis.lanes import RedisLanes

        return RedisLanes(self.jobs.lanes, self._lane_server, self.clock, self.settings.queue.poll_every)

    @cached_property
    def _available(self) -> Availability:
        if self.settings.redis.lanes == "sql":
            return Availability()
        from shoal.drivers.redis.lanes import LaneChanges

        return Availability(LaneChanges(self._lane_server))

    @cached_property
    def abandoned_lanes(self) -> "AbandonedLanes":
        """The lanes that may still be in Redis because earlier settings used Redis for lanes."""
        from shoal.drivers.redis.lane_repair import AbandonedLanes

        return AbandonedLanes(self._lane_server)

    @cached_property
    def _lane_server(self) -> "LaneServer":
        from shoal.drivers.redis.lane_server import TIMEOUT, LaneServer

        settings = self.settings.redis
        # Jobs can be leased without Redis, so the timeout is short.
        client = self._redis_client(settings.but(timeout=min(settings.timeout, TIMEOUT)))
        return LaneServer(client, self.clock, self.signals)

    @cached_property
    def frontiers(self) -> ByDriver[FrontierStore]:
        return ByDriver[FrontierStore](self._sql_frontier, None if self.redis is None else self._redis_frontier)

    @cached_property
    def _sql_frontier(self) -> SqlFrontier:
        return SqlFrontier(self._dialect)

    @cached_property
    def _redis_frontier(self) -> "RedisFrontier":
        from shoal.drivers.redis.frontier import RedisFrontier

        assert self.redis is not None
        return RedisFrontier(self.redis, self._sql_frontier)

    @cached_property
    def redis(self) -> "WatchedRedis | None":
        """The Redis server, if the settings name one. For SQLite, its client blocks, because units of work on SQLite
        run on a thread without an event loop."""
        if not self.settings.redis.url:
            return None
        from shoal.drivers.redis.server_check import WatchedRedis

        return WatchedRedis(self._redis_client(self.settings.redis), SystemClock(), self.signals)

    def single_calls(self) -> "SingleCalls | None":
        """Return the object that calls the frontier of one crawl from any thread; `None` without a Redis server."""
        if self.redis is None:
            return None
        from shoal.drivers.redis.single_calls import SingleCalls

        turns = self._redis_frontier.turns
        return SingleCalls(self._thread_redis, self.redis, turns, self.clock)

    @cached_property
    def _thread_redis(self) -> "WatchedRedis":
        from shoal.drivers.redis.connection import ThreadRedis
        from shoal.drivers.redis.server_check import WatchedRedis

        if self._dialect == "sqlite" and self.redis is not None:
            return self.redis
        return WatchedRedis(ThreadRedis(self.settings.redis), SystemClock(), self.signals)

    def _redis_client(self, settings: RedisSettings) -> "RedisClient":
        from shoal.drivers.redis.connection import LoopRedis, ThreadRedis

        return (ThreadRedis if self._dialect == "sqlite" else LoopRedis)(settings)

    async def check_redis(self) -> None:
        """Raise an error if Shoal cannot use the Redis server, because the server could evict URLs or jobs, is too old,
        or is a replica. If the server cannot be reached now, only emit a warning: it may come back, and calls that need
        it fail until then."""
        if self.redis is None:
            return
        from shoal.drivers.redis.server_check import RedisWarned, check_server

        try:
            facts = await check_server(self.redis)
            warning = facts.warning
        except BackendUnavailable as error:
            warning = error.message
        if warning is not None:
            self.signals.emit(RedisWarned(server=self.redis.name, warning=warning))

    async def close(self) -> None:
        """Close the connections to Redis, if there are any."""
        if "redis" in self.__dict__ and self.redis is not None:
            await self.redis.close()
        if "_thread_redis" in self.__dict__:
            await self._thread_redis.close()
        if "_lane_server" in self.__dict__:
            await self._lane_server.close()

    @cached_property
    def job_admin(self) -> "JobAdminStore":
        from shoal.queue.job_admin_store import JobAdminStore

        return JobAdminStore(self.settings.queue.ageing, self._available)

    @cached_property
    def sql_frontier_admin(self) -> "SqlFrontierAdmin":
        from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin

        return SqlFrontierAdmin(self._dialect)

    @cached_property
    def frontier_admins(self) -> "ByDriver[FrontierAdminStore]":
        sql = self.sql_frontier_admin
        if self.redis is None:
            return ByDriver(sql)
        from shoal.drivers.redis.frontier_admin import RedisFrontierAdmin

        redis: FrontierAdminStore = RedisFrontierAdmin(self.redis, sql)
        return ByDriver(sql, redis)
