"""Wake-up hints through Redis: every script that makes jobs available appends to one stream, and processes with idle
workers wait on it. After a disconnect, a reader continues at its last position, so no hint is lost."""

import asyncio
from collections.abc import Callable

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.base.signals import Signals
from shoal.drivers.redis.connection import RedisClient
from shoal.drivers.redis.lane_server import WAKE
from shoal.queue.wake import HintRate, WakeHealth, WakeListeners

PAUSE_SECONDS = 1.0  # after a failed call
CANCEL_SECONDS = 0.1


class RedisWake:
    """Implements `queue.wake.Wake`. `client` must not be shared, because a call waits up to `block_seconds` for
    hints."""

    is_shared = True

    def __init__(self, client: RedisClient, block_seconds: float, clock: Clock, signals: Signals) -> None:
        self._client = client
        self._block = round(block_seconds * 1000)
        self._clock = clock
        self._listeners = WakeListeners(signals)
        self._task: asyncio.Task[None] | None = None
        self._health = WakeHealth(signals)
        self._rate = HintRate(clock)

    @property
    def problem(self) -> str | None:
        return self._health.problem

    def announce(self) -> None:
        # Notify only this process: the script that puts a job into its lane sends the hint to other processes.
        self._listeners.notify()

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="wake")
        return self._listeners.add(on_hint, is_idle)

    async def close(self) -> None:
        while self._task is not None and not self._task.done():
            self._task.cancel()  # the client may swallow the cancellation while it connects
            await asyncio.wait({self._task}, timeout=CANCEL_SECONDS)
        await self._client.close()

    async def _run(self) -> None:
        last: bytes | str | None = None
        while True:
            try:
                last = await self._newest() if last is None else await self._read(last)
            except ShoalError as error:
                self._health.degrade(error.message)
                await self._clock.sleep(PAUSE_SECONDS)

    async def _newest(self) -> bytes | str:
        """Return the id of the last hint, and pass the hint on, because its job may still wait."""
        found = await self._client.command("XREVRANGE", WAKE, "+", "-", "COUNT", 1)
        self._restore()
        self._listeners.notify()
        return found[0][0] if found else "0-0"

    async def _read(self, last: bytes | str) -> bytes | str:
        """Wait for the next hint, pass it on, and return its id."""
        found = await self._client.command("XREAD", "BLOCK", self._block, "STREAMS", WAKE, last)
        self._restore()
        if not found:
            return last
        entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
        self._listeners.notify()
        if pause := self._rate.pause():
            await self._clock.sleep(pause)
        newest: bytes = entries[-1][0]
        return newest

    def _restore(self) -> None:
        if self._health.restore():
            self._listeners.notify()  # in case hints were sent meanwhile
