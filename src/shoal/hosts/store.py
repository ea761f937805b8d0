"""The store contract of hosts."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.hosts.rate import AHEAD_SECONDS, HostState, SlotRequest, SlotsGranted
from shoal.hosts.robots import RobotsRecord
from shoal.hosts.throttle import HostUpdate


class HostStore(Protocol):
    async def numbers(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        """Return the number of each origin (`scheme://host[:port]`); new origins are inserted, in sorted order."""
        ...

    async def states(self, tx: Tx, hosts: Iterable[int]) -> dict[int, HostState]:
        """Return the states of these hosts. Nothing is locked, so only slots granted by `reserve` may be used."""
        ...

    async def at_origins(self, tx: Tx, origins: list[str]) -> dict[str, tuple[int, HostState]]:
        """Return `numbers` and `states` together."""
        ...

    async def reserve(
        self, tx: Tx, slot_requests: list[SlotRequest], ahead_seconds: float = AHEAD_SECONDS
    ) -> dict[int, SlotsGranted]:
        """Reserve slots that are due within `ahead_seconds`, in one statement. A host without a slot in that time, or
        whose row is locked by another commit, is missing from the result: try again at the next turn. It never waits
        for a lock, so it may come last in a commit. Delays must be longer than zero."""
        ...

    async def record(self, tx: Tx, updates: Mapping[int, HostUpdate]) -> dict[int, float]:
        """Record which hosts ask us to wait, have recovered or are slow, in one statement that locks rows by number.
        URLs that answered 503 are added to those that any process reported within the last minute; enough of them put
        the host on hold. Return the remaining seconds of the hold for each host that asks us to wait."""
        ...

    async def robots(self, tx: Tx, origin: str) -> RobotsRecord | None:
        """Return the stored robots.txt of the host with its age; None if it was never requested."""
        ...

    async def keep_robots(self, tx: Tx, origin: str, record: RobotsRecord, delay: timedelta) -> None:
        """Store the robots.txt of the host and the delay between requests that it asks for."""
        ...
