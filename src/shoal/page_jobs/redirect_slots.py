"""Host slots for the redirects of a page job: a redirect may lead to a host whose turn has not come."""

from contextlib import AbstractAsyncContextManager
from typing import Final

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.url import Url, origin
from shoal.hosts.rate_limiter import HostConnections, RateLimiter
from shoal.hosts.throttle import ThrottleTracker

LONGEST_HOP_SECONDS: Final = 30.0  # for which a page waits for the host it redirects to; after that the job is put off


class HostBusy(Exception):
    """A redirect target's host must not be requested for this time."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(wait_seconds)
        self.wait_seconds = wait_seconds


class RedirectSlots:
    """The host slots of one job. It already has one for its own URL; each redirect target needs another."""

    def __init__(
        self,
        database: Database,
        rate_limiter: RateLimiter,
        connections: HostConnections,
        throttle: ThrottleTracker,
        clock: Clock,
    ) -> None:
        self._database = database
        self._rate_limiter = rate_limiter
        self._connections = connections
        self._throttle = throttle
        self._clock = clock
        self.hosts: dict[str, int] = {}

    async def wait(self, url: Url) -> None:
        """Wait for a slot at the host of a redirect target; raises `HostBusy` if there is none soon."""
        host_origin = origin(url)
        give_up_at = self._clock.monotonic() + LONGEST_HOP_SECONDS
        while True:
            asked_at = self._clock.monotonic()
            place = await self._database.run(
                lambda tx: self._rate_limiter.next_slot(tx, host_origin, LONGEST_HOP_SECONDS)
            )
            self.hosts[host_origin] = place.host
            if place.granted:
                break
            if asked_at + place.wait_seconds > give_up_at:
                raise HostBusy(place.wait_seconds)
            await self._clock.sleep(place.wait_seconds)  # another transaction has just locked the host's row
        await self._connections.wait_for_slot(place.host, asked_at + place.wait_seconds, place.delay_seconds)
        if self._throttle.holds(place.host):
            raise HostBusy(self._throttle.held_seconds(place.host))

    def connected(self, url: Url) -> AbstractAsyncContextManager[None]:
        """Hold one of the connections that the host of a URL may have."""
        return self._connections.at(self.hosts[origin(url)])
