"""The child's side: one job at a time, told by its parent over stdin. It dies with its parent."""

import asyncio
import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from shoal.base.clock import Clock
from shoal.base.disk import NO_ROOM
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError, StorageFull
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.crawls import CrawlMoved
from shoal.crawl.states import TERMINAL
from shoal.hosts.throttle import HoldsBegun
from shoal.pages.page_signals import PagesSettled, ResultsTaken
from shoal.queue.job import Fence, Lease, node_of
from shoal.queue.queue import JobMoved, JobsLeased, JobsMoved, Queue
from shoal.settings import Settings
from shoal.work.ipc import (
    LEASE_LOST,
    STORAGE_FULL,
    STORE_AWAY,
    Alone,
    Done,
    Drop,
    Ended,
    Full,
    Held,
    Holding,
    Leased,
    Leave,
    Message,
    Moved,
    Nudge,
    Renewed,
    StoredMessage,
    Taken,
    Tick,
    Work,
    decode,
    encode,
    holders,
    pairs,
)
from shoal.work.lease_validity import LeaseValidity
from shoal.work.page_job_loop import PageJobHandler, PageJobLoop
from shoal.work.worker_context import StoreOutOfReach

R = TypeVar("R")

TICK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRefused(Signal):
    """A child that cannot do its work says why and ends; its parent starts another after a while."""

    pid: int
    error: str


class Run(Protocol):
    """One job under way in this child."""

    async def run(self) -> str:
        """Work until the job has left our hands; how it ended."""
        ...

    def leave(self, reason: str) -> None:
        """Settle and hand the job back soon."""
        ...

    def stalled_for(self) -> float:
        """Seconds in which nothing was settled although work was due."""
        ...


Runner = Callable[[Lease, Callable[[], bool]], Awaitable[Run]]


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill us when the parent goes, however it goes."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os._exit(1)


class Child:
    """A child for runs: reads the parent's words, runs the job, answers. The end of stdin is the end of the child."""

    def __init__(self, settings: Settings, runner: Runner, clock: Clock, signals: Signals) -> None:
        signals.subscribe(_relay)
        self._runner = runner
        self._clock = clock
        self._run: Run | None = None
        self._leaving: str | None = None
        self._trust = LeaseValidity(settings.queue.lease, clock)
        self._job: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        reader = await _stdin()
        ticking = asyncio.create_task(self._tick())
        try:
            while line := await reader.readline():
                self._hear(decode(line))
        finally:
            ticking.cancel()
            if self._job is not None:
                self._job.cancel()

    def _hear(self, message: Message) -> None:
        match message:
            case Work(lease):
                self._leaving = None
                self._trust.renew()
                self._job = asyncio.create_task(self._work(lease))
            case Renewed():
                self._trust.renew()
            case Leave(reason):
                self._leaving = reason
                if self._run is not None:
                    self._run.leave(reason)
            case _:
                raise AssertionError(message)

    async def _work(self, lease: Lease) -> None:
        try:
            self._run = await self._runner(lease, self._trust.holds)
            if self._leaving is not None:
                self._run.leave(self._leaving)
            done = Done(await self._run.run())
        except LeaseLost:
            done = Done(LEASE_LOST)
        except BackendUnavailable as error:  # for longer than the lease is trusted: nobody's failure
            done = Done(STORE_AWAY, error=error.message)
        except StorageFull as error:  # the operator's to mend, and no failure of the job
            done = Done(STORAGE_FULL, error=error.message, storage=error.storage)
        except ShoalError as error:
            done = Done("failed", error=f"{error.code}: {error.message}")
        except Exception as error:  # the parent counts the attempt; the child is replaced
            done = Done("failed", error=f"{type(error).__name__}: {error}")
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                done = Done(STORAGE_FULL, error=str(error), storage="store")
        self._run = None
        _say(replace(done, memory=_memory()))

    async def _tick(self) -> None:
        while True:
            _say(Tick(0.0 if self._run is None else round(self._run.stalled_for(), 1)))
            await self._clock.sleep(TICK_SECONDS)


class PageChild(Generic[R]):
    """A child for page jobs: it leases and settles them itself, and tells its parent what to extend."""

    def __init__(
        self, settings: Settings, work: PageJobHandler[R], queue: Queue, holder: str, clock: Clock, signals: Signals
    ) -> None:
        signals.subscribe(_relay)
        self._clock = clock
        self._signals = signals
        self._holder = holder
        self._tick_every = min(TICK_SECONDS, settings.queue.extend_every.total_seconds() / 2)
        slots = settings.crawl.max_concurrent_curl
        self._desk = PageJobLoop(work, queue, slots, holder, clock, self._say_holding, _say_alone, self._tell)

    async def serve(self) -> None:
        reader = await _stdin()
        ticking, working = asyncio.create_task(self._tick()), asyncio.create_task(self._work())
        try:
            while line := await reader.readline():
                self._hear(decode(line))
        finally:
            ticking.cancel()
            working.cancel()

    def nudge(self) -> None:
        """A job may wait."""
        self._desk.nudge()

    def _hear(self, message: Message) -> None:
        match message:
            case Nudge():
                self.nudge()
            case Renewed():
                self._desk.renewed()
            case Drop(leases):
                self._desk.drop(holders(leases))
            case Leave(_, patient):
                self._desk.leave(patient=patient)
            case _:
                raise AssertionError(message)

    async def _work(self) -> None:
        try:
            await self._desk.run()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # the parent gives back what we held, and starts another
        _say(Done("left"))

    async def _tick(self) -> None:
        while True:
            self._say_holding()
            await self._clock.sleep(self._tick_every)

    def _say_holding(self) -> None:
        _say(Holding(pairs(self._desk.held), _memory()))

    def _tell(self, doing: str, error: Exception) -> None:
        if isinstance(error, StorageFull):
            _say(Full(error.storage, error.message))
            return
        node = node_of(self._holder)
        self._signals.emit(StoreOutOfReach(node_id=node, doing=doing, error=str(error)))


def _say_alone(holder: Fence | None) -> None:
    _say(Alone(None if holder is None else (holder.job_id, holder.epoch)))


def _relay(signal: Signal) -> None:
    """Pages, holds, jobs and crawls are counted where metrics are asked for: in the parent."""
    if isinstance(signal, PagesSettled):
        _say(StoredMessage(signal.pages, signal.bytes))
    elif isinstance(signal, JobsMoved):
        _say(Moved(signal.kind, signal.how, signal.count))
    elif isinstance(signal, JobMoved):
        _say(Moved(signal.kind, signal.how, 1))
    elif isinstance(signal, CrawlMoved) and signal.state in TERMINAL:
        _say(Ended(signal.state, signal.seconds))
    elif isinstance(signal, ResultsTaken):
        _say(Taken(signal.kind, signal.count, signal.timed, signal.seconds))
    elif isinstance(signal, JobsLeased):
        _say(Leased(signal.kind, signal.count, signal.waited_seconds))
    elif isinstance(signal, HoldsBegun):
        _say(Held(signal.holds))


def _say(message: Message) -> None:
    sys.stdout.buffer.write(encode(message))
    sys.stdout.buffer.flush()


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return reader
