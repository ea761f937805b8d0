"""Contract of the wake-up on all drivers: a hint reaches idle workers in this process and in others, and lost hints
are noticed."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from shoal.app import App, opened
from shoal.base.database.postgres import PostgresDatabase
from shoal.base.ids import JobId, new_id
from shoal.base.settings_loader import load
from shoal.base.signals import Signal, Signals
from shoal.drivers.redis.wake import RedisWake
from shoal.queue import wake as postgres_wake
from shoal.queue.job import NewJob, local_lane
from shoal.queue.wake import BURST, PostgresWake, WakeDegraded, WakeListenerFailed, WakeRestored
from tests.contract.conftest import begin_lanes

PATIENCE = 60.0


class Subscriber:
    """Counts hints."""

    def __init__(self) -> None:
        self.hints = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.hints += 1
        self._event.set()

    async def hint(self, seconds: float = PATIENCE) -> None:
        await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()


class Told:
    """The signals of a process, which a test can wait for."""

    def __init__(self) -> None:
        self.signals = Signals()
        self.signals.subscribe(self._hear)
        self._said: list[Signal] = []
        self._news = asyncio.Event()

    def _hear(self, signal: Signal) -> None:
        self._said.append(signal)
        self._news.set()

    async def first(self, kind: type[Any]) -> Any:
        async with asyncio.timeout(PATIENCE):
            while not any(isinstance(signal, kind) for signal in self._said):
                self._news.clear()
                await self._news.wait()
        return next(signal for signal in self._said if isinstance(signal, kind))


class Forgetful:
    """A connection that listens to nothing."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def add_listener(self, channel: str, callback: object) -> None:
        return


@asynccontextmanager
async def process(url: str, signals: Signals | None = None, redis: str = "") -> AsyncIterator[App]:
    """The app of one process; two of these share nothing but the store, and Redis if that carries the lanes."""
    async with opened(load({"DATABASE_URL": url, "REDIS_URL": redis}).settings, signals) as app:
        await begin_lanes(app.queue)
        yield app


async def enqueue(app: App, lane: str = "shared", capability: str = "http") -> None:
    job = NewJob(JobId(new_id("job")), "page", None, lane=lane, capability=capability)
    await app.queue.enqueue([job])


async def listening(app: App, is_idle: Callable[[], bool] = lambda: True) -> Subscriber:
    """Return a subscriber whose driver is connected: it has received its first hint."""
    subscriber = Subscriber()
    app.wake.subscribe(subscriber, is_idle)
    if isinstance(app.wake, PostgresWake | RedisWake):
        await subscriber.hint()
    return subscriber


async def test_a_job_wakes_its_own_process(store_url: str, lanes_url: str) -> None:
    async with process(store_url, redis=lanes_url) as app:
        subscriber = await listening(app)
        await enqueue(app)
        await subscriber.hint()


async def test_a_job_wakes_another_process(store_url: str, lanes_url: str) -> None:
    async with process(store_url, redis=lanes_url) as one, process(store_url, redis=lanes_url) as other:
        subscriber = await listening(one)
        await enqueue(other)
        await subscriber.hint()


async def test_a_command_that_ends_at_once_has_announced_its_job(store_url: str, lanes_url: str) -> None:
    async with process(store_url, redis=lanes_url) as one:
        subscriber = await listening(one)
        async with process(store_url, redis=lanes_url) as other:
            await enqueue(other)
        await subscriber.hint()


async def test_a_job_of_a_process_by_itself_wakes_nobody(store_url: str, lanes_url: str) -> None:
    async with process(store_url, redis=lanes_url) as one, process(store_url, redis=lanes_url) as other:
        subscriber = await listening(one)
        await enqueue(other, local_lane("crawl"))
        await enqueue(other)
        await subscriber.hint()
        assert subscriber.hints <= 2  # the hint at the start, and the one for the job that every worker can run


async def test_a_subscriber_that_raises_does_not_affect_the_listener_or_other_subscribers(store_url: str) -> None:
    told = Told()

    def broken() -> None:
        raise RuntimeError("no")

    async with process(store_url, told.signals) as one, process(store_url) as other:
        one.wake.subscribe(broken, lambda: True)
        subscriber = await listening(one)
        for _ in range(2):
            await enqueue(other)
            await subscriber.hint()
        assert (await told.first(WakeListenerFailed)).error == "RuntimeError: no"


async def test_the_wake_file_is_watched_only_while_a_worker_has_a_free_slot(sqlite_url: str) -> None:
    is_idle = False
    async with process(sqlite_url) as one, process(sqlite_url) as other:
        full = await listening(one, lambda: is_idle)
        await enqueue(other)
        with pytest.raises(TimeoutError):
            await full.hint(0.3)
        is_idle = True
        await full.hint()


async def test_a_change_without_a_new_job_wakes_no_worker(sqlite_url: str) -> None:
    async with process(sqlite_url) as app:
        subscriber = await listening(app)
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("INSERT INTO pulse (name, at) VALUES ('x', 1)")
        connection.close()
        with pytest.raises(TimeoutError):
            await subscriber.hint(0.3)


async def test_a_job_that_nobody_takes_is_a_hint_once_and_hides_no_other(sqlite_url: str) -> None:
    async with process(sqlite_url) as one, process(sqlite_url) as other:
        subscriber = await listening(one)
        await enqueue(other, capability="js")
        await subscriber.hint()
        for _ in range(3):
            await other.check_store()  # the file changes, and the job still waits
        with pytest.raises(TimeoutError):
            await subscriber.hint(0.3)
        await enqueue(other)
        await subscriber.hint()


async def test_announcements_in_quick_succession_are_sent_as_one(postgres_url: str) -> None:
    async with process(postgres_url) as one, process(postgres_url) as other:
        subscriber = await listening(one)
        await enqueue(other)
        await subscriber.hint()
        before = subscriber.hints
        for _ in range(200):
            other.wake.announce()
        await subscriber.hint()
        other.wake.announce()
        await subscriber.hint()
        assert subscriber.hints - before <= 3


async def test_two_hundred_writers_at_once_wait_for_no_notification(postgres_url: str) -> None:
    """Notifications are sent after the commit that stores a job: within it, all writers would wait for one lock."""
    async with process(postgres_url) as one, process(postgres_url) as other:
        subscriber = await listening(one)
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_notify('held', '')")
                await asyncio.wait_for(asyncio.gather(*(enqueue(other) for _ in range(200))), PATIENCE)
        finally:
            await connection.close()
        await subscriber.hint()
        assert subscriber.hints <= BURST + 10


async def test_a_listener_reports_a_cut_connection_and_reconnects(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_wake, "PAUSE_SECONDS", 0.1)
    told = Told()
    async with process(postgres_url, told.signals) as one, process(postgres_url) as other:
        subscriber = await listening(one)
        connection = await asyncpg.connect(postgres_url)
        try:
            assert isinstance(one.wake, PostgresWake)
            cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query = $1"
            assert await connection.fetchval(cut, f'LISTEN "{one.wake._test_channel}"') == 1
        finally:
            await connection.close()
        await told.first(WakeDegraded)
        await told.first(WakeRestored)
        assert one.wake.problem is None
        subscriber.hints = 0
        await enqueue(other)
        await subscriber.hint()


async def test_a_listener_that_misses_its_own_notification_reports_notify_degraded(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a pooler that gives each transaction another connection: LISTEN is lost without an error."""
    monkeypatch.setattr(postgres_wake, "TEST_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(postgres_wake, "TEST_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(postgres_wake, "PAUSE_SECONDS", 0.1)
    told = Told()
    async with process(postgres_url, told.signals) as app:
        database = app.database
        assert isinstance(database, PostgresDatabase)

        async def connect(session: dict[str, str]) -> Any:
            return Forgetful(await database.connect_apart(session))

        wake = PostgresWake(connect, database.notify, app.clock, told.signals)
        wake.subscribe(lambda: None, lambda: True)
        try:
            degraded = await told.first(WakeDegraded)
            assert "do not arrive" in degraded.why
            assert wake.problem == degraded.why
        finally:
            await wake.close()
