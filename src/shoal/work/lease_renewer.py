"""Keeps one lease alive from the process that works on it, and knows how far it can be trusted."""

import asyncio
from contextlib import suppress
from types import TracebackType

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.queue.job import Lease
from shoal.queue.queue import Queue
from shoal.work.lease_validity import LeaseValidity


class LeaseRenewer:
    """Extends a lease again and again while the block runs."""

    def __init__(self, queue: Queue, lease: Lease, clock: Clock) -> None:
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._trust = LeaseValidity(queue.settings.lease, clock)
        self._task: asyncio.Task[None] | None = None

    def trusted(self) -> bool:
        """Whether the lease surely still holds, by our own clock."""
        return self._trust.holds()

    async def renew(self) -> bool:
        """Make sure of the lease now: whoever slept through its term, as a laptop does, may have it still. Whether it
        is ours."""
        asked_at = self._clock.monotonic()
        if not (await self._queue.extend([self._lease.holder])).kept:
            return False
        self._trust.renew(asked_at)
        return True

    async def __aenter__(self) -> "LeaseRenewer":
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(self._queue.settings.extend_every.total_seconds())
            with suppress(ShoalError):  # away or full: the lease is trusted less and less, and tried again
                if not await self.renew():
                    return  # lost: it will not be trusted for long, and the fence refuses us anyway
