"""Page jobs without pages: what the loop of a page child needs of an executor, without hosts and robots.txt."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from shoal.base.clock import Clock
from shoal.base.settings import HostSettings
from shoal.egress import Cancellable
from shoal.hosts.robots_cache import AllowAll, RobotsRules
from shoal.hosts.throttle import ThrottleTracker
from shoal.page_jobs.executor import PageJobExecutor
from shoal.page_jobs.leasing import PageTask, PutOff
from shoal.page_jobs.result import ResultDelivery
from shoal.queue.job import Fence, Lease
from shoal.web.fetch_pool import Admitted, FetchPool, WindowSize
from shoal.web.page_fetcher import Fetched

NOTHING = Fetched("http://127.0.0.1/", 0.0)


class JobsWithoutPages:
    """Each job does what `run` does; the subclass leases and settles."""

    def __init__(self, clock: Clock) -> None:
        self.throttle = ThrottleTracker(HostSettings(), clock)
        self.connections = 1_000_000

    async def run(self, lease: Lease) -> Lease:
        return lease

    def admit(self, task: PageTask) -> Admitted | Lease:
        return Admitted.NOW

    def robots_of(self, task: PageTask) -> RobotsRules:
        return AllowAll()

    def start(self, task: PageTask, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        return asyncio.get_running_loop().call_soon(done, NOTHING)

    def read(self, task: PageTask, fetched: Fetched) -> Awaitable[Lease]:
        return self.run(task.lease)

    async def find_slot(self, task: PageTask) -> Lease | None:
        raise AssertionError("nothing redirects")

    def put_off(self, task: PageTask, wait_seconds: float) -> Lease:
        raise AssertionError("no host is held")

    def size_of(self, result: object) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: no resource is held."""


def task_of(lease: Lease) -> PageTask:
    return PageTask(lease, None, start_in_seconds=lease.start_in_seconds)


class SinglePageJobs:
    """Runs page jobs one by one in a fetch pool, as the loop of a page child does, and returns what became of each."""

    def __init__(self, executor: PageJobExecutor) -> None:
        self._executor = executor
        self._pool: FetchPool[PageTask] = FetchPool(WindowSize(100, executor.connections), self, executor.throttle)
        self._outcomes: dict[Fence, asyncio.Future[ResultDelivery | PutOff]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self.is_closed = self.is_out_of_reach = False

    async def run(self, task: PageTask) -> ResultDelivery | PutOff:
        outcome: asyncio.Future[ResultDelivery | PutOff] = asyncio.get_running_loop().create_future()
        self._outcomes[task.seq] = outcome
        self._pool.accept([task])
        async with asyncio.timeout(60):
            return await outcome

    def admit(self, task: PageTask) -> Admitted | None:
        admitted = self._executor.admit(task)
        if isinstance(admitted, Admitted):
            return admitted
        self._outcomes[task.seq].set_result(admitted)
        return None

    def robots_of(self, task: PageTask) -> RobotsRules:
        return self._executor.robots_of(task)

    def start(self, task: PageTask, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        return self._executor.start(task, send_by, done)

    def fetched(self, task: PageTask, fetched: Fetched) -> None:
        outcome = self._executor.read(task, fetched)
        if outcome is None:
            self._spawn(self._follow(task))
        elif isinstance(outcome, ResultDelivery | PutOff):
            self._outcomes[task.seq].set_result(outcome)
        else:
            self._spawn(self._render(task, outcome))

    def hand_back(self, task: PageTask, wait_seconds: float) -> None:
        if task.chain is not None and not wait_seconds:
            self._spawn(self._follow(task))
        else:
            self._outcomes[task.seq].set_result(self._executor.put_off(task, wait_seconds))

    def failed(self, task: PageTask | None, error: Exception) -> None:
        if task is None:
            raise error
        self._outcomes[task.seq].set_exception(error)

    async def _follow(self, task: PageTask) -> None:
        if (outcome := await self._executor.find_slot(task)) is None:
            self._pool.accept([task])
        else:
            self._outcomes[task.seq].set_result(outcome)

    async def _render(self, task: PageTask, outcome: Awaitable[ResultDelivery | PutOff]) -> None:
        self._outcomes[task.seq].set_result(await outcome)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
