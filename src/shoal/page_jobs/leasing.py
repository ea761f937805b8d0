"""Lease page jobs whose hosts may be requested now, and reserve their host slots in the same commit. Used by workers
and bots."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from msgspec import DecodeError, Struct, ValidationError

from shoal.base.database import Tx
from shoal.hosts.rate_limiter import RateLimiter
from shoal.page_jobs.spec import PageSpec, PageWork, host_of
from shoal.page_jobs.store import GroupStore
from shoal.queue import states
from shoal.queue.job import Fence, Lease, LeaseRequest
from shoal.queue.queue import Queue
from shoal.queue.states import Move


@dataclass(frozen=True, slots=True)
class PutOff:
    """A job that is returned without counting an attempt, and the time before it may be leased again: usually the
    time until its host may be requested."""

    fence: Fence
    wait_seconds: float
    reason: str = "host_busy"

    @property
    def move(self) -> Move:
        wait = timedelta(seconds=self.wait_seconds)
        return states.put_off(self.fence.job_id, self.fence.epoch, wait, self.reason)


class PageTask(Struct, frozen=True):
    """A leased job with its work. `start_in_seconds`: until its host slot. Without a host it has no slot: it cannot be
    read, or robots.txt forbids its page."""

    lease: Lease
    work: PageWork | None  # None: this version cannot read it
    host: int = 0
    start_in_seconds: float = 0.0
    delay_seconds: float = 0.0  # minimum delay to other requests to its host


class PageLeases:
    """Leases only jobs that may be fetched now."""

    def __init__(
        self,
        queue: Queue,
        rate_limiter: RateLimiter,
        denies: Callable[[PageWork], bool] = lambda work: False,
    ) -> None:
        self._denies = denies  # returns whether robots.txt is known to forbid a page, which then needs no slot
        self._queue = queue
        self._groups = GroupStore()
        self._rate_limiter = rate_limiter

    def by_host(self, request: LeaseRequest) -> LeaseRequest:
        """Return the lease request limited to jobs whose hosts may be requested now."""
        return replace(request, rate_limiter=self._rate_limiter)

    async def reserve(self, tx: Tx, leases: Sequence[Lease]) -> list[PageTask]:
        """Reserve a slot for each of the jobs leased in this commit. If a host has none after all, because another
        commit was faster or the host has just asked us to wait, the lease is undone as if it had not happened."""
        tasks = await self._read(tx, leases)
        kept = [task for task in tasks if task.work is None or self._denies(task.work)]
        readable = [(task, task.work) for task in tasks if task.work is not None and not self._denies(task.work)]
        refused = []
        places = await self._rate_limiter.give(tx, [host_of(work.url) for _, work in readable])
        for (task, work), place in zip(readable, places, strict=True):
            if place.granted:
                task.lease.start_in_seconds = place.wait_seconds
                kept.append(PageTask(task.lease, work, place.host, place.wait_seconds, place.delay_seconds))
            else:
                refused.append(states.take_back(task.lease.fence.job_id, task.lease.fence.epoch, "host_busy"))
        if refused:
            await self._queue.finish_and_lease_in(tx, refused, None)
        return kept

    async def _read(self, tx: Tx, leases: Sequence[Lease]) -> list[PageTask]:
        groups = sorted({lease.run_id for lease in leases if lease.run_id})
        specs = await self._groups.specs(tx, groups)
        return [PageTask(lease, _work(lease, specs)) for lease in leases]


def _work(lease: Lease, specs: Mapping[str, PageSpec | None]) -> PageWork | None:
    """Combine the payload of a job with the spec of its group; None if this version cannot read one of them."""
    try:
        work = PageWork.stored(lease.payload)
    except (ValidationError, DecodeError):
        return None
    if lease.run_id is None or lease.run_id not in specs:
        return work
    spec = specs[lease.run_id]
    return None if spec is None else PageWork(url=work.url, crawl_config=spec.crawl_config, rule_set=spec.rule_set)
