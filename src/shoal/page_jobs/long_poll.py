"""Long polling for jobs, first come, first served. However many clients wait, the store is queried once per hint that a
job may be available, and once a second. Independent of what is leased."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from shoal.base.clock import Clock
from shoal.queue.wake import Wake

T = TypeVar("T")

SHORTEST_LOOK_SECONDS: Final = 0.1  # for which an empty result is reused, unless a hint comes

Query = Callable[[], Awaitable[list[T]]]
GiveBack = Callable[[list[T]], Awaitable[None]]


@dataclass(slots=True)
class _Waiter(Generic[T]):
    query: Query[T]
    give_back: GiveBack[T]
    got: "asyncio.Future[list[T]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_asking: bool = False  # its query is in progress
    is_late: bool = False


@dataclass(slots=True)
class _Queue(Generic[T]):
    """The clients that wait for the same key."""

    waiters: deque[_Waiter[T]] = field(default_factory=deque)
    hint: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class LongPoll(Generic[T]):
    """One queue per key. `poll_seconds`: how often a queue queries the store without a hint."""

    def __init__(self, wake: Wake, clock: Clock, poll_seconds: float) -> None:
        self._wake = wake
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._queues: dict[Hashable, _Queue[T]] = {}
        self._empty_at: dict[Hashable, float] = {}  # when a query last found nothing, if no hint came since
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of waiting clients."""
        return sum(len(queue.waiters) for queue in self._queues.values())

    async def look(self, what: Hashable, query: Query[T]) -> list[T]:
        """Return what is available now, without waiting; nothing while other clients already wait for the same key."""
        if what in self._queues or self._clock.monotonic() - self._empty_at.get(what, -1.0) < SHORTEST_LOOK_SECONDS:
            return []
        self._listen()
        found = await query()
        if not found:
            self._empty_at[what] = self._clock.monotonic()
        return found

    async def wait(self, what: Hashable, query: Query[T], give_back: GiveBack[T], longest_seconds: float) -> list[T]:
        """Wait up to `longest_seconds` for something. If the caller is cancelled after its query found something, that
        is given back."""
        if self._closed or longest_seconds <= 0:
            return []
        self._listen()
        waiter = _Waiter(query, give_back)
        queue = self._queues.setdefault(what, _Queue())
        queue.waiters.append(waiter)
        if queue.task is None:
            queue.task = asyncio.create_task(self._serve_queue(what, queue))
        try:
            await asyncio.wait({waiter.got}, timeout=longest_seconds)
            waiter.is_late = True
            return await waiter.got if waiter.is_asking or waiter.got.done() else []
        finally:
            waiter.got.cancel()

    def close(self) -> None:
        """Release all waiting clients, because this process stops."""
        self._closed = True
        for queue in self._queues.values():
            for waiter in queue.waiters:
                if not waiter.got.done() and not waiter.is_asking:
                    waiter.got.set_result([])
            queue.hint.set()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _listen(self) -> None:
        if self._unsubscribe is None and not self._closed:
            self._unsubscribe = self._wake.subscribe(self._on_hint, lambda: bool(self._queues))

    def _on_hint(self) -> None:
        self._empty_at.clear()
        for queue in self._queues.values():
            queue.hint.set()

    async def _serve_queue(self, what: Hashable, queue: _Queue[T]) -> None:
        try:
            while queue.waiters:
                await self._serve(queue)
                queue.hint.clear()
                if queue.waiters:
                    await _until(queue.hint, self._poll_seconds)
        finally:
            self._queues.pop(what, None)

    async def _serve(self, queue: _Queue[T]) -> None:
        """Serve the waiting clients in order until nothing is left."""
        while queue.waiters:
            waiter = queue.waiters[0]
            if not waiter.got.done() and not await self._give(waiter):
                return
            queue.waiters.popleft()

    async def _give(self, waiter: _Waiter[T]) -> bool:
        waiter.is_asking = True
        try:
            found = await waiter.query()
            if found and waiter.got.done():  # it disconnected during the query
                await waiter.give_back(found)
        except Exception as error:  # only this client fails; the others keep waiting
            if not waiter.got.done():
                waiter.got.set_exception(error)
            return True
        finally:
            waiter.is_asking = False
        if not waiter.got.done() and (found or waiter.is_late):
            waiter.got.set_result(found)
        return bool(found)


async def _until(event: asyncio.Event, longest_seconds: float) -> None:
    try:
        async with asyncio.timeout(longest_seconds):
            await event.wait()
    except TimeoutError:
        return
