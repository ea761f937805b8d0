"""Figures that are expensive to read, such as counts over whole tables: read again only when that is affordable."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, TypeVar

from shoal.base.clock import Clock

T = TypeVar("T")

SHORTEST: Final = 2.0  # seconds for which a figure is kept at least
SHARE: Final = 0.05  # share of the time that may be spent on reading it


class Cached(Generic[T]):
    """The last value of a figure. It is kept for longer if reading it takes long."""

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, share: float = SHARE) -> None:
        self._read = read
        self._clock = clock
        self._share = share
        self._reading = asyncio.Lock()
        self._value: tuple[T, datetime] | None = None
        self._fresh_until = 0.0

    async def get(self) -> T:
        """Return the value; concurrent callers share one reading."""
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
        """Read the figure again when somebody asks, because it has just been changed."""
        self._fresh_until = 0.0


@dataclass(frozen=True, slots=True)
class StateCounts:
    """The number of crawls by state, and of jobs by kind and state."""

    crawls: Cached[dict[str, int]]
    jobs: Cached[dict[str, dict[str, int]]]
