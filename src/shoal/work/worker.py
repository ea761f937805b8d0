"""The worker: leases jobs into its slots, keeps them alive, and ends in good order. What a slot does is the slots'."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from traceback import extract_tb

from shoal.base.signals import Signal
from shoal.queue.queue import Queue
from shoal.queue.wake import Wake
from shoal.work.heartbeat import LeaseHeartbeat
from shoal.work.page_child import PageChildProcess
from shoal.work.run_children import RunChildren
from shoal.work.worker_context import WorkerContext

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
class WorkerFailed(Signal):
    """A worker ended by an error that nobody expected. What it held was handed back, or its leases run out."""

    node_id: str
    where: str
    error: str
    retry_in_seconds: float


class Worker:
    """One node. `heart` is the queue on a connection of its own, for the heartbeats; without one they share."""

    def __init__(
        self, place: WorkerContext, wake: Wake, *, heart: Queue | None = None, with_pages: bool = True
    ) -> None:
        self._place = place
        self._wake = wake
        self._pulse = heart
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurried = False
        self._runs = RunChildren(place, freed=self._woken.set)
        self._pages = PageChildProcess(place) if with_pages else None
        self._slots: list[RunChildren | PageChildProcess] = [self._runs]
        self._slots += [] if self._pages is None else [self._pages]
        self._heart = LeaseHeartbeat(heart or place.queue, place.clock, self._slots, place.tell_unreachable)

    @property
    def node_id(self) -> str:
        return self._place.node_id

    @property
    def full_storage(self) -> Mapping[str, str]:
        """The storage that has no room, each with a sentence about it: what needs it is not taken."""
        return self._place.storage.full

    def successor(self) -> "Worker":
        """Another one in the same place, for when this one has ended."""
        return Worker(self._place, self._wake, heart=self._pulse, with_pages=self._pages is not None)

    def tell_failed(self, error: Exception, retry_in: float) -> None:
        frame = extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        self._place.signals.emit(
            WorkerFailed(node_id=self.node_id, where=where, error=repr(error), retry_in_seconds=retry_in)
        )

    async def run(self) -> None:
        """Work until `stop`; then hand back what is in hand, and return."""
        self._tell_started()
        deafen = self._wake.subscribe(self._hear, lambda: not self._stopping.is_set())
        chores = [self._heart.beat(), *(slots.watch() for slots in self._slots)]
        chores += [] if self._pages is None else [self._pages.run()]
        tasks = [asyncio.create_task(chore) for chore in chores]
        for task in tasks:
            task.add_done_callback(self._chore_ended)
        try:
            await self._runs.warm_up()  # before the first lease, which would start another one beside it
            while not self._stopping.is_set():
                await self._runs.lease_more()
                await self._rest()
            await self._finish_up()
        finally:
            deafen()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            for slots in self._slots:
                await slots.end()
            self._place.signals.emit(WorkerStopped(node_id=self.node_id))
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def stop(self) -> None:
        """No new leases; a second call does not wait for the jobs in hand."""
        if self._stopping.is_set():
            self._hurried = True  # also what is being leased just now is not waited for
            self._kill()
        self._stopping.set()
        self._woken.set()

    def _hear(self) -> None:
        self._woken.set()
        if self._pages is not None:
            self._pages.nudge(pass_on=not self._wake.swift)

    def _chore_ended(self, chore: "asyncio.Task[None]") -> None:
        """A worker without its heart, or without its eyes, is none: it hands back, and ends with the error."""
        if not chore.cancelled() and chore.exception() is not None:
            self._stopping.set()
            self._woken.set()

    async def _rest(self) -> None:
        """Until a slot is free and a job may wait: woken by a sign of either, else by the polling interval. Its length
        varies, so that idle workers do not all ask at once."""
        longest = self._place.queue.settings.poll_every.total_seconds()
        with suppress(TimeoutError):
            async with asyncio.timeout(longest * random.uniform(0.75, 1)):
                await self._woken.wait()
        self._woken.clear()

    async def _finish_up(self) -> None:
        """The ladder: ask every child to hand back, wait for the grace, kill. Endless patience lets them finish."""
        grace = self._place.settings.shutdown_grace
        patient = grace == timedelta.max
        for slots in self._slots:
            slots.leave(patient=patient)
        if not self._hurried:
            await self._settled(None if patient else grace.total_seconds())
        self._kill()
        await self._settled(LAST_WORDS)

    async def _settled(self, seconds: float | None) -> None:
        waiting = [asyncio.create_task(slots.settled()) for slots in self._slots]
        await asyncio.wait(waiting, timeout=seconds)
        for task in waiting:
            task.cancel()

    def _kill(self) -> None:
        for slots in self._slots:
            slots.kill()

    def _tell_started(self) -> None:
        queue = self._place.queue.settings
        self._place.signals.emit(
            WorkerStarted(
                node_id=self.node_id,
                queue_name=self._place.lanes[0],
                worker_concurrency=self._place.settings.concurrency,
                worker_job_attempts=queue.job_attempts,
                worker_backoff_ms=int(queue.backoff.total_seconds() * 1000),
            )
        )
