"""Code that runs in the worker: runs crawls and analyses, each in its own child, which is reused for the next job."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from shoal.base.errors import LeaseLost, ShoalError
from shoal.base.parsing import show_duration
from shoal.queue.job import Extended, Fence, Lease
from shoal.queue.states import STALLED, WORKER_LOST
from shoal.work.child_handle import ChildProcess, KillReason
from shoal.work.ipc import (
    HANDED_BACK,
    LEASE_LOST,
    STORAGE_FULL,
    STORE_AWAY,
    Done,
    Full,
    HandBack,
    LimitRate,
    Renewed,
    Report,
    Start,
)
from shoal.work.worker_context import RecentTasks, WorkerContext

RETRY_AFTER = timedelta(
    seconds=1
)  # pause before the next child after a failed start, and before the next try to return a job
ROLE = "runs"
FETCHING = "crawl"  # the kind of runs that fetch pages


@dataclass(slots=True)
class RunChild:
    """A leased job and the child that runs it."""

    lease: Lease
    child: ChildProcess
    started_at: float
    lease_in_doubt: bool = False
    leaving: bool = False

    def hand_back(self, reason: str) -> None:
        """Ask the child to return the job to the queue."""
        self.leaving = True
        self.child.send(HandBack(reason))


class RunChildren:
    """Leases runs up to the concurrency and manages their children. `on_start` is called when a job has been given to a
    child, `on_free` when the job has ended."""

    def __init__(
        self,
        context: WorkerContext,
        on_free: Callable[[], None],
        tasks: RecentTasks | None = None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._on_free = on_free
        self._on_start = on_start
        self._tasks = tasks or RecentTasks(context.clock)
        self._concurrency = context.settings.concurrency
        # By fence, because a job may be leased again before its previous child has been cleaned up.
        self._active: dict[Fence, RunChild] = {}
        self._idle: list[ChildProcess] = []
        self._supervising: set[asyncio.Task[None]] = set()
        self._discarded: set[asyncio.Task[str]] = set()
        self._changed = asyncio.Event()
        self._is_leasing = False  # a lease request is under way
        self._paused = False
        self._hand_back_excess = False  # return jobs beyond the concurrency instead of letting them finish
        self._hand_back: str | None = None  # why jobs that are leased from now on are returned immediately
        self._stopping = False

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def capacity(self) -> int:
        return self._concurrency

    @property
    def free(self) -> int:
        """Return how many more jobs may be leased now."""
        return 0 if self._stopping or self._paused else max(0, self._concurrency - len(self._active))

    async def lease_more(self) -> None:
        context = self._context
        kinds = [kind for kind in context.kinds if context.storage.allows(kind)]
        if self.free <= 0 or not kinds:
            return
        self._is_leasing = True
        try:
            leases = await context.queue.lease(context.holder, kinds, list(context.lanes), self.free)
            for lease in leases:
                await self._start(lease)
        except ShoalError as error:
            context.report_error("leasing", error)
        finally:
            self._is_leasing = False
            self._changed.set()

    async def warm_up(self) -> None:
        """Start a child before the first job, so that the child has loaded its code and opened its store when the job
        comes."""
        try:
            self._idle.append(await self._spawn())
        except OSError as error:  # no more processes or files: the first job tries again
            self._context.report_gone(str(error))

    async def watch(self) -> None:
        """Kill children that are silent or whose job has stalled. Never waits for the store, because such a child may
        be the process that blocks the store."""
        longest_silence = self._context.settings.child_silence
        stall_deadline = self._context.queue.settings.stall_deadline
        stalled = f"made no progress for {show_duration(stall_deadline)} although work was due"
        while True:
            await self._context.clock.sleep(min(longest_silence, stall_deadline).total_seconds() / 4)
            for run in list(self._active.values()):
                if run.child.status.stalled_seconds > stall_deadline.total_seconds():
                    run.child.kill(KillReason.STALLED, stalled)
                else:
                    run.child.kill_if_silent(longest_silence)

    def fences(self) -> list[Fence]:
        return list(self._active)

    def on_extended(self, requested: Sequence[Fence], result: Extended) -> None:
        kept = set(result.kept)
        for run in [self._active[fence] for fence in requested if fence in self._active]:
            if run.lease.fence in result.to_kill:
                run.child.kill(KillReason.FORCED)
            elif run.lease.fence in kept:
                run.child.send(Renewed())
            elif run.lease_in_doubt:
                run.child.kill(KillReason.TAKEN)
            else:
                run.lease_in_doubt = True  # the job may have just ended, and the child's message may be on its way

    def pause(self) -> None:
        """Lease nothing more until `resume`; the held jobs continue."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._hand_back = None
        self._changed.set()

    def resize(self, concurrency: int, *, hand_back: bool = False) -> None:
        """Change how many jobs run at the same time. Surplus jobs finish first; with `hand_back`, the newest jobs are
        returned to the queue instead."""
        self._concurrency = concurrency
        self._hand_back_excess = hand_back
        self._apply_size()
        while self._idle and len(self._idle) + len(self._active) > concurrency:
            self._discard(self._idle.pop())

    @property
    def fetching(self) -> int:
        """Return how many children fetch pages."""
        return sum(run.lease.kind == FETCHING for run in self._active.values())

    def limit_rate(self, per_second: float | None) -> None:
        """Let each child that fetches pages start at most this many fetches per second; None: unlimited."""
        for run in self._active.values():
            if run.lease.kind == FETCHING:
                run.child.send(LimitRate(per_second))

    def children(self) -> list[ChildProcess]:
        """Return the children that have a job."""
        return [run.child for run in self._active.values()]

    def drain(self) -> None:
        """Lease nothing more, and return every job."""
        self._paused = True
        self._hand_back = "draining"
        for run in self._active.values():
            run.hand_back(self._hand_back)

    @property
    def is_drained(self) -> bool:
        return self._paused and not (self._is_leasing or self._active)

    async def drained(self) -> None:
        """Wait until no job is held, or leasing has been resumed."""
        while self._paused and not self.is_drained:
            self._changed.clear()
            await self._changed.wait()

    def leave(self, *, finish_first: bool) -> None:
        """Lease nothing more; ask every child to return its job, or let them finish if `finish_first`."""
        self._stopping = True
        self._hand_back = "shutdown"
        if not finish_first:
            for run in self._active.values():
                run.hand_back("shutdown")

    def kill(self) -> None:
        for run in self._active.values():
            run.child.kill(KillReason.SHUTDOWN)

    async def settled(self) -> None:
        """Wait until no job is held."""
        while self._supervising:
            await asyncio.wait(set(self._supervising))

    async def end(self) -> None:
        """Kill all children and wait for their exit."""
        for task in self._supervising:
            task.cancel()
        await asyncio.gather(*self._supervising, return_exceptions=True)
        children = [*self._idle, *(run.child for run in self._active.values())]
        for child in children:
            child.kill()
        for child in children:
            await child.wait()
        await asyncio.gather(*self._discarded, return_exceptions=True)

    async def _spawn(self) -> ChildProcess:
        return await self._context.spawner.spawn(ROLE, listener=self._on_report)

    def _on_report(self, report: Report) -> None:
        if isinstance(report, Full):
            self._context.storage.filled(report.storage, report.error)

    async def _start(self, lease: Lease) -> None:
        context = self._context
        if self._stopping:  # the worker began to stop after the job was requested
            await context.settle(context.queue.release(lease, "shutdown"))
            return
        try:
            child = self._take_idle() or await self._spawn()
        except OSError as error:  # no more processes or files: a different worker may be able to run the job
            context.report_gone(str(error))
            await context.settle(context.queue.release(lease, "no_child"))
            return
        run = RunChild(lease, child, context.clock.monotonic())
        self._active[lease.fence] = run
        child.send(Start(lease))
        if self._hand_back is not None:
            run.hand_back(self._hand_back)
        self._apply_size()  # the concurrency may have been reduced while the job was being leased
        self._on_start()
        task = asyncio.create_task(self._supervise(run))
        self._supervising.add(task)
        task.add_done_callback(self._supervising.discard)
        await context.settle(context.queue.began(lease.fence, context.node_id, child.pid, context.config))

    def _apply_size(self) -> None:
        if self._hand_back_excess:
            staying = [run for run in self._active.values() if not run.leaving]
            for run in staying[self._concurrency :]:
                run.hand_back("resized")

    def _take_idle(self) -> ChildProcess | None:
        """Return a child that waits for work, unless it has been silent for half of the permitted time."""
        while self._idle:
            child = self._idle.pop()
            if not child.gone and not child.is_silent(self._context.settings.child_silence / 2):
                return child
            self._discard(child)
        return None

    async def _supervise(self, run: RunChild) -> None:
        """Wait for the child's result and settle the job if the child did not."""
        done = await run.child.result()
        context = self._context
        try:
            if done is None:
                await self._settle_dead(run, await run.child.wait())
            elif done.ending == STORE_AWAY:
                context.report_error("running a job", RuntimeError(done.error))
                await self._release(run.lease, STORE_AWAY)
                await context.clock.sleep(RETRY_AFTER.total_seconds())
            elif done.ending == STORAGE_FULL:
                await self._release(run.lease, STORAGE_FULL)
            elif done.ending == LEASE_LOST:
                await self._release(run.lease, STORE_AWAY)  # in case the job is still ours
            elif done.error is not None:
                await context.settle(context.queue.fail(run.lease, done.error))
        finally:
            self._active.pop(run.lease.fence, None)
            self._reuse(run.child)
            self._changed.set()
            self._record(run, done)
            self._on_free()

    def _record(self, run: RunChild, done: Done | None) -> None:
        """Count the end of a job, unless the job was returned or taken away."""
        seconds = self._context.clock.monotonic() - run.started_at
        if done is None:
            is_fault = run.child.killed in (None, KillReason.SILENT, KillReason.STALLED) and run.child.warm
            self._tasks.record(failed=int(is_fault))
        elif done.ending not in (STORE_AWAY, STORAGE_FULL, LEASE_LOST, HANDED_BACK) and not run.leaving:
            is_done = done.error is None
            self._tasks.record(done=int(is_done), failed=int(not is_done), timed=1, seconds=seconds)

    async def _release(self, lease: Lease, reason: str) -> None:
        """Return a job as soon as the store can be reached. A job that is not returned waits until its lease expires,
        which takes even longer after an outage."""
        while True:
            try:
                await self._context.queue.release(lease, reason)
            except LeaseLost:
                return
            except ShoalError as error:
                self._context.report_error("returning a job", error)
                if self._stopping:
                    return
                await self._context.clock.sleep(RETRY_AFTER.total_seconds())
            else:
                return

    async def _settle_dead(self, run: RunChild, how: str) -> None:
        """Settle the job of a child that died or was killed."""
        context, lease = self._context, run.lease
        if run.child.killed is KillReason.SHUTDOWN:
            await context.settle(context.queue.release(lease, "shutdown"))
        elif run.child.killed is KillReason.FORCED:
            await context.settle(context.queue.cancel(lease, "forced"))
        elif not run.child.warm:
            # If the child could not even start, the job is not to blame: no penalty, and a pause before the next child.
            context.report_gone(f"it {how}")
            await context.settle(context.queue.release(lease, "no_child"))
            await context.clock.sleep(RETRY_AFTER.total_seconds())
        else:
            context.report_lost(run.child.pid, lease, how)
            reason = STALLED if run.child.killed is KillReason.STALLED else WORKER_LOST
            await context.settle(context.queue.recovery.lose(lease, f"its child {how}", reason))

    def _reuse(self, child: ChildProcess) -> None:
        settings = self._context.settings
        exhausted = child.runs >= settings.child_runs or child.status.memory >= settings.child_memory
        excess = len(self._idle) + len(self._active) >= self._concurrency
        if child.gone or exhausted or excess or self._stopping:
            self._discard(child)
        else:
            self._idle.append(child)

    def _discard(self, child: ChildProcess) -> None:
        """Kill a child and wait for its exit in the background, which also removes it from the pid file."""
        child.kill()
        exiting = asyncio.create_task(child.wait())
        self._discarded.add(exiting)
        exiting.add_done_callback(self._discarded.discard)
