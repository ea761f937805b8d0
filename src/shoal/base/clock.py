"""The only clock. All code that reads the time or sleeps uses it; a lint rule enforces this."""

import asyncio
import heapq
import itertools
import platform
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# This clock includes the time during which the machine was suspended. Systems without it use the monotonic clock.
_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Reads the time and sleeps. `now` and `micros` follow the machine's clock, which may be set at any time;
    `monotonic` and `uptime` never step."""

    @property
    def boot(self) -> str:
        """The id of the boot from which `uptime` counts."""
        ...

    def now(self) -> datetime: ...

    def micros(self) -> int:
        """Return UTC microseconds since the epoch, the form in which times are stored."""
        ...

    def monotonic(self) -> float: ...

    def uptime(self) -> int:
        """Return microseconds since the machine booted, including suspended time. All processes get the same value."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    @property
    def boot(self) -> str:
        try:
            return BOOT_ID.read_text().strip()
        except OSError:
            return platform.node()

    def now(self) -> datetime:
        return from_micros(self.micros())

    def micros(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def uptime(self) -> int:
        return time.clock_gettime_ns(_UPTIME) // 1000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that moves only when a test moves it. Sleepers wake in the order of their deadlines. Each instance counts
    as its own machine."""

    _boots = itertools.count(1)

    def __init__(self, start: datetime | None = None) -> None:
        self.boot = f"fake-{next(self._boots)}"
        self._micros = to_micros(start or datetime(2026, 1, 1, tzinfo=UTC))
        self._started = self._micros
        self._stepped = 0
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> datetime:
        return from_micros(self.micros())

    def micros(self) -> int:
        return self._micros + self._stepped

    def monotonic(self) -> float:
        return (self._micros - self._started) / 1e6

    def uptime(self) -> int:
        return self._micros - self._started

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._waiters, (self._micros + round(seconds * 1e6), self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Advance the time and wake every sleeper that becomes due, each at its own deadline."""
        target = self._micros + round(seconds * 1e6)
        while self._waiters and self._waiters[0][0] <= target:
            due, _, future = heapq.heappop(self._waiters)
            self._micros = max(self._micros, due)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._micros = target
        await self._settle()

    def jump(self, seconds: float) -> None:
        """Advance the time without waking sleepers, for code that only reads the clock."""
        self._micros += round(seconds * 1e6)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._stepped += round(seconds * 1e6)

    async def _settle(self) -> None:
        # A woken sleeper runs in the next iterations of the loop; a few iterations let it reach its next wait.
        for _ in range(10):
            await asyncio.sleep(0)


def to_micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def moment(micros: int | None) -> datetime | None:
    """Convert a stored time to a `datetime`, the form that people and APIs see."""
    return None if micros is None else from_micros(micros)


def span(duration: timedelta) -> int:
    """Convert a duration to microseconds, the unit in which durations are stored."""
    return duration // MICROSECOND
