"""Repairs lanes on Redis: puts back what the server has lost, and removes entries of jobs that do not wait any more.

Workers take the best jobs first. So a pass compares the head of each queue of the shared lane with the jobs table: a
job that is missing in the middle is found at the latest when it becomes the next one. While all of a batch is missing,
the following ones are put back as well, so a server that was emptied is filled again at once. Jobs that are missing in
a private lane go to the shared one when their offer expires, unless the server lost everything: then all are put back.
"""

from typing import Any

from shoal.base.database import Tx
from shoal.queue.job import NODE, SHARED_LANE
from shoal.queue.lanes import LaneRepair
from shoal.store.redis.lane_entries import LaneEntry, entries_of
from shoal.store.redis.lane_server import LaneServer
from shoal.store.redis.scripts import BATCH

BATCHES = 5  # per pass: the store has other things to do, and a pass that is not done is followed by another at once
FORGOTTEN_AFTER = 5.0  # seconds from a pop to the commit that leases what was popped; usually it takes milliseconds
LINES, HEADS = 10, 100  # queues whose first entries are compared with the table, and how many of each
FIRST, LAST = -(1 << 62), 1 << 62  # ranks
Cursor = tuple[str, str, str, int, str]  # lane, kind, capability, rank, id


class LaneRepairs:
    """Repairs the lanes of one store, a bounded step at a time."""

    def __init__(self, server: LaneServer) -> None:
        self._server = server
        self._all_from: Cursor | None = None  # while everything is put back: where to continue

    async def run_once(self, tx: Tx) -> LaneRepair:
        if not await self._server.begin(tx, create=True):
            return LaneRepair()
        found = await self._server.call("check", FORGOTTEN_AFTER, BATCH, LINES, HEADS)
        if found is None:
            return LaneRepair()
        began, forgotten, heads = found
        if began:
            self._all_from = (NODE, "", "", FIRST, "")
        restored = await self._restore_forgotten(tx, [job_id.decode() for job_id in forgotten])
        await self._remove_stale(tx, [job_id.decode() for job_id in heads])
        added, more = await (self._put_back_all(tx) if self._all_from is not None else self._put_back_heads(tx))
        return LaneRepair(restored + added, more)

    async def _restore_forgotten(self, tx: Tx, job_ids: list[str]) -> int:
        """Put jobs back whose process died between the pop and the commit."""
        if not job_ids:
            return 0
        waiting = await self._waiting(tx, job_ids)
        await self._server.settle([job_id for job_id in job_ids if job_id not in waiting])
        await self._server.give_back([job_id for job_id in job_ids if job_id in waiting])
        return len(waiting)

    async def _remove_stale(self, tx: Tx, job_ids: list[str]) -> None:
        """Remove entries of jobs that were leased past Redis, cancelled or removed."""
        if job_ids:
            waiting = await self._waiting(tx, job_ids)
            if stale := [job_id for job_id in job_ids if job_id not in waiting]:
                await self._server.settle(stale)

    async def _waiting(self, tx: Tx, job_ids: list[str]) -> dict[str, LaneEntry]:
        return {one.job_id: one for one in entries_of(await tx.all("lane_entries", ids=job_ids))}

    async def _put_back_heads(self, tx: Tx) -> tuple[int, bool]:
        """Put back missing jobs at the heads of the shared lane's queues; returns how many, and whether to go on."""
        restored, after = 0, (SHARED_LANE, "", "", FIRST, "")
        for _ in range(BATCHES):
            rows = await self._after(tx, after)
            if not rows or rows[0]["lane"] != SHARED_LANE:
                return restored, False
            line = (SHARED_LANE, rows[0]["kind"], rows[0]["capability"])
            of_line = [row for row in rows if (row["lane"], row["kind"], row["capability"]) == line]
            added = await self._server.put(entries_of(of_line), repairs=True)
            restored += added
            goes_on = added == len(of_line) == BATCH
            after = (*line, of_line[-1]["rank"], of_line[-1]["id"]) if goes_on else (*line, LAST, "")
        return restored, restored > 0

    async def _put_back_all(self, tx: Tx) -> tuple[int, bool]:
        """Go on putting back every waiting job; returns how many were missing, and whether there are more."""
        restored = 0
        for _ in range(BATCHES):
            assert self._all_from is not None, "called only while there is more"
            rows = await self._after(tx, self._all_from)
            restored += await self._server.put(entries_of(rows), repairs=True)
            if not self._server.is_available:
                return restored, False  # the next pass continues here
            if len(rows) < BATCH:
                self._all_from = None
                return restored, False
            last = rows[-1]
            self._all_from = (last["lane"], last["kind"], last["capability"], last["rank"], last["id"])
        return restored, True

    async def _after(self, tx: Tx, cursor: Cursor) -> list[Any]:
        lane, kind, capability, rank, job_id = cursor
        place = {"lane": lane, "kind": kind, "capability": capability, "rank": rank, "id": job_id}
        return await tx.all("waiting_jobs_after", **place, limit=BATCH)
