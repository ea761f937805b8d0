"""The queue's store on SQL."""

from datetime import timedelta
from itertools import product
from typing import Any

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.job import Holder, Job, Lease, LostJob, NewJob
from shoal.queue.states import TERMINAL, JobState, Move

DUE_AT_ONCE = 1000


class SqlJobStore:
    """Answers `queue.store.JobStore`."""

    async def insert(self, tx: Tx, job: NewJob) -> bool:
        values = {name: getattr(job, name) for name in NewJob.__slots__}
        return await tx.execute("insert_job", **values) == 1

    async def lease(
        self, tx: Tx, holder: str, kinds: list[str], lanes: list[str], limit: int, ttl: timedelta
    ) -> list[Lease]:
        await tx.execute("make_due", limit=DUE_AT_ONCE)
        leases: list[Lease] = []
        for lane, kind in product(lanes, kinds):
            due = await tx.all("due_jobs", lane=lane, kind=kind, limit=limit - len(leases))
            granted = [await self.lease_one(tx, JobId(row["id"]), holder, ttl) for row in due]
            leases += [lease for lease in granted if lease is not None]
        return leases

    async def lease_one(self, tx: Tx, job_id: JobId, holder: str, ttl: timedelta) -> Lease | None:
        row = await tx.one("lease_job", id=job_id, holder=holder, ttl=span(ttl))
        if row is None:
            return None
        await tx.execute("open_grant", job_id=job_id, epoch=row["lease_epoch"], holder=holder)
        return _lease(row)

    async def fence(self, tx: Tx, holder: Holder) -> bool:
        return await tx.one("fence_job", id=holder.job_id, epoch=holder.epoch) is not None

    async def extend(self, tx: Tx, holders: list[Holder], ttl: timedelta) -> list[Holder]:
        extended = []
        for holder in sorted(holders, key=lambda holder: holder.job_id):
            if await tx.one("extend_lease", id=holder.job_id, epoch=holder.epoch, ttl=span(ttl)) is not None:
                extended.append(holder)
        return extended

    async def mark_settled(self, tx: Tx, holder: Holder) -> None:
        await tx.execute("mark_grant_settled", job_id=holder.job_id, epoch=holder.epoch)

    async def apply(self, tx: Tx, move: Move) -> bool:
        moved = await (self._end(tx, move) if move.to in TERMINAL else self._return(tx, move))
        if moved:
            await tx.execute(
                "close_grant", job_id=move.job_id, epoch=move.epoch, ended=move.grant_end, error=move.error
            )
        return moved

    async def other_run_waits(self, tx: Tx, job_id: JobId, patience: timedelta) -> bool:
        return await tx.one("other_run_waits", id=job_id, patience=span(patience)) is not None

    async def cancel_waiting(self, tx: Tx, run_id: str, reason: str) -> int:
        return await tx.execute("cancel_waiting_jobs", run_id=run_id, reason=reason)

    async def set_priority(self, tx: Tx, run_id: str, priority: int) -> None:
        await tx.execute("set_priority_of_run", run_id=run_id, priority=priority)

    async def expired(self, tx: Tx, limit: int) -> list[LostJob]:
        rows = await tx.all("expired_jobs", limit=limit)
        return [_lost(row) for row in rows]

    async def freshest_lease(self, tx: Tx) -> timedelta | None:
        left = await tx.value("freshest_lease")
        return None if left is None else timedelta(microseconds=left)

    async def lost(self, tx: Tx, holder: Holder) -> LostJob | None:
        # Two statements: the second sees what a commit that we had to wait for has settled.
        if await tx.one("lock_job", id=holder.job_id, epoch=holder.epoch) is None:
            return None
        row = await tx.one("lost_job", id=holder.job_id, epoch=holder.epoch)
        return None if row is None else _lost(row)

    async def still_expired(self, tx: Tx, holder: Holder) -> bool:
        return await tx.one("still_expired", id=holder.job_id, epoch=holder.epoch) is not None

    async def jobs_of_run(self, tx: Tx, run_id: str) -> list[Job]:
        return [_job(row) for row in await tx.all("jobs_of_run", run_id=run_id)]

    async def get(self, tx: Tx, job_id: JobId) -> Job | None:
        row = await tx.one("job", id=job_id)
        return None if row is None else _job(row)

    async def live_of_run(self, tx: Tx, run_id: str) -> tuple[int, int]:
        row = await tx.one("live_jobs_of_run", run_id=run_id)
        return (row["pending"], row["locked"]) if row else (0, 0)

    async def _end(self, tx: Tx, move: Move) -> bool:
        values = {"state": move.to, "attempt": int(move.counts_attempt), "crash": int(move.counts_crash)}
        return await tx.execute("end_job", **_common(move), **values) == 1

    async def _return(self, tx: Tx, move: Move) -> bool:
        values = {"attempt": int(move.counts_attempt), "crash": int(move.counts_crash)}
        values |= {"wait": span(move.wait), "drop_by": move.priority_drop, "to_the_back": int(move.to_the_back)}
        return await tx.execute("return_job", **_common(move), **values) == 1


def _common(move: Move) -> dict[str, Any]:
    return {"id": move.job_id, "epoch": move.epoch, "reason": move.reason, "error": move.error}


def _lease(row: Any) -> Lease:
    return Lease(
        holder=Holder(JobId(row["id"]), row["lease_epoch"]),
        kind=row["kind"],
        run_id=row["run_id"],
        payload=row["payload"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        crash_count=row["crash_count"],
        waited_seconds=row["waited"] / 1e6,
    )


def _lost(row: Any) -> LostJob:
    values = {name: row[name] for name in LostJob.__slots__}
    return LostJob(**(values | {"settled": bool(row["settled"])}))


def _job(row: Any) -> Job:
    values = {name: row[name] for name in Job.__slots__}
    values["state"] = JobState(values["state"])
    return Job(**values)
