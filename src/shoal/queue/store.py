"""The store of job records: states, leases and their history. `queue.lanes` decides who gets a job next. Every change
is a compare-and-set; a result of False or fewer rows means that a different process was first, never that the store
failed."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.database.clock import store_clock
from shoal.base.ids import JobId
from shoal.queue.job import (
    Enqueued,
    Extended,
    Fence,
    Grant,
    HeartbeatAnswer,
    Job,
    Lease,
    LostJob,
    NewJob,
)
from shoal.queue.lanes import Availability
from shoal.queue.quotas import QuotaCounts
from shoal.queue.sql_lanes import SqlLanes, lease_of
from shoal.queue.states import GrantEnd, JobState, Move


class JobStore:
    """Stores job records; its `lanes` use the same table. `ageing`: the waiting time that equals a point of
    priority."""

    def __init__(self, dialect: str, ageing: timedelta, available: Availability) -> None:
        self.clock = store_clock(dialect)
        self.lanes = SqlLanes(dialect, ageing, available)
        self._ageing = span(ageing)
        self._available = available
        self.quotas = QuotaCounts(available)

    async def insert(self, tx: Tx, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store pending jobs, all or none; returns the outcome of each, in their order. A dedupe key has at most one
        live job, also within the batch; for a duplicate, the outcome has the id of that live job."""
        first_of = {job.dedupe_key: job.id for job in reversed(jobs) if job.dedupe_key is not None}
        asked = [job for job in jobs if job.dedupe_key is None or first_of[job.dedupe_key] == job.id]
        live: dict[str | None, JobId] = {}
        places = {job.id: place for place, job in enumerate(jobs)}
        dispatched = any(job.dispatch is not None or job.offer is not None for job in jobs)
        query = "insert_dispatched_jobs" if dispatched else "insert_jobs"
        while asked:
            rows = [self._new(job, places[job.id], dispatched=dispatched) for job in asked]
            made = await tx.many(query, rows)
            keyed = [job for job in asked if job.dedupe_key is not None]
            if made == len(asked):
                live |= {job.dedupe_key: job.id for job in keyed}
                break
            found = await tx.all("live_by_keys", keys=[job.dedupe_key for job in keyed])
            live |= {row["dedupe_key"]: JobId(row["id"]) for row in found}
            asked = [job for job in keyed if job.dedupe_key not in live]  # the live job has just ended
        found_ids = [live.get(job.dedupe_key, job.id) for job in jobs]
        return [Enqueued(one, duplicate=one != job.id) for one, job in zip(found_ids, jobs, strict=True)]

    async def lease_one(self, tx: Tx, job_id: JobId, holder: str, ttl: timedelta) -> Lease | None:
        """Grant this job if it is pending."""
        row = await tx.one("lease_job", id=job_id, holder=holder, ttl=span(ttl))
        if row is None:
            return None
        return lease_of(row)

    async def fence(self, tx: Tx, fence: Fence) -> bool:
        """Return whether the job is still locked with that epoch; if so, it stays locked until this transaction
        ends."""
        # A shared lock on the key columns only: a move waits for this commit, but a heartbeat does not (0021).
        return await tx.one("fence_job", id=fence.job_id, epoch=fence.epoch) is not None

    async def extend(self, tx: Tx, fences: Sequence[Fence], ttl: timedelta) -> Extended:
        """Renew these leases in one statement; return the renewed ones, and those of them whose jobs have to be killed.
        Never waits for a fence."""
        # Locked in the order in which a turn moves jobs, so that two commits of one worker never wait for each other.
        asked = sorted((fence.job_id, fence.epoch, span(ttl)) for fence in fences)
        rows = await tx.batch("extend_leases", asked)
        to_kill = {Fence(JobId(row["id"]), row["epoch"]) for row in rows if row["kill"]}
        extended = {(row["id"], row["epoch"]) for row in rows}
        return Extended([one for one in fences if (one.job_id, one.epoch) in extended], frozenset(to_kill))

    async def beat(
        self, tx: Tx, owner: str, fence: Fence, ttl: timedelta, longest: timedelta
    ) -> HeartbeatAnswer | None:
        """Renew a bot's lease by one term: the job's own `lock_ttl`, or else `ttl`. The lease ends at the latest
        `longest` after its grant, or one term after it if that is longer. Return None if this time is over, or if the
        lease does not belong to that owner. The result says whether the job was cancelled."""
        grant = {"id": fence.job_id, "epoch": fence.epoch, "owner": owner}
        row = await tx.one("beat_job", **grant, ttl=span(ttl), longest=span(longest))
        if row is not None:
            return HeartbeatAnswer(row["ttl"] / 1e6, bool(row["cancelled"]), row["holder"])
        ended = await tx.one("was_cancelled", **grant)
        return None if ended is None else HeartbeatAnswer(0.0, True, ended["holder"])

    async def held_by_owner(self, tx: Tx, owner: str) -> int:
        """Return how many jobs an owner holds. Reads every locked job: call it rarely."""
        held: int = await tx.value("held_by_owner", owner=owner)
        return held

    async def note(self, tx: Tx, fence: Fence, node: str, pid: int, config: str | None) -> bool:
        """Record in the grant's history which process works or worked on the job, and with which configuration; return
        False if the job is no longer locked by this grant."""
        values = {"job_id": fence.job_id, "epoch": fence.epoch, "node": node, "pid": pid, "config": config}
        if await tx.execute("note_grant", **values):
            return True
        await tx.execute("note_past_grant", **values)
        return False

    async def set_attempts(self, tx: Tx, fence: Fence, attempts: int) -> bool:
        """Change the maximum number of attempts of a leased job; return False if a different process moved the job, or
        if it has already failed that many times."""
        values = {"job_id": fence.job_id, "epoch": fence.epoch, "attempts": attempts}
        return await tx.execute("set_attempts", **values) == 1

    async def history(self, tx: Tx, job_id: JobId) -> list[Grant]:
        """Return every grant of the job, oldest first, including the current one."""
        return [_grant(row) for row in await tx.all("grants_of_job", job_id=job_id)]

    async def live_among(self, tx: Tx, job_ids: Sequence[str]) -> set[str]:
        """Return the jobs among these that have not ended; removed jobs are left out."""
        return {row["id"] for row in await tx.all("live_among", ids=list(job_ids))}

    async def held_by(self, tx: Tx, holder: str) -> list[Lease]:
        """Return the leases of that holder."""
        return [lease_of(row) for row in await tx.all("jobs_of_holder", holder=holder)]

    async def held_by_process(self, tx: Tx, holder: str) -> list[Lease]:
        """Return the leases of a process and of its children, whose names begin with the name of the process and a
        slash. Reads every locked job: call it rarely."""
        return [lease_of(row) for row in await tx.all("jobs_of_process", holder=holder)]

    async def mark_settled(self, tx: Tx, fence: Fence) -> None:
        """Record that this grant settled a URL. Call this under the fence."""
        await tx.execute("mark_grant_settled", job_id=fence.job_id, epoch=fence.epoch)

    async def move(self, tx: Tx, moves: Sequence[Move]) -> list[Move]:
        """Carry out moves of locked jobs, each by compare-and-set, and close their history rows; returns the refused
        moves, whose jobs have moved on. A returned job waits in its lane again. A job from a node's private lane waits
        in the shared lane, so every worker may now lease it."""
        return await self.lanes.move(tx, moves)

    async def other_run_waits(self, tx: Tx, job_id: JobId, min_wait: timedelta) -> bool:
        """Return whether a job of a different run, with the same or a higher priority, has been due in the same lane
        for longer than `min_wait`. If so, no worker was free for that job."""
        asked = {"id": job_id, "min_wait": span(min_wait), "ageing": self._ageing}
        return await tx.one("other_run_waits", **asked) is not None

    async def cancel_waiting(self, tx: Tx, run_id: str, reason: str) -> int:
        """Cancel the pending jobs of a run; returns how many."""
        rows = await tx.all("cancel_waiting_jobs", run_id=run_id, reason=reason)
        await self._available.forget(tx, [row["id"] for row in rows])
        return len(rows)

    async def kill_run(self, tx: Tx, run_id: str, grace: timedelta) -> int:
        """Tell the workers to kill their leased jobs of this run after `grace`, unless the jobs have ended by then;
        return the number of jobs marked. Workers learn this when they renew their leases."""
        return await tx.execute("kill_jobs_of_run", run_id=run_id, grace=span(grace))

    async def set_priority(self, tx: Tx, run_id: str, priority: int) -> None:
        """Change the priority of the live jobs of a run."""
        rows = await tx.all("set_priority_of_run", run_id=run_id, priority=priority, ageing=self._ageing)
        await self._available.note(tx, [row["id"] for row in rows], ())

    async def expired(self, tx: Tx, limit: int, *, bots: bool = True) -> list[LostJob]:
        """Return locked jobs whose lease expired, oldest first, with or without the jobs of bots. The jobs are
        candidates: `move` must still move each of them."""
        rows = await tx.all("expired_jobs", limit=limit, bots=int(bots))
        return [_lost(row) for row in rows]

    async def lost_in(self, tx: Tx, fences: Sequence[Fence], *, expired: bool) -> list[LostJob]:
        """Return the current state of the grants that still exist, locked against any other move; with `expired`, only
        grants whose lease has expired."""
        # The first statement locks, and may wait for other commits. The second statement sees what these commits have
        # settled.
        epochs = {fence.job_id: fence.epoch for fence in fences}
        ids, known = list(epochs), list(epochs.values())
        query, more = ("lock_expired", {"epochs": known}) if expired else ("lock_jobs", {})
        locked = [row["id"] for row in await tx.all(query, ids=ids, **more)]
        rows = await tx.all("lost_jobs", ids=locked) if locked else []
        return [lost for lost in map(_lost, rows) if lost.epoch == epochs[lost.id]]

    async def freshest_lease(self, tx: Tx) -> timedelta | None:
        """Return the time left on the node lease that ends last; negative if it has expired, None if there is none."""
        left = await tx.value("freshest_lease")
        return None if left is None else timedelta(microseconds=left)

    async def jobs_of_run(self, tx: Tx, run_id: str) -> list[Job]:
        return [job_of(row) for row in await tx.all("jobs_of_run", run_id=run_id)]

    async def get(self, tx: Tx, job_id: JobId) -> Job | None:
        row = await tx.one("job", id=job_id)
        return None if row is None else job_of(row)

    async def live_of_run(self, tx: Tx, run_id: str) -> tuple[int, int]:
        """Return how many of the run's jobs are pending, and how many are locked."""
        row = await tx.one("live_jobs_of_run", run_id=run_id)
        return (row["pending"], row["locked"]) if row else (0, 0)

    def _new(self, job: NewJob, place: int, *, dispatched: bool) -> tuple[Any, ...]:
        quota_keys = orjson.dumps(job.quota_keys).decode() if job.quota_keys else None
        lock_ttl = None if job.lock_ttl is None else span(job.lock_ttl)
        row = (
            *(job.id, job.kind, job.capability, job.host, job.run_id, job.payload, job.lane, job.dedupe_key),
            *(quota_keys, job.priority, job.not_before, job.max_attempts, lock_ttl, place, self._ageing),
        )
        if not dispatched:
            return row
        offer = (None, None) if job.offer is None else (job.offer.session, span(job.offer.ttl))
        return (*row, *offer, job.dispatch)


def _lost(row: Any) -> LostJob:
    values = {name: row[name] for name in LostJob.__struct_fields__}
    return LostJob(**(values | {"settled": bool(row["settled"])}))


def _grant(row: Any) -> Grant:
    values = {name: row[name] for name in Grant.__struct_fields__}
    ended = None if values["ended"] is None else GrantEnd(values["ended"])
    return Grant(**(values | {"settled": bool(values["settled"]), "ended": ended}))


def job_of(row: Any) -> Job:
    values = {name: row[name] for name in Job.__struct_fields__ if name != "quota_keys"}
    values["state"] = JobState(values["state"])
    values["quota_keys"] = tuple(orjson.loads(row["scopes"] or "[]"))
    return Job(**values)
