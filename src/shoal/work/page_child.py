"""Code that runs in the worker: starts and watches the page child, which leases, runs and settles all page jobs; the
worker extends the child's leases."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from shoal.base.errors import ShoalError
from shoal.pages.page import ResultsTaken
from shoal.queue.job import Extended, Fence
from shoal.queue.moves import JobsMoved
from shoal.queue.states import GrantEnd
from shoal.work.child_handle import ChildProcess, KillReason
from shoal.work.child_pool import RETRY_AFTER
from shoal.work.ipc import Configure, Full, HandBack, Leave, LimitRate, Nudge, Renewed, Report, Status
from shoal.work.page_job_loop import holder_of
from shoal.work.worker_context import RecentTasks, WorkerContext

ROLE = "pages"
KIND = "page"
FAULTS = frozenset({GrantEnd.RETRIED, GrantEnd.FAILED, GrantEnd.CRASHED, GrantEnd.EXPIRED})


class PageChild:
    """The page child of a worker. It is started for the first page job, and replaced when it dies or grows too big.
    `on_change` is called when it begins to fetch, when it holds no more jobs, and when it has started or ended."""

    def __init__(self, context: WorkerContext, on_change: Callable[[], None], tasks: RecentTasks) -> None:
        self._context = context
        self._on_change = on_change
        self._tasks = tasks
        self._slots = context.page_slots
        self._child: ChildProcess | None = None
        self._was_fetching = 0
        self._nudged = asyncio.Event()
        self._gone = asyncio.Event()
        self._gone.set()
        self._changed = asyncio.Event()  # set when the child's leases, its existence or its permission to lease changes
        self._version = 0  # version of the configuration that was last sent to the child
        self._paused = False
        self._stopping = False
        self._finish_first = False

    async def run(self) -> None:
        """Keep a child running while there are page jobs, until `leave`."""
        while True:
            await self._wait_for_job()
            if self._stopping:
                return
            await self._run_child()

    async def watch(self) -> None:
        """Kill the child if it is silent; ask it to finish and exit if it has grown too big."""
        longest_silence = self._context.settings.child_silence
        while True:
            await self._context.clock.sleep(longest_silence.total_seconds() / 4)
            if self._child is None:
                continue
            self._child.kill_if_silent(longest_silence)
            if self._child.status.memory >= self._context.settings.child_memory and not self._stopping:
                self._child.send(Leave(finish_first=True))

    def nudge(self, *, pass_on: bool) -> None:
        """React to a hint that a job may be waiting. With `pass_on`, tell the child, too, because its own hint may come
        later."""
        self._nudged.set()
        if pass_on and self._child is not None:
            self._child.send(Nudge())

    @property
    def active(self) -> int:
        """Return how many page jobs the child holds, running or not."""
        return len(self.fences())

    @property
    def capacity(self) -> int:
        return self._slots

    def fences(self) -> list[Fence]:
        return [] if self._child is None else self._child.status.held

    def on_extended(self, requested: Sequence[Fence], result: Extended) -> None:
        if self._child is not None:
            self._child.send(Renewed(list((set(requested) - set(result.kept)) | result.to_kill)))

    def pause(self) -> None:
        """Lease nothing more until `resume`; the held jobs continue."""
        self._paused = True
        self._configure()

    def resume(self) -> None:
        self._paused = False
        self._configure()
        self._changed.set()
        self._nudged.set()

    def resize(self, slots: int, *, hand_back: bool = False) -> None:
        """Change how many jobs run at the same time. Running jobs always finish; with `hand_back`, jobs that have not
        started are returned now and not only after they have waited too long for a slot."""
        self._slots = slots
        self._configure()
        if hand_back and self._child is not None:
            self._child.send(HandBack("resized"))

    @property
    def fetching(self) -> int:
        """Return how many children fetch pages: 1, or 0 while the child has no job."""
        return int(self.active > 0)

    def limit_rate(self, per_second: float | None) -> None:
        """Let the child start at most this many jobs per second; None: unlimited."""
        if self._child is not None:
            self._child.send(LimitRate(per_second))

    def children(self) -> list[ChildProcess]:
        """Return the running children: one or none."""
        return [] if self._child is None else [self._child]

    def drain(self) -> None:
        """Lease nothing more, return the jobs that have not started, and let the running jobs finish."""
        self.pause()
        if self._child is not None:
            self._child.send(HandBack("draining"))

    @property
    def is_drained(self) -> bool:
        status = None if self._child is None else self._child.status
        is_quiet = status is not None and status.version == self._version and not status.held
        return self._paused and (is_quiet or self._gone.is_set())

    async def drained(self) -> None:
        """Wait until no job is held, or leasing has been resumed."""
        while self._paused and not self.is_drained:
            self._changed.clear()
            await self._changed.wait()

    def leave(self, *, finish_first: bool) -> None:
        """Lease nothing more, and let the child exit: immediately, or after its jobs have finished if
        `finish_first`."""
        self._stopping = True
        self._finish_first = finish_first
        self._nudged.set()
        if self._child is not None:
            self._child.send(Leave(finish_first))

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill(KillReason.SHUTDOWN)

    async def settled(self) -> None:
        await self._gone.wait()

    async def end(self) -> None:
        if self._child is not None:
            self._child.kill()
            await self._child.wait()

    def _configure(self) -> None:
        self._version += 1
        if self._child is not None:
            self._child.send(Configure(self._version, self._slots, leasing=not self._paused))

    async def _wait_for_job(self) -> None:
        """Wait until a page job is due before a child is started: most workers never get a page job, and a child costs
        memory."""
        context = self._context
        while not self._stopping:
            self._nudged.clear()
            try:
                if not self._paused and await context.queue.waits(KIND, context.lanes) and not self._paused:
                    return
            except ShoalError as error:
                context.report_error("looking for page jobs", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(context.queue.settings.poll_every.total_seconds()):
                    await self._nudged.wait()

    async def _run_child(self) -> None:
        context = self._context
        self._gone.clear()
        try:
            child = await context.spawner.spawn(ROLE, context.holder, *context.lanes, listener=self._on_report)
        except OSError as error:
            context.report_gone(str(error))
            self._set_gone()
            await context.clock.sleep(RETRY_AFTER.total_seconds())
            return
        self._child, self._was_fetching = child, 0
        self._configure()
        self._on_change()
        if self._stopping:
            child.send(Leave(self._finish_first))
        try:
            done = await child.result()
            how = await child.wait()
            self._child = None
            if done is None:
                await self._settle_dead(child, how)
        finally:
            child.kill()  # if we were cancelled, the child is still running
            self._child = None
            self._set_gone()
            self._on_change()

    def _on_report(self, report: Report) -> None:
        match report:
            case Full(storage, error):
                self._context.storage.filled(storage, error)
            case JobsMoved(how=how, count=count):
                self._tasks.record(done=count * (how is GrantEnd.DONE), failed=count * (how in FAULTS))
            case ResultsTaken(timed=timed, seconds=seconds):
                self._tasks.record(timed=timed, seconds=seconds)
            case Status():
                self._changed.set()
                if self.fetching != self._was_fetching:
                    self._was_fetching = self.fetching
                    self._on_change()
            case _:
                pass

    def _set_gone(self) -> None:
        self._gone.set()
        self._changed.set()

    async def _settle_dead(self, child: ChildProcess, how: str) -> None:
        """Return the jobs of a child that died. If the child ran one job alone, a crash is counted only for that
        job."""
        context = self._context
        try:
            held = await context.queue.held_by(holder_of(context.holder, child.pid))
        except ShoalError as error:
            context.report_error("returning page jobs", error)  # their leases expire
            held = []
        if child.killed is KillReason.SHUTDOWN:
            responsible, reason = [], "shutdown"
        else:
            responsible, reason = [lease for lease in held if child.alone in (None, lease.fence)], "not_begun"
        for lease in held:
            if lease not in responsible:
                await context.settle(context.queue.release(lease, reason))
        if responsible:
            for lease in responsible:
                context.report_lost(child.pid, lease, how)
            self._tasks.record(failed=len(responsible))
            await context.settle(context.queue.recovery.lose_all(responsible, f"its child {how}"))
        if not child.warm or not held:
            context.report_gone(f"it {how}", had_begun=child.warm)
            await context.clock.sleep(RETRY_AFTER.total_seconds())
