"""In the child: gets its work over stdin, reports over stdout, and dies with the worker that started it."""

import asyncio
import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError, StorageFull
from shoal.base.machine import NO_SPACE
from shoal.base.settings import Settings
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.transitions import CrawlMoved
from shoal.crawl.states import TERMINAL
from shoal.hosts.throttle import HoldsBegun
from shoal.pages.page import PagesSettled, ResultsTaken
from shoal.queue.job import Fence, Lease, node_of
from shoal.queue.moves import JobMoved, JobsMoved
from shoal.queue.queue import JobsLeased, Queue
from shoal.web.renderer import LocalBrowsers, PageRendered
from shoal.work.ipc import (
    LEASE_LOST,
    STORAGE_FULL,
    STORE_AWAY,
    Alone,
    Browsers,
    BrowsersRestarted,
    Configure,
    Done,
    Drop,
    Ended,
    Full,
    HandBack,
    Held,
    Holding,
    Leased,
    Leave,
    LimitRate,
    Message,
    Moved,
    Nudge,
    Rendered,
    Renewed,
    RestartBrowsers,
    ResultsStored,
    StoredMessage,
    Tick,
    Work,
    decode,
    encode,
    fences_of,
    pairs_of,
)
from shoal.work.leases import LeaseValidity
from shoal.work.page_job_loop import JobExecutor, JobTask, LoopCallbacks, PageJobLoop
from shoal.work.worker_context import StoreOutOfReach

T = TypeVar("T", bound=JobTask)
R = TypeVar("R")

TICK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


class ChildRefused(Signal, frozen=True, kw_only=True):
    """A child that cannot work reports why and exits; its parent starts another after a while."""

    pid: int
    error: str


class RunningJob(Protocol):
    """One job that runs in this child."""

    async def run(self) -> str:
        """Work until the job is settled or handed back, and return how it ended."""
        ...

    def leave(self, reason: str) -> None:
        """Settle and hand back the job soon."""
        ...

    def limit_rate(self, per_second: float | None) -> None:
        """Start at most this many fetches per second; None: unlimited."""
        ...

    def stalled_seconds(self) -> float:
        """Return for how many seconds nothing was settled although work was due."""
        ...


Runner = Callable[[Lease, Callable[[], bool]], Awaitable[RunningJob]]


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the parent ends, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


class Child:
    """A child for runs: works on one job at a time, as the parent sends them, and exits at the end of stdin."""

    def __init__(
        self, settings: Settings, runner: Runner, clock: Clock, signals: Signals, browsers: LocalBrowsers
    ) -> None:
        signals.subscribe(_relay)
        self._browsers = _ChildBrowsers(browsers)
        self._runner = runner
        self._clock = clock
        self._run: RunningJob | None = None
        self._leave_reason: str | None = None
        self._rate: float | None = None
        self._validity = LeaseValidity(settings.queue.lease, clock)
        self._job: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        reader = await _stdin()
        ticking = asyncio.create_task(self._tick())
        try:
            while line := await reader.readline():
                self._receive(decode(line))
        finally:
            ticking.cancel()
            if self._job is not None:
                self._job.cancel()

    def _receive(self, message: Message) -> None:
        match message:
            case Work(lease):
                self._leave_reason = self._rate = None
                self._validity.renew()
                self._job = asyncio.create_task(self._work(lease))
            case Renewed():
                self._validity.renew()
            case Leave(reason):
                self._leave_reason = reason
                if self._run is not None:
                    self._run.leave(reason)
            case LimitRate(per_second):
                self._rate = per_second
                if self._run is not None:
                    self._run.limit_rate(per_second)
            case RestartBrowsers():
                self._browsers.restart()
            case _:
                raise AssertionError(message)

    async def _work(self, lease: Lease) -> None:
        try:
            self._run = await self._runner(lease, self._validity.holds)
            if self._rate is not None:
                self._run.limit_rate(self._rate)
            if self._leave_reason is not None:
                self._run.leave(self._leave_reason)
            done = Done(await self._run.run())
        except LeaseLost:
            done = Done(LEASE_LOST)
        except BackendUnavailable as error:  # for longer than the lease is valid; not the job's fault
            done = Done(STORE_AWAY, error=error.message)
        except StorageFull as error:  # for the operator to fix; not the job's fault
            done = Done(STORAGE_FULL, error=error.message, storage=error.storage)
        except ShoalError as error:
            done = Done("failed", error=f"{error.code}: {error.message}")
        except Exception as error:  # the parent counts the attempt
            done = Done("failed", error=f"{type(error).__name__}: {error}")
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                done = Done(STORAGE_FULL, error=str(error), storage="store")
        self._run = None
        _send(replace(done, memory=_memory()))

    async def _tick(self) -> None:
        while True:
            _send(Tick(0.0 if self._run is None else round(self._run.stalled_seconds(), 1)))
            self._browsers.report()
            await self._clock.sleep(TICK_SECONDS)


class PageChild(Generic[T, R]):
    """A child for page jobs: leases and settles them itself, and tells its parent which leases to extend."""

    def __init__(
        self,
        settings: Settings,
        executor: JobExecutor[T, R],
        queue: Queue,
        holder: str,
        clock: Clock,
        signals: Signals,
        browsers: LocalBrowsers,
    ) -> None:
        signals.subscribe(_relay)
        self._browsers = _ChildBrowsers(browsers)
        self._clock = clock
        self._signals = signals
        self._holder = holder
        self._tick_seconds = min(TICK_SECONDS, settings.queue.extend_every.total_seconds() / 2)
        self._version = 0
        self._working: asyncio.Task[None] | None = None
        callbacks = LoopCallbacks(leased=self._send_holding, alone=_send_alone, error=self._report_error)
        self._loop = PageJobLoop(executor, queue, settings.crawl.max_concurrent_curl, holder, callbacks)

    async def serve(self) -> None:
        reader = await _stdin()
        ticking = asyncio.create_task(self._tick())
        try:
            while line := await reader.readline():
                self._receive(decode(line))
        finally:
            ticking.cancel()
            if self._working is not None:
                self._working.cancel()

    def nudge(self) -> None:
        """Ask for jobs now: one may be waiting."""
        self._loop.nudge()

    def _receive(self, message: Message) -> None:
        match message:
            case Nudge():
                self.nudge()
            case Renewed():
                self._loop.renewed()
            case Drop(leases):
                self._loop.drop(fences_of(leases))
            case Configure(version, slots, leasing):
                self._version = version
                self._loop.configure(slots, leasing=leasing)
                if self._working is None:
                    self._working = asyncio.create_task(self._work())
            case LimitRate(per_second):
                self._loop.limit_rate(per_second)
            case RestartBrowsers():
                self._browsers.restart()
            case HandBack(reason):
                self._loop.return_unstarted(reason)
            case Leave(_, finish_first):
                self._loop.leave(finish_first=finish_first)
            case _:
                raise AssertionError(message)

    async def _work(self) -> None:
        try:
            await self._loop.run()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # the parent returns the jobs we held and starts another child
        _send(Done("left"))

    async def _tick(self) -> None:
        while True:
            self._send_holding()
            self._browsers.report()
            await self._clock.sleep(self._tick_seconds)

    def _send_holding(self) -> None:
        version = 0 if self._loop.is_changing else self._version
        _send(Holding(pairs_of(self._loop.held), _memory(), version))

    def _report_error(self, doing: str, error: Exception) -> None:
        if isinstance(error, StorageFull):
            _send(Full(error.storage, error.message))
            return
        node = node_of(self._holder)
        self._signals.emit(StoreOutOfReach(node_id=node, doing=doing, error=str(error)))


class _ChildBrowsers:
    """Reports the browsers of this child to its worker, and restarts them when the worker asks for it."""

    def __init__(self, browsers: LocalBrowsers) -> None:
        self._browsers = browsers
        self._reported = 0, 0
        self._restarting: asyncio.Task[None] | None = None

    def report(self) -> None:
        now = self._browsers.browsers, self._browsers.pages
        if now != self._reported:
            self._reported = now
            _send(Browsers(*now))

    def restart(self) -> None:
        if self._restarting is None or self._restarting.done():  # otherwise the running one answers this request, too
            self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        error = ""
        try:
            await self._browsers.restart()
        except ShoalError as failed:
            error = failed.message
        except Exception as failed:  # the worker waits for an answer
            error = f"{type(failed).__name__}: {failed}"
        self.report()
        _send(BrowsersRestarted(error))


def _send_alone(fence: Fence | None) -> None:
    _send(Alone(None if fence is None else (fence.job_id, fence.epoch)))


def _relay(signal: Signal) -> None:
    """Send the signals that metrics are made from to the parent, where metrics are read."""
    if isinstance(signal, PagesSettled):
        _send(StoredMessage(signal.pages, signal.bytes))
    elif isinstance(signal, JobsMoved):
        _send(Moved(signal.kind, signal.how, signal.count))
    elif isinstance(signal, JobMoved):
        _send(Moved(signal.kind, signal.how, 1))
    elif isinstance(signal, CrawlMoved) and signal.state in TERMINAL:
        _send(Ended(signal.state, signal.seconds))
    elif isinstance(signal, ResultsTaken):
        _send(ResultsStored(signal.kind, signal.count, signal.timed, signal.seconds))
    elif isinstance(signal, JobsLeased):
        _send(Leased(signal.kind, signal.count, signal.waited_seconds))
    elif isinstance(signal, HoldsBegun):
        _send(Held(signal.holds))
    elif isinstance(signal, PageRendered):
        _send(Rendered(signal.outcome, signal.seconds, signal.requests))


def _send(message: Message) -> None:
    try:
        sys.stdout.buffer.write(encode(message))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # the worker was killed, and its leases will expire: end with it


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return reader
