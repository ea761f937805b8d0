"""The heart: extends every lease that a worker has in hand, and tells the hands which they keep. Waits for nobody else.

It has a connection to the store of its own, so that no other work of the process is before it, and a deadline for each
beat, so that one that is stuck does not keep the next from being tried.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.base.clock import Clock
from shoal.queue.job import Extended, Fence
from shoal.queue.queue import Queue

BEAT_PART = 0.5  # of a lease's term: how long one beat may take


class LeaseHolders(Protocol):
    """Who holds leases."""

    def holders(self) -> list[Fence]: ...

    def extended(self, asked: Sequence[Fence], answer: Extended) -> None:
        """The leases that were asked for were extended, as far as the answer says; the others are lost."""
        ...


class LeaseHeartbeat:
    """Beats until it is cancelled."""

    def __init__(
        self, queue: Queue, clock: Clock, hands: Sequence[LeaseHolders], tell: Callable[[str, Exception], None]
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._hands = hands
        self._tell = tell

    async def beat(self) -> None:
        every = self._queue.settings.extend_every.total_seconds()
        due = self._clock.monotonic() + every
        while True:
            await self._clock.sleep(due - self._clock.monotonic())
            due = self._clock.monotonic() + every  # a slow beat does not put off the next one
            await self._extend()

    async def _extend(self) -> None:
        """Each hand by itself: a lease that cannot be extended just now must not cost the others theirs."""
        for hand in self._hands:
            if holders := hand.holders():
                await self._extend_those(hand, holders)

    async def _extend_those(self, hand: LeaseHolders, holders: list[Fence]) -> None:
        try:
            async with asyncio.timeout(self._queue.settings.lease.total_seconds() * BEAT_PART):
                answer = await self._queue.extend(holders)
        except TimeoutError:
            self._tell("extending leases", TimeoutError("it takes too long; trying again"))
        except Exception as error:  # whatever it is: a heart must outlive any single beat
            self._tell("extending leases", error)
        else:
            hand.extended(holders, answer)
