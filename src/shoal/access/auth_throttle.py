"""The throttle for failed authentication: failures are counted per client network, and after several, further attempts
have to wait. Memory is bounded."""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil

from shoal.base.clock import Clock
from shoal.base.errors import RateLimited

MOST_FAILURES = 10  # in a burst; then one more per `SECONDS_EACH`
SECONDS_EACH = 6.0
MOST_PLACES = 10_000


class AuthThrottle:
    """A leaky bucket per client network. A client whose bucket is full has to wait until it has drained a little."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._empty_at: OrderedDict[str, float] = OrderedDict()  # when the bucket of a network will be empty

    def check(self, address: str) -> None:
        """Raise `RateLimited` if this client network failed too often."""
        over = self._level(client_network(address)) - (MOST_FAILURES - 1) * SECONDS_EACH
        if over > 0:
            raise RateLimited("Too many failed logins from your address", ceil(over))

    def count(self, address: str) -> bool:
        """Count a failure; return whether the bucket is full now."""
        place = client_network(address)
        level = self._level(place) + SECONDS_EACH
        self._empty_at[place] = self._clock.monotonic() + level
        self._empty_at.move_to_end(place)
        while len(self._empty_at) > MOST_PLACES:
            self._empty_at.popitem(last=False)
        return level > (MOST_FAILURES - 1) * SECONDS_EACH

    def _level(self, place: str) -> float:
        return max(0.0, self._empty_at.get(place, 0.0) - self._clock.monotonic())


def client_network(address: str) -> str:
    """Return the address, or its /64 network for IPv6, because a client usually controls the whole network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
    return str(found)
