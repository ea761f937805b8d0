"""The worker: as many jobs at once as it has slots, each in a child; their leases are extended from here."""

import asyncio
import os
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from shoal.base.clock import Clock
from shoal.base.errors import LeaseLost, ShoalError
from shoal.base.reading import show_duration
from shoal.base.signals import Signal, Signals
from shoal.queue.job import SHARED_LANE, Holder, Lease
from shoal.queue.queue import Queue
from shoal.queue.states import STALLED, WORKER_LOST
from shoal.queue.wake import Wake
from shoal.settings import QueueSettings, WorkSettings
from shoal.work.nursery import ChildProcess
from shoal.work.talk import Leave, Renewed, Work

KINDS = ["crawl", "analysis"]
CHILD_PAUSE = 1.0  # seconds before another child is started after one that could not
LAST_WORDS = 5.0  # seconds for giving back the jobs of children that were killed at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Signal):
    node_id: str
    queue_name: str
    worker_concurrency: int
    worker_job_attempts: int
    worker_backoff_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Signal):
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLost(Signal):
    """A child died, or was killed for its silence, with a job in its hands."""

    node_id: str
    pid: int
    job_id: str
    run_id: str | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOutOfReach(Signal):
    """The worker could not reach the store; it goes on trying."""

    node_id: str
    doing: str
    error: str


@dataclass(slots=True)
class _Slot:
    """A job in the hands of a child."""

    lease: Lease
    child: ChildProcess
    doubted: bool = False
    stalled: bool = False  # and killed for it


class Worker:
    """One node: leases, children, heartbeats, shutdown."""

    def __init__(
        self,
        node_id: str,
        queue: Queue,
        settings: WorkSettings,
        clock: Clock,
        signals: Signals,
        environment: dict[str, str],
        wake: Wake,
        lanes: Sequence[str] = (SHARED_LANE,),
        holder: str | None = None,
    ) -> None:
        self.node_id = node_id
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._signals = signals
        self._environment = environment
        self._lanes = list(lanes)
        self._holder = holder or f"{node_id}/{os.getpid()}"
        self._slots: dict[Holder, _Slot] = {}  # by grant: a job may be ours again before its last child is buried
        self._idle: list[ChildProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._hints = wake
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def _queue_settings(self) -> QueueSettings:
        return self._queue.settings

    async def run(self) -> None:
        """Work until `stop`; then hand back what is in hand, and return."""
        self._tell_started()
        deafen = self._hints.subscribe(self._woken.set, lambda: self._free > 0)
        chores = [asyncio.create_task(chore) for chore in (self._beat(), self._watch(), self._warm_up())]
        try:
            while not self._stopping.is_set():
                await self._lease_more()
                await self._rest()
            await self._finish_up()
        finally:
            deafen()
            for task in [*chores, *self._tasks]:
                task.cancel()
            await asyncio.gather(*chores, *self._tasks, return_exceptions=True)
            await self._end_children()
            self._signals.emit(WorkerStopped(node_id=self.node_id))

    def stop(self) -> None:
        """No new leases; a second call does not wait for the jobs in hand."""
        if self._stopping.is_set():
            self._kill_all()
        self._stopping.set()
        self._woken.set()

    async def _lease_more(self) -> None:
        if self._free <= 0:
            return
        try:
            leases = await self._queue.lease(self._holder, KINDS, self._lanes, self._free)
        except ShoalError as error:
            self._tell_unreachable("leasing", error)
            return
        for lease in leases:
            await self._begin(lease)

    @property
    def _free(self) -> int:
        return 0 if self._stopping.is_set() else self._settings.concurrency - len(self._slots)

    async def _begin(self, lease: Lease) -> None:
        try:
            child = self._take_idle() or await self._spawn()
        except OSError as error:  # no more processes or files for now: somebody else may have the job
            self._tell_unreachable("starting a child", error)
            await self._settle(self._queue.release(lease, "no_child"))
            return
        slot = _Slot(lease, child)
        self._slots[lease.holder] = slot
        child.say(Work(lease))
        task = asyncio.create_task(self._attend(slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_idle(self) -> ChildProcess | None:
        while self._idle:
            child = self._idle.pop()
            if not child.gone:
                return child
        return None

    async def _spawn(self) -> ChildProcess:
        return await ChildProcess.start(self._clock, self._signals, self._environment)

    async def _attend(self, slot: _Slot) -> None:
        """Wait for the child's word, and settle what it leaves behind."""
        done = await slot.child.hear()
        try:
            if done is None and not slot.child.warm:
                await self._never_began(slot, await slot.child.end())
            elif done is None:
                await self._bury(slot, await slot.child.end())
            elif done.error is not None:
                await self._settle(self._queue.fail(slot.lease, done.error))
        finally:
            self._slots.pop(slot.lease.holder, None)
            self._reuse(slot.child)
            self._woken.set()

    async def _never_began(self, slot: _Slot, how: str) -> None:
        """A child that could not even start says nothing about the job: no penalty, and a pause before the next."""
        self._tell_unreachable("starting a child", RuntimeError(f"it {how}"))
        await self._settle(self._queue.release(slot.lease, "no_child"))
        await self._clock.sleep(CHILD_PAUSE)

    async def _bury(self, slot: _Slot, how: str) -> None:
        if slot.stalled:
            deadline = show_duration(self._queue_settings.stall_deadline)
            how = f"settled nothing for {deadline} although work was due, and {how}"
        self._signals.emit(
            ChildLost(
                node_id=self.node_id,
                pid=slot.child.pid,
                job_id=slot.lease.holder.job_id,
                run_id=slot.lease.run_id,
                how=how,
            )
        )
        await self._settle(self._queue.lose(slot.lease, f"its child {how}", STALLED if slot.stalled else WORKER_LOST))

    async def _settle(self, verb: Awaitable[object]) -> None:
        try:
            await verb
        except LeaseLost:
            return  # somebody else has the job already
        except ShoalError as error:
            self._tell_unreachable("settling a job", error)  # its lease runs out, and the janitor puts it back

    def _reuse(self, child: ChildProcess) -> None:
        worn = child.runs >= self._settings.child_runs or child.memory >= self._settings.child_memory
        if child.gone or worn or self._stopping.is_set():
            child.kill()
        else:
            self._idle.append(child)

    async def _rest(self) -> None:
        """Until a slot is free and a job may wait: woken by a sign of either, else by the polling interval. Its length
        varies, so that idle workers do not all ask at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._queue_settings.poll_every.total_seconds() * random.uniform(0.75, 1)):
                await self._woken.wait()
        self._woken.clear()

    async def _beat(self) -> None:
        """Extend every lease in hand. Never waits for a child."""
        while True:
            await self._clock.sleep(self._queue_settings.extend_every.total_seconds())
            slots = list(self._slots.values())
            if slots:
                await self._extend(slots)

    async def _watch(self) -> None:
        """Kill children that fell silent, or whose job stalled. Never waits for the store: such a child may be what
        holds it up."""
        longest = self._settings.child_silence.total_seconds()
        deadline = self._queue_settings.stall_deadline.total_seconds()
        while True:
            await self._clock.sleep(min(longest, deadline) / 4)
            for slot in list(self._slots.values()):
                slot.stalled = slot.stalled or slot.child.stalled_seconds > deadline
                if slot.stalled or slot.child.silent_for() > longest:
                    slot.child.kill()

    async def _warm_up(self) -> None:
        """Have a child ready before the first job comes: it has read its code and opened its store by then."""
        self._idle.append(await self._spawn())

    async def _extend(self, slots: list[_Slot]) -> None:
        try:
            kept = set((await self._queue.extend([slot.lease.holder for slot in slots])).kept)
        except ShoalError as error:
            self._tell_unreachable("extending leases", error)
            return
        for slot in slots:
            if slot.lease.holder in kept:
                slot.child.say(Renewed())
            elif slot.doubted and slot.lease.holder in self._slots:
                slot.child.kill()  # the job is somebody else's: this child must not touch it any more
            else:
                slot.doubted = True  # or it has just ended, and the child's word is on its way

    async def _finish_up(self) -> None:
        """The ladder: ask every child to hand back, wait for the grace, kill. Endless patience lets them finish."""
        patient = self._settings.shutdown_grace == timedelta.max
        for slot in self._slots.values():
            if not patient:
                slot.child.say(Leave("shutdown"))
        if self._tasks:
            grace = None if patient else self._settings.shutdown_grace.total_seconds()
            await asyncio.wait(set(self._tasks), timeout=grace)
        self._kill_all()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=LAST_WORDS)

    def _kill_all(self) -> None:
        for slot in self._slots.values():
            slot.child.kill()

    async def _end_children(self) -> None:
        children = [*self._idle, *(slot.child for slot in self._slots.values())]
        for child in children:
            child.kill()
        for child in children:
            await child.end()

    def _tell_started(self) -> None:
        self._signals.emit(
            WorkerStarted(
                node_id=self.node_id,
                queue_name=self._lanes[0],
                worker_concurrency=self._settings.concurrency,
                worker_job_attempts=self._queue_settings.job_attempts,
                worker_backoff_ms=int(self._queue_settings.backoff.total_seconds() * 1000),
            )
        )

    def _tell_unreachable(self, doing: str, error: Exception) -> None:
        self._signals.emit(StoreOutOfReach(node_id=self.node_id, doing=doing, error=str(error)))
