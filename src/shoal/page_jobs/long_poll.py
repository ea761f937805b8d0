"""The waiting room: those who wait for jobs, first come, first served. However many wait, the store is asked once for
each hint that a job may be there, and once a second. What they are given is their own business."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Generic, TypeVar

from shoal.base.clock import Clock
from shoal.queue.wake import Wake

T = TypeVar("T")

SHORTEST_LOOK: Final = 0.1  # seconds for which a look that found nothing stands, unless a hint comes

Ask = Callable[[], Awaitable[list[T]]]
GiveBack = Callable[[list[T]], Awaitable[None]]


@dataclass(slots=True)
class _Waiter(Generic[T]):
    ask: Ask[T]
    give_back: GiveBack[T]
    got: "asyncio.Future[list[T]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_asking: bool = False  # what it will be told is on the way
    is_late: bool = False


@dataclass(slots=True)
class _Line(Generic[T]):
    """Those who wait for the same."""

    waiters: deque[_Waiter[T]] = field(default_factory=deque)
    hint: asyncio.Event = field(default_factory=asyncio.Event)
    attending: "asyncio.Task[None] | None" = None


class LongPoll(Generic[T]):
    """One line for everybody who wants the same. `poll_every`: how often a line looks without a hint."""

    def __init__(self, wake: Wake, clock: Clock, poll_every: timedelta) -> None:
        self._wake = wake
        self._clock = clock
        self._poll_every = poll_every.total_seconds()
        self._lines: dict[Hashable, _Line[T]] = {}
        self._empty_at: dict[Hashable, float] = {}  # when a look last found nothing, and no hint came since
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False

    @property
    def crowd(self) -> int:
        """How many wait."""
        return sum(len(line.waiters) for line in self._lines.values())

    async def look(self, what: Hashable, ask: Ask[T]) -> list[T]:
        """What there is for somebody who does not wait. Nobody goes before those who do."""
        if what in self._lines or self._clock.monotonic() - self._empty_at.get(what, -1.0) < SHORTEST_LOOK:
            return []
        self._listen()
        found = await ask()
        if not found:
            self._empty_at[what] = self._clock.monotonic()
        return found

    async def wait(self, what: Hashable, ask: Ask[T], give_back: GiveBack[T], seconds: float) -> list[T]:
        """The same for somebody who waits so long. Who is cancelled and has got something meanwhile gives it back."""
        if self._closed or seconds <= 0:
            return []
        self._listen()
        waiter = _Waiter(ask, give_back)
        line = self._lines.setdefault(what, _Line())
        line.waiters.append(waiter)
        if line.attending is None:
            line.attending = asyncio.create_task(self._attend(what, line))
        try:
            await asyncio.wait({waiter.got}, timeout=seconds)
            waiter.is_late = True
            return await waiter.got if waiter.is_asking or waiter.got.done() else []
        finally:
            waiter.got.cancel()

    def close(self) -> None:
        """Everybody goes home: this process stops."""
        self._closed = True
        for line in self._lines.values():
            for waiter in line.waiters:
                if not waiter.got.done() and not waiter.is_asking:
                    waiter.got.set_result([])
            line.hint.set()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _listen(self) -> None:
        if self._unsubscribe is None and not self._closed:
            self._unsubscribe = self._wake.subscribe(self._heard, lambda: bool(self._lines))

    def _heard(self) -> None:
        self._empty_at.clear()
        for line in self._lines.values():
            line.hint.set()

    async def _attend(self, what: Hashable, line: _Line[T]) -> None:
        try:
            while line.waiters:
                await self._serve(line)
                line.hint.clear()
                if line.waiters:
                    await _until(line.hint, self._poll_every)
        finally:
            self._lines.pop(what, None)

    async def _serve(self, line: _Line[T]) -> None:
        """Give to the first, then to the next, until there is nothing more."""
        while line.waiters:
            waiter = line.waiters[0]
            if not waiter.got.done() and not await self._give(waiter):
                return
            line.waiters.popleft()

    async def _give(self, waiter: _Waiter[T]) -> bool:
        waiter.is_asking = True
        try:
            found = await waiter.ask()
            if found and waiter.got.done():  # it left while the store was asked
                await waiter.give_back(found)
        except Exception as error:  # its own trouble: the others wait on
            if not waiter.got.done():
                waiter.got.set_exception(error)
            return True
        finally:
            waiter.is_asking = False
        if not waiter.got.done() and (found or waiter.is_late):
            waiter.got.set_result(found)
        return bool(found)


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
