"""Wake-up hints between the processes on one PostgreSQL database: LISTEN and NOTIFY on a separate connection.

A notification briefly takes a server-wide lock, so none is ever part of a commit that does anything else. Notifications
are sent at once while there are few; a process that enqueues continuously sends one every tenth of a second. A listener
cannot notice that it receives nothing (a pooler in between, a half-open connection), so it tests itself.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from shoal.base.clock import Clock
from shoal.base.signals import Signals
from shoal.queue.wake import HintRate, WakeHealth, WakeListeners

TEST_EVERY = 5.0  # seconds
TEST_TIMEOUT = 2.0
CALL_SECONDS = 5.0  # for what is asked at once
PAUSE_SECONDS = 1.0  # before reconnecting
CLOSE_SECONDS = 2.0
# Committing a notification writes to the WAL; losing one in a crash is harmless, so do not wait for the disk.
SESSION = {"synchronous_commit": "off"}
NOT_RECEIVED = "its own notifications do not arrive (is there a pooler in transaction mode?)"

Connect = Callable[[dict[str, str]], Awaitable[Any]]
Notify = Callable[[str], Awaitable[None]]


class PostgresWake:
    """Implements `queue.wake.Wake`. `connect` opens a dedicated connection, `notify` sends on another one."""

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
            self._listeners.notify()  # for hints that were sent while nobody listened
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
        if pid != connection.get_server_pid():  # our own hints were passed on at once
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
        """Send ourselves a notification as another process would: on another connection."""
        self._test_at = self._clock.monotonic() + TEST_EVERY
        self._answered.clear()
        await self._notify(self._test_channel)
        try:
            async with asyncio.timeout(TEST_TIMEOUT):
                await self._answered.wait()
        except TimeoutError:
            raise ConnectionError(NOT_RECEIVED) from None
        self._health.restore()

    async def _wait(self) -> None:
        """Wait until there is something to send, or a test is due."""
        now = self._clock.monotonic()
        moments = [self._test_at] if self._listens else []
        moments += [self._next_send_at] if self._due else []
        self._wakeup.clear()
        if self._closing:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(moments) - now) if moments else None):
                await self._wakeup.wait()
