"""Code that runs in the child: the child gets its work over stdin, reports over stdout, and ends with the worker that
started it."""

import asyncio
import os
import resource
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError, StorageFull
from shoal.base.machine import NO_SPACE
from shoal.base.settings import QueueSettings
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.transitions import CrawlEnded, CrawlMoved
from shoal.crawl.states import TERMINAL
from shoal.queue.job import Lease, node_of
from shoal.queue.moves import JobMoved, JobsMoved
from shoal.queue.queue import Queue
from shoal.web.renderer import LocalBrowsers
from shoal.work.ipc import (
    LEASE_LOST,
    LEFT,
    STORAGE_FULL,
    STORE_AWAY,
    Alone,
    Browsers,
    BrowsersRestarted,
    Configure,
    Done,
    Full,
    HandBack,
    Leave,
    LimitRate,
    Nudge,
    Order,
    Relayed,
    Renewed,
    Report,
    RestartBrowsers,
    Start,
    Status,
    encode,
    orders,
)
from shoal.work.leases import LeaseValidity
from shoal.work.page_job_loop import LoopCallbacks, PageJobLoop
from shoal.work.worker_context import StoreOutOfReach

if TYPE_CHECKING:
    from shoal.page_jobs.executor import PageJobExecutor

TICK_SECONDS = 0.5


class ChildRefused(Signal, frozen=True, kw_only=True):
    """A child that cannot work reports why and exits; its parent starts a new child after a while."""

    pid: int
    error: str


class ChildRole(Protocol):
    """The role of a child: run one job after the other, or keep page jobs running."""

    def obey(self, order: Order) -> None: ...

    def status(self) -> Status: ...

    def cancel(self) -> None:
        """Stop immediately; the worker is gone."""
        ...


class Child:
    """Serves the worker: obeys it until the end of stdin, and reports at regular intervals."""

    def __init__(
        self, role: ChildRole, settings: QueueSettings, clock: Clock, signals: Signals, browsers: LocalBrowsers
    ) -> None:
        signals.subscribe(_relay)
        self._role = role
        self._clock = clock
        self._tick_seconds = min(TICK_SECONDS, settings.extend_every.total_seconds() / 2)
        self._browsers = browsers
        self._reported_browsers = Browsers(0, 0)
        self._restarting: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        reader = await _stdin()
        ticking = asyncio.create_task(self._tick())
        try:
            while line := await reader.readline():
                self._obey(orders.decode(line))
        finally:
            ticking.cancel()
            self._role.cancel()

    def _obey(self, order: Order | None) -> None:
        if isinstance(order, RestartBrowsers):
            if self._restarting is None or self._restarting.done():  # else the current restart counts
                self._restarting = asyncio.create_task(self._restart_browsers())
        elif order is not None:
            self._role.obey(order)

    async def _tick(self) -> None:
        while True:
            _send(self._role.status())
            self._report_browsers()
            await self._clock.sleep(self._tick_seconds)

    def _report_browsers(self) -> None:
        browsers = Browsers(self._browsers.browsers, self._browsers.pages)
        if browsers != self._reported_browsers:
            self._reported_browsers = browsers
            _send(browsers)

    async def _restart_browsers(self) -> None:
        error = ""
        try:
            await self._browsers.restart()
        except ShoalError as failed:
            error = failed.message
        except Exception as failed:  # the worker waits for a response, so report the error
            error = f"{type(failed).__name__}: {failed}"
        self._report_browsers()
        _send(BrowsersRestarted(error))


class RunningJob(Protocol):
    """One job that runs in this child."""

    async def run(self) -> str:
        """Work until the job is settled or returned, and return how it ended."""
        ...

    def leave(self, reason: str) -> None:
        """Settle the job soon and return it to the queue."""
        ...

    def limit_rate(self, per_second: float | None) -> None:
        """Start at most this many fetches per second; None: unlimited."""
        ...

    def stalled_seconds(self) -> float:
        """Return for how many seconds nothing was settled although work was due."""
        ...


Runner = Callable[[Lease, Callable[[], bool]], Awaitable[RunningJob]]


class RunsRole:
    """Runs one job at a time, as the worker sends them."""

    def __init__(self, runner: Runner, settings: QueueSettings, clock: Clock) -> None:
        self._runner = runner
        self._validity = LeaseValidity(settings.lease, clock)
        self._working: asyncio.Task[None] | None = None
        self._run: RunningJob | None = None
        self._hand_back: str | None = None  # the reason, if the worker has asked to return the job
        self._rate: float | None = None

    def obey(self, order: Order) -> None:
        match order:
            case Start(lease):
                self._hand_back = self._rate = None
                self._validity.renew()
                self._working = asyncio.create_task(self.work(lease))
            case Renewed():
                self._validity.renew()
            case HandBack(reason):
                self._hand_back = reason
                if self._run is not None:
                    self._run.leave(reason)
            case LimitRate(per_second):
                self._rate = per_second
                if self._run is not None:
                    self._run.limit_rate(per_second)
            case _:
                raise AssertionError(order)

    def status(self) -> Status:
        return Status(_memory(), 0.0 if self._run is None else round(self._run.stalled_seconds(), 1))

    def cancel(self) -> None:
        if self._working is not None:
            self._working.cancel()

    async def work(self, lease: Lease) -> None:
        """Run a job until it ends in any way, and report how it ended."""
        try:
            self._run = await self._runner(lease, self._validity.holds)
            if self._rate is not None:
                self._run.limit_rate(self._rate)
            if self._hand_back is not None:
                self._run.leave(self._hand_back)
            done = Done(await self._run.run())
        except LeaseLost:
            done = Done(LEASE_LOST)
        except BackendUnavailable as error:  # the outage was longer than the lease is valid; not the job's fault
            done = Done(STORE_AWAY, error.message)
        except StorageFull as error:  # the operator has to fix this; not the job's fault
            _send(Full(error.storage, error.message))
            done = Done(STORAGE_FULL)
        except ShoalError as error:
            done = Done("failed", f"{error.code}: {error.message}")
        except Exception as error:  # the worker counts this as a failed attempt
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                _send(Full("store", str(error)))
                done = Done(STORAGE_FULL)
            else:
                done = Done("failed", f"{type(error).__name__}: {error}")
        self._run = None
        _send(self.status())  # the worker decides by the memory usage whether this child gets a further job
        _send(done)


class PagesRole:
    """Leases, runs and settles page jobs, and reports which leases to extend."""

    def __init__(self, executor: "PageJobExecutor", queue: Queue, slots: int, holder: str, signals: Signals) -> None:
        self._holder = holder
        self._signals = signals
        self._version = 0
        self._working: asyncio.Task[None] | None = None
        callbacks = LoopCallbacks(
            leased=lambda: _send(self.status()), alone=lambda fence: _send(Alone(fence)), error=self._report_error
        )
        self._loop = PageJobLoop(executor, queue, slots, holder, callbacks)

    def obey(self, order: Order) -> None:
        match order:
            case Configure(version, slots, leasing):
                self._version = version
                self._loop.configure(slots, leasing=leasing)
                if self._working is None:
                    self._working = asyncio.create_task(self._work())
            case Nudge():
                self.nudge()
            case Renewed(lost):
                self._loop.renewed()
                if lost:
                    self._loop.drop(lost)
            case LimitRate(per_second):
                self._loop.limit_rate(per_second)
            case HandBack(reason):
                self._loop.return_unstarted(reason)
            case Leave(finish_first):
                self._loop.leave(finish_first=finish_first)
            case _:
                raise AssertionError(order)

    def status(self) -> Status:
        version = 0 if self._loop.is_changing else self._version
        return Status(_memory(), held=self._loop.held, version=version)

    def cancel(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def nudge(self) -> None:
        """Ask for jobs now, because a job may be waiting."""
        self._loop.nudge()

    async def _work(self) -> None:
        try:
            await self._loop.run()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # the worker returns our jobs and starts a new child
        _send(Done(LEFT))

    def _report_error(self, doing: str, error: Exception) -> None:
        if isinstance(error, StorageFull):
            _send(Full(error.storage, error.message))
            return
        node = node_of(self._holder)
        self._signals.emit(StoreOutOfReach(node_id=node, doing=doing, error=str(error)))


def _relay(signal: Signal) -> None:
    """Send signals to the worker if metrics are computed from them, because metrics are read in the worker."""
    if isinstance(signal, JobMoved):
        signal = JobsMoved(kind=signal.kind, how=signal.how, count=1)
    elif isinstance(signal, CrawlMoved) and signal.state in TERMINAL:
        signal = CrawlEnded(state=signal.state, seconds=signal.seconds)
    if isinstance(signal, Relayed):
        _send(signal)


def _send(report: Report) -> None:
    try:
        sys.stdout.buffer.write(encode(report))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # the worker was killed and its leases will expire, so this child ends, too


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return reader
