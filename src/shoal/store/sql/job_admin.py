"""Job administration on SQL: lists, dead letters, purges and quotas."""

from collections.abc import Collection, Sequence
from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.job import JS, Job, JobDispatch, quota_limit
from shoal.queue.job_admin_store import JobFilter, Purged, QueuePosition, Quota
from shoal.queue.states import JobState
from shoal.store.sql.availability import Availability
from shoal.store.sql.jobs import job_of
from shoal.store.sql.quotas import QuotaCounts

SCAN = 1_000  # rows that one page of a list reads
WORTH_COUNTING = 1_000


class SqlJobAdmin:
    """Implements `queue.job_admin_store.JobAdminStore`."""

    def __init__(self, ageing: timedelta, available: Availability) -> None:
        self._ageing = span(ageing)
        self._available = available
        self._quotas = QuotaCounts(available)

    async def page_of(self, tx: Tx, which: JobFilter, before: str | None, limit: int) -> tuple[list[Job], str | None]:
        asked = {"state": which.state, "kind": which.kind, "lane": which.lane, "before": before}
        if which.run_id is not None:
            rows = await tx.all("newest_of_run", **asked, run_id=which.run_id, limit=limit + 1)
        elif which.is_dead:
            rows = await tx.all("newest_dead", **asked, limit=limit + 1)
        elif which.state is JobState.LOCKED:
            rows = await tx.all("newest_locked", **asked, limit=limit + 1)
        else:
            rows = await tx.all("newest_jobs", **asked, scan=SCAN, limit=limit + 1)
            if len(rows) <= limit:
                return [job_of(row) for row in rows], await self._end_of_scan(tx, before)
        jobs = [job_of(row) for row in rows[:limit]]
        return jobs, jobs[-1].id if len(rows) > limit else None

    async def count(self, tx: Tx) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for row in await tx.all("count_jobs"):
            found.setdefault(row["kind"], {})[row["state"]] = int(row["count"])
        return found

    async def retry(self, tx: Tx, job_ids: Sequence[JobId]) -> list[JobId]:
        retried = [JobId(row["id"]) for row in await tx.all("retry_jobs", ids=list(job_ids), ageing=self._ageing)]
        await self._available.note(tx, retried, retried)
        return retried

    async def cancel(self, tx: Tx, job_id: JobId, reason: str) -> bool:
        cancelled = await tx.execute("cancel_job", id=job_id, reason=reason) == 1
        await self._available.forget(tx, [job_id] if cancelled else [])
        return cancelled

    async def purge(
        self, tx: Tx, which: JobFilter, after: int, before: int, limit: int, spared: Collection[str] = ()
    ) -> Purged:
        values = {"kind": which.kind, "states": which.ended_states, "spared": list(spared)}
        if which.is_dead:
            rows = await tx.all("purge_dead", before=before, limit=limit, **values)
            following = after if len(rows) == limit else None
        else:
            following = await tx.value("end_of_purge", after=after, before=before, skip=limit - 1)
            until = before - 1 if following is None else following
            rows = await tx.all("purge_jobs", after=after, until=until, **values)
        if rows:
            await tx.execute("purge_grants", ids=[row["id"] for row in rows])
            await tx.execute("purge_results", ids=[row["id"] for row in rows])
        return Purged(len(rows), following)

    async def set_quota(self, tx: Tx, key: str, most: int) -> None:
        await tx.value("lock_quota_keys", keys=[key])
        await tx.execute("set_quota", scope=key, most=most)
        await self._quotas.repair(tx)
        await self._quotas.unpark(tx, key)

    async def remove_quota(self, tx: Tx, key: str) -> bool:
        await tx.value("lock_quota_keys", keys=[key])
        removed = await tx.execute("remove_quota", scope=key) == 1
        await self._quotas.unpark(tx, key)
        return removed

    async def quotas(self, tx: Tx, after: str, limit: int) -> list[Quota]:
        rows = await tx.all("quotas", after=after, limit=limit)
        return [Quota(row["scope"], row["most"], row["taken"], row["parked"]) for row in rows]

    async def quota_usage(self, tx: Tx, key: str) -> tuple[int, int | None]:
        [row] = await tx.all("count_job_seats", keys=[key])
        return row["taken"], quota_limit(key, row["most"])

    async def around(self, tx: Tx, job: Job) -> QueuePosition:
        locked = await tx.value("locked_like", kind=job.kind, capability=job.capability)
        now = await tx.value("now")
        renderers = int(await tx.value("count_renderers")) if job.capability == JS else 0
        at = await tx.one("host_of_job", id=job.id)
        if at is None:
            ahead = await tx.value("queue_position", id=job.id, most=WORTH_COUNTING)
            return QueuePosition(now, ahead, locked, renderers=renderers)
        line = {name: at[name] for name in ("lane", "kind", "capability", "host", "rank")}
        ahead = await tx.value("queue_position_at_host", **line, most=WORTH_COUNTING)
        return QueuePosition(now, ahead, locked, at["host"], max(0, at["busy"]) / 1e6, renderers)

    async def dispatch_of(self, tx: Tx, job_id: JobId) -> JobDispatch:
        [row] = await tx.all("job_dispatch", id=job_id)
        return JobDispatch(row["lane"], row["offered_session"], row["offered_until"], row["dispatch"])

    async def _end_of_scan(self, tx: Tx, before: str | None) -> str | None:
        row = await tx.one("end_of_scan", before=before, scan=SCAN)
        return row["last"] if row is not None and row["count"] == SCAN else None
