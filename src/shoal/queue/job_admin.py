"""Job administration for people: list, explain, retry dead letters, cancel, purge, set quotas. `queue.py` has the
operations of workers."""

from dataclasses import dataclass
from datetime import timedelta

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput, LeaseLost, NotFound, StateConflict
from shoal.base.ids import JobId
from shoal.base.text import shorten
from shoal.queue import explain, states
from shoal.queue.enqueuer import LONGEST_NAME
from shoal.queue.explain import JobExplanation
from shoal.queue.job import RUN_KINDS, Grant, Job
from shoal.queue.job_admin_store import DEAD, JobAdminStore, JobFilter, Purged, Quota
from shoal.queue.queue import Queue
from shoal.queue.states import JobState, Move

BATCH = 500  # jobs per commit
MOST = 1_000_000  # the highest limit that a quota may have
QUOTA_PREFIXES = ("project:", "label:", "key:")


@dataclass(frozen=True, slots=True)
class JobListPage:
    """One page of a list; `next`: the id to continue after, None at the end."""

    items: list[Job]
    next: str | None


class JobAdmin:
    """Administrative operations on jobs. A job of a run (a crawl, an analysis) is retried and stopped with its run."""

    def __init__(self, database: Database, queue: Queue, store: JobAdminStore) -> None:
        self._database = database
        self._queue = queue
        self._store = store

    async def get(self, job_id: str) -> Job:
        job = await self._database.read(lambda tx: self._queue.jobs.get(tx, JobId(job_id)))
        if job is None:
            raise NotFound("job", shorten(job_id))
        return job

    async def newest(self, which: JobFilter, *, before: str | None = None, limit: int = 50) -> JobListPage:
        """Return matching jobs, newest first. A short page may not be the last one: check `next`."""
        jobs, more = await self._database.read(lambda tx: self._store.page_of(tx, which, before, limit))
        return JobListPage(jobs, more)

    async def count(self) -> dict[str, dict[str, int]]:
        """Return the number of jobs by kind and state. Reads every job."""
        return await self._database.read(self._store.count)

    async def history(self, job_id: str) -> list[Grant]:
        """Return every grant of a job, oldest first."""
        job = await self.get(job_id)
        return await self._database.read(lambda tx: self._queue.jobs.history(tx, job.id))

    async def explain(self, job_id: str) -> JobExplanation:
        """Explain why a job is in its state."""

        async def look(tx: Tx) -> JobExplanation:
            job = await self._queue.jobs.get(tx, JobId(job_id))
            if job is None:
                raise NotFound("job", shorten(job_id))
            position = await self._store.around(tx, job)
            usage = None if job.parked is None else await self._store.quota_usage(tx, job.parked)
            return explain.explain(job, position, usage, await self._store.dispatch_of(tx, job.id))

        return await self._database.read(look)

    async def retry(self, job_id: str, *, audit: AuditHook = no_audit) -> Job:
        """Retry a dead letter: it becomes pending again, with all its attempts."""
        job = await self.get(job_id)
        self._check_own(job, "be retried on its own")
        if job.state not in DEAD:
            raise StateConflict("job", job.id, job.state, "be retried", "only failed and expired jobs can be retried")
        retried = await self._retry([job], audit, job.id)
        job = await self.get(job_id)
        if not retried:
            raise StateConflict(
                "job", job.id, job.state, "be retried", "another job has the same dedupe key, or its state changed"
            )
        return job

    async def retry_dead(self, which: JobFilter, limit: int | None = None, *, audit: AuditHook = no_audit) -> int:
        """Retry matching dead letters in batches, except those of runs; returns how many. May be repeated: a
        retried job is no longer a dead letter."""
        done, before = 0, None
        which = JobFilter(which.state, which.kind, which.run_id, which.lane, dead=True)
        while limit is None or done < limit:
            batch = BATCH if limit is None else min(BATCH, limit - done)
            page = await self.newest(which, before=before, limit=batch)
            jobs = _one_of_each_key([job for job in page.items if job.kind not in RUN_KINDS])
            retried = await self._retry(jobs, audit, "")
            audit = no_audit if retried else audit  # the audit log gets one entry, if any job is retried
            done, before = done + len(retried), page.next
            if before is None:
                break
        return done

    async def cancel(self, job_id: str, reason: str = "asked", *, audit: AuditHook = no_audit) -> Job:
        """Cancel a job: at once if it is pending; if it is locked, its grant ends now and its result will be
        refused. A job that is already cancelled is left unchanged."""
        job = await self.get(job_id)
        self._check_own(job, "be cancelled on its own")
        if job.state is JobState.CANCELLED:
            return job

        async def commit(tx: Tx) -> Move | None:
            move = await self.cancel_in(tx, job.id, reason)
            if move is not None:
                await audit(tx, "job.cancelled", job.id)
            return move

        if await self._database.run(commit) is None:
            raise StateConflict("job", job.id, (await self.get(job_id)).state, "be cancelled")
        return await self.get(job_id)

    async def purge(
        self,
        which: JobFilter,
        older_than: timedelta = timedelta(0),
        limit: int | None = None,
        *,
        audit: AuditHook = no_audit,
    ) -> int:
        """Remove matching jobs that have ended, with their history and results, in batches; returns how many. Never
        removes a live job, a job of a run (removed with its run), or a job whose group has not ended."""
        now = await self._database.read(lambda tx: tx.value("now"))
        before, after, done = now - span(older_than), 0, 0
        while limit is None or done < limit:
            batch = BATCH if limit is None else min(BATCH, limit - done)
            purged = await self._purge(which, after, before, batch, audit)
            audit = no_audit  # only the first batch writes the audit entry
            done += purged.count
            if purged.after is None:
                break
            after = purged.after
        return done

    async def set_quota(self, key: str, most: int, *, audit: AuditHook = no_audit) -> Quota:
        """Limit how many jobs with this quota key run at once; jobs that are already running continue."""
        _check_quota_key(key)
        if not 0 <= most <= MOST:
            raise InvalidInput("most", f"cannot be {most}", f"give a whole number from 0 to {MOST}")

        async def commit(tx: Tx) -> None:
            await self._store.set_quota(tx, key, most)
            await audit(tx, "quota.set", key)

        await self._database.run(commit)
        return next(quota for quota in await self.quotas(after=key[:-1], limit=MOST) if quota.key == key)

    async def remove_quota(self, key: str, *, audit: AuditHook = no_audit) -> None:
        async def commit(tx: Tx) -> None:
            if not await self._store.remove_quota(tx, key):
                raise NotFound("quota", shorten(key), "list them with `shoal jobs quota ls`")
            await audit(tx, "quota.removed", key)

        await self._database.run(commit)

    async def quotas(self, *, after: str = "", limit: int = 1000) -> list[Quota]:
        """Return the quotas, ordered by quota key."""
        return await self._database.read(lambda tx: self._store.quotas(tx, after, limit))

    async def cancel_in(self, tx: Tx, job_id: JobId, reason: str) -> Move | None:
        """Cancel a job as part of a larger commit; None if it has ended, or another process has just moved it."""
        job = await self._queue.jobs.get(tx, job_id)
        if job is None or job.state in states.TERMINAL:
            return None
        move = states.cancel(job.id, job.lease_epoch, reason)
        if job.state is JobState.LOCKED:
            try:
                await self._queue.moves.move_in(tx, move, job.kind, job.run_id, job)
            except LeaseLost:
                return None
            return move
        await self._queue.moves.lock_run(tx, job.kind, job.run_id)
        if not await self._store.cancel(tx, job.id, reason):
            return None
        await self._queue.moves.job_moved_in(tx, move, job.kind, job.run_id, None)
        return move

    async def _retry(self, jobs: list[Job], audit: AuditHook, subject: str) -> set[JobId]:
        async def commit(tx: Tx) -> set[JobId]:
            retried = set(await self._store.retry(tx, [job.id for job in jobs]))
            if retried:
                await audit(tx, "job.retried" if subject else "jobs.retried", subject)
                again = [job for job in jobs if job.id in retried]
                tx.on_commit(lambda: self._queue.enqueuer.emit_enqueued(again, is_new=False))
            return retried

        return await self._database.run(commit)

    async def _purge(self, which: JobFilter, after: int, before: int, limit: int, audit: AuditHook) -> Purged:
        async def commit(tx: Tx) -> Purged:
            await audit(tx, "jobs.purged", "")
            return await self._store.purge(tx, which, after, before, limit, RUN_KINDS)

        return await self._database.run(commit)

    def _check_own(self, job: Job, action: str) -> None:
        if job.kind in RUN_KINDS:
            group = {"analysis": "analyses"}.get(job.kind, f"{job.kind}s")
            fix = f"use the commands of its {job.kind}: `shoal {group} --help`"
            raise StateConflict("job", job.id, f"part of {job.kind} {job.run_id}", action, fix)


def _one_of_each_key(jobs: list[Job]) -> list[Job]:
    """Keep one dead letter per dedupe key: only one of them can become live again."""
    first = {job.dedupe_key: job.id for job in reversed(jobs)}
    return [job for job in jobs if job.dedupe_key is None or first[job.dedupe_key] == job.id]


def _check_quota_key(key: str) -> None:
    if not key.startswith(QUOTA_PREFIXES) or not len(key.partition(":")[2]) or len(key) > LONGEST_NAME:
        fix = "write it as project:NAME, label:NAME=VALUE or key:ANYTHING"
        raise InvalidInput("scope", f"cannot be {shorten(key)!r}", fix)
