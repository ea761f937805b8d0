"""The host store contract."""

from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx


class HostStore(Protocol):
    async def numbers(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        """The number of each origin (`scheme://host[:port]`), made when it is new. Origins are inserted sorted."""
        ...

    async def reserve(self, tx: Tx, host: int, slots: int, delay: timedelta) -> float:
        """Reserve that many requests in a row, `delay` apart; seconds from now until the first of them."""
        ...

    async def busy_for(self, tx: Tx, host: int) -> float:
        """Seconds from now until the host has a free slot; 0 if it has one."""
        ...
