"""The heartbeat of a worker: extends all its leases, and tells their holders which of them were extended.

It has its own connection to the store, so that it never queues behind other work of the process. Each extension has a
deadline, so that one that hangs does not prevent the next, which is then sent on another connection.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from shoal.base.clock import Clock
from shoal.queue.job import Extended, Fence
from shoal.queue.queue import Queue

DEADLINE_PART = 0.5  # one extension may take this share of a lease's term


class LeaseHolders(Protocol):
    """A part of a worker that holds leases."""

    def fences(self) -> list[Fence]:
        """The leases to extend."""
        ...

    def on_extended(self, requested: Sequence[Fence], result: Extended) -> None:
        """Learn which of the requested leases were extended; the others are lost."""
        ...


class LeaseHeartbeat:
    """Extends the leases of all holders at regular intervals until it is cancelled."""

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        lease_holders: Sequence[LeaseHolders],
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._lease_holders = lease_holders
        self._on_error = on_error
        self._extending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        every_seconds = self._queue.settings.extend_every.total_seconds()
        due_at = self._clock.monotonic() + every_seconds
        while True:
            await self._clock.sleep(due_at - self._clock.monotonic())
            due_at = self._clock.monotonic() + every_seconds  # a slow extension does not delay the next one
            for lease_holder in self._lease_holders:
                # Each by itself: a lease that cannot be extended just now must not cost the others theirs.
                if fences := lease_holder.fences():
                    await self._try(self._extend(lease_holder, fences))

    async def _try(self, extension: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(extension)
        self._extending.add(task)
        task.add_done_callback(self._extending.discard)
        try:
            longest_seconds = self._queue.settings.lease.total_seconds() * DEADLINE_PART
            if not (await asyncio.wait({task}, timeout=longest_seconds))[0]:
                self._on_error("renewing leases", TimeoutError("it takes too long; retrying"))
        finally:
            task.cancel()  # without waiting for its end: on a connection that fell silent, that takes seconds more

    async def _extend(self, lease_holder: LeaseHolders, fences: list[Fence]) -> None:
        try:
            result = await self._queue.extend(fences)
        except Exception as error:  # the heartbeat must survive any single failure
            self._on_error("renewing leases", error)
        else:
            lease_holder.on_extended(fences, result)
