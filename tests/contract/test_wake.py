"""What the wake-up promises on both drivers: a hint reaches who waits, in this process and in others; one that gets
lost is noticed. F26-F28 of the fault list are here."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from shoal.app import App, opened
from shoal.base.ids import JobId, new_id
from shoal.base.signals import Signal, Signals
from shoal.queue.job import NewJob, local_lane
from shoal.queue.wake import WakeDegraded, WakeListenerFailed, WakeRestored
from shoal.settings_loader import load
from shoal.store.sql import postgres_wake
from shoal.store.sql.postgres import PostgresDatabase
from shoal.store.sql.postgres_wake import PostgresWake

PATIENCE = 60.0


class Ear:
    """Counts hints."""

    def __init__(self) -> None:
        self.heard = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.heard += 1
        self._event.set()

    async def hint(self, seconds: float = PATIENCE) -> None:
        await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()


class Told:
    """What a process said, to be waited for."""

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
async def process(url: str, signals: Signals | None = None) -> AsyncIterator[App]:
    """The rooms as one process has them; two of these share nothing but the store."""
    async with opened(load({"DATABASE_URL": url}).settings, signals) as app:
        yield app


async def enqueue(app: App, lane: str = "shared", capability: str = "http") -> None:
    job = NewJob(JobId(new_id("job")), "page", None, lane=lane, capability=capability)
    await app.queue.enqueue([job])


async def listening(app: App, hungry: Callable[[], bool] = lambda: True) -> Ear:
    """An ear whose driver is connected: it has heard the hint of its beginning, or of another's announcement."""
    ear = Ear()
    app.wake.subscribe(ear, hungry)
    if isinstance(app.wake, PostgresWake):
        await ear.hint()
    return ear


async def test_a_job_wakes_its_own_process(store_url: str) -> None:
    async with process(store_url) as app:
        ear = await listening(app)
        await enqueue(app)
        await ear.hint()


async def test_a_job_wakes_another_process(store_url: str) -> None:
    async with process(store_url) as one, process(store_url) as other:
        ear = await listening(one)
        await enqueue(other)
        await ear.hint()


async def test_a_command_that_ends_at_once_has_announced_its_job(store_url: str) -> None:
    async with process(store_url) as one:
        ear = await listening(one)
        async with process(store_url) as other:
            await enqueue(other)
        await ear.hint()


async def test_a_job_of_a_process_by_itself_wakes_nobody(store_url: str) -> None:
    async with process(store_url) as one, process(store_url) as other:
        ear = await listening(one)
        await enqueue(other, local_lane("crawl"))
        await enqueue(other)
        await ear.hint()
        assert ear.heard <= 2  # the beginning, and the job for everybody


async def test_an_ear_that_raises_neither_ends_the_listener_nor_deafens_others(store_url: str) -> None:
    told = Told()

    def broken() -> None:
        raise RuntimeError("no")

    async with process(store_url, told.signals) as one, process(store_url) as other:
        one.wake.subscribe(broken, lambda: True)
        ear = await listening(one)
        for _ in range(2):
            await enqueue(other)
            await ear.hint()
        assert (await told.first(WakeListenerFailed)).error == "RuntimeError: no"


async def test_the_wake_file_is_watched_only_while_a_worker_has_a_free_slot(sqlite_url: str) -> None:
    hungry = False
    async with process(sqlite_url) as one, process(sqlite_url) as other:
        full = await listening(one, lambda: hungry)
        await enqueue(other)
        with pytest.raises(TimeoutError):
            await full.hint(0.3)
        hungry = True
        await full.hint()


async def test_a_change_without_a_new_job_wakes_no_worker(sqlite_url: str) -> None:
    async with process(sqlite_url) as app:
        ear = await listening(app)
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("INSERT INTO pulse (name, at) VALUES ('x', 1)")
        connection.close()
        with pytest.raises(TimeoutError):
            await ear.hint(0.3)


async def test_a_job_that_nobody_takes_is_a_hint_once_and_hides_no_other(sqlite_url: str) -> None:
    async with process(sqlite_url) as one, process(sqlite_url) as other:
        ear = await listening(one)
        await enqueue(other, capability="js")
        await ear.hint()
        for _ in range(3):
            await other.check_store()  # the file changes, and the job still waits
        with pytest.raises(TimeoutError):
            await ear.hint(0.3)
        await enqueue(other)
        await ear.hint()


async def test_what_is_announced_in_quick_succession_is_sent_as_one(postgres_url: str) -> None:
    async with process(postgres_url) as one, process(postgres_url) as other:
        ear = await listening(one)
        await enqueue(other)
        await ear.hint()
        before = ear.heard
        for _ in range(200):
            other.wake.announce()
        await ear.hint()
        other.wake.announce()
        await ear.hint()
        assert ear.heard - before <= 3


async def test_two_hundred_writers_at_once_wait_for_no_notification(postgres_url: str) -> None:
    """None is sent within a commit that stores a job: there it would queue up behind the server's one lock."""
    async with process(postgres_url) as one, process(postgres_url) as other:
        ear = await listening(one)
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_notify('held', '')")
                await asyncio.wait_for(asyncio.gather(*(enqueue(other) for _ in range(200))), PATIENCE)
        finally:
            await connection.close()
        await ear.hint()
        assert ear.heard <= postgres_wake.CALM + 10


async def test_a_listener_whose_connection_is_cut_says_so_and_hears_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_wake, "PAUSE_SECONDS", 0.1)
    told = Told()
    async with process(postgres_url, told.signals) as one, process(postgres_url) as other:
        ear = await listening(one)
        connection = await asyncpg.connect(postgres_url)
        try:
            assert isinstance(one.wake, PostgresWake)
            cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query = $1"
            assert await connection.fetchval(cut, f'LISTEN "{one.wake._test_channel}"') == 1
        finally:
            await connection.close()
        await told.first(WakeDegraded)
        await told.first(WakeRestored)
        assert one.wake.trouble is None
        ear.heard = 0
        await enqueue(other)
        await ear.hint()


async def test_a_listener_that_hears_not_even_itself_says_notify_degraded(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that gives each transaction another connection: LISTEN is forgotten, nobody complains."""
    monkeypatch.setattr(postgres_wake, "TEST_PATIENCE", 0.2)
    monkeypatch.setattr(postgres_wake, "TEST_EVERY", 0.1)
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
            assert wake.trouble == degraded.why
        finally:
            await wake.close()
