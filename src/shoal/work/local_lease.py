"""Leases the job of a crawl that runs in the current process, as for `shoal crawl`."""

import os
import socket
from contextlib import suppress

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.errors import LeaseLost, NotAllowed, StateConflict
from shoal.base.machine import started
from shoal.crawl.crawl import Crawl
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import CrawlState
from shoal.queue.janitor import Janitor
from shoal.queue.job import Fence, Job, Lease
from shoal.queue.queue import Queue
from shoal.queue.states import JobState

POLL_SECONDS = 0.2


class LocalLease:
    """Leases a crawl's job for this process, including one that a dead process still holds."""

    def __init__(self, database: Database, queue: Queue, crawls: Crawls, clock: Clock) -> None:
        self._database = database
        self._queue = queue
        self._crawls = crawls
        self._clock = clock
        self._janitor = Janitor(queue.recovery, clock)

    async def take(self, crawl: Crawl) -> Lease:
        """Lease one of the crawl's jobs. A job whose process has died is taken over at once. For any other holder, wait
        until the lease expires, and give up if the holder extends it."""
        jobs = await self._live_jobs(crawl)
        while all(job.state is JobState.LOCKED for job in jobs):
            await self._release_dead(jobs)
            before, jobs = jobs, await self._live_jobs(crawl)
            if _extended(before, jobs):
                raise _already_running(crawl)
        await self._release_dead(jobs)
        waiting = next(job for job in jobs if job.state is JobState.PENDING)
        lease = await self._queue.lease_one(waiting.id, holder_name())
        if lease is None:
            raise _already_running(crawl)
        return lease

    async def reopen(self, crawl: Crawl) -> None:
        """Make sure that the crawl has a job to lease."""
        if crawl.state is CrawlState.PAUSED:
            await self._crawls.resume(crawl.id, local=True)
        elif crawl.state in (CrawlState.STOPPED, CrawlState.STOPPING, CrawlState.PENDING, CrawlState.FAILED):
            raise StateConflict("crawl", crawl.id, crawl.state, "be resumed", "start a new one")

    async def _live_jobs(self, crawl: Crawl) -> list[Job]:
        jobs = await self._database.read(lambda tx: self._queue.jobs.jobs_of_run(tx, crawl.id))
        live = [job for job in jobs if job.finished_at is None]
        if not live:
            raise StateConflict("crawl", crawl.id, crawl.state, "be resumed", "see `shoal crawls show`")
        return live

    async def _release_dead(self, jobs: list[Job]) -> None:
        """Put back the jobs of processes that have died; if there were none, wait a moment for a lease to expire."""
        gone = [job for job in jobs if job.state is JobState.LOCKED and is_gone(job.lease_holder or "")]
        for job in gone:
            with suppress(LeaseLost):
                await self._queue.recovery.lose(_lease_of(job), "its process is gone")
        if not gone and all(job.state is JobState.LOCKED for job in jobs):
            await self._clock.sleep(POLL_SECONDS)
            await self._janitor.run_once()


def _extended(before: list[Job], after: list[Job]) -> bool:
    """Return whether any holder has extended its lease, which shows that it is alive."""
    until = {(job.id, job.lease_epoch): job.lease_until for job in before if job.state is JobState.LOCKED}
    held = [job for job in after if job.state is JobState.LOCKED]
    return any(until.get((job.id, job.lease_epoch), job.lease_until) != job.lease_until for job in held)


def holder_name() -> str:
    """Return the name of this process as a lease holder, from which others on this machine can tell whether it runs."""
    return f"local/{socket.gethostname()}/{os.getpid()}/{started(os.getpid())}"


def is_gone(holder: str) -> bool:
    """Return whether the holder was a process of this machine that no longer runs."""
    kind, _, rest = holder.partition("/")
    host, _, process = rest.partition("/")
    if kind != "local" or host != socket.gethostname():
        return False
    pid, _, started_at = process.partition("/")
    return started(int(pid)) != started_at if pid.isdecimal() else False


def _lease_of(job: Job) -> Lease:
    fence = Fence(job.id, job.lease_epoch)
    return Lease(fence, job.kind, job.run_id, "{}", job.attempts, job.max_attempts, job.crash_count, 0.0)


def _already_running(crawl: Crawl) -> NotAllowed:
    return NotAllowed(f'crawl "{crawl.id}" is being crawled by another process', "pause it there first, or wait")
