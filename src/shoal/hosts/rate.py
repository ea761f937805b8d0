"""Rates: the delay and the slots of a host, and the rate of a process."""

from collections.abc import Iterable
from typing import Final, Protocol

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.settings import Settings

AHEAD_SECONDS = 2.0
"""How far ahead slots are reserved. If a process is killed, at most this much time of its slots is wasted, and other
processes wait no longer than this."""
UNPACED: Final = 1_000_000  # slots of a host that needs no delay between requests
SHORTEST_WAIT_SECONDS: Final = 0.25  # time until a host without a free slot is checked again
FORGET_SECONDS: Final = 600  # age at which a back-off or latency is ignored
LONGEST_LEAD_SECONDS: Final = AHEAD_SECONDS / 2
LEAD_WEIGHT: Final = 0.1  # weight of the newest commit in the lead, if it was faster than earlier commits
LONGEST_LOOK_SECONDS: Final = 30.0  # time after which a host is checked again, even if it requested a longer wait


class HostState(Struct, frozen=True):
    """The state of a host when its row was read. Times are relative to that moment."""

    busy_seconds: float = 0.0  # time until its next free slot, including a hold
    held_seconds: float = 0.0  # time until its hold ends
    crawl_delay_seconds: float = 0.0  # the crawl delay in its robots.txt
    latency_seconds: float = 0.0  # its response time, if it has recently been slow
    is_recovering: bool = False  # no good response since its hold: request one URL at a time
    robots_known: bool = False

    def free_in_seconds(self, delay_seconds: float) -> float:
        """Return the time until the host may be requested with this delay. Without a delay, a request has to wait only
        for the end of a hold, not for a slot."""
        return self.busy_seconds if delay_seconds else self.held_seconds


class HostDelay(Struct, frozen=True):
    """The delay between two requests to a host. If the host itself asks for a longer delay, that delay applies."""

    delay_seconds: float
    latency_factor: float = 0.0  # seconds of delay per second of response time of a slow host
    longest_latency_delay_seconds: float = 0.0

    @classmethod
    def outside_crawls(cls, settings: Settings) -> "HostDelay":
        """Return the delay for page jobs and other requests outside crawls."""
        profile, longest = settings.pages.speed_profile, settings.hosts.longest_slow_delay
        return cls(profile.delay.total_seconds(), profile.ease, longest.total_seconds())

    def effective_delay_seconds(self, state: HostState) -> float:
        """Return the time between two requests: the longest of our own delay, the crawl delay of robots.txt, and the
        delay for a slow host."""
        slow = min(state.latency_seconds * self.latency_factor, self.longest_latency_delay_seconds)
        return max(self.delay_seconds, state.crawl_delay_seconds, slow)


class HeldHost(Struct, frozen=True):
    """A host on hold, with the end of the hold and the response status that caused it."""

    origin: str
    until: int
    status: int


class HostSlots(Struct, frozen=True):
    """The slots that a host has now: the first in `first_in_seconds`, each further one `delay_seconds` after the
    previous one."""

    slots: int
    first_in_seconds: float = 0.0
    delay_seconds: float = 0.0

    def start_in_seconds(self, request: int) -> float:
        """Return the time until the slot of the n-th request, counted from 0."""
        return self.first_in_seconds + request * self.delay_seconds

    def again_in_seconds(self, used: int) -> float:
        """Return the time until the host's next slot after `used` slots were taken. The result is capped, because a
        hold may end early; the next check reads the host's row again."""
        rest = SHORTEST_WAIT_SECONDS if used and used >= self.slots and not self.delay_seconds else 0.0
        return min(max(rest, self.start_in_seconds(used)), LONGEST_LOOK_SECONDS)


class SlotRequest(Struct, frozen=True):
    """Requests to one host, `delay_seconds` apart."""

    host: int
    slots: int
    delay_seconds: float


class SlotsGranted(Struct, frozen=True):
    """The result of a slot request: the number of slots, and the time until the first of them. `counted_at`: the moment
    from which that time counts, by the clock of this process; 0 if the caller passed no timing."""

    slots: int = 0
    first_in_seconds: float = 0.0
    counted_at: float = 0.0


class Slotted(Protocol):
    """A task with a slot. The slot begins `start_in_seconds` after it was reserved, at `slot_at` by the clock of this
    process."""

    start_in_seconds: float
    slot_at: float
    delay_seconds: float


class SlotTiming:
    """Converts reserved slots to the clock of this process. Slots are reserved so far ahead (`lead_seconds`) that the
    first has not passed when the commit that reserved it has ended, even if the store is far away."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lead_seconds = 0.0

    def now(self) -> float:
        return self._clock.monotonic()

    def middle(self, asked_at: float) -> float:
        """Return the estimated time at which the store ran a statement that was sent at `asked_at`: half-way until
        now."""
        return (asked_at + self._clock.monotonic()) / 2

    def usable(self, tasks: Iterable[Slotted]) -> None:
        """Adjust the lead to the time that the commit of these tasks took: their slots can be used from now on. The
        lead follows the slowest commits."""
        for task in tasks:
            if task.slot_at and task.delay_seconds:
                late = self._clock.monotonic() - (task.slot_at - task.start_in_seconds)
                late = min(late, LONGEST_LEAD_SECONDS)
                self.lead_seconds = max(late, self.lead_seconds + (late - self.lead_seconds) * LEAD_WEIGHT)
                return  # one task is enough: all slots were reserved by one statement


def slots_within(most: int, free_in_seconds: float, delay_seconds: float) -> int:
    """Return how many requests a host may get within the next two seconds: at least one if its next slot begins in this
    time."""
    left = AHEAD_SECONDS - free_in_seconds
    if left < 0:
        return 0
    return min(most, 1 + int(left / delay_seconds)) if delay_seconds else most


BURST_SECONDS = 0.1  # starts that were missed within this time are made up for


class FetchRate:
    """Spaces the starts of fetches evenly. If the rate is unlimited, `None` is used instead of an instance."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._next_at = clock.monotonic()

    def change(self, per_second: float) -> None:
        """Change the rate. The time since the last start is taken into account, so a change causes no additional
        starts."""
        now = self._clock.monotonic()
        if self._next_at > now:
            self._next_at = now + (self._next_at - now) * self.per_second / per_second
        self.per_second = per_second

    def seconds_left(self) -> float:
        """Return the seconds until the next fetch may start; 0: it may start now."""
        return max(0.0, self._next_at - self._clock.monotonic())

    def spend(self) -> None:
        """Count a fetch that starts now."""
        self._next_at = max(self._next_at, self._clock.monotonic() - BURST_SECONDS) + 1 / self.per_second


def changed(rate: FetchRate | None, per_second: float | None, clock: Clock) -> FetchRate | None:
    """Return the limit after a change to `per_second`: `rate` itself with its rate changed, a new limit, or `None`."""
    if rate is None or per_second is None:
        return None if per_second is None else FetchRate(per_second, clock)
    rate.change(per_second)
    return rate
