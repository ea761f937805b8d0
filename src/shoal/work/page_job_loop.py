"""Code that runs in the child: the loop that keeps the page slots full. The loop leases jobs in batches, gives them to
the fetch pool and settles them together.

The worker extends the leases. The executor fetches the pages of the jobs and stores their results.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError, StorageFull
from shoal.base.parsing import show_duration
from shoal.egress import Cancellable
from shoal.hosts.rate import FetchRate, changed
from shoal.hosts.robots_cache import RobotsRules
from shoal.queue.job import Fence, Lease
from shoal.queue.queue import Queue
from shoal.queue.states import STALLED
from shoal.web.fetch_pool import Admitted, FetchPool, WindowSize
from shoal.web.page_fetcher import Fetched
from shoal.work.leases import LeaseValidity

if TYPE_CHECKING:
    from shoal.page_jobs.executor import Outcome, PageJobExecutor
    from shoal.page_jobs.leasing import PageTask


BATCH = 100  # this many results are settled immediately, even if the last commit was very recent
BATCH_BYTES = 16_000_000  # bytes of results (or one larger result) per commit; if more wait, no job starts
BATCH_SECONDS = 0.05  # maximum time that a result waits for further results while jobs are running
AHEAD_LIMIT = 500  # jobs that may be held beyond the slots
AHEAD_SECONDS = 2.0  # a job that could not start in this time is returned: a different worker may have a slot
LEARNED_PART = 0.1  # weight of the last job in the average duration
STORE_RETRY_SECONDS = 0.5  # pause after a commit that did not reach the store
LEAVE_SECONDS = 2.0  # time for running jobs to finish when the loop has to leave
CHECK_SECONDS = 1.0  # the longest time between two checks for overdue jobs
CHECK_EVERY_SECONDS = 0.1  # minimum time between two checks, because a check looks at every job


def holder_of(worker: str, pid: int) -> str:
    """Return the name under which a page child holds its leases. The parent can compute this name even after the child
    has died."""
    return f"{worker}/pages/{pid}"


class LoopCallbacks(Struct, frozen=True, kw_only=True):
    """Callbacks through which the loop notifies the child that runs it."""

    leased: Callable[[], None]  # called after every lease, before any of its jobs starts
    alone: Callable[[Fence | None], None]  # a suspect starts alone; None: the suspect has ended
    error: Callable[[str, Exception], None]  # an operation on the store failed


class PageJobLoop:
    """Keeps the slots full. The faster jobs finish, the more jobs are leased ahead, so that each commit covers more
    jobs.

    Implements `shoal.web.fetch_pool.PoolCaller`. A job that lost a worker before (a suspect) runs alone: if it kills
    the process, no other job is blamed.
    """

    def __init__(
        self,
        executor: "PageJobExecutor",
        queue: Queue,
        slots: int,
        holder: str,
        callbacks: LoopCallbacks,
    ) -> None:
        self._executor = executor
        self._queue = queue
        self._poll_seconds = queue.settings.poll_every.total_seconds()
        self._stall_seconds = queue.settings.stall_deadline.total_seconds()
        self._slots = slots
        self._holder = holder
        self._clock: Clock = executor.throttle.clock
        self._callbacks = callbacks
        self._pool: FetchPool[PageTask] = FetchPool(WindowSize(slots, executor.connections), self, executor.throttle)
        self._tasks: dict[Fence, PageTask] = {}  # leased jobs without a result
        self._working: dict[Fence, asyncio.Task[None]] = {}  # jobs that are rendered or wait for a redirect slot
        self._suspects: deque[PageTask] = deque()
        self._suspect: PageTask | None = None  # the suspect that is in the pool
        self._results: list[tuple[Fence, Outcome]] = []
        self._settling: list[tuple[Fence, Outcome]] = []  # results in the commit that is under way
        self._result_bytes = 0  # total size of the results that are not stored yet
        self._first_result_at = 0.0
        self._changed = asyncio.Event()
        self._validity = LeaseValidity(queue.settings.lease, self._clock)
        self._batch = 0  # how many results the last commit settled
        self._job_seconds = 0.0  # how long a job occupies a slot, on average over the last jobs
        self._poll_at = 0.0  # when to request jobs even without a nudge
        self._nudged = False  # whether there was a nudge since the last request for jobs
        self._paused = False
        self._leased = asyncio.Event()  # set unless a commit that may lease is under way
        self._leased.set()
        self._hand_back: str | None = None  # why the jobs of the commit under way are returned
        self._leave_at: float | None = None
        self._finish_first = False
        self._changes: set[asyncio.Task[None]] = set()  # changes of single jobs, such as a failed attempt
        self._rate: FetchRate | None = None
        self._checked_at = 0.0  # when deadlines were checked last
        self._error: Exception | None = None  # an error that belongs to no single job

    async def run(self) -> None:
        """Work until `leave` was called and no job is held."""
        try:
            while True:
                await self._turn()
                self._fill()
                self._check_deadlines()
                if self._error is not None:
                    raise self._error
                if self._leave_at is not None and not (self.held or self._changes):
                    return
                await self._rest()
        finally:
            self._pool.drop()
            for task in self._working.values():
                task.cancel()

    @property
    def held(self) -> list[Fence]:
        """All leases of this loop, including leases of finished jobs that are not stored yet, so that these stay leased
        during a slow commit."""
        return [*(fence for fence, _ in (*self._settling, *self._results)), *self._tasks]

    @property
    def running(self) -> int:
        """Return how many jobs occupy a slot."""
        return self._pool.in_flight + len(self._working)

    @property
    def is_changing(self) -> bool:
        """Return whether a commit is under way that may lease or return jobs."""
        return not self._leased.is_set() or bool(self._changes)

    def nudge(self) -> None:
        """Request jobs now, because a job may be waiting."""
        self._poll_at = 0.0
        self._nudged = True
        self._changed.set()

    def configure(self, slots: int, *, leasing: bool) -> None:
        """Run up to `slots` jobs at the same time, and lease more jobs only if `leasing`. Running jobs always
        finish."""
        self._slots = slots
        self._paused = not leasing
        self._pool.resize(WindowSize(slots, self._executor.connections))
        self.nudge()

    def limit_rate(self, per_second: float | None) -> None:
        """Start at most this many jobs per second; None: unlimited."""
        self._rate = changed(self._rate, per_second, self._clock)
        self._pool.limit_rate(self._rate)
        self.nudge()

    def renewed(self) -> None:
        self._validity.renew()
        self._pool.fill()

    def drop(self, lost: Sequence[Fence]) -> None:
        """Cancel and forget these jobs: their leases are lost."""
        for fence in lost:
            self._tasks.pop(fence, None)
            self._cancel(fence)
        self._pool.withdraw(set(lost))
        self._suspects = deque(task for task in self._suspects if task.lease.fence in self._tasks)
        if self._suspect is not None and self._suspect.lease.fence in lost:
            self._end_suspect()

    def hand_back(self, task: "PageTask", wait_seconds: float) -> None:
        """Take a job from the pool if it may not start. After a redirect it needs a new slot; otherwise it is
        delayed."""
        if task.chain is not None and not wait_seconds:
            self._work_on(task, self._follow(task))
        else:
            self._report(task, self._executor.put_off(task, wait_seconds))

    def return_unstarted(self, reason: str) -> None:
        """Return the jobs that have not started, and the jobs that the commit under way leases."""
        self._hand_back = None if self._leased.is_set() else reason
        self._release([*self._pool.withdraw(), *self._suspects], reason)
        self._suspects.clear()
        self._changed.set()

    def leave(self, *, finish_first: bool) -> None:
        """Lease nothing more and end. If `finish_first`, all held jobs finish first; otherwise running jobs have a
        moment to finish, and the rest are returned."""
        self._finish_first = finish_first
        if self._leave_at is None:
            self._leave_at = self._clock.monotonic() + LEAVE_SECONDS
        if not finish_first:
            self.return_unstarted("shutdown")
        self._changed.set()

    # Called by the pool

    @property
    def is_closed(self) -> bool:
        if self._suspects and self._suspect is None:
            return True  # the suspect starts when no other job runs
        if self._result_bytes > BATCH_BYTES:
            return True
        most = self._slots if self._suspect is None else 1
        return self.running >= most or not self._validity.holds()

    @property
    def is_out_of_reach(self) -> bool:
        return False

    def admit(self, task: "PageTask") -> Admitted | None:
        admitted = self._executor.admit(task)
        if isinstance(admitted, Admitted):
            return admitted
        self._report(task, admitted)
        return None

    def robots_of(self, task: "PageTask") -> RobotsRules:
        return self._executor.robots_of(task)

    def start(self, task: "PageTask", send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        if not task.started_at:
            task.started_at = self._clock.monotonic()
        self._changed.set()
        return self._executor.start(task, send_by, done)

    def fetched(self, task: "PageTask", fetched: Fetched) -> None:
        outcome = self._executor.read(task, fetched)
        if outcome is None:
            self._work_on(task, self._follow(task))
        elif isinstance(outcome, Awaitable):
            self._work_on(task, self._await_result(task, outcome))
        else:
            self._report(task, outcome)

    def failed(self, task: "PageTask | None", error: Exception) -> None:
        if task is None:
            self._error = error
        elif self._forget(task):
            if isinstance(error, BackendUnavailable | StorageFull):  # the problem is the store, not the job
                self._callbacks.error("running a page job", error)
                self._change_soon(self._queue.release(task.lease, error.code))
            else:
                reason = f"{type(error).__name__}: {error}"
                if isinstance(error, ShoalError):
                    reason = f"{error.code}: {error.message}"
                self._change_soon(self._queue.fail(task.lease, reason))
        self._changed.set()

    async def _follow(self, task: "PageTask") -> None:
        """Get a slot for the target of a redirect, and give the job back to the pool."""
        result = await self._executor.find_slot(task)
        self._working.pop(task.lease.fence, None)
        if result is not None:
            self._report(task, result)
        elif task.lease.fence in self._tasks:
            self._pool.accept([task])

    async def _await_result(self, task: "PageTask", result: "Awaitable[Outcome]") -> None:
        self._report(task, await result)
        self._pool.fill()

    def _work_on(self, task: "PageTask", work: Coroutine[object, object, None]) -> None:
        """Continue with a job outside the pool; it still occupies its slot."""
        fence = task.lease.fence

        def on_done(done: "asyncio.Task[None]") -> None:
            if self._working.get(fence) is done:
                del self._working[fence]
            if not done.cancelled() and isinstance(error := done.exception(), Exception):
                self.failed(task, error)
            self._pool.fill()

        working = self._working[fence] = asyncio.create_task(work)
        working.add_done_callback(on_done)

    def _report(self, task: "PageTask", result: "Outcome") -> None:
        """Keep the result of a job for the next commit, unless its lease was lost."""
        if not self._forget(task):
            return
        now = self._clock.monotonic()
        if not self._results:
            self._first_result_at = now
        self._results.append((task.lease.fence, result))
        self._result_bytes += self._executor.size_of(result)
        if task.started_at:
            seconds = now - task.started_at
            self._job_seconds += (seconds - self._job_seconds) * LEARNED_PART if self._job_seconds else seconds
        self._changed.set()

    def _forget(self, task: "PageTask") -> bool:
        """Forget a job that has ended; return whether it was still ours."""
        self._working.pop(task.lease.fence, None)
        known = self._tasks.pop(task.lease.fence, None) is not None
        if self._suspect is task:
            self._end_suspect()
        return known

    def _end_suspect(self) -> None:
        self._suspect = None
        self._callbacks.alone(None)
        self._pool.end_isolation()

    def _cancel(self, fence: Fence) -> None:
        self._pool.cancel(fence)
        if (working := self._working.pop(fence, None)) is not None:
            working.cancel()

    # Commits

    async def _turn(self) -> None:
        """Settle finished jobs and lease as many new jobs as there is space for, in one commit."""
        if min(self._settle_in_seconds(), self._lease_in_seconds()) > 0:
            return
        want = self._want()
        size = self._split_results()
        try:
            tasks = await self._settle_and_lease(want)
        except ShoalError as error:
            self._results = self._settling + self._results
            self._settling = []
            self._callbacks.error("storing results of page jobs", error)
            await self._clock.sleep(STORE_RETRY_SECONDS)
            return
        self._batch = max(len(self._settling), self._batch // 2)
        self._settling = []
        self._result_bytes -= size
        now = self._clock.monotonic()
        if not self.held:
            self._validity.renew(now)  # only the new leases start now; the parent renews the older ones
        empty = len(tasks) < want and not self._nudged  # after a nudge, a job may have been added since the query
        self._poll_at = now + self._poll_seconds if empty else 0.0
        self._accept(tasks)

    async def _settle_and_lease(self, want: int) -> "list[PageTask]":
        self._nudged, self._hand_back = False, None
        if want:
            self._leased.clear()
        try:
            return await self._executor.settle([result for _, result in self._settling], self._holder, want)
        finally:
            self._leased.set()

    def _accept(self, tasks: "list[PageTask]") -> None:
        """Give leased jobs to the pool (suspects later), or return them if that was requested meanwhile."""
        self._tasks |= {task.lease.fence: task for task in tasks}
        if tasks:
            self._callbacks.leased()  # a job that blocks this loop must not cost the other jobs their leases
        if self._hand_back is not None:
            self._release(tasks, self._hand_back)
            return
        self._suspects.extend(task for task in tasks if task.lease.crash_count)
        self._pool.accept([task for task in tasks if not task.lease.crash_count])

    def _split_results(self) -> int:
        """Select the results for the next commit; return their size in bytes."""
        total = count = 0
        for _, result in self._results:
            size = self._executor.size_of(result)
            if count and total + size > BATCH_BYTES:
                break
            total, count = total + size, count + 1
        self._settling, self._results = self._results[:count], self._results[count:]
        return total

    def _fill(self) -> None:
        """Start the next suspect, if there is one; the pool starts all other jobs."""
        if self._suspects and self._suspect is None and not self.running and self._validity.holds():
            self._suspect = self._suspects.popleft()
            self._callbacks.alone(self._suspect.lease.fence)
            self._pool.isolate(self._suspect)

    def _want(self) -> int:
        """Return how many jobs to lease now."""
        if self._paused or self._leave_at is not None or self._suspects or self._suspect is not None:
            return 0
        if not self._validity.holds() and self.held:
            return 0
        space = self._slots - self._occupied + min(AHEAD_LIMIT, 2 * self._batch)
        if self._rate is not None:  # more jobs would be returned before they start
            space = min(space, max(1, int(AHEAD_SECONDS / 2 * self._rate.per_second)))
        # Jobs that wait for their hosts occupy no slot. So more jobs may be leased, as many as will find a slot in
        # time.
        again = space + self._occupied
        if self._job_seconds:
            again = min(again, int(self._slots * AHEAD_SECONDS / self._job_seconds))
        return max(0, space - self._pool.waiting_for_place - max(0, self._pool.waiting_for_slots - again))

    @property
    def _occupied(self) -> int:
        """Return how many slots have a job, including jobs that wait for the robots.txt of their host."""
        return self.running + self._pool.waiting_for_robots

    def _settle_in_seconds(self) -> float:
        """Return the time until the results must be settled."""
        if not self._results:
            return float("inf")
        if len(self._results) >= BATCH:
            return 0.0
        settle_at = self._first_result_at + BATCH_SECONDS
        is_busy = self.running or self._pool.waiting_for_place or self._suspects
        is_idle = not is_busy and self._pool.first_slot_at() >= settle_at
        return 0.0 if is_idle else settle_at - self._clock.monotonic()

    def _lease_in_seconds(self) -> float:
        """Return the time until jobs are requested; infinite while every slot has a job."""
        if self._pool.waiting_for_place or self._occupied >= self._slots or not self._want():
            return float("inf")
        return self._poll_at - self._clock.monotonic()

    def _check_deadlines(self) -> None:
        """Give up jobs that run too long, and return jobs that waited too long for a slot; return all jobs if the time
        to leave is over."""
        now = self._clock.monotonic()
        if now - self._checked_at < CHECK_EVERY_SECONDS:
            return
        self._checked_at = now
        for task in [task for task in self._tasks.values() if task.started_at]:
            if now - task.started_at > self._stall_seconds:
                self._cancel(task.lease.fence)
                self._forget(task)
                deadline = show_duration(self._queue.settings.stall_deadline)
                self._change_soon(self._queue.recovery.lose(task.lease, f"it did not end within {deadline}", STALLED))
        if not self._finish_first:
            stale = {task.seq for task in self._pool.queued() if now - task.slot_at > AHEAD_SECONDS}
            self._release(self._pool.withdraw(stale) if stale else [], "no_slot")
            if self._leave_at is not None and now > self._leave_at:
                left = list(self._tasks.values())
                for task in left:
                    self._cancel(task.lease.fence)
                self._release(left, "shutdown")

    def _release(self, tasks: "Sequence[PageTask]", reason: str) -> None:
        for task in tasks:
            if self._forget(task):
                self._change_soon(self._release_after_lease(task.lease, reason))

    async def _release_after_lease(self, lease: Lease, reason: str) -> None:
        await self._leased.wait()  # otherwise the commit under way could lease the job again
        await self._queue.release(lease, reason)

    def _change_soon(self, change: Awaitable[object]) -> None:
        """Carry out a change of a job in the background."""

        async def apply() -> None:
            try:
                await change
            except LeaseLost:
                return
            except ShoalError as error:
                self._callbacks.error("storing the result of a page job", error)  # the job's lease expires

        def on_done(task: asyncio.Task[None]) -> None:
            self._changes.discard(task)
            self._changed.set()

        task = asyncio.create_task(apply())
        self._changes.add(task)
        task.add_done_callback(on_done)

    async def _rest(self) -> None:
        """Wait until a job finishes, or until it is time to settle, to lease or to check the deadlines."""
        seconds = min(self._settle_in_seconds(), self._lease_in_seconds(), CHECK_SECONDS)
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        else:
            await self._clock.sleep(0)  # let tasks that are ready run first
        self._changed.clear()
