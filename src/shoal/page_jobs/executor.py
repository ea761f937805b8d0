"""Connects page jobs to the fetch pool: `leasing` leases them with a slot at their host, `runner` fetches each page and
builds its result, and `ingest` accepts the results in the commit that leases the next batch.

If a job may not be fetched after it was leased, because its host asks us to wait or its slot has passed, it is delayed:
it returns to its lane and waits there until its host may be requested again.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct, field

from shoal.base.database import Database, Tx
from shoal.base.errors import ShoalError
from shoal.base.signals import Signal, Signals
from shoal.base.url import Url, origin
from shoal.egress import Cancellable, Failure
from shoal.hosts.robots_cache import RobotsAnswer, RobotsRules, objection
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import HostUpdate, ThrottleTracker, emit_holds
from shoal.page_jobs.ingest import Ingest, IngestResult
from shoal.page_jobs.leasing import NOWHERE, PageLeases, PageTask, PutOff
from shoal.page_jobs.result import ResultDelivery
from shoal.page_jobs.runner import NotRendered, PageJobRunner, failed, no_proxy
from shoal.page_jobs.spec import KIND, PageWork
from shoal.pages.page import PagesSettled, status_class
from shoal.queue.job import HTTP, SHARED_LANE, LeaseRequest
from shoal.web.fetch_pool import Admitted
from shoal.web.page_fetcher import Fetched

LONGEST_HOP_SECONDS: Final = 30.0  # maximum wait for a redirect target; then the job is delayed
UNREADABLE: Final = "This version of the worker cannot read the job; update the worker."

Outcome = ResultDelivery | PutOff


class PageBlocked(Signal, frozen=True, kw_only=True):
    """A request was blocked by the address rule (SSRF protection). The detail is for operators; the result omits the
    address."""

    job_id: str
    url: str
    code: str
    detail: str


class RenderingPutOff(Signal, frozen=True, kw_only=True):
    """A page job was delayed because the renderer is busy or not available. No attempt is counted."""

    job_id: str
    error: str
    seconds: float


class _Turn(Struct):
    """The outcome of one commit."""

    settlement: IngestResult
    tasks: list[PageTask] = field(default_factory=list)
    hold_seconds: dict[int, float] = field(default_factory=dict)


class PageJobExecutor:
    """Executes page jobs for `work.page_job_loop.PageJobLoop`. Use it from one event loop only. A problem with the page
    is part of an outcome; an exception counts as a failed attempt."""

    def __init__(
        self,
        database: Database,
        leases: PageLeases,
        ingest: Ingest,
        runner: PageJobRunner,
        throttle: ThrottleTracker,
        signals: Signals,
        *,
        lanes: Sequence[str] = (SHARED_LANE,),
        capabilities: Sequence[str] = (HTTP,),
        connections: int,
    ) -> None:
        self._database = database
        self._ingest = ingest
        self._hosts = HostStore()
        self._leases = leases
        self._runner = runner
        self.throttle = throttle
        self.connections = connections  # per host
        self._clock = throttle.clock
        self._signals = signals
        self._lanes = lanes
        self._capabilities = capabilities
        self._pages: Counter[str] = Counter()  # pages that were fetched but not yet reported, by status class
        self._bytes: Counter[str] = Counter()

    def admit(self, task: PageTask) -> Admitted | Outcome:
        """Return when the page may be requested, or the outcome of a job that needs no request."""
        if task.work is None:
            return self._failed(task, Failure("unreadable_job", UNREADABLE, retryable=True, url=NOWHERE))
        robots = self._runner.robots_of(task.work)
        if robots is None:
            label = task.work.crawl_config.proxy
            return self._failed(task, Failure("unknown_proxy", no_proxy(label), retryable=True, url=task.at))
        match robots.judge(task.at):
            case RobotsAnswer.ALLOWED if task.host:
                return Admitted.NOW
            case RobotsAnswer.UNKNOWN if task.host:
                return Admitted.AFTER_ROBOTS
            case RobotsAnswer.ALLOWED | RobotsAnswer.UNKNOWN:  # forbidden when the job was leased: no slot
                return self.put_off(task, 0.0)
            case RobotsAnswer.DENIED | RobotsAnswer.UNREACHABLE:
                fetched = Fetched(task.at, 0.0, failure=objection(robots.known(origin(task.at)), task.at))
                fetched.redirects = () if task.chain is None else task.chain.hops
                return ResultDelivery(task.lease.fence, self._runner.result(task.work, fetched))

    def robots_of(self, task: PageTask) -> RobotsRules:
        """Return the robots.txt rules of the job's egress route."""
        robots = None if task.work is None else self._runner.robots_of(task.work)
        assert robots is not None
        return robots

    def start(self, task: PageTask, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        """Request the page, or the current target of its redirects, no later than `send_by`, and call `done` once,
        unless cancelled first."""
        assert task.work is not None
        if task.fetcher is None:
            task.fetcher = self._runner.fetcher(task.work, task.at, partial(self._blocked, task))
        return task.fetcher.submit(task.at, done, None, task.chain, send_by)

    def read(self, task: PageTask, fetched: Fetched) -> Outcome | Awaitable[Outcome] | None:
        """Return the outcome of a fetched page, or an awaitable for the outcome; None for a redirect, which needs a
        slot."""
        assert task.work is not None
        if fetched.chain is not None:
            task.target, task.chain = Url(fetched.final_url), fetched.chain
            task.give_up_at = self._clock.monotonic() + LONGEST_HOP_SECONDS
            return None
        self._pages[status_class(fetched.status)] += 1
        self._bytes[status_class(fetched.status)] += fetched.bytes
        if task.work.formats or self._runner.renders(task.work, fetched):
            return self._finish(task, task.work, fetched)
        return ResultDelivery(task.lease.fence, self._runner.result(task.work, fetched))

    async def _finish(self, task: PageTask, work: PageWork, fetched: Fetched) -> Outcome:
        """Render the page if it needs a browser, and return its result; the result of a scrape includes the content."""
        assert task.fetcher is not None
        screenshot = None
        try:
            if self._runner.renders(work, fetched):
                screenshot = await self._runner.render(work, task.fetcher, task.at, fetched)
        except NotRendered as why:
            self._signals.emit(
                RenderingPutOff(job_id=task.lease.fence.job_id, error=why.message, seconds=why.wait_seconds)
            )
            return PutOff(task.lease.fence, why.wait_seconds, why.reason)
        if work.formats:
            return ResultDelivery(task.lease.fence, *await self._runner.scraped(work, fetched, screenshot))
        return ResultDelivery(task.lease.fence, self._runner.result(work, fetched))

    async def find_slot(self, task: PageTask) -> PutOff | None:
        """Reserve a slot at the host to which a task redirects; if there is no slot soon, delay its job."""
        limiter, host_origin = self._leases.rate_limiter, origin(task.at)
        while True:
            grant = await self._database.run(lambda tx: limiter.next_slot(tx, host_origin, LONGEST_HOP_SECONDS))
            if grant.granted:
                task.take_slot(grant)
                if limiter.timing is not None:
                    limiter.timing.usable([task])
                return None
            if self._clock.monotonic() + grant.wait_seconds > task.give_up_at:
                return self.put_off(task, grant.wait_seconds)
            await self._clock.sleep(grant.wait_seconds)  # a different transaction has just locked the host's row

    def put_off(self, task: PageTask, wait_seconds: float) -> PutOff:
        """Return the outcome of a job that may not be fetched for `wait_seconds`."""
        return PutOff(task.lease.fence, wait_seconds)

    def size_of(self, result: Outcome) -> int:
        """Return the size of the content of a scrape; other results are small."""
        return result.size if isinstance(result, ResultDelivery) else 0

    async def settle(self, results: Sequence[Outcome], holder: str, want: int) -> list[PageTask]:
        """In one commit, store the results, end or return their jobs, and lease up to `want` more jobs that have a host
        slot within the next two seconds. A result whose lease was lost is dropped; the other results count. After an
        unexpected error, each result gets a separate commit; the result is dropped if the store refuses it and the
        failure in its place, so that the job runs again after its lease has expired."""
        updates = self.throttle.updates()
        try:
            turn = await self._database.run(
                lambda tx: self._commit(tx, results, holder, want, updates), within=self._leases.queue.answer_within
            )
        except BaseException as error:
            self.throttle.forget()
            deliveries = [one for one in results if isinstance(one, ResultDelivery)]
            if not deliveries or isinstance(error, ShoalError) or not isinstance(error, Exception):
                raise
            queue = self._leases.queue
            await self._ingest.settle_apart(holder, deliveries, queue.own_attempts, queue.answer_within)
            return await self.settle([one for one in results if isinstance(one, PutOff)], holder, want)
        if (timing := self._leases.rate_limiter.timing) is not None:
            timing.usable(turn.tasks)
        self.throttle.learn(turn.hold_seconds)
        emit_holds(self._signals, updates, turn.hold_seconds)
        if self._pages:
            self._signals.emit(PagesSettled(pages=dict(self._pages), bytes=dict(self._bytes)))
            self._pages.clear()
            self._bytes.clear()
        return turn.tasks

    def close(self) -> None:
        """Abort running fetches and close all connections."""
        self._runner.close()

    async def _commit(
        self, tx: Tx, results: Sequence[Outcome], holder: str, want: int, updates: dict[int, HostUpdate]
    ) -> _Turn:
        deliveries = [one for one in results if isinstance(one, ResultDelivery)]
        put_off = [one.move for one in results if isinstance(one, PutOff)]
        request = self._leases.by_host(LeaseRequest(holder, [KIND], list(self._lanes), self._capabilities))
        attempts = self._leases.queue.own_attempts
        turn = _Turn(await self._ingest.settle_in(tx, request, deliveries, want, put_off, attempts))
        if updates:
            turn.hold_seconds = await self._hosts.record(tx, updates)
        turn.tasks = await self._leases.reserve(tx, turn.settlement.leases)
        turn.settlement.leases = [task.lease for task in turn.tasks]
        await self._ingest.call_hooks(tx, turn.settlement)
        return turn

    def _failed(self, task: PageTask, failure: Failure) -> ResultDelivery:
        return ResultDelivery(task.lease.fence, failed(failure, self._clock.micros()))

    def _blocked(self, task: PageTask, failure: Failure) -> None:
        detail = failure.operator_detail or failure.message
        self._signals.emit(
            PageBlocked(job_id=task.lease.fence.job_id, url=failure.url, code=failure.code, detail=detail)
        )
