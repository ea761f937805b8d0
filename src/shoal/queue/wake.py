"""Wake-ups: a hint that jobs wait, in this process, through SQLite's file, or through PostgreSQL. If a hint is lost, a
job waits for up to one poll interval longer."""

import asyncio
import secrets
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from shoal.base.clock import Clock
from shoal.base.database import queries
from shoal.base.signals import Signal, Signals
from shoal.queue.enqueuer import JobEnqueued
from shoal.queue.job import is_local
from shoal.queue.moves import JobMoved, JobsMoved
from shoal.queue.recovery import JobsReturned
from shoal.queue.states import GrantEnd, JobState

RETURNS = (GrantEnd.RELEASED, GrantEnd.CRASHED, GrantEnd.EXPIRED)
BURST = 50  # hints per second that are passed on immediately
BURST_PAUSE_SECONDS = 0.1  # pause between two hints above that rate


class WakeDegraded(Signal, frozen=True, kw_only=True):
    """Hints are being lost; until they arrive again, idle workers find jobs by polling."""

    why: str


class WakeRestored(Signal, frozen=True, kw_only=True):
    """Hints arrive again."""


class WakeListenerFailed(Signal, frozen=True, kw_only=True):
    """A wake-up listener raised; the other listeners were called."""

    error: str


class Wake(Protocol):
    """Carries hints. A hint may be lost, repeated or false, so workers that wait for jobs also poll, at a lower
    rate."""

    @property
    def is_shared(self) -> bool:
        """Return whether other processes receive a hint as soon as this process does. If not, a process that receives a
        hint passes it on to its children."""
        ...

    @property
    def problem(self) -> str | None:
        """Why hints get lost at the moment; None while they arrive, or while nobody listens."""
        ...

    def announce(self) -> None:
        """Hint that a job may be waiting; call it after the commit. Never blocks and never raises; calls in quick
        succession are merged into one hint."""
        ...

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        """Call `on_hint` for every hint from any process. While no subscriber reports `is_idle`, hints may
        be dropped. Returns a function that ends the subscription."""
        ...

    async def close(self) -> None:
        """Send pending hints, then stop."""
        ...


class WakeListeners:
    """The subscribers in this process. A subscriber that raises does not keep the others from being called."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._listeners: dict[object, tuple[Callable[[], None], Callable[[], bool]]] = {}

    def add(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        key = object()
        self._listeners[key] = (on_hint, is_idle)
        return lambda: self._listeners.pop(key, None) and None

    @property
    def any_idle(self) -> bool:
        return any(is_idle() for _, is_idle in self._listeners.values())

    def notify(self) -> None:
        for on_hint, _ in list(self._listeners.values()):
            try:
                on_hint()
            except Exception as error:
                self._signals.emit(WakeListenerFailed(error=f"{type(error).__name__}: {error}"))


class WakeHealth:
    """The state of hints: they arrive or get lost. Only changes are emitted, because the same error is repeated as long
    as an outage lasts."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.problem: str | None = None

    def degrade(self, why: str) -> None:
        """Record that hints get lost."""
        if self.problem is None:
            self._signals.emit(WakeDegraded(why=why))
        self.problem = why

    def restore(self) -> bool:
        """Record that hints arrive; return whether they were getting lost before."""
        if self.problem is None:
            return False
        self.problem = None
        self._signals.emit(WakeRestored())
        return True


class HintRate:
    """Limits the rate of hints: after a burst, hints are merged, because one hint can announce any number of jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=BURST)

    def pause(self) -> float:
        """Count a hint that was passed on; return the seconds to wait before the next one."""
        now = self._clock.monotonic()
        self._recent.append(now)
        return BURST_PAUSE_SECONDS if len(self._recent) == BURST and now - self._recent[0] < 1.0 else 0.0


class InProcessWake:
    """Hints within one process, for a store that cannot carry them to other processes."""

    is_shared = False
    problem = None

    def __init__(self, signals: Signals) -> None:
        self._listeners = WakeListeners(signals)

    def announce(self) -> None:
        self._listeners.notify()

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        return self._listeners.add(on_hint, is_idle)

    async def close(self) -> None:
        return


def announcing(wake: Wake) -> Callable[[Signal], None]:
    """Return a signal listener that announces every job that becomes available."""

    def listen(signal: Signal) -> None:
        enqueued = isinstance(signal, JobEnqueued) and not is_local(signal.lane)
        returned = isinstance(signal, JobsReturned) or (isinstance(signal, JobMoved) and signal.to is JobState.PENDING)
        if enqueued or returned or (isinstance(signal, JobsMoved) and signal.how in RETURNS):
            wake.announce()

    return listen


LOOK_EVERY_SECONDS = 0.05  # seconds


class SqliteWake:
    """Implements `queue.wake.Wake`. Polls run directly on the event loop: a poll needs only microseconds and takes no
    lock, and polls happen only while a subscriber is idle."""

    is_shared = False
    problem = None

    def __init__(self, path: Path, clock: Clock, signals: Signals) -> None:
        self._path = path
        self._clock = clock
        self._listeners = WakeListeners(signals)
        self._seen: int | None = None
        self._waiting: frozenset[str] = frozenset()  # the last job of each lane
        self._looking: asyncio.Task[None] | None = None

    def announce(self) -> None:
        self._listeners.notify()  # other processes see the file change

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on(), name="wake")
        return self._listeners.add(on_hint, is_idle)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def _look_on(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            while True:
                await self._clock.sleep(LOOK_EVERY_SECONDS)
                with suppress(sqlite3.Error):  # busy or unavailable: workers still poll for jobs
                    connection = connection or self._connect()
                    if self._listeners.any_idle and self._job_may_wait(connection):
                        self._listeners.notify()
        finally:
            if connection is not None:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=0, isolation_level=None)

    def _job_may_wait(self, connection: sqlite3.Connection) -> bool:
        seen, self._seen = self._seen, connection.execute("PRAGMA data_version").fetchone()[0]
        if seen == self._seen:
            return False
        rows = connection.execute(queries.load("sqlite")["ends_of_lines"].sql).fetchall()
        before, self._waiting = self._waiting, frozenset(job_id for (job_id,) in rows)
        return not self._waiting <= before


TEST_EVERY_SECONDS = 5.0  # seconds
TEST_TIMEOUT_SECONDS = 2.0
CALL_SECONDS = 5.0  # for calls that the server answers immediately
PAUSE_SECONDS = 1.0  # before reconnecting
CLOSE_SECONDS = 2.0
# Committing a notification writes to the WAL; losing one in a crash is harmless, so do not wait for the disk.
SESSION = {"synchronous_commit": "off"}
NOT_RECEIVED = "its own notifications do not arrive (is there a pooler in transaction mode?)"

Connect = Callable[[dict[str, str]], Awaitable[Any]]
Notify = Callable[[str], Awaitable[None]]


class PostgresWake:
    """Implements `queue.wake.Wake`. `connect` opens a dedicated connection; `notify` sends on a different
    connection."""

    is_shared = True

    def __init__(self, connect: Connect, notify: Notify, clock: Clock, signals: Signals) -> None:
        self._connect = connect
        self._notify = notify
        self._clock = clock
        self._listeners = WakeListeners(signals)
        self._wakeup = asyncio.Event()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._due = False
        self._closing = False
        self._listens = False
        self._health = WakeHealth(signals)
        self._rate = HintRate(clock)
        self._next_send_at = 0.0
        self._test_at = 0.0
        self._test_channel = f"shoal_test_{secrets.token_hex(8)}"

    @property
    def problem(self) -> str | None:
        return self._health.problem

    def announce(self) -> None:
        self._listeners.notify()
        self._due = True
        self._ensure_running()

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        self._listens = True
        self._ensure_running()
        return self._listeners.add(on_hint, is_idle)

    async def close(self) -> None:
        self._closing = True
        self._wakeup.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _ensure_running(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="wake")
        self._wakeup.set()

    async def _run(self) -> None:
        while not self._closing or self._due:
            try:
                await self._on_connection()
            except Exception as error:  # any error: a listener that stops would never receive anything again
                self._health.degrade(str(error) or type(error).__name__)
                await self._clock.sleep(PAUSE_SECONDS)

    async def _on_connection(self) -> None:
        connection = await self._connect(SESSION)
        try:
            connection.add_termination_listener(lambda _: self._wakeup.set())
            async with asyncio.timeout(CALL_SECONDS):
                channel = await connection.fetchval("SELECT 'shoal_' || md5(current_schema())")
                await connection.add_listener(channel, self._on_notification)
                await connection.add_listener(self._test_channel, lambda *_: self._answered.set())
            self._test_at = self._clock.monotonic()
            self._listeners.notify()  # in case hints were sent while nobody listened
            if not self._listens:
                self._health.restore()
            await self._send_and_test(connection, channel)
        finally:
            connection.terminate()

    async def _send_and_test(self, connection: Any, channel: str) -> None:
        while not self._closing or self._due:
            if connection.is_closed():
                raise ConnectionError("the connection for notifications was closed")
            await self._send_due(connection, channel)
            if self._listens and not self._closing and self._clock.monotonic() >= self._test_at:
                await self._test()
            await self._wait()

    def _on_notification(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if pid != connection.get_server_pid():  # our own hints were passed on immediately
            self._listeners.notify()

    async def _send_due(self, connection: Any, channel: str) -> None:
        if self._due and (self._closing or self._clock.monotonic() >= self._next_send_at):
            self._due = False
            try:
                await connection.execute("SELECT pg_notify($1, '')", channel, timeout=CALL_SECONDS)
            except BaseException:
                self._due = True
                raise
            self._next_send_at = self._clock.monotonic() + self._rate.pause()

    async def _test(self) -> None:
        """Send ourselves a notification on a different connection, as a different process would."""
        self._test_at = self._clock.monotonic() + TEST_EVERY_SECONDS
        self._answered.clear()
        await self._notify(self._test_channel)
        try:
            async with asyncio.timeout(TEST_TIMEOUT_SECONDS):
                await self._answered.wait()
        except TimeoutError:
            raise ConnectionError(NOT_RECEIVED) from None
        self._health.restore()

    async def _wait(self) -> None:
        """Wait until there is a hint to send, or until a test is due."""
        now = self._clock.monotonic()
        moments = [self._test_at] if self._listens else []
        moments += [self._next_send_at] if self._due else []
        self._wakeup.clear()
        if self._closing:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(moments) - now) if moments else None):
                await self._wakeup.wait()
