"""A crawl in this very process: `shoal crawl`. The same rows as anywhere, the job leased from a lane of its own."""

import os
import socket
from pathlib import Path

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.errors import NotAllowed, StateConflict
from shoal.crawl.crawl import Crawl
from shoal.crawl.crawls import Crawls
from shoal.crawl.states import CrawlState
from shoal.queue.job import Holder, Job, Lease
from shoal.queue.queue import Queue
from shoal.queue.states import JobState


class LocalLease:
    """Gets hold of a crawl's job for this process, from whoever had it."""

    def __init__(self, database: Database, queue: Queue, crawls: Crawls, clock: Clock) -> None:
        self._database = database
        self._queue = queue
        self._crawls = crawls
        self._clock = clock

    async def take(self, crawl: Crawl) -> Lease:
        """The lease of the crawl's job. One whose process is gone is taken over at once; for any other holder we wait
        until its lease ends, and give up when it is extended."""
        job = await self._job(crawl)
        if job.state is JobState.LOCKED:
            await self._wait_for_end(crawl, job)
            job = await self._job(crawl)
        lease = await self._queue.lease_one(job.id, holder_name())
        if lease is None:
            raise _held(crawl)
        return lease

    async def reopen(self, crawl: Crawl) -> None:
        """Make sure that the crawl has a job to take."""
        if crawl.state is CrawlState.PAUSED:
            await self._crawls.resume(crawl.id, here=True)
        elif crawl.state in (CrawlState.STOPPED, CrawlState.STOPPING, CrawlState.PENDING, CrawlState.FAILED):
            raise StateConflict("crawl", crawl.id, crawl.state, "be resumed", "start a new one")

    async def _job(self, crawl: Crawl) -> Job:
        jobs = await self._database.read(lambda tx: self._queue.store.jobs_of_run(tx, crawl.id))
        live = [job for job in jobs if job.finished_at is None]
        if not live:
            raise StateConflict("crawl", crawl.id, crawl.state, "be resumed", "look at it with `shoal crawls show`")
        return live[0]

    async def _wait_for_end(self, crawl: Crawl, job: Job) -> None:
        while job.state is JobState.LOCKED:
            if _is_gone(job.lease_holder or ""):
                await self._queue.lose(_lease_of(job), "its process is gone")
                return
            until = job.lease_until
            await self._clock.sleep(0.2)
            job = await self._job(crawl)
            if job.state is JobState.LOCKED and job.lease_until != until:
                raise _held(crawl)


def holder_name() -> str:
    """Who we are, so that others on this machine can tell whether we still live."""
    return f"local/{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def _is_gone(holder: str) -> bool:
    kind, _, rest = holder.partition("/")
    host, _, process = rest.partition("/")
    if kind != "local" or host != socket.gethostname():
        return False
    pid, _, started = process.partition("/")
    return _started(int(pid)) != started if pid.isdecimal() else False


def _started(pid: int) -> str:
    """When a process began, in the kernel's count; empty if there is none. A pid alone may be another's by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "" if not _exists(pid) else "?"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _lease_of(job: Job) -> Lease:
    holder = Holder(job.id, job.lease_epoch)
    return Lease(holder, job.kind, job.run_id, "{}", job.attempts, job.max_attempts, job.crash_count, 0.0)


def _held(crawl: Crawl) -> NotAllowed:
    return NotAllowed(f'crawl "{crawl.id}" is being crawled by another process', "pause it there first, or wait")
