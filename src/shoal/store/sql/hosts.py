"""The host store on SQL."""

from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Tx


class SqlHostStore:
    """Answers `hosts.store.HostStore`."""

    async def numbers(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        found = await self._known(tx, origins)
        new = sorted(set(origins).difference(found))
        if new:
            await tx.many("insert_hosts", [{"origin": origin} for origin in new])
            found |= await self._known(tx, new)
        return found

    async def reserve(self, tx: Tx, host: int, slots: int, delay: timedelta) -> float:
        first_in: int = await tx.value("reserve_slots", number=host, total=slots * span(delay))
        return max(0, first_in) / 1e6

    async def busy_for(self, tx: Tx, host: int) -> float:
        busy_for: int = await tx.value("host_busy_for", number=host)
        return max(0, busy_for) / 1e6

    async def _known(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        rows = await tx.all("host_numbers", origins=origins)
        return {row["origin"]: row["number"] for row in rows}
