"""The host store contract."""

from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.hosts.robots import RobotsRecord


class HostStore(Protocol):
    async def numbers(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        """The number of each origin (`scheme://host[:port]`), made when it is new. Origins are inserted sorted."""
        ...

    async def robots(self, tx: Tx, origin: str) -> RobotsRecord | None:
        """What is kept of the host's robots.txt; None if it was never asked for."""
        ...

    async def keep_robots(self, tx: Tx, origin: str, record: RobotsRecord, delay: timedelta) -> None:
        """Keep what the host's robots.txt said, and the pause between requests that it asks for."""
        ...

    async def busy_for(self, tx: Tx, host: int) -> float:
        """Seconds from now until the host has a free slot; 0 if it has one. It stays so until this transaction ends."""
        ...

    async def reserve(self, tx: Tx, host: int, slots: int, delay: timedelta) -> float:
        """Reserve that many requests in a row, `delay` apart; seconds from now until the first of them."""
        ...
