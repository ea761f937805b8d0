"""The store of job administration (lists, dead letters, quotas) and its values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.job import BOT, BROWSER, HTTP, JS, SCRAPE, SCRAPE_JS, Job, JobDispatch, quota_limit
from shoal.queue.lanes import Availability
from shoal.queue.quotas import QuotaCounts
from shoal.queue.states import TERMINAL, JobState
from shoal.queue.store import job_of

SCAN = 1_000  # rows that one page of a list reads
WORTH_COUNTING = 1_000

DEAD = frozenset({JobState.FAILED, JobState.EXPIRED})
SCRAPERS = {SCRAPE: [HTTP, JS, SCRAPE, SCRAPE_JS], SCRAPE_JS: [JS, SCRAPE_JS]}
"""Capabilities that only our workers have, not bots; such a worker can run a scrape."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter by state, kind, run or lane, and by whether a job is a dead letter. A field that is None matches
    everything."""

    state: JobState | None = None
    kind: str | None = None
    run_id: str | None = None
    lane: str | None = None
    dead: bool | None = None

    @property
    def is_dead(self) -> bool:
        """Return whether only dead letters can match."""
        return bool(self.dead) or self.state in DEAD

    @property
    def ended_states(self) -> list[str]:
        """Return the final states that match."""
        states = TERMINAL if self.state is None else TERMINAL & {self.state}
        if self.dead is None:
            return sorted(states)
        return sorted(states & DEAD if self.dead else states - DEAD)


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota: how many jobs with this key may be locked at the same time, how many are locked now, and how many are
    parked."""

    key: str
    most: int
    locked: int = 0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The position of a pending job: how many jobs are ahead of it, and how many of its kind and capability are locked.
    For a job that is leased by host, `ahead` counts only jobs of that host, and `host_busy_seconds` is the time until
    that host may be requested. For a job that needs a browser, `renderers` is the number of connected nodes that have
    one."""

    now: int
    ahead: int
    locked: int
    host: str | None = None
    host_busy_seconds: float = 0.0
    renderers: int = 0


@dataclass(frozen=True, slots=True)
class Purged:
    """The number of jobs that one commit removed, and the time after which to continue; None if nothing is left."""

    count: int
    after: int | None


class JobAdminStore:
    """Lists, dead letters and quotas."""

    def __init__(self, ageing: timedelta, available: Availability) -> None:
        self._ageing = span(ageing)
        self._available = available
        self._quotas = QuotaCounts(available)

    async def page_of(self, tx: Tx, which: JobFilter, before: str | None, limit: int) -> tuple[list[Job], str | None]:
        """Return matching jobs that are older than `before`, newest first, and the id after which to continue (None at
        the end). A short or empty page may not be the last one, because one call reads a limited number of rows."""
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
        """Return the number of jobs by kind and state. Reads every job."""
        found: dict[str, dict[str, int]] = {}
        for row in await tx.all("count_jobs"):
            found.setdefault(row["kind"], {})[row["state"]] = int(row["count"])
        return found

    async def retry(self, tx: Tx, job_ids: Sequence[JobId]) -> list[JobId]:
        """Make dead letters pending again, with the full number of attempts, and return their ids. Skip jobs that are
        not dead letters, and jobs whose dedupe key belongs to a live job."""
        retried = [JobId(row["id"]) for row in await tx.all("retry_jobs", ids=list(job_ids), ageing=self._ageing)]
        await self._available.note(tx, retried, retried)
        return retried

    async def cancel(self, tx: Tx, job_id: JobId, reason: str) -> bool:
        """Cancel a pending job; return False if it is no longer pending."""
        cancelled = await tx.execute("cancel_job", id=job_id, reason=reason) == 1
        await self._available.forget(tx, [job_id] if cancelled else [])
        return cancelled

    async def purge(
        self, tx: Tx, which: JobFilter, after: int, before: int, limit: int, spared: Collection[str] = ()
    ) -> Purged:
        """Remove jobs of a state and kind, or dead letters, with their history: about `limit` jobs, starting with those
        that ended first between these times. Never removes a job that is live, of a spared kind, in a group that has
        not ended, or locked by another transaction."""
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
        """Limit a quota key from now on. Locked jobs count and stay locked; parked jobs are unparked if they fit into
        the new limit."""
        await tx.value("lock_quota_keys", keys=[key])
        await tx.execute("set_quota", scope=key, most=most)
        await self._quotas.repair(tx)
        await self._quotas.unpark(tx, key)

    async def remove_quota(self, tx: Tx, key: str) -> bool:
        """Remove the limit of a quota key; return False if the key had no limit."""
        await tx.value("lock_quota_keys", keys=[key])
        removed = await tx.execute("remove_quota", scope=key) == 1
        await self._quotas.unpark(tx, key)
        return removed

    async def quotas(self, tx: Tx, after: str, limit: int) -> list[Quota]:
        """Return the quotas after that key, ordered by quota key."""
        rows = await tx.all("quotas", after=after, limit=limit)
        return [Quota(row["scope"], row["most"], row["taken"], row["parked"]) for row in rows]

    async def quota_usage(self, tx: Tx, key: str) -> tuple[int, int | None]:
        """Return how many jobs with this quota key are locked, and the limit."""
        [row] = await tx.all("count_job_seats", keys=[key])
        return row["taken"], quota_limit(key, row["most"])

    async def around(self, tx: Tx, job: Job) -> QueuePosition:
        """Return the position of a pending job in its lane."""
        alike = SCRAPERS.get(job.capability)
        asked = {"kind": job.kind, "capabilities": alike or [job.capability], "but": "" if alike is None else BOT}
        locked = await tx.value("locked_like", **asked)
        now = await tx.value("now")
        renderers = int(await tx.value("count_renderers")) if job.capability in BROWSER else 0
        at = await tx.one("host_of_job", id=job.id)
        if at is None:
            ahead = await tx.value("queue_position", id=job.id, most=WORTH_COUNTING)
            return QueuePosition(now, ahead, locked, renderers=renderers)
        line = {name: at[name] for name in ("lane", "kind", "capability", "host", "rank")}
        ahead = await tx.value("queue_position_at_host", **line, most=WORTH_COUNTING)
        return QueuePosition(now, ahead, locked, at["host"], max(0, at["busy"]) / 1e6, renderers)

    async def dispatch_of(self, tx: Tx, job_id: JobId) -> JobDispatch:
        """Return where a job waits, and why it was dispatched there."""
        [row] = await tx.all("job_dispatch", id=job_id)
        return JobDispatch(row["lane"], row["offered_session"], row["offered_until"], row["dispatch"])

    async def _end_of_scan(self, tx: Tx, before: str | None) -> str | None:
        row = await tx.one("end_of_scan", before=before, scan=SCAN)
        return row["last"] if row is not None and row["count"] == SCAN else None
