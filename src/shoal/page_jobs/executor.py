"""Executes page jobs in batches: `leasing` leases them, `runner` runs each one when its host slot comes, and `ingest`
accepts the results in the commit that leases the next batch.

The caller decides how many run at once. If a host asks us to wait after its jobs were leased, they are put off:
returned to their lane until the host may be requested again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import xxhash

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.signals import Signal, Signals
from shoal.base.url import Url, origin
from shoal.egress import Failure
from shoal.hosts.rate_limiter import HostConnections, RateLimiter
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import HostAnswer, HostUpdate, ThrottleTracker, emit_holds
from shoal.page_jobs.ingest import Ingest, IngestResult
from shoal.page_jobs.leasing import PageLeases, PageTask, PutOff
from shoal.page_jobs.result import ResultDelivery
from shoal.page_jobs.runner import HostBusy, NotRendered, PageJobRunner, RedirectSlots, failed
from shoal.page_jobs.spec import KIND, PageWork, host_of
from shoal.pages.page import PagesSettled, status_class
from shoal.queue.job import HTTP, SHARED_LANE, Fence, Lease, LeaseRequest
from shoal.queue.queue import Queue
from shoal.web.page_fetcher import Fetched

MOST_TASKS: Final = 20_000  # leased tasks remembered until they start
NOWHERE: Final = "about:blank"
UNREADABLE: Final = "This version of the worker cannot read the job; update the worker."


class PageBlocked(Signal, frozen=True, kw_only=True):
    """A request was blocked by the address rule (SSRF protection). The detail is for operators; the result omits the
    address."""

    job_id: str
    url: str
    code: str
    detail: str


class RenderingPutOff(Signal, frozen=True, kw_only=True):
    """A page job was put off, because the renderer is busy or not available. No attempt is counted."""

    job_id: str
    error: str
    seconds: float


@dataclass(slots=True)
class _Turn:
    """The outcome of one commit."""

    settlement: IngestResult
    tasks: list[PageTask] = field(default_factory=list)
    hold_seconds: dict[int, float] = field(default_factory=dict)


class PageJobExecutor:
    """Implements `work.page_job_loop.JobExecutor`: jobs are leased for one holder and fetched by one runner."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        ingest: Ingest,
        rate_limiter: RateLimiter,
        connections: HostConnections,
        throttle: ThrottleTracker,
        runner: PageJobRunner,
        clock: Clock,
        signals: Signals,
        lanes: Sequence[str] = (SHARED_LANE,),
        capabilities: Sequence[str] = (HTTP,),
    ) -> None:
        self._database = database
        self._ingest = ingest
        self._attempts = queue.own_attempts
        self._answer_within = queue.answer_within
        self._hosts = HostStore()
        self._leases = PageLeases(queue, rate_limiter, runner.denies)
        self._rate_limiter = rate_limiter
        self._connections = connections
        self._throttle = throttle
        self._runner = runner
        self._clock = clock
        self._signals = signals
        self._lanes = lanes
        self._capabilities = capabilities
        self._tasks: dict[Fence, tuple[PageTask, float]] = {}  # with the time of its host slot
        self._pages: Counter[str] = Counter()  # fetched but not yet reported, by status class
        self._bytes: Counter[str] = Counter()

    async def run(self, lease: Lease) -> ResultDelivery | PutOff:
        """Fetch the page when its slot comes; if its host asked us to wait in the meantime, put the job off."""
        task, start_at = self._tasks.pop(lease.fence)
        if task.work is None:
            failure = Failure("unreadable_job", UNREADABLE, retryable=True, url=NOWHERE)
            return ResultDelivery(lease.fence, failed(failure, self._clock.micros()))
        if not task.host:
            return await self._denied(lease, task.work)
        await self._connections.wait_for_slot(task.host, start_at, task.delay_seconds)
        if self._throttle.holds(task.host):
            return PutOff(lease.fence, self._throttle.held_seconds(task.host))

        if await self._runner.ask_robots(task.work) and self._rate_limiter.paced:
            return PutOff(lease.fence, 0.0)  # the robots.txt request used the slot, so the page needs another

        slots = RedirectSlots(self._database, self._rate_limiter, self._connections, self._throttle, self._clock)
        slots.hosts[host_of(task.work.url)] = task.host

        def on_response(url: Url, fetched: Fetched) -> None:
            if fetched.chain is None:
                self._pages[status_class(fetched.status)] += 1
                self._bytes[status_class(fetched.status)] += fetched.bytes
            self._throttle.record(_answer(task, url, slots.hosts[origin(url)], fetched))

        def blocked(failure: Failure) -> None:
            detail = failure.operator_detail or failure.message
            self._signals.emit(
                PageBlocked(job_id=lease.fence.job_id, url=failure.url, code=failure.code, detail=detail)
            )

        try:
            return ResultDelivery(lease.fence, await self._runner.run(task.work, on_response, blocked, slots))
        except HostBusy as busy:
            return PutOff(lease.fence, busy.wait_seconds)
        except NotRendered as why:
            self._signals.emit(RenderingPutOff(job_id=lease.fence.job_id, error=why.message, seconds=why.wait_seconds))
            return PutOff(lease.fence, why.wait_seconds, why.reason)

    async def _denied(self, lease: Lease, work: PageWork) -> ResultDelivery | PutOff:
        """Fail a job that robots.txt forbids; it was leased without a slot. If the rules have expired meanwhile, put
        the job off, so that it gets a slot."""
        if not self._runner.denies(work):
            return PutOff(lease.fence, 0.0)
        return ResultDelivery(
            lease.fence, await self._runner.run(work, lambda url, fetched: None, lambda failure: None)
        )

    async def settle(self, results: Sequence[ResultDelivery | PutOff], holder: str, want: int) -> list[Lease]:
        """Store results and lease more jobs in one commit; results whose lease was lost are dropped. Only jobs with a
        host slot within the next two seconds are leased; `start_in_seconds` says when."""
        updates = self._throttle.updates()
        asked_at = self._clock.monotonic()
        try:
            turn = await self._database.run(
                lambda tx: self._commit(tx, results, holder, want, updates), within=self._answer_within
            )
        except BaseException:
            self._throttle.forget()
            raise
        self._throttle.learn(turn.hold_seconds)
        emit_holds(self._signals, updates, turn.hold_seconds)
        self._emit_pages()
        if len(self._tasks) > MOST_TASKS:  # leased but never started; nearly all were handed back
            self._tasks = dict(list(self._tasks.items())[-MOST_TASKS // 2 :])
        self._tasks |= {task.lease.fence: (task, asked_at + task.start_in_seconds) for task in turn.tasks}
        return [task.lease for task in turn.tasks]

    def _emit_pages(self) -> None:
        if self._pages:
            self._signals.emit(PagesSettled(pages=dict(self._pages), bytes=dict(self._bytes)))
            self._pages.clear()
            self._bytes.clear()

    def close(self) -> None:
        """Abort running fetches and close all connections."""
        self._runner.close()

    async def _commit(
        self,
        tx: Tx,
        results: Sequence[ResultDelivery | PutOff],
        holder: str,
        want: int,
        updates: dict[int, HostUpdate],
    ) -> _Turn:
        deliveries = [one for one in results if isinstance(one, ResultDelivery)]
        put_off = [one.move for one in results if isinstance(one, PutOff)]
        request = self._leases.by_host(LeaseRequest(holder, [KIND], list(self._lanes), self._capabilities))
        turn = _Turn(await self._ingest.settle_in(tx, request, deliveries, want, put_off, self._attempts))
        if updates:
            turn.hold_seconds = await self._hosts.record(tx, updates)
        turn.tasks = await self._leases.reserve(tx, turn.settlement.leases)
        turn.settlement.leases = [task.lease for task in turn.tasks]
        await self._ingest.call_hooks(tx, turn.settlement)
        return turn


def _answer(task: PageTask, url: Url, host: int, fetched: Fetched) -> HostAnswer:
    return HostAnswer(
        origin=origin(url),
        host=host,
        page=xxhash.xxh3_64_intdigest(url.encode()),
        attempts=task.lease.attempts,
        status=fetched.status,
        latency_seconds=fetched.seconds,
        error=None if fetched.failure is None else fetched.failure.code,
        retry_after=fetched.retry_after,
    )
