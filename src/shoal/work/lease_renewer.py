"""Renews one lease from the process that works under it."""

import asyncio
from contextlib import suppress
from types import TracebackType

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.queue.job import Lease
from shoal.queue.queue import Queue
from shoal.work.lease_validity import LeaseValidity


class LeaseRenewer:
    """Extends a lease at regular intervals while the `async with` block runs."""

    def __init__(self, queue: Queue, lease: Lease, clock: Clock) -> None:
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._validity = LeaseValidity(queue.settings.lease, clock)
        self._task: asyncio.Task[None] | None = None

    def trusted(self) -> bool:
        """Return whether the lease is certain to hold, by our own clock."""
        return self._validity.holds()

    async def renew(self) -> bool:
        """Extend the lease now and return whether it is still ours. A process that was suspended for longer than the
        term, such as on a sleeping laptop, may still have it."""
        requested_at = self._clock.monotonic()
        if not (await self._queue.extend([self._lease.fence])).kept:
            return False
        self._validity.renew(requested_at)
        return True

    async def __aenter__(self) -> "LeaseRenewer":
        self._task = asyncio.create_task(self._renew_regularly())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _renew_regularly(self) -> None:
        while True:
            await self._clock.sleep(self._queue.settings.extend_every.total_seconds())
            with suppress(ShoalError):  # the store is down or full: try again; meanwhile the lease stops being valid
                if not await self.renew():
                    return  # lost: it stops being valid soon, and the fence rejects our commits anyway
