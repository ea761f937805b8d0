"""Failed credentials, counted by where they came from: after a few, the next ones have to wait. Bounded memory."""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil

from shoal.base.clock import Clock
from shoal.base.errors import RateLimited

MOST_FAILURES = 10  # at once; then one more for each of the seconds below
SECONDS_EACH = 6.0
MOST_PLACES = 10_000


class AuthThrottle:
    """A leaky bucket for each place. Who has filled his waits until some of it has run out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._empty_at: OrderedDict[str, float] = OrderedDict()  # when the bucket of a place will have run out

    def check(self, address: str) -> None:
        """Refuse a place that failed too often."""
        over = self._level(client_network(address)) - (MOST_FAILURES - 1) * SECONDS_EACH
        if over > 0:
            raise RateLimited("Too many wrong credentials came from your address", ceil(over))

    def count(self, address: str) -> bool:
        """Count one failure; whether it filled the bucket."""
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
    """One address, or for IPv6 the network of it: whoever has one address there has them all."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
    return str(found)
