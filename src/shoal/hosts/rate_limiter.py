"""The rate limiter for requests to arbitrary hosts: each request gets its host's next free slot, or a time at which to
ask again. Walkers do not use it, because they choose which hosts they request."""

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from shoal.base.database import Tx
from shoal.hosts.rate import (
    AHEAD_SECONDS,
    SHORTEST_WAIT_SECONDS,
    UNPACED,
    HostDelay,
    HostSlots,
    HostState,
    SlotRequest,
    SlotsGranted,
    SlotTiming,
    slots_within,
)
from shoal.hosts.store import HostStore


class SlotGrant(Struct, frozen=True):
    """The result for one request. `wait_seconds`: the time until the request's slot or, if it got no slot, the time
    until the caller may ask again. `delay_seconds`: the delay between two requests to the host. `slot_at`: the time of
    the slot by the clock of this process, if the host has a delay and this process uses the slot."""

    host: int
    wait_seconds: float
    delay_seconds: float = 0.0
    granted: bool = True
    slot_at: float = 0.0


class RateLimiter:
    """Grants slots. `at_once`: grant only slots that are free right now, for callers that cannot be given a start time
    and fetch robots.txt themselves. `timing`: the timing of the process that uses the slots."""

    def __init__(self, delay: HostDelay, *, at_once: bool = False, timing: SlotTiming | None = None) -> None:
        self._hosts = HostStore()
        self._delay = delay
        self._at_once = at_once
        self.timing = timing

    async def give(self, tx: Tx, origins: Sequence[str]) -> list[SlotGrant]:
        """Return a grant for each request, in the order of the requests. This call never waits for a lock, so it may
        come last in a commit."""
        if not origins:
            return []
        known = await self._hosts.at_origins(tx, sorted(set(origins)))
        states = dict(known.values())
        queues: dict[int, list[int]] = defaultdict(list)
        for request, origin in enumerate(origins):
            queues[known[origin][0]].append(request)
        grants = await self._reserve(tx, {host: len(queue) for host, queue in queues.items()}, states)
        found: list[tuple[int, SlotGrant]] = []
        for host, queue in queues.items():
            places = self._queue_up(host, len(queue), states[host], grants.get(host, SlotsGranted()))
            found += zip(queue, places, strict=True)
        return [place for _, place in sorted(found, key=lambda one: one[0])]

    async def next_slot(self, tx: Tx, origin: str, within_seconds: float) -> SlotGrant:
        """Return the next slot of one host if it comes within this time, or directly after the previous slot. This is
        for requests that cannot be delayed without loss, such as the target of a redirect."""
        host, state = (await self._hosts.at_origins(tx, [origin]))[origin]
        delay = self._delay.effective_delay_seconds(state)
        within = max(within_seconds, delay + AHEAD_SECONDS)
        if not delay:
            return SlotGrant(host, state.held_seconds, granted=state.held_seconds <= within)
        granted = await self._hosts.reserve(tx, [SlotRequest(host, 1, delay)], within, timing=self.timing)
        if host in granted:
            return self._queue_up(host, 1, state, granted[host])[0]
        return SlotGrant(host, max(SHORTEST_WAIT_SECONDS, state.busy_seconds), delay, granted=False)

    @property
    def ahead_seconds(self) -> float:
        """Return how far ahead slots are taken. This is less than the maximum, so that every check finds free slots."""
        return 0.0 if self._at_once else 0.75 * AHEAD_SECONDS

    def slots_now(self, state: HostState) -> HostSlots:
        """Return how many requests a host in this state can take now. `give` makes the final decision."""
        delay = self._delay.effective_delay_seconds(state)
        free_in = state.free_in_seconds(delay)
        if free_in > 0 and (self._at_once or not delay):
            return HostSlots(0, free_in, delay)
        most = 1 if self._goes_alone(state, delay) else UNPACED
        return HostSlots(slots_within(most, free_in, delay), free_in, delay)

    def _goes_alone(self, state: HostState, delay_seconds: float) -> bool:
        """Return whether a host gets only one request at a time."""
        return state.is_recovering or (bool(delay_seconds) if self._at_once else not state.robots_known)

    async def _reserve(self, tx: Tx, wanted: dict[int, int], states: dict[int, HostState]) -> dict[int, SlotsGranted]:
        """Reserve slots. Without a delay there is nothing to reserve: requests to a host that is not held start
        immediately."""
        free, slot_requests = {}, []
        for host, count in sorted(wanted.items()):
            state = states[host]
            delay = self._delay.effective_delay_seconds(state)
            count = 1 if self._goes_alone(state, delay) else count
            if delay and self._at_once and state.busy_seconds > 0:
                continue
            if delay:
                slot_requests.append(SlotRequest(host, count, delay))
            elif not state.held_seconds:
                free[host] = SlotsGranted(count)
        return free | (await self._hosts.reserve(tx, slot_requests, timing=self.timing) if slot_requests else {})

    def _queue_up(self, host: int, count: int, state: HostState, grant: SlotsGranted) -> list[SlotGrant]:
        delay = self._delay.effective_delay_seconds(state)
        waits = [grant.first_in_seconds + turn * delay for turn in range(grant.slots)]
        granted = [
            SlotGrant(host, wait, delay, slot_at=grant.counted_at + wait if grant.counted_at else 0.0) for wait in waits
        ]
        free_in = grant.first_in_seconds + grant.slots * delay if granted else state.free_in_seconds(delay)
        again = max(SHORTEST_WAIT_SECONDS, free_in)
        left = range(count - len(granted))
        return granted + [SlotGrant(host, again + turn * delay, delay, granted=False) for turn in left]
