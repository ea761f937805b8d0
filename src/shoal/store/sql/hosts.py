"""The host store on SQL."""

from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.hosts.robots import RobotsRecord, RobotsState


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

    async def robots(self, tx: Tx, origin: str) -> RobotsRecord | None:
        row = await tx.one("host_robots", origin=origin)
        if row is None or row["robots_state"] is None:
            return None
        return RobotsRecord(RobotsState(row["robots_state"]), row["robots"] or "", row["robots_at"])

    async def keep_robots(self, tx: Tx, origin: str, record: RobotsRecord, delay: timedelta) -> None:
        await self.numbers(tx, [origin])
        await tx.execute(
            "keep_robots",
            origin=origin,
            state=record.state,
            body=record.body,
            fetched_at=record.fetched_at,
            delay=span(delay),
        )

    async def _known(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        rows = await tx.all("host_numbers", origins=origins)
        return {row["origin"]: row["number"] for row in rows}
