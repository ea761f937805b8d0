"""The host store contract."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.hosts.rate import AHEAD, HostStanding, SlotRequest, SlotsGranted
from shoal.hosts.robots import RobotsRecord
from shoal.hosts.throttle import HostNews


class HostStore(Protocol):
    async def numbers(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        """The number of each origin (`scheme://host[:port]`), made when it is new. Origins are inserted sorted."""
        ...

    async def standings(self, tx: Tx, hosts: Iterable[int]) -> dict[int, HostStanding]:
        """How these hosts stand. Nothing is locked: what counts is what `reserve` grants."""
        ...

    async def at_origins(self, tx: Tx, origins: list[str]) -> dict[str, tuple[int, HostStanding]]:
        """`numbers` and `standings` at once."""
        ...

    async def reserve(self, tx: Tx, wishes: list[SlotRequest], ahead: float = AHEAD) -> dict[int, SlotsGranted]:
        """Reserve slots, at most those that are due within so many seconds, all in one statement. A host that has none
        within that time, or whose row another commit holds just now, is not in the answer: ask again at the next turn.
        It never waits for another commit, so it may come last. Delays are longer than zero."""
        ...

    async def hear(self, tx: Tx, news: Mapping[int, HostNews]) -> dict[int, float]:
        """Note what hosts said: who asks us to wait, who is well again, who is slow; all in one statement, their rows
        locked by number. URLs that answered 503 are added to what anybody brought within the last minute; enough
        of them make a host that asks us to wait. For each of those: how many seconds it is held now."""
        ...

    async def robots(self, tx: Tx, origin: str) -> RobotsRecord | None:
        """What is kept of the host's robots.txt, and how old that is; None if it was never asked for."""
        ...

    async def keep_robots(self, tx: Tx, origin: str, record: RobotsRecord, delay: timedelta) -> None:
        """Keep what the host's robots.txt said, and the pause between requests that it asks for."""
        ...
