"""Repairs lanes on Redis: puts back jobs that the server has lost, and removes entries of jobs that no longer wait.

A pass first compares the heads of the shared lane's queues with the jobs table, because workers take the best jobs
first. Then it compares the next rows of a cursor that cycles through all lanes. If a whole batch is missing, the
following batches are put back as well, so a server that was emptied is filled again immediately. The work of a pass is
bounded.
"""

from datetime import timedelta
from typing import Any

from shoal.base.database import Database, Tx
from shoal.drivers.redis.connection import BATCH
from shoal.drivers.redis.lane_server import LaneServer, entries_of
from shoal.queue.job import NODE, SHARED_LANE
from shoal.queue.lanes import LaneRepair

BATCHES = 5  # batches per pass: the store has other work, and if a pass is not done, a further pass follows
FORGOTTEN_AFTER_SECONDS = (
    5.0  # maximum seconds from a pop to the commit that leases the popped jobs; usually this takes milliseconds
)
QUEUES, HEADS = 10, 100  # queues whose first entries are compared with the table, and the number of entries per queue
FIRST, LAST = -(1 << 62), 1 << 62  # ranks
Cursor = tuple[str, str, str, int, str]  # lane, kind, capability, rank, id
START: Cursor = (NODE, "", "", FIRST, "")


class LaneRepairs:
    """Repairs the lanes of one store, a bounded step at a time."""

    def __init__(self, server: LaneServer) -> None:
        self._server = server
        self._cursor = START
        self._fills = False  # True: put back everything behind the cursor immediately, because the server was emptied
        self._host_cursor = 0

    async def run_once(self, tx: Tx) -> LaneRepair:
        if not await self._server.begin(tx, create=True):
            return LaneRepair(
                more=not self._server.has_generation
            )  # the generation has just been made and can be used from now on
        found = await self._server.call("check", FORGOTTEN_AFTER_SECONDS, BATCH, QUEUES, HEADS)
        if found is None:
            return LaneRepair()
        began, forgotten, heads = found
        if began:
            self._cursor, self._fills = START, True
        restored = await self._restore_forgotten(tx, [job_id.decode() for job_id in forgotten])
        stale = await self._remove_stale(tx, [job_id.decode() for job_id in heads])
        if not self._fills:
            restored += await self._put_back_heads(tx)
        restored += await self._put_back_next(tx)
        await self._drop_idle_hosts(tx)
        return LaneRepair(restored, more=self._server.is_available and (self._fills or stale >= HEADS))

    async def _restore_forgotten(self, tx: Tx, job_ids: list[str]) -> int:
        """Put back jobs whose process died between the pop and the commit."""
        waiting = await self._waiting(tx, job_ids)
        await self._forget([job_id for job_id in job_ids if job_id not in waiting])
        await self._server.give_back([job_id for job_id in job_ids if job_id in waiting])
        return len(waiting)

    async def _remove_stale(self, tx: Tx, job_ids: list[str]) -> int:
        """Remove entries of jobs that were leased without Redis, cancelled or removed; return how many."""
        waiting = await self._waiting(tx, job_ids)
        stale = [job_id for job_id in job_ids if job_id not in waiting]
        await self._forget(stale)
        return len(stale)

    async def _waiting(self, tx: Tx, job_ids: list[str]) -> set[str]:
        """Return the jobs among these that wait and are due."""
        return {row["id"] for row in await tx.all("lane_entries", ids=job_ids)} if job_ids else set()

    async def _forget(self, job_ids: list[str]) -> None:
        if job_ids:
            await self._server.settle(job_ids)

    async def _put_back_heads(self, tx: Tx) -> int:
        """Put back missing jobs at the heads of the shared lane's queues; return how many. If a whole head is missing,
        the cursor continues behind that head."""
        restored, after = 0, (SHARED_LANE, "", "", FIRST, "")
        for _ in range(BATCHES):
            rows = await self._after(tx, after)
            if not rows:
                break
            queue = (rows[0]["lane"], rows[0]["kind"], rows[0]["capability"])
            head = [row for row in rows if (row["lane"], row["kind"], row["capability"]) == queue]
            added = await self._server.put(entries_of(head), repairs=True)
            restored += added
            if added == BATCH:
                self._cursor, self._fills = _place_of(head[-1]), True
            after = (*queue, LAST, "")
        return restored

    async def _put_back_next(self, tx: Tx) -> int:
        """Put back missing jobs behind the cursor; return how many. This covers one batch, and further batches if the
        whole batch was missing."""
        restored = 0
        for _ in range(BATCHES):
            rows = await self._after(tx, self._cursor)
            added = await self._server.put(entries_of(rows), repairs=True)
            if not self._server.is_available:
                break  # the next pass compares the same rows again
            restored += added
            is_end = len(rows) < BATCH
            self._cursor = START if is_end else _place_of(rows[-1])
            self._fills = not is_end and (self._fills or added == BATCH)
            if not self._fills:
                break
        return restored

    async def _drop_idle_hosts(self, tx: Tx) -> None:
        """Remove rows of hosts at which no more jobs wait. Leases through Redis leave such rows behind, and a lease
        through the database would have to examine all these rows."""
        rows = await tx.all("job_hosts_after", number=self._host_cursor, limit=BATCH)
        self._host_cursor = rows[-1]["number"] if len(rows) == BATCH else 0
        idle = [row["number"] for row in rows if not row["waits"]]
        # Lock first, and delete in a second statement: it sees the jobs of a commit that locked the host's row before
        # us (0030).
        if idle and (locked := [row["number"] for row in await tx.all("lock_job_hosts", numbers=idle)]):
            await tx.execute("drop_idle_job_hosts", numbers=locked)

    async def _after(self, tx: Tx, cursor: Cursor) -> list[Any]:
        lane, kind, capability, rank, job_id = cursor
        place = {"lane": lane, "kind": kind, "capability": capability, "rank": rank, "id": job_id}
        return await tx.all("waiting_jobs_after", **place, limit=BATCH)


class AbandonedLanes:
    """For a store whose lanes are now in the database: removes its lanes from Redis once no process has used them for
    an hour. Implements `queue.pruner.RetentionRule`. During an upgrade, older processes may still lease from Redis;
    each of their calls reads the generation, and Redis knows the time since the last read."""

    name = "lanes in Redis"
    keep = timedelta(hours=1)

    def __init__(self, server: LaneServer) -> None:
        self._server = server

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        return await database.run(self._drop), False

    async def _drop(self, tx: Tx) -> int:
        """Forget the lanes; return how many there were. If a process dies before the commit, a row without lanes is
        left, which the next pass removes."""
        if not await self._server.begin(tx) or not await self._server.drop(self.keep):
            return 0
        await tx.execute("forget_lanes")
        return 1


def _place_of(row: Any) -> Cursor:
    return (row["lane"], row["kind"], row["capability"], row["rank"], row["id"])
