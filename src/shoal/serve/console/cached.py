"""Figures that are expensive to read, such as counts over whole tables: read again only when that is affordable."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from shoal.base.clock import Clock

T = TypeVar("T")

SHORTEST: Final = 1.0  # seconds for which a figure is kept at least
SHARE: Final = 0.005  # share of the time that may be spent on reading it


class Cached(Generic[T]):
    """The last value of a figure. It is kept for longer if reading it takes long."""

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._reading = asyncio.Lock()
        self._value: T | None = None
        self._fresh_until = 0.0

    async def get(self) -> T:
        """Return the value; concurrent callers share one reading."""
        async with self._reading:
            began = self._clock.monotonic()
            if self._value is None or began >= self._fresh_until:
                self._value = await self._read()
                ended = self._clock.monotonic()
                self._fresh_until = ended + max(SHORTEST, (ended - began) / SHARE)
            return self._value
