"""The rate limit of a host as values: its current state, the slots that are requested and the slots that are granted.
Pure: rows belong to the store, and each process limits its own open connections."""

from datetime import timedelta
from typing import Final

from msgspec import Struct

AHEAD = 2.0
"""Seconds: how far ahead slots are reserved. A killed process wastes no more than that, and others wait no longer."""
UNPACED: Final = 1_000_000  # slots of a host that needs no delay between requests
SHORTEST_WAIT: Final = 0.25  # seconds until a host without a free slot is checked again
FORGET_SECONDS: Final = 600  # after which an old back-off or latency is ignored
LONGEST_LOOK: Final = 30.0  # seconds after which a host is checked again, however long it asked us to wait


class HostState(Struct, frozen=True):
    """The state of a host when its row was read. Times are seconds from then."""

    busy_for: float = 0.0  # until its next free slot, including a hold
    held_for: float = 0.0  # until its hold ends
    crawl_delay: float = 0.0  # the delay its robots.txt asks for
    latency: float = 0.0  # its response time, if it was found to be slow lately
    is_recovering: bool = False  # it was held and has not answered well since: one URL at a time
    robots_known: bool = False

    def free_in(self, delay: float) -> float:
        """Return the seconds until the host may be requested with this delay. Without a delay, only a hold has to be
        waited for, not a slot."""
        return self.busy_for if delay else self.held_for


class HostDelay(Struct, frozen=True):
    """The delay between two requests to a host. A longer one that the host itself asks for wins."""

    delay: timedelta
    latency_factor: float = 0.0  # seconds of delay per second of response time of a slow host
    longest_latency_delay: timedelta = timedelta(0)

    def delay_at(self, state: HostState) -> float:
        """Return the seconds between two requests: our own delay, the one robots.txt asks for, or the one for a slow
        host, whichever is longest."""
        slow = min(state.latency * self.latency_factor, self.longest_latency_delay.total_seconds())
        return max(self.delay.total_seconds(), state.crawl_delay, slow)


class HeldHost(Struct, frozen=True):
    """A host that is held: until when, and because of which response status."""

    origin: str
    until: int
    status: int


class HostSlots(Struct, frozen=True):
    """The requests a host can take now: `slots` of them, the first in `first_in` seconds, the others `apart` seconds
    from each other."""

    slots: int
    first_in: float = 0.0
    apart: float = 0.0

    def starts_in(self, request: int) -> float:
        """Return the seconds until the slot of the n-th request, counted from 0."""
        return self.first_in + request * self.apart

    def again_in(self, used: int) -> float:
        """Return the seconds until the host's next slot after `used` were taken. The result is capped, because a hold
        may end early; the next check reads the host's row again."""
        rest = SHORTEST_WAIT if used and used >= self.slots and not self.apart else 0.0
        return min(max(rest, self.starts_in(used)), LONGEST_LOOK)


class SlotRequest(Struct, frozen=True):
    """Requests to one host, `delay` seconds apart."""

    host: int
    slots: int
    delay: float


class SlotsGranted(Struct, frozen=True):
    """The result of a slot request: the number of slots, and the seconds until the first of them."""

    slots: int = 0
    first_in: float = 0.0


def slots_within(most: int, free_in: float, delay: float) -> int:
    """Return how many requests a host may get within the next two seconds: at least one if its next slot is within
    them."""
    ahead = AHEAD - free_in
    if ahead < 0:
        return 0
    return min(most, 1 + int(ahead / delay)) if delay else most
