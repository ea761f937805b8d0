"""In the child: the loop that keeps its page slots full. It leases jobs in batches, runs them concurrently and settles
them together.

The worker extends the leases. A `JobExecutor` does the work of a job and stores its result.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError, StorageFull
from shoal.base.parsing import show_duration
from shoal.hosts.rate import FetchRate, changed
from shoal.queue.job import Fence, Lease
from shoal.queue.queue import Queue
from shoal.queue.states import STALLED
from shoal.work.leases import LeaseValidity

R = TypeVar("R")

BATCH = 100  # results that are settled at once, however recent the last commit was
BATCH_SECONDS = 0.05  # the longest that a result waits for others while jobs are running
AHEAD_LIMIT = 500  # jobs that may be held beyond the slots
AHEAD_SECONDS = 2.0  # a job that could not start for this long is handed back: another worker may have a free slot
LEARNED_PART = 0.1  # by which the last job changes the average duration
STORE_RETRY_SECONDS = 0.5  # after a commit that did not reach the store
LEAVE_SECONDS = 2.0  # for jobs that are running when it is time to leave
CHECK_SECONDS = 1.0  # the longest time between two checks for overdue jobs


def holder_of(worker: str, pid: int) -> str:
    """The name under which a page child holds its leases. Its parent can compute it even after the child has died."""
    return f"{worker}/pages/{pid}"


class JobExecutor(Protocol[R]):
    """Runs single page jobs, settles many at once and leases the next ones. Used from one event loop only."""

    async def run(self, lease: Lease) -> R:
        """Run one job; the result carries its lease. A problem with the page is part of the result; an exception counts
        as a failed attempt. May be cancelled at any time, and then leaves nothing behind."""
        ...

    async def settle(self, results: Sequence[R], holder: str, want: int) -> list[Lease]:
        """In one commit: store the results, end or return their jobs, and lease up to `want` more for `holder`. A
        result whose lease was lost is dropped; the others count. If the store fails, nothing is stored and the same
        results are passed again. Without results it only leases; with `want` 0 it only settles."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class PageJobLoop(Generic[R]):
    """Keeps the slots full. The faster jobs finish, the more are leased ahead, so that each commit covers more of them.

    `on_leased` is called after every lease. A job that lost a worker before (a suspect) runs by itself, and `on_alone`
    is called with its fence before and with None after: if it kills the process, no other job is blamed.
    """

    def __init__(
        self,
        executor: JobExecutor[R],
        queue: Queue,
        slots: int,
        holder: str,
        clock: Clock,
        on_leased: Callable[[], None],
        on_alone: Callable[[Fence | None], None],
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._executor = executor
        self._queue = queue
        self._poll_seconds = queue.settings.poll_every.total_seconds()
        self._stall_seconds = queue.settings.stall_deadline.total_seconds()
        self._slots = slots
        self._holder = holder
        self._clock = clock
        self._on_leased = on_leased
        self._on_alone = on_alone
        self._on_error = on_error
        self._running: dict[Fence, asyncio.Task[None]] = {}
        self._started_at: dict[Fence, float] = {}
        self._ahead: deque[tuple[float, Lease]] = deque()  # with the time since when each could start
        self._waiting: list[tuple[float, Lease]] = []  # with the time at which each may start, earliest first
        self._suspects: deque[Lease] = deque()
        self._suspect: Fence | None = None  # the one that is running
        self._results: list[tuple[Fence, R]] = []
        self._settling: list[tuple[Fence, R]] = []  # in the commit that is under way
        self._first_result_at = 0.0
        self._changed = asyncio.Event()
        self._validity = LeaseValidity(queue.settings.lease, clock)
        self._batch = 0  # how many results the last commit settled
        self._job_seconds = 0.0  # how long a job occupies a slot, on average over the last ones
        self._poll_at = 0.0  # when to ask for jobs even without a nudge
        self._nudged = False  # since the last request for jobs
        self._paused = False
        self._is_leasing = False  # a commit that may lease is under way
        self._leave_at: float | None = None
        self._finish_first = False
        self._changes: set[asyncio.Task[None]] = set()  # changes of single jobs, such as a failed attempt
        self._stalled: set[Fence] = set()
        self._rate: FetchRate | None = None

    async def run(self) -> None:
        """Work until `leave` was called and nothing is in hand."""
        while True:
            await self._turn()
            self._fill()
            self._check_deadlines()
            if self._leave_at is not None and not (self.held or self._changes):
                return
            await self._rest()

    @property
    def held(self) -> list[Fence]:
        """All jobs leased to us, including finished ones that are not stored yet: a slow commit must not cost them
        their leases."""
        unsettled = [fence for fence, _ in (*self._settling, *self._results)]
        unstarted = [lease.fence for _, lease in (*self._ahead, *self._waiting)]
        return [*unsettled, *self._running, *unstarted, *(lease.fence for lease in self._suspects)]

    @property
    def is_changing(self) -> bool:
        """Return whether a commit is under way that may lease jobs or hand them back."""
        return self._is_leasing or bool(self._changes)

    def nudge(self) -> None:
        """Ask for jobs now: one may be waiting."""
        self._poll_at = 0.0
        self._nudged = True
        self._changed.set()

    def configure(self, slots: int, *, leasing: bool) -> None:
        """Run up to `slots` jobs at once, and lease more only if `leasing`. Jobs that are running always finish."""
        self._slots = slots
        self._paused = not leasing
        self.nudge()

    def limit_rate(self, per_second: float | None) -> None:
        """Start at most this many jobs per second; None: unlimited."""
        self._rate = changed(self._rate, per_second, self._clock)
        self.nudge()

    def renewed(self) -> None:
        self._validity.renew()

    def drop(self, lost: Sequence[Fence]) -> None:
        """Cancel and forget these jobs: their leases are lost."""
        gone = set(lost)
        for fence in gone & self._running.keys():
            self._running[fence].cancel()
        self._ahead = deque(entry for entry in self._ahead if entry[1].fence not in gone)
        self._waiting = [entry for entry in self._waiting if entry[1].fence not in gone]
        self._suspects = deque(lease for lease in self._suspects if lease.fence not in gone)

    def hand_back(self, reason: str) -> None:
        """Hand back the jobs that have not started."""
        unstarted = [lease for _, lease in (*self._ahead, *self._waiting)]
        self._release([*unstarted, *self._suspects], reason)
        self._ahead.clear()
        self._waiting.clear()
        self._suspects.clear()
        self._changed.set()

    def leave(self, *, finish_first: bool) -> None:
        """Lease nothing more and end. If `finish_first`, all jobs in hand finish first; otherwise running jobs have a
        moment to finish, and the rest are handed back."""
        self._finish_first = finish_first
        if self._leave_at is None:
            self._leave_at = self._clock.monotonic() + LEAVE_SECONDS
        if not finish_first:
            self.hand_back("shutdown")
        self._changed.set()

    async def _turn(self) -> None:
        """Settle what has finished and lease as many jobs as there is space for, in one commit."""
        if min(self._settle_in_seconds(), self._lease_in_seconds()) > 0:
            return
        want = self._want()
        self._settling, self._results = self._results, []
        settled = len(self._settling)
        self._nudged = False
        self._is_leasing = want > 0
        try:
            leases = await self._executor.settle([result for _, result in self._settling], self._holder, want)
        except ShoalError as error:
            self._is_leasing = False
            self._results = self._settling + self._results
            self._settling = []
            self._on_error("storing results of page jobs", error)
            await self._clock.sleep(STORE_RETRY_SECONDS)
            return
        self._is_leasing = False
        self._settling = []
        now = self._clock.monotonic()
        if not self.held:
            self._validity.renew(now)  # these leases are new; only our parent knows about older ones
        self._batch = max(settled, self._batch // 2)
        empty = len(leases) < want and not self._nudged  # a job may have been added after the store was asked
        self._poll_at = now + self._poll_seconds if empty else 0.0
        for lease in leases:
            if lease.crash_count:
                self._suspects.append(lease)
            elif lease.start_in_seconds > 0:
                self._waiting.append((now + lease.start_in_seconds, lease))
            else:
                self._ahead.append((now, lease))
        self._waiting.sort(key=itemgetter(0))
        if leases:
            self._on_leased()  # before any of them starts: one that blocks this loop must not cost them their leases

    def _want(self) -> int:
        """Return how many jobs to lease now."""
        if self._paused or self._leave_at is not None or self._suspects or self._suspect is not None:
            return 0
        if not self._validity.holds() and self.held:
            return 0
        free = self._slots - len(self._running)
        space = free + min(AHEAD_LIMIT, 2 * self._batch)
        if self._rate is not None:  # others would be handed back before they start
            space = min(space, max(1, int(AHEAD_SECONDS / 2 * self._rate.per_second)))
        # As many again may wait for their hosts, where they occupy no slot, if slots become free for them in time.
        again = space + len(self._running)
        if self._job_seconds:
            again = min(again, int(self._slots * AHEAD_SECONDS / self._job_seconds))
        return max(0, space - len(self._ahead) - max(0, len(self._waiting) - again))

    def _settle_in_seconds(self) -> float:
        """Return the time until the results must be settled."""
        if not self._results:
            return float("inf")
        settle_at = self._first_result_at + BATCH_SECONDS
        starts_soon = bool(self._waiting) and self._waiting[0][0] < settle_at
        idle = not (self._running or self._ahead or self._suspects or starts_soon)
        if idle or len(self._results) >= BATCH:
            return 0.0
        return settle_at - self._clock.monotonic()

    def _lease_in_seconds(self) -> float:
        """Return the time until jobs are requested; infinite while every slot has one."""
        if self._ahead or len(self._running) >= self._slots or not self._want():
            return float("inf")
        return self._poll_at - self._clock.monotonic()

    def _fill(self) -> None:
        """Start jobs in the free slots."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            self._ahead.append(self._waiting.pop(0))
        if self._suspect is not None or not self._validity.holds():
            return
        if self._suspects:
            if not self._running:
                lease = self._suspects.popleft()
                self._suspect = lease.fence
                self._on_alone(lease.fence)
                self._start(lease)
            return
        while self._ahead and len(self._running) < self._slots and self._start_in_seconds() <= 0:
            self._start(self._ahead.popleft()[1])

    def _start_in_seconds(self) -> float:
        """Return the time until the rate limit allows the next start."""
        return 0.0 if self._rate is None else self._rate.seconds_left()

    def _start(self, lease: Lease) -> None:
        if self._rate is not None:
            self._rate.spend()
        self._running[lease.fence] = asyncio.create_task(self._run_job(lease))
        self._started_at[lease.fence] = self._clock.monotonic()

    async def _run_job(self, lease: Lease) -> None:
        try:
            result = await self._executor.run(lease)
        except asyncio.CancelledError:
            if lease.fence in self._stalled:
                self._stalled.discard(lease.fence)
                deadline = show_duration(self._queue.settings.stall_deadline)
                self._change_soon(self._queue.recovery.lose(lease, f"it did not end within {deadline}", STALLED))
            elif self._leave_at is not None:
                self._release([lease], "shutdown")
        except (BackendUnavailable, StorageFull) as error:  # trouble of the store, not of the job
            self._on_error("running a page job", error)
            self._release([lease], error.code)
        except Exception as error:
            reason = (
                f"{error.code}: {error.message}"
                if isinstance(error, ShoalError)
                else f"{type(error).__name__}: {error}"
            )
            self._change_soon(self._queue.fail(lease, reason))
        else:
            if not self._results:
                self._first_result_at = self._clock.monotonic()
            self._results.append((lease.fence, result))
            seconds = self._clock.monotonic() - self._started_at[lease.fence]
            self._job_seconds += (seconds - self._job_seconds) * LEARNED_PART if self._job_seconds else seconds
        self._running.pop(lease.fence, None)
        self._started_at.pop(lease.fence, None)
        if self._suspect == lease.fence:
            self._suspect = None
            self._on_alone(None)
        self._fill()
        self._changed.set()

    def _check_deadlines(self) -> None:
        """Cancel jobs that run too long, hand back those that waited too long for a slot, and all if time is up."""
        now = self._clock.monotonic()
        for fence, started_at in self._started_at.items():
            if now - started_at > self._stall_seconds:
                self._stalled.add(fence)
                self._running[fence].cancel()
        stale: list[Lease] = []
        while self._ahead and now - self._ahead[0][0] > AHEAD_SECONDS and not self._finish_first:
            stale.append(self._ahead.popleft()[1])
        self._release(stale, "no_slot")
        if self._leave_at is not None and not self._finish_first and now > self._leave_at:
            for task in list(self._running.values()):
                task.cancel()

    def _release(self, leases: Sequence[Lease], reason: str) -> None:
        for lease in leases:
            self._change_soon(self._queue.release(lease, reason))

    def _change_soon(self, change: Awaitable[object]) -> None:
        """Change a job in the background."""

        async def apply() -> None:
            try:
                await change
            except LeaseLost:
                return
            except ShoalError as error:
                self._on_error("storing the result of a page job", error)  # its lease expires

        def on_done(task: asyncio.Task[None]) -> None:
            self._changes.discard(task)
            self._changed.set()

        task = asyncio.create_task(apply())
        self._changes.add(task)
        task.add_done_callback(on_done)

    async def _rest(self) -> None:
        """Wait until something finishes, or it is time to settle, lease, start a job or check the deadlines."""
        start_in_seconds = self._waiting[0][0] - self._clock.monotonic() if self._waiting else CHECK_SECONDS
        if self._ahead and self._rate is not None and len(self._running) < self._slots:
            start_in_seconds = min(start_in_seconds, self._start_in_seconds())
        seconds = min(self._settle_in_seconds(), self._lease_in_seconds(), start_in_seconds, CHECK_SECONDS)
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        else:
            await self._clock.sleep(0)  # let tasks that are ready run first
        self._changed.clear()
