"""The only clock. Everything that asks for the time or waits for it goes through here; a lint rule keeps it so."""

import asyncio
import heapq
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """What time it is, and a way to wait. `monotonic` never steps; the other two follow the machine."""

    def now(self) -> datetime: ...

    def micros(self) -> int:
        """UTC microseconds since the epoch: the form in which times are stored."""
        ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def micros(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that stands still until it is told to jump. Sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime | None = None) -> None:
        self._micros = to_micros(start or datetime(2026, 1, 1, tzinfo=UTC))
        self._started = self._micros
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> datetime:
        return from_micros(self._micros)

    def micros(self) -> int:
        return self._micros

    def monotonic(self) -> float:
        return (self._micros - self._started) / 1e6

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._micros + round(seconds * 1e6), self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Jump, waking every sleeper whose time has come, each at its own moment."""
        target = self._micros + round(seconds * 1e6)
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._micros = max(self._micros, due)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._micros = target
        await self._settle()

    def jump(self, seconds: float) -> None:
        """Move the time without waking anybody: for code that only reads the clock."""
        self._micros += round(seconds * 1e6)

    async def _settle(self) -> None:
        # A woken sleeper runs on the next turns of the loop; a few turns let it reach its next wait.
        for _ in range(10):
            await asyncio.sleep(0)


def to_micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def moment(micros: int | None) -> datetime | None:
    """A stored time as people and APIs see it."""
    return None if micros is None else from_micros(micros)


def span(duration: timedelta) -> int:
    """A duration in stored units."""
    return duration // MICROSECOND
