"""How hard a host may be asked: how it stands, what a holder wishes of it, what it is granted. Pure; the rows are the
store's, and how many connections are open at once is each holder's own business."""

from typing import Final, Protocol

from msgspec import Struct

AHEAD = 2.0
"""Seconds: how far ahead of their time slots are reserved. A kill wastes no more, and others wait no longer."""
UNPACED: Final = 1_000_000  # slots of a host that needs no pause between requests
SHORTEST_WAIT: Final = 0.25  # seconds until a host that had no slot is looked at again
LONGEST_LOOK: Final = 30.0  # seconds after which a host is looked at again, however long it said to wait


class HostStanding(Struct, frozen=True):
    """How a host stands, as its row said a moment ago. Times are seconds from then."""

    busy_for: float = 0.0  # until its next free slot, its hold included
    held_for: float = 0.0  # until its hold ends
    crawl_delay: float = 0.0  # what its robots.txt asks for
    latency: float = 0.0  # how long it takes to answer, if somebody found it slow lately
    is_wary: bool = False  # it was held, and gave no good answer since: one URL at a time
    robots_known: bool = False

    def delay(self, own: float, ease: float, longest_ease: float) -> float:
        """Return the seconds between two requests: our own delay, what robots.txt asks for, or what a slow host gets
        (`ease` seconds per second of latency), whichever is longest."""
        return max(own, self.crawl_delay, min(self.latency * ease, longest_ease))

    def free_in(self, delay: float) -> float:
        """When it may be asked with this delay: who keeps none waits for no slot, but for the hold."""
        return self.busy_for if delay else self.held_for


class HeldHost(Struct, frozen=True):
    """A host that asked everybody to wait: until when, and by which answer."""

    origin: str
    until: int
    status: int


class HostSlots(Struct, frozen=True):
    """What a host can take now: so many requests, the first of them in `first_in` seconds, the others `apart` seconds
    from each other."""

    slots: int
    first_in: float = 0.0
    apart: float = 0.0

    def starts_in(self, request: int) -> float:
        """Seconds until the slot of the n-th request, the first one being 0."""
        return self.first_in + request * self.apart

    def again_in(self, used: int) -> float:
        """Seconds until the host's next slot, after so many were taken. Never long: a hold may end early, and whoever
        looks again asks the host's own row."""
        rest = SHORTEST_WAIT if used and used >= self.slots and not self.apart else 0.0
        return min(max(rest, self.starts_in(used)), LONGEST_LOOK)


class HostRateLimit(Protocol):
    """The rule that says how many jobs of a host may be leased now. `ahead`: seconds before their time that slots may
    be taken, by a taker that has room left."""

    @property
    def ahead(self) -> float: ...

    def turn(self, standing: HostStanding) -> HostSlots: ...


class SlotRequest(Struct, frozen=True):
    """Requests to one host, `delay` seconds apart."""

    host: int
    slots: int
    delay: float


class SlotsGranted(Struct, frozen=True):
    """What became of a wish: so many slots, the first of them in so many seconds."""

    slots: int = 0
    first_in: float = 0.0


def slots_within(most: int, free_in: float, delay: float) -> int:
    """How many requests a host may get within the next two seconds: at least one, once its turn has come."""
    ahead = AHEAD - free_in
    if ahead < 0:
        return 0
    return min(most, 1 + int(ahead / delay)) if delay else most
