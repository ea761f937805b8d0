"""Seats on SQL: how many jobs of a scope are locked, which of those just granted find room, and who may come next."""

from collections.abc import Collection
from functools import partial
from typing import Any

import orjson

from shoal.base.database import Tx
from shoal.queue.job import quota_limit
from shoal.store.sql.job_hosts import note_hosts

ID, KIND, SCOPES, LANE, CAPABILITY = 0, 2, 9, 10, 12  # places in a granted row
AHEAD = 1000  # jobs of a line that are looked at for others of a scope that is full
LAST = 1 << 62  # the rank that is behind all
UNPARK_AT_ONCE = 1000


class QuotaCounts:
    """One scope has so many seats. A job sits in every scope of its own that is limited while it is locked."""

    async def settle(
        self,
        tx: Tx,
        left: Collection[str],
        granted: list[Any],
        *,
        quotas: bool,
        waits: bool = True,
    ) -> tuple[list[Any], int]:
        """The jobs in `left` leave their seats; of those granted, the ones that find room take seats and are given, the
        others are parked, and counted. A taker that does not wait finds no room in a scope
        that somebody else counts just now; the sweep lets those jobs in.

        Only a grant needs the lock of a scope, and takes it after its jobs and before hosts. Leaving a seat needs none:
        a lease that counts meanwhile sees one too many. The jobs that wait for the room are let in by a commit of its
        own, for this one may have to wait for other jobs, and they for whoever counts in the scope."""
        if left:
            # A statement of its own, after the one that moved them: `mend` may have held it up, to give them seats.
            freed = {row["scope"] for row in await tx.all("leave_seats", ids=sorted(left))}
            for scope in sorted(freed):
                tx.afterwards(partial(self.unpark, scope=scope))
        wishes = {row[ID]: _limited(row[SCOPES], quotas) for row in granted if row[SCOPES] is not None}
        scopes = sorted({scope for wish in wishes.values() for scope in wish})
        if not scopes:
            return granted, 0
        counted = await self._lock(tx, scopes, waits=waits)
        room = await self._room(tx, scopes)
        room |= {scope: 0 for scope in scopes if scope not in counted and room[scope] is not None}
        kept, seats, parked = _seated(granted, wishes, room)
        await tx.many("take_seats", seats)
        await tx.many("park_jobs", parked)
        lines = {row[ID]: (row[LANE], row[KIND], row[CAPABILITY]) for row in granted} if parked else {}
        full = sorted({(scope, *lines[one]) for one, scope in parked if scope in counted})
        ahead = [await self._park_ahead(tx, *line) for line in full]
        return kept, len(parked) + sum(ahead)

    async def unpark(self, tx: Tx, scope: str) -> int:
        """Let as many jobs stand in line as there is room in their scope; how many did. Call it in a commit that waits
        for nothing afterwards: the jobs stay locked to its end."""
        await tx.value("lock_scopes", scopes=[scope])
        room = (await self._room(tx, [scope]))[scope]
        limit = UNPARK_AT_ONCE if room is None else min(room, UNPARK_AT_ONCE)
        rows = await tx.all("unpark_jobs", scope=scope, limit=limit) if limit > 0 else []
        await note_hosts(tx, [row["id"] for row in rows if row["host"] is not None])
        return len(rows)

    async def with_room(self, tx: Tx, scopes: list[str]) -> list[str]:
        """Those of the scopes in which there seems to be room; `unpark` counts again, under their locks."""
        room = await self._room(tx, scopes)
        return [scope for scope in scopes if (left := room[scope]) is None or left > 0]

    async def mend(self, tx: Tx) -> None:
        """Seats of jobs that are not locked are dropped, and those that are locked have one in each limited scope.
        A job that somebody moves just now is left out: a seat would outlive its lease."""
        await tx.execute("drop_empty_seats")
        await tx.execute("seat_locked")

    async def _lock(self, tx: Tx, scopes: list[str], *, waits: bool) -> Collection[str]:
        """Have these scopes counted by us alone; those that are."""
        if waits:
            await tx.value("lock_scopes", scopes=scopes)
            return scopes
        return {row["scope"] for row in await tx.all("try_lock_scopes", scopes=scopes)}

    async def _park_ahead(self, tx: Tx, scope: str, lane: str, kind: str, capability: str) -> int:
        """Clear the head of a line of others that would find no room either: they must not hide who comes next."""
        line = {"lane": lane, "kind": kind, "capability": capability}
        end = await tx.value("end_of_look", **line, ahead=AHEAD)
        needle = orjson.dumps(scope).decode()
        rank = LAST if end is None else end
        return await tx.execute("park_ahead", **line, scope=scope, rank=rank, needle=needle, limit=AHEAD)

    async def _room(self, tx: Tx, scopes: list[str]) -> dict[str, int | None]:
        """How many more may sit in each scope; None: as many as like."""
        rows = await tx.all("seats_taken", scopes=scopes)
        most = {row["scope"]: quota_limit(row["scope"], row["most"]) for row in rows}
        taken = {row["scope"]: row["taken"] for row in rows}
        return {scope: None if limit is None else limit - taken[scope] for scope, limit in most.items()}


def _limited(scopes: str, quotas: bool) -> list[str]:
    """The scopes of a job that may be limited."""
    if not quotas and '"key:' not in scopes:
        return []
    return [scope for scope in orjson.loads(scopes) if quotas or quota_limit(scope, None) is not None]


def _seated(
    granted: list[Any], wishes: dict[str, list[str]], room: dict[str, int | None]
) -> tuple[list[Any], list[tuple[str, str]], list[tuple[str, str]]]:
    """Who keeps the grant, in the order of their ranks; the seats that they take; and who found no room, and where."""
    kept: list[Any] = []
    seats: list[tuple[str, str]] = []
    parked: list[tuple[str, str]] = []
    for row in granted:
        limited = [scope for scope in wishes.get(row[ID], ()) if room[scope] is not None]
        full = next((scope for scope in limited if (room[scope] or 0) <= 0), None)
        if full is not None:
            parked.append((row[ID], full))
            continue
        kept.append(row)
        for scope in limited:
            seats.append((scope, row[ID]))
            room[scope] = (room[scope] or 0) - 1
    return kept, seats, parked
