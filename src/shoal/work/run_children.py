"""Run slots: crawls and analyses, each in a warm child of its own that is told one job at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from shoal.base.errors import LeaseLost, ShoalError
from shoal.base.parsing import show_duration
from shoal.queue.job import Extended, Fence, Lease
from shoal.queue.states import STALLED
from shoal.work.child_process import ChildProcess
from shoal.work.ipc import LEASE_LOST, STORAGE_FULL, STORE_AWAY, Leave, Renewed, Work
from shoal.work.worker_context import WorkerContext

CHILD_PAUSE = 1.0  # seconds before another child is started after one that could not
ROLE = "runs"


class KillReason(Enum):
    """Why we killed a child ourselves."""

    SILENT = auto()  # its loop does not turn
    STALLED = auto()  # its job settles nothing although work is due
    TAKEN = auto()  # the job is somebody else's
    FORCED = auto()  # somebody who stopped the run would not wait for it
    SHUTDOWN = auto()  # the worker ends, and it took too long


@dataclass(slots=True)
class RunChild:
    """A job in the hands of a child."""

    lease: Lease
    child: ChildProcess
    doubted: bool = False
    killed: KillReason | None = None

    def kill(self, why: KillReason) -> None:
        self.killed = self.killed or why
        self.child.kill()


class RunChildren:
    """As many runs at once as there are slots."""

    def __init__(self, place: WorkerContext, freed: Callable[[], None]) -> None:
        self._place = place
        self._freed = freed
        self._slots: dict[Fence, RunChild] = {}  # by grant: a job may be ours again before its last child is buried
        self._idle: list[ChildProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._partings: set[asyncio.Task[str]] = set()
        self._leaving = False

    @property
    def free(self) -> int:
        return 0 if self._leaving else self._place.settings.concurrency - len(self._slots)

    async def lease_more(self) -> None:
        place = self._place
        kinds = [kind for kind in place.kinds if place.storage.allows(kind)]
        if self.free <= 0 or not kinds:
            return
        try:
            leases = await place.queue.lease(place.holder, kinds, list(place.lanes), self.free)
        except ShoalError as error:
            place.tell_unreachable("leasing", error)
            return
        for lease in leases:
            await self._begin(lease)

    async def warm_up(self) -> None:
        """Have a child ready before the first job comes: it has read its code and opened its store by then."""
        try:
            self._idle.append(await self._place.nursery.spawn(ROLE))
        except OSError as error:  # no more processes or files for now: the first job tries again
            self._place.tell_gone(str(error))

    async def watch(self) -> None:
        """Kill children that fell silent, or whose job stalled. Never waits for the store: such a child may be what
        holds it up."""
        longest = self._place.settings.child_silence.total_seconds()
        deadline = self._place.queue.settings.stall_deadline.total_seconds()
        while True:
            await self._place.clock.sleep(min(longest, deadline) / 4)
            for slot in list(self._slots.values()):
                if slot.child.stalled_seconds > deadline:
                    slot.kill(KillReason.STALLED)
                elif slot.child.is_silent(longest):
                    slot.kill(KillReason.SILENT)

    def holders(self) -> list[Fence]:
        return list(self._slots)

    def extended(self, asked: Sequence[Fence], answer: Extended) -> None:
        kept = set(answer.kept)
        for slot in [self._slots[holder] for holder in asked if holder in self._slots]:
            if slot.lease.holder in answer.to_kill:
                slot.kill(KillReason.FORCED)
            elif slot.lease.holder in kept:
                slot.child.say(Renewed())
            elif slot.doubted:
                slot.kill(KillReason.TAKEN)
            else:
                slot.doubted = True  # or it has just ended, and the child's word is on its way

    def leave(self, *, patient: bool) -> None:
        """No new leases; ask every child to hand back, unless they may finish."""
        self._leaving = True
        for slot in self._slots.values():
            if not patient:
                slot.child.say(Leave("shutdown"))

    def kill(self) -> None:
        for slot in self._slots.values():
            slot.kill(KillReason.SHUTDOWN)

    async def settled(self) -> None:
        """Until no job is in hand any more."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def end(self) -> None:
        """Kill whatever is left, and see it go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        children = [*self._idle, *(slot.child for slot in self._slots.values())]
        for child in children:
            child.kill()
        for child in children:
            await child.end()
        await asyncio.gather(*self._partings, return_exceptions=True)

    async def _begin(self, lease: Lease) -> None:
        place = self._place
        try:
            child = self._take_idle() or await place.nursery.spawn(ROLE)
        except OSError as error:  # no more processes or files for now: somebody else may have the job
            place.tell_gone(str(error))
            await place.settle(place.queue.release(lease, "no_child"))
            return
        slot = RunChild(lease, child)
        self._slots[lease.holder] = slot
        child.say(Work(lease))
        if self._leaving:
            child.say(Leave("shutdown"))
        task = asyncio.create_task(self._attend(slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await place.settle(place.queue.began(lease.holder, place.node_id, child.pid, place.config))

    def _take_idle(self) -> ChildProcess | None:
        """A child that waits for work. One that has been quiet for half as long as it may be is not given any."""
        longest = self._place.settings.child_silence.total_seconds() / 2
        while self._idle:
            child = self._idle.pop()
            if not child.gone and not child.is_silent(longest):
                return child
            self._part_with(child)
        return None

    async def _attend(self, slot: RunChild) -> None:
        """Wait for the child's word, and settle what it leaves behind."""
        done = await slot.child.hear()
        try:
            if done is None:
                await self._bury(slot, await slot.child.end())
            elif done.ending == STORE_AWAY:
                self._place.tell_unreachable("working on a job", RuntimeError(done.error))
                await self._hand_back(slot.lease, STORE_AWAY)
                await self._place.clock.sleep(CHILD_PAUSE)
            elif done.ending == STORAGE_FULL:
                self._place.storage.filled(done.storage, done.error or "")
                await self._hand_back(slot.lease, STORAGE_FULL)
            elif done.ending == LEASE_LOST:
                await self._hand_back(slot.lease, STORE_AWAY)  # if it is ours after all
            elif done.error is not None:
                await self._place.settle(self._place.queue.fail(slot.lease, done.error))
        finally:
            self._slots.pop(slot.lease.holder, None)
            self._reuse(slot.child)
            self._freed()

    async def _hand_back(self, lease: Lease, reason: str) -> None:
        """Give a job back that was left because of the store, or of full storage, as soon as the store can be told:
        else it would wait until the lease has run out, and longer after an outage."""
        while True:
            try:
                await self._place.queue.release(lease, reason)
            except LeaseLost:
                return
            except ShoalError as error:
                self._place.tell_unreachable("handing back a job", error)
                if self._leaving:
                    return
                await self._place.clock.sleep(CHILD_PAUSE)
            else:
                return

    async def _bury(self, slot: RunChild, how: str) -> None:
        place, lease = self._place, slot.lease
        if slot.killed is KillReason.SHUTDOWN:
            await place.settle(place.queue.release(lease, "shutdown"))
        elif slot.killed is KillReason.FORCED:
            await place.settle(place.queue.cancel(lease, "forced"))
        elif not slot.child.warm:
            # A child that could not even start says nothing about the job: no penalty, and a pause before the next.
            place.tell_gone(f"it {how}")
            await place.settle(place.queue.release(lease, "no_child"))
            await place.clock.sleep(CHILD_PAUSE)
        elif slot.killed is KillReason.STALLED:
            deadline = show_duration(place.queue.settings.stall_deadline)
            how = f"settled nothing for {deadline} although work was due, and {how}"
            place.tell_lost(slot.child.pid, lease, how)
            await place.settle(place.queue.lose(lease, f"its child {how}", STALLED))
        else:
            how = f"{self._silence}, and {how}" if slot.killed is KillReason.SILENT else how
            place.tell_lost(slot.child.pid, lease, how)
            await place.settle(place.queue.lose(lease, f"its child {how}"))

    @property
    def _silence(self) -> str:
        return f"said nothing for {show_duration(self._place.settings.child_silence)}"

    def _reuse(self, child: ChildProcess) -> None:
        settings = self._place.settings
        worn = child.runs >= settings.child_runs or child.memory >= settings.child_memory
        if child.gone or worn or self._leaving:
            self._part_with(child)
        else:
            self._idle.append(child)

    def _part_with(self, child: ChildProcess) -> None:
        """See it go, so that it leaves the book of children, too."""
        child.kill()
        parting = asyncio.create_task(child.end())
        self._partings.add(parting)
        parting.add_done_callback(self._partings.discard)
