"""Lease page jobs whose hosts may be requested now, and reserve their host slots in the same commit. Used by workers
and bots."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from msgspec import DecodeError, Struct, ValidationError
from msgspec.structs import replace

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.hosts.rate_limiter import RateLimiter, SlotGrant
from shoal.page_jobs.spec import PageSpec, PageWork, host_of
from shoal.page_jobs.store import GroupStore
from shoal.queue import states
from shoal.queue.job import Fence, Lease, LeaseRequest
from shoal.queue.queue import Queue
from shoal.queue.states import Move
from shoal.web.page_fetcher import PageFetcher, RedirectChain

NOWHERE: Final = "about:blank"  # the URL of a job that cannot be read


class PutOff(Struct, frozen=True):
    """A job that is returned without counting an attempt, and the time before it may be leased again: usually the time
    until the job's host may be requested."""

    fence: Fence
    wait_seconds: float
    reason: str = "host_busy"

    @property
    def move(self) -> Move:
        wait = timedelta(seconds=self.wait_seconds)
        return states.put_off(self.fence.job_id, self.fence.epoch, wait, self.reason)


class PageTask(Struct, eq=False):
    """A leased job with its work and its slot, as the fetch pool needs it (`shoal.web.fetch_pool.PoolTask`). A task
    without a host has no slot: its job cannot be read, or robots.txt forbids its page."""

    lease: Lease
    work: PageWork | None  # None: this version cannot read the job
    host: int = 0
    start_in_seconds: float = 0.0  # from the time of the lease to the job's slot
    slot_at: float = 0.0
    delay_seconds: float = 0.0
    target: Url | None = None  # the URL that its redirects have reached; `host` is the host of this URL
    chain: RedirectChain | None = None  # the redirects that led to `target`
    fetcher: PageFetcher | None = None  # set when the first request has been started
    give_up_at: float = 0.0  # latest time for a slot at the host to which it redirects
    started_at: float = 0.0  # when its first request was started; 0: not yet

    @property
    def seq(self) -> Fence:
        return self.lease.fence

    @property
    def at(self) -> Url:
        """The URL to request next: the job's URL, or the target of its redirects."""
        return self.target or Url(NOWHERE if self.work is None else self.work.url)

    @property
    def attempts(self) -> int:
        return self.lease.attempts

    def take_slot(self, grant: SlotGrant) -> None:
        self.host, self.delay_seconds = grant.host, grant.delay_seconds
        self.start_in_seconds, self.slot_at = grant.wait_seconds, grant.slot_at


class PageLeases:
    """Leases only jobs that may be fetched now."""

    def __init__(
        self,
        queue: Queue,
        rate_limiter: RateLimiter,
        denies: Callable[[PageWork], bool] = lambda work: False,
    ) -> None:
        self._denies = denies  # returns whether robots.txt is known to forbid a page, which then needs no slot
        self.queue = queue
        self._groups = GroupStore()
        self.rate_limiter = rate_limiter

    def by_host(self, request: LeaseRequest) -> LeaseRequest:
        """Return the lease request limited to jobs whose hosts may be requested now."""
        return replace(request, rate_limiter=self.rate_limiter)

    async def reserve(self, tx: Tx, leases: Sequence[Lease]) -> list[PageTask]:
        """Reserve a slot for each of the jobs leased in this commit. If a host has no slot after all, because a
        different commit was faster or the host has just asked us to wait, the lease is undone as if it had not
        happened."""
        tasks = await self._read(tx, leases)
        kept = [task for task in tasks if task.work is None or self._denies(task.work)]
        readable = [(task, task.work) for task in tasks if task.work is not None and not self._denies(task.work)]
        refused = []
        places = await self.rate_limiter.give(tx, [host_of(work.url) for _, work in readable])
        for (task, _), place in zip(readable, places, strict=True):
            if place.granted:
                task.lease.start_in_seconds = place.wait_seconds
                task.take_slot(place)
                kept.append(task)
            else:
                refused.append(states.take_back(task.lease.fence.job_id, task.lease.fence.epoch, "host_busy"))
        if refused:
            await self.queue.jobs.move(tx, refused)
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
