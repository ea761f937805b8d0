"""Leases of this process: how they are renewed, how long they are valid, and the lease of a crawl that runs without a
worker."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Protocol

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.errors import LeaseLost, NotAllowed, ShoalError, StateConflict
from shoal.base.machine import started
from shoal.crawl.crawl import Crawl
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import CrawlState
from shoal.queue.janitor import Janitor
from shoal.queue.job import Extended, Fence, Job, Lease
from shoal.queue.queue import Queue
from shoal.queue.states import JobState

VALID_PART = 0.8  # share of a lease's term after which no new work is started until the lease is renewed


class LeaseValidity:
    """Judges whether a lease is certainly still valid, from the time of the last renewal that is known to have
    happened."""

    def __init__(self, term: timedelta, clock: Clock) -> None:
        self._valid_seconds = term.total_seconds() * VALID_PART
        self._clock = clock
        self._renewed_at = clock.monotonic()

    def renew(self, requested_at: float | None = None) -> None:
        """Record a renewal. The new term begins at the time of the request or, if no time is given, now."""
        self._renewed_at = self._clock.monotonic() if requested_at is None else requested_at

    def holds(self) -> bool:
        return self._clock.monotonic() - self._renewed_at < self._valid_seconds


class LeaseRenewer:
    """Extends a lease at regular intervals while the `async with` block runs."""

    def __init__(self, queue: Queue, lease: Lease, clock: Clock) -> None:
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._validity = LeaseValidity(queue.settings.lease, clock)
        self._task: asyncio.Task[None] | None = None

    def trusted(self) -> bool:
        """Return whether the lease is certainly still valid, by our own clock."""
        return self._validity.holds()

    async def renew(self) -> bool:
        """Extend the lease now and return whether it is still ours. A process that was suspended for longer than the
        term, such as on a sleeping laptop, may still hold the lease."""
        requested_at = self._clock.monotonic()
        if not (await self._queue.extend([self._lease.fence])).kept:
            return False
        self._validity.renew(requested_at)
        return True

    async def __aenter__(self) -> "LeaseRenewer":
        self._task = asyncio.create_task(self._renew_regularly())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _renew_regularly(self) -> None:
        while True:
            await self._clock.sleep(self._queue.settings.extend_every.total_seconds())
            with suppress(ShoalError):  # the store is down or full: try again; the lease may expire meanwhile
                if not await self.renew():
                    return  # lost: the lease soon becomes invalid, and the fence rejects our commits anyway


DEADLINE_PART = 0.5  # share of a lease's term that one extension may take


class HeldLeases(Protocol):
    """The leases that a part of a worker holds."""

    def fences(self) -> list[Fence]:
        """Return which leases to extend."""
        ...

    def on_extended(self, requested: Sequence[Fence], result: Extended) -> None:
        """Process the result of an extension. Requested leases that were not extended are lost."""
        ...


class LeaseHeartbeat:
    """Extends the leases of all parts at regular intervals until it is cancelled."""

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        held: Sequence[HeldLeases],
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._held = held
        self._on_error = on_error
        self._extending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        every_seconds = self._queue.settings.extend_every.total_seconds()
        due_at = self._clock.monotonic() + every_seconds
        while True:
            await self._clock.sleep(due_at - self._clock.monotonic())
            due_at = self._clock.monotonic() + every_seconds  # a slow extension does not delay the next one
            for held in self._held:
                # Extended separately: if one part's leases cannot be extended now, the other parts must not lose
                # theirs.
                if fences := held.fences():
                    await self._try(self._extend(held, fences))

    async def _try(self, extension: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(extension)
        self._extending.add(task)
        task.add_done_callback(self._extending.discard)
        try:
            longest_seconds = self._queue.settings.lease.total_seconds() * DEADLINE_PART
            if not (await asyncio.wait({task}, timeout=longest_seconds))[0]:
                self._on_error("renewing leases", TimeoutError("it takes too long; retrying"))
        finally:
            task.cancel()  # do not wait for its end, which takes more seconds on a silent connection

    async def _extend(self, held: HeldLeases, fences: list[Fence]) -> None:
        try:
            result = await self._queue.extend(fences)
        except Exception as error:  # the heartbeat must survive any single failure
            self._on_error("renewing leases", error)
        else:
            held.on_extended(fences, result)


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
        """Lease one of the crawl's jobs. A job whose process has died is taken over immediately. For any other holder,
        wait until the lease expires, and give up if the holder extends the lease."""
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
        """Return the jobs of processes that have died to their lanes; if there are no such jobs, wait a moment for a
        lease to expire."""
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
    """Return the name of this process as a lease holder. The name tells other processes on this machine whether this
    process still runs."""
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
