"""The store of hosts."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import orjson

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.hosts.rate import AHEAD_SECONDS, FORGET_SECONDS, HostState, SlotRequest, SlotsGranted, SlotTiming
from shoal.hosts.robots import RobotsRecord, RobotsState
from shoal.hosts.throttle import REFUSED, WITHIN_SECONDS, HostUpdate, concern_host, with_refusals

FORGET = FORGET_SECONDS * 1_000_000


class HostStore:
    """What all processes know about hosts: their next free slot, holds, latency and robots.txt."""

    async def numbers(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        """Return the number of each origin (`scheme://host[:port]`); new origins are inserted, in sorted order."""
        found = await self._known(tx, origins)
        new = sorted(set(origins).difference(found))
        if new:
            await tx.many("insert_hosts", [{"origin": origin} for origin in new])
            found |= await self._known(tx, new)
        return found

    async def states(self, tx: Tx, hosts: Iterable[int]) -> dict[int, HostState]:
        """Return the states of these hosts. Nothing is locked, so only slots granted by `reserve` may be used."""
        rows = await tx.all("host_states", numbers=sorted(set(hosts)))
        return {row["number"]: host_state(row) for row in rows}

    async def at_origins(self, tx: Tx, origins: list[str]) -> dict[str, tuple[int, HostState]]:
        """Return `numbers` and `states` together."""
        rows = await tx.all("hosts_at_origins", origins=origins)
        if len(rows) < len(origins):
            await self.numbers(tx, origins)
            rows = await tx.all("hosts_at_origins", origins=origins)
        return {row["origin"]: (row["number"], host_state(row)) for row in rows}

    async def reserve(
        self,
        tx: Tx,
        slot_requests: list[SlotRequest],
        ahead_seconds: float = AHEAD_SECONDS,
        *,
        timing: SlotTiming | None = None,
    ) -> dict[int, SlotsGranted]:
        """Reserve slots that are due within `ahead_seconds`, in one statement. A host without a slot in that time, or
        whose row is locked by another commit, is missing from the result; the caller tries again at its next turn. This
        call never waits for a lock, so it may come last in a commit. Delays must be longer than zero. `timing`
        determines how far ahead the first slot has to be, and converts the slots to the caller's clock."""
        micros, lead = round(ahead_seconds * 1e6), 0 if timing is None else round(timing.lead_seconds * 1e6)
        asked_at = 0.0 if timing is None else timing.now()
        wanted = [
            {
                "number": request.host,
                "slots": request.slots,
                "delay": round(request.delay_seconds * 1e6),
                "ahead": micros,
                "lead": lead,
            }
            for request in slot_requests
            if request.slots > 0
        ]
        rows = await tx.batch("reserve_slots", wanted)
        counted_at = 0.0 if timing is None else timing.middle(asked_at)
        return {row["number"]: SlotsGranted(row["slots"], max(0, row["first_in"]) / 1e6, counted_at) for row in rows}

    async def record(self, tx: Tx, updates: Mapping[int, HostUpdate]) -> dict[int, float]:
        """Record which hosts ask us to wait, have recovered or are slow, in one statement that locks rows by number.
        URLs that answered 503 are added to the URLs that any process reported within the last minute; if there are
        enough of them, the host is put on hold. Return the remaining seconds of the hold for each host that asks us to
        wait."""
        statuses = {host: one.status for host, one in updates.items()} | await self._refused(tx, updates)
        rows = await tx.batch(
            "update_hosts", [_row(host, one, statuses[host]) for host, one in sorted(updates.items())]
        )
        return {row["number"]: row["held_for"] / 1e6 for row in rows if statuses[row["number"]]}

    async def _refused(self, tx: Tx, updates: Mapping[int, HostUpdate]) -> dict[int, int]:
        """Merge the URLs that answered 503 with those that other processes recorded; return the hosts to put on hold
        for this reason, each with the status 503. Locks the rows of all these hosts, in the order of their numbers."""
        if not any(one.refused for one in updates.values()):
            return {}
        kept = {}
        for row in await tx.all("lock_refusals", numbers=sorted(updates)):
            if urls := updates[row["number"]].refused:
                before = dict(orjson.loads(row["refusals"] or "[]"))
                kept[row["number"]] = with_refusals(before, urls, row["now"], WITHIN_SECONDS * 1_000_000)
        rows = [{"number": host, "refusals": orjson.dumps(list(kept[host].items())).decode()} for host in kept]
        await tx.many("keep_refusals", rows)
        return {host: REFUSED for host, urls in kept.items() if concern_host(urls)}

    async def robots(self, tx: Tx, origin: str) -> RobotsRecord | None:
        """Return the stored robots.txt of the host with its age; `None` if robots.txt was never requested."""
        row = await tx.one("host_robots", origin=origin)
        if row is None or row["robots_state"] is None:
            return None
        return RobotsRecord(RobotsState(row["robots_state"]), row["robots"] or "", timedelta(microseconds=row["age"]))

    async def keep_robots(self, tx: Tx, origin: str, record: RobotsRecord, delay: timedelta) -> None:
        """Store the host's robots.txt and the crawl delay in it."""
        await self.numbers(tx, [origin])
        same = {"origin": origin, "state": record.state, "hash": record.hash}
        if not await tx.execute("robots_unchanged", **same, delay=span(delay)):
            await tx.execute("keep_robots", **same, delay=span(delay), body=record.body)

    async def _known(self, tx: Tx, origins: list[str]) -> dict[str, int]:
        rows = await tx.all("host_numbers", origins=origins)
        return {row["origin"]: row["number"] for row in rows}


def host_state(row: Any) -> HostState:
    """Build the state of a host from a row with the columns of the host and `now`."""
    now, held_until = row["now"], row["held_until"]
    return HostState(
        busy_seconds=max(0, row["next_at"] - now, held_until - now) / 1e6,
        held_seconds=max(0, held_until - now) / 1e6,
        crawl_delay_seconds=row["delay"] / 1e6,
        latency_seconds=row["latency"] / 1e6 if row["latency_at"] > now - FORGET else 0.0,
        is_recovering=row["backoff"] > 0 and held_until > now - FORGET,
        robots_known=row["robots_at"] is not None,
    )


def _row(host: int, update: HostUpdate, status: int) -> dict[str, Any]:
    return {
        "number": host,
        "status": status,
        "hold": round(update.hold_seconds * 1e6),
        "first": round(update.shortest_backoff_seconds * 1e6),
        "most": round(update.longest_backoff_seconds * 1e6),
        "grows": int(update.grows),
        "forget": FORGET,
        "well": int(update.recovered),
        "latency": -1 if update.latency_seconds is None else round(update.latency_seconds * 1e6),
    }
