"""The worker: leases jobs for its children, keeps the leases alive, and can be paused, resized, drained and stopped."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from traceback import extract_tb

from shoal.base.errors import InvalidInput
from shoal.base.parsing import show_duration
from shoal.base.signals import Signal
from shoal.queue.job import Fence
from shoal.queue.queue import Queue
from shoal.queue.wake import Wake
from shoal.work.child_handle import ChildProcess
from shoal.work.child_pool import RunChildren
from shoal.work.leases import LeaseHeartbeat
from shoal.work.page_child import PageChild
from shoal.work.worker_context import RecentTasks, WorkerContext

RESTART_TIMEOUT = timedelta(minutes=1)  # limit for the restart of all children's browsers
KILL_TIMEOUT = timedelta(seconds=5)  # limit for returning the jobs of children that were killed at the end
KILL_PART = 1 / 6  # share of the grace period that applies if it is shorter


class WorkerStarted(Signal, frozen=True, kw_only=True):
    node_id: str
    queue_name: str
    worker_concurrency: int
    worker_job_attempts: int
    worker_backoff_ms: int
    connections: str


class WorkerStopped(Signal, frozen=True, kw_only=True):
    node_id: str


class WorkerFailed(Signal, frozen=True, kw_only=True):
    """An unexpected error ended a worker. Its jobs were returned, or their leases will expire."""

    node_id: str
    where: str
    error: str
    retry_in_seconds: float


class WorkerDisplaced(Signal, frozen=True, kw_only=True):
    """A worker stops because a different worker has registered with the same node id."""

    node_id: str
    error: str


class WorkerState(StrEnum):
    RUNNING = "running"  # leases jobs
    PAUSED = "paused"  # leases nothing; held jobs continue
    DRAINING = "draining"  # leases nothing; runs are returned, page jobs finish
    DRAINED = "drained"  # leases nothing, and holds nothing
    STOPPING = "stopping"  # will exit


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The status of a worker: its running jobs, the maximum number of jobs, and its browsers and their pages."""

    state: WorkerState
    active_runs: int
    active_pages: int
    run_capacity: int
    page_capacity: int
    browsers: int
    browser_pages: int

    @property
    def active(self) -> int:
        return self.active_runs + self.active_pages

    @property
    def capacity(self) -> int:
        return self.run_capacity + self.page_capacity


class Worker:
    """One node. `heartbeat_queue` is a queue with a separate connection; without it, heartbeats share the connection of
    the context."""

    def __init__(
        self, context: WorkerContext, wake: Wake, *, heartbeat_queue: Queue | None = None, with_pages: bool = True
    ) -> None:
        self._context = context
        self._wake = wake
        self._heartbeat_queue = heartbeat_queue
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopping_at = 0.0  # time of the first request to stop
        self._interrupted = False
        self._paused = False
        self._draining = False
        self._rate: float | None = None
        self.tasks = RecentTasks(context.clock)
        self._runs = RunChildren(context, self._on_free, self.tasks, on_start=self._share_rate)
        self._pages = PageChild(context, self._share_rate, self.tasks) if with_pages else None
        self._pools: list[RunChildren | PageChild] = [self._runs]
        self._pools += [] if self._pages is None else [self._pages]
        self._heartbeat = LeaseHeartbeat(
            heartbeat_queue or context.queue, context.clock, self._pools, context.report_error
        )

    @property
    def node_id(self) -> str:
        return self._context.node_id

    @property
    def full_storage(self) -> Mapping[str, str]:
        """Each storage without space, with a sentence about it. Jobs that need it are not leased."""
        return self._context.storage.full

    @property
    def is_leasing(self) -> bool:
        return not (self._paused or self._draining or self._stopping.is_set())

    @property
    def status(self) -> WorkerStatus:
        if self._stopping.is_set():
            state = WorkerState.STOPPING
        elif self._draining:
            drained = all(pool.is_drained for pool in self._pools)
            state = WorkerState.DRAINED if drained else WorkerState.DRAINING
        else:
            state = WorkerState.PAUSED if self._paused else WorkerState.RUNNING
        return WorkerStatus(
            state=state,
            active_runs=self._runs.active,
            active_pages=0 if self._pages is None else self._pages.active,
            run_capacity=self._runs.capacity,
            page_capacity=0 if self._pages is None else self._pages.capacity,
            browsers=sum(child.browsers.count for child in self._children()),
            browser_pages=sum(child.browsers.pages for child in self._children()),
        )

    def successor(self) -> "Worker":
        """Create a worker in the same context, to replace this one after it has failed. The new worker keeps the size
        of this one, and starts paused if this worker was not leasing."""
        successor = Worker(
            self._context, self._wake, heartbeat_queue=self._heartbeat_queue, with_pages=self._pages is not None
        )
        successor.resize(runs=self._runs.capacity, pages=None if self._pages is None else self._pages.capacity)
        if self._paused:
            successor.pause()
        successor._draining = self._draining
        successor.set_rate(self._rate)
        return successor

    def report_failed(self, error: Exception, retry_in_seconds: float) -> None:
        frame = extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        self._context.signals.emit(
            WorkerFailed(node_id=self.node_id, where=where, error=repr(error), retry_in_seconds=retry_in_seconds)
        )

    async def run(self) -> None:
        """Work until `stop` is called; then return the held jobs to the queue, and end."""
        queue = self._context.queue.settings
        self._context.signals.emit(
            WorkerStarted(
                node_id=self.node_id,
                queue_name=self._context.lanes[0],
                worker_concurrency=self._runs.capacity,
                worker_job_attempts=queue.job_attempts,
                worker_backoff_ms=int(queue.backoff.total_seconds() * 1000),
                connections=self._context.connections,
            )
        )
        unsubscribe = self._wake.subscribe(self._on_wake, lambda: not self._stopping.is_set())
        services = [self._lease(), self._heartbeat.run(), *(pool.watch() for pool in self._pools)]
        services += [] if self._pages is None else [self._pages.run()]
        tasks = [asyncio.create_task(service) for service in services]
        for task in tasks:
            task.add_done_callback(self._on_service_ended)
        try:
            await self._stopping.wait()
            await self._shut_down(leasing=tasks[0])
        finally:
            unsubscribe()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for pool in self._pools:
                await pool.end()
            self._context.signals.emit(WorkerStopped(node_id=self.node_id))
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """Lease nothing more and shut down; a second call does not wait for the held jobs."""
        if self._stopping.is_set():
            self._interrupted = True  # also applies to jobs that are being leased at this moment
            self._kill()
        self._begin_to_stop()

    def stop_once(self) -> None:
        """Lease nothing more and shut down, unless the worker is already shutting down."""
        if not self._stopping.is_set():
            self.stop()

    def pause(self) -> None:
        """Lease nothing more until `resume`; the held jobs continue. A worker that is draining continues to
        drain."""
        self._paused = True
        for pool in self._pools:
            pool.pause()

    def resume(self) -> None:
        """Lease jobs again after `pause` or `drain`. Runs that were asked to return their jobs still return them."""
        self._paused = self._draining = False
        for pool in self._pools:
            pool.resume()
        self._woken.set()

    def resize(self, *, runs: int | None = None, pages: int | None = None, hand_back: bool = False) -> None:
        """Change how many runs and page jobs run at the same time; None keeps the current number. Surplus
        jobs finish first. With `hand_back`, surplus runs and page jobs that have not started are returned instead."""
        for name, size in (("runs", runs), ("pages", pages)):
            if size is not None and size < 1:
                raise InvalidInput(name, f"is {size}", "use at least 1, or pause the worker")
        if runs is not None:
            self._runs.resize(runs, hand_back=hand_back)
        if pages is not None and self._pages is not None:
            self._pages.resize(pages, hand_back=hand_back)
        self._woken.set()

    @property
    def rate(self) -> float | None:
        """Fetches per second that the worker may start; None: unlimited."""
        return self._rate

    def set_rate(self, per_second: float | None) -> None:
        """Start at most this many fetches per second in all children together; None: unlimited. robots.txt files do not
        count."""
        if per_second is not None and not 0 < per_second < float("inf"):
            raise InvalidInput("rate_limit", f"is {per_second}", "use more than 0 pages per second")
        self._rate = per_second
        if per_second is None:
            for pool in self._pools:
                pool.limit_rate(None)
        self._share_rate()

    async def restart_browsers(self) -> list[str]:
        """Replace the browsers of all children, wait until that is done, and return the errors of children where it
        failed. Page jobs whose pages are in a browser are returned first; pages of crawls start again in the new
        browser. No attempt is counted."""
        children = [child for child in self._children() if child.browsers.count]
        try:
            async with asyncio.timeout(RESTART_TIMEOUT.total_seconds()):
                problems = await asyncio.gather(*(child.restart_browsers() for child in children))
        except TimeoutError:
            return [f"a browser did not restart within {show_duration(RESTART_TIMEOUT)}"]
        return [problem for problem in problems if problem]

    def _children(self) -> list[ChildProcess]:
        return [child for pool in self._pools for child in pool.children()]

    def held(self) -> list[Fence]:
        """Return the held jobs."""
        return [fence for pool in self._pools for fence in pool.fences()]

    async def drain(self, deadline: timedelta) -> bool:
        """Lease nothing more, return runs, let page jobs finish, and wait until no job is held.

        Return whether the worker is drained: False if the deadline has passed or `resume` was called meanwhile. After
        the deadline, the worker continues to drain. The process stays, and `resume` makes it lease jobs again.
        """
        self._paused = self._draining = True
        for pool in self._pools:
            pool.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline.total_seconds()):
                for pool in self._pools:
                    await pool.drained()
        return all(pool.is_drained for pool in self._pools)

    def _on_free(self) -> None:
        self._woken.set()
        self._share_rate()

    def _share_rate(self) -> None:
        """Divide the rate limit among the children that fetch pages. An idle page child gets the same share as a busy
        one, because it may lease jobs before the worker knows about them."""
        if self._rate is not None:
            fetching = sum(pool.fetching for pool in self._pools)
            for pool in self._pools:
                pool.limit_rate(self._rate / (fetching if pool.fetching else fetching + 1))

    def _on_wake(self) -> None:
        self._woken.set()
        if self._pages is not None:
            self._pages.nudge(pass_on=not self._wake.is_shared)

    def _on_service_ended(self, service: "asyncio.Task[None]") -> None:
        """Shut down if a service failed: without heartbeats or a watch, the worker cannot do its work."""
        if not service.cancelled() and service.exception() is not None:
            self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping_at = self._context.clock.monotonic()
        self._stopping.set()
        self._woken.set()

    async def _lease(self) -> None:
        """Keep the children busy until the worker stops."""
        await self._runs.warm_up()  # before the first lease, which would otherwise start a second child
        while not self._stopping.is_set():
            await self._runs.lease_more()
            await self._rest()

    async def _rest(self) -> None:
        """Wait until a child is free or a job may be waiting, at most for the polling interval. The interval varies
        randomly, so that idle workers do not all poll at the same time."""
        longest_seconds = self._context.queue.settings.poll_every.total_seconds()
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_seconds * random.uniform(0.75, 1)):
                await self._woken.wait()
        self._woken.clear()

    async def _shut_down(self, leasing: "asyncio.Task[None]") -> None:
        """Ask every child to return its job, wait for the grace period, then kill the children, so that all jobs are
        returned when the grace period ends. With an infinite grace period, the jobs finish. Jobs that are still being
        leased are returned, too."""
        grace = self._context.settings.shutdown_grace
        finish_first = grace == timedelta.max
        for pool in self._pools:
            pool.leave(finish_first=finish_first)
        if finish_first and not self._interrupted:
            await self._wait_until_settled(leasing, None)
        elif not self._interrupted:
            passed = timedelta(seconds=self._context.clock.monotonic() - self._stopping_at)
            await self._wait_until_settled(leasing, grace - passed - min(KILL_TIMEOUT, grace * KILL_PART))
        self._kill()
        await self._wait_until_settled(leasing, KILL_TIMEOUT)

    async def _wait_until_settled(self, leasing: "asyncio.Task[None]", longest: timedelta | None) -> None:
        async def settled() -> None:
            await asyncio.wait({leasing})
            for pool in self._pools:
                await pool.settled()

        waiting = asyncio.create_task(settled())
        await asyncio.wait({waiting}, timeout=None if longest is None else max(0.0, longest.total_seconds()))
        waiting.cancel()

    def _kill(self) -> None:
        for pool in self._pools:
            pool.kill()
