"""Job administration for people: list, explain, retry dead letters, cancel, purge, set quotas. `queue.py` has the
operations of workers."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.clock import from_micros, span
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput, LeaseLost, NotFound, StateConflict
from shoal.base.ids import JobId
from shoal.base.text import Sentence, message, shorten
from shoal.hosts.rate import AHEAD_SECONDS
from shoal.queue import states
from shoal.queue.enqueuer import LONGEST_NAME
from shoal.queue.job import BROWSER, LOCAL, NODE, RUN_KINDS, Grant, Job, JobDispatch, is_private
from shoal.queue.job_admin_store import DEAD, JobAdminStore, JobFilter, Purged, QueuePosition, Quota
from shoal.queue.queue import Queue
from shoal.queue.reasons import REASONS
from shoal.queue.states import JobState, Move

QUOTA = message("{scope} is limited to {most} running jobs and has {locked}; the job waits for one to end.")
RETRY = message("It failed ({error}) and will be retried in {wait}.")
SCHEDULED = message("It is scheduled to start in {wait}.")
LOCAL_LANE = message("It belongs to `shoal crawl`, not to the workers; continue it with `shoal crawl --resume`.")
OFFERED = message("It is offered to node {node}; if it is not taken within {left}, any worker may take it.")
HOST_BUSY = (
    message("{host} may be requested again in {wait}, and {count} of its jobs is ahead of this one."),
    message("{host} may be requested again in {wait}, and {count} of its jobs are ahead of this one."),
)
MAY_RENDER = (
    message("It needs a browser; {count} connected node can render, and may take it."),
    message("It needs a browser; {count} connected nodes can render, and may take it."),
)
NO_RENDERER = message(
    "It needs a browser, no connected node has one, and nobody runs such jobs: start a worker on a machine with "
    "Chromium or with RENDERER_URL, or a bot with `js`."
)
NO_WORKER = message(
    "No worker is running {kind} jobs that need {capability}; start one for the {lane} lane with `shoal worker`."
)
AHEAD = (
    message("{count} job is ahead of it; {running} {kind} jobs that need {capability} are running."),
    message("{count} jobs are ahead of it; {running} {kind} jobs that need {capability} are running."),
)
NEXT = message("It is next; {running} {kind} jobs that need {capability} are running.")
LEASE_OVER = message("The lease of {holder} expired {left} ago; the janitor returns the job to its lane.")
TO_BE_KILLED = message("{holder} is running it and has received the command to kill it.")
WORKED_ON = message("{holder} is running it; the lease expires in {left} unless renewed.")
SINCE = message("The job ended at {at} in the state {state}{error}{again}.")
RUN_AGAIN = message("; run it again with `shoal jobs retry {id}`")
ENDED = {
    JobState.DONE: message("done"),
    JobState.FAILED: message("failed"),
    JobState.EXPIRED: message("expired"),
    JobState.CANCELLED: message("cancelled"),
}


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """The state of a job and why it is in that state: a reason with a stable name, a sentence, and the data behind
    it."""

    job: Job
    reason: str
    sentence: Sentence
    facts: dict[str, Any] = field(default_factory=dict)


def explain_job(
    job: Job,
    position: QueuePosition,
    usage: tuple[int, int | None] | None,
    dispatch: JobDispatch | None = None,
) -> JobExplanation:
    """Explain a job. `usage`: the number of locked jobs and the limit of the quota key for which a parked job waits.
    `dispatch`: why the job is in its lane; None: the dispatcher did not choose its lane."""
    if job.state is JobState.PENDING:
        found = _waiting(job, position, usage, dispatch)
    else:
        found = _locked(job, position) if job.state is JobState.LOCKED else _ended(job)
    if dispatch is not None and dispatch.decision is not None:
        found.facts["dispatch"] = _dispatch(job, dispatch, position.now)
    return found


def _dispatch(job: Job, dispatch: JobDispatch, now: int) -> dict[str, Any]:
    """Return the decision of the dispatcher, its best candidates, and what became of the offer."""
    decision = orjson.loads(dispatch.decision or "{}")
    names = ("node_id", "score", "skipped")
    decision["candidates"] = [dict(zip(names, one, strict=True)) for one in decision.get("candidates", ())]
    if dispatch.offered_until is not None:
        decision |= {"outcome": "offered", "offer_seconds": (dispatch.offered_until - now) / 1e6}
    elif decision.get("node_id") is None:
        decision["outcome"] = "shared"
    elif is_private(dispatch.lane):
        decision["outcome"] = "taken"
    else:
        grants = 0 if job.state is JobState.PENDING else 1  # a pending job was never leased by the node
        decision["outcome"] = "spilled_over" if job.lease_epoch == grants else "returned"
    return dict(decision)


def _waiting(
    job: Job, position: QueuePosition, usage: tuple[int, int | None] | None, dispatch: JobDispatch | None
) -> JobExplanation:
    if job.parked is not None and usage is not None:
        locked, most = usage
        allowed = Sentence(message("any number of")) if most is None else most
        says = Sentence(QUOTA, {"scope": job.parked, "most": allowed, "locked": locked})
        return JobExplanation(job, "quota", says, {"scope": job.parked, "limit": most, "most": most, "locked": locked})
    if job.not_before > position.now:
        wait = timedelta(microseconds=job.not_before - position.now)
        says = Sentence(RETRY if job.attempts else SCHEDULED, {"error": job.error, "wait": wait})
        return JobExplanation(job, "not_before", says, {"in_seconds": wait.total_seconds()})
    if job.lane.startswith(LOCAL):
        return JobExplanation(job, "local_lane", Sentence(LOCAL_LANE), {"lane": job.lane})
    if dispatch is not None and dispatch.offered_until is not None:
        left = timedelta(microseconds=dispatch.offered_until - position.now)
        says = Sentence(OFFERED, {"node": job.lane.removeprefix(NODE), "left": max(left, timedelta(0))})
        facts = {
            "lane": job.lane,
            "offered_session": dispatch.offered_session,
            "offer_seconds": left.total_seconds(),
        }
        return JobExplanation(job, "offered", says, facts)
    return _in_line(job, position)


def _in_line(job: Job, position: QueuePosition) -> JobExplanation:
    facts: dict[str, Any] = {
        "ahead": position.ahead,
        "running": position.locked,
        "lane": job.lane,
        "priority": job.priority,
        "waited_seconds": (position.now - job.line_at) / 1e6,
    }
    if position.host is not None:
        facts |= {"host": position.host, "host_busy_seconds": position.host_busy_seconds}
    if position.host_busy_seconds > AHEAD_SECONDS:
        wait = timedelta(seconds=position.host_busy_seconds)
        says = _counted(HOST_BUSY, position.ahead, {"host": position.host, "wait": wait})
        return JobExplanation(job, "host_busy", says, facts)
    if job.capability in BROWSER:
        facts["renderers"] = position.renderers
    if job.capability in BROWSER and not position.locked:
        if not position.renderers:
            return JobExplanation(job, "no_renderer", Sentence(NO_RENDERER), facts)
        return JobExplanation(job, "in_line", _counted(MAY_RENDER, position.renderers, {}), facts)
    like: dict[str, Any] = {"kind": job.kind, "capability": job.capability}
    if not position.locked:
        return JobExplanation(job, "no_worker", Sentence(NO_WORKER, like | {"lane": job.lane}), facts)
    like |= {"running": position.locked}
    says = _counted(AHEAD, position.ahead, like) if position.ahead else Sentence(NEXT, like)
    return JobExplanation(job, "in_line", says, facts)


def _counted(forms: tuple[str, str], count: int, values: dict[str, Any]) -> Sentence:
    one, other = forms
    return Sentence(one, values | {"count": count}, other)


def _locked(job: Job, position: QueuePosition) -> JobExplanation:
    left = timedelta(microseconds=(job.lease_until or 0) - position.now)
    facts = {"holder": job.lease_holder, "lease_seconds": left.total_seconds(), "epoch": job.lease_epoch}
    if left < timedelta(0):
        reason, text = "lease_over", LEASE_OVER
    else:
        reason, text = ("to_be_killed", TO_BE_KILLED) if job.kill_at is not None else ("worked_on", WORKED_ON)
    return JobExplanation(job, reason, Sentence(text, {"holder": job.lease_holder, "left": abs(left)}), facts)


def _ended(job: Job) -> JobExplanation:
    state = Sentence(ENDED[job.state])
    if job.state_reason:
        reason = REASONS.get(job.state_reason)
        state = Sentence(
            "{state} ({reason})", {"state": state, "reason": Sentence(reason) if reason else job.state_reason}
        )
    error = f": {job.error.rstrip('.')}" if job.error and job.state is not JobState.DONE else ""
    again = Sentence(RUN_AGAIN, {"id": job.id}) if job.state in (JobState.FAILED, JobState.EXPIRED) else ""
    values = {"state": state, "at": from_micros(job.finished_at or 0), "error": error, "again": again}
    facts = {"attempts": job.attempts, "crash_count": job.crash_count, "error": job.error}
    return JobExplanation(job, job.state_reason or job.state.value, Sentence(SINCE, values), facts)


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
            return explain_job(job, position, usage, await self._store.dispatch_of(tx, job.id))

        return await self._database.read(look)

    async def retry(self, job_id: str, *, audit: AuditHook = no_audit) -> Job:
        """Retry a dead letter: it becomes pending again, with the full number of attempts."""
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
        """Retry matching dead letters in batches, except the jobs of runs; return how many were retried. May be
        repeated: a retried job is no longer a dead letter."""
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
        """Cancel a job. A pending job is cancelled immediately; the grant of a locked job ends now, and its result will
        be refused. A job that is already cancelled is left unchanged."""
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

    async def withdraw(self, job_id: str, reason: str) -> bool:
        """Cancel a job if it is waiting; return whether it was cancelled."""

        async def commit(tx: Tx) -> bool:
            job = await self._queue.jobs.get(tx, JobId(job_id))
            if job is None or job.state is not JobState.PENDING:
                return False
            return await self._cancel_waiting(tx, job, states.cancel(job.id, job.lease_epoch, reason), reason)

        return await self._database.run(commit)

    async def purge(
        self,
        which: JobFilter,
        older_than: timedelta = timedelta(0),
        limit: int | None = None,
        *,
        audit: AuditHook = no_audit,
    ) -> int:
        """Remove matching jobs that have ended, with their history and results, in batches; return how many. Never
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
        """Limit how many jobs with this quota key run at the same time; jobs that are already running continue."""
        if not key.startswith(QUOTA_PREFIXES) or not key.partition(":")[2] or len(key) > LONGEST_NAME:
            fix = "write it as project:NAME, label:NAME=VALUE or key:ANYTHING"
            raise InvalidInput("scope", f"cannot be {shorten(key)!r}", fix)
        if not 0 <= most <= MOST:
            raise InvalidInput("limit", f"cannot be {most}", f"give a whole number from 0 to {MOST}")

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
        """Cancel a job as part of a larger commit; return None if it has ended, or if a different process has just
        moved it."""
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
        return move if await self._cancel_waiting(tx, job, move, reason) else None

    async def _cancel_waiting(self, tx: Tx, job: Job, move: Move, reason: str) -> bool:
        await self._queue.moves.lock_run(tx, job.kind, job.run_id)
        if not await self._store.cancel(tx, job.id, reason):
            return False
        await self._queue.moves.jobs_moved_in(tx, job.kind, [(move, job.run_id, None)])
        return True

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
