"""Page slots, the parent's side: one child that leases and settles page jobs itself; leases and life of it are ours."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from shoal.base.errors import ShoalError
from shoal.base.parsing import show_duration
from shoal.queue.job import Extended, Fence, Lease
from shoal.work.child_process import ChildProcess
from shoal.work.ipc import Drop, Leave, Nudge, Renewed, pairs
from shoal.work.page_job_loop import holder_of
from shoal.work.run_children import CHILD_PAUSE, KillReason
from shoal.work.worker_context import WorkerContext

ROLE = "pages"
KIND = "page"


class PageChildProcess:
    """One page child at a time: none before the first page job, another one when it died or is worn."""

    def __init__(self, place: WorkerContext) -> None:
        self._place = place
        self._child: ChildProcess | None = None
        self._killed: KillReason | None = None
        self._nudged = asyncio.Event()
        self._gone = asyncio.Event()
        self._gone.set()
        self._leaving = False
        self._patient = False

    async def run(self) -> None:
        """Until it is to leave and nothing is in hand."""
        while True:
            await self._until_wanted()
            if self._leaving:
                return
            await self._attend()

    async def watch(self) -> None:
        """Kill a child that fell silent; ask one that has grown too much to come home."""
        longest = self._place.settings.child_silence.total_seconds()
        while True:
            await self._place.clock.sleep(longest / 4)
            if self._child is None:
                continue
            if self._child.is_silent(longest):
                self._kill(KillReason.SILENT)
            elif self._child.memory >= self._place.settings.child_memory and not self._leaving:
                self._child.say(Leave("worn", patient=True))

    def nudge(self, *, pass_on: bool) -> None:
        """A job may wait: if there is no child, it is time for one. A child hears of jobs by itself, maybe later."""
        self._nudged.set()
        if pass_on and self._child is not None:
            self._child.say(Nudge())

    def holders(self) -> list[Fence]:
        return [] if self._child is None else self._child.holding

    def extended(self, asked: Sequence[Fence], answer: Extended) -> None:
        if self._child is None:
            return
        lost = (set(asked) - set(answer.kept)) | answer.to_kill
        self._child.say(Renewed())
        if lost:
            self._child.say(Drop(pairs(lost)))

    def leave(self, *, patient: bool) -> None:
        self._leaving = True
        self._patient = patient
        self._nudged.set()
        if self._child is not None:
            self._child.say(Leave("shutdown", patient))

    def kill(self) -> None:
        self._kill(KillReason.SHUTDOWN)

    async def settled(self) -> None:
        await self._gone.wait()

    async def end(self) -> None:
        if self._child is not None:
            self._child.kill()
            await self._child.end()

    def _kill(self, why: KillReason) -> None:
        if self._child is not None:
            self._killed = self._killed or why
            self._child.kill()

    async def _until_wanted(self) -> None:
        """Until a page job waits: most workers never see one, and a child is not free."""
        place = self._place
        while not self._leaving:
            self._nudged.clear()
            try:
                if await place.queue.waits(KIND, place.lanes):
                    return
            except ShoalError as error:
                place.tell_unreachable("looking for page jobs", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(place.queue.settings.poll_every.total_seconds()):
                    await self._nudged.wait()

    async def _attend(self) -> None:
        place = self._place
        self._gone.clear()
        try:
            child = await place.nursery.spawn(ROLE, place.holder, *place.lanes)
        except OSError as error:
            place.tell_gone(str(error))
            self._gone.set()
            await place.clock.sleep(CHILD_PAUSE)
            return
        self._child, self._killed = child, None
        child.found_full = place.storage.filled
        holder = holder_of(place.holder, child.pid)
        if self._leaving:
            child.say(Leave("shutdown", self._patient))
        try:
            done = await child.hear()
            how = await child.end()
            self._child = None
            if done is None:
                await self._bury(child, holder, how)
        finally:
            self._child = None
            self._gone.set()

    async def _bury(self, child: ChildProcess, holder: str, how: str) -> None:
        """Give back what the dead child had. If it worked on one job alone, the others are innocent."""
        place = self._place
        try:
            held = await place.queue.held_by(holder)
        except ShoalError as error:
            place.tell_unreachable("giving back page jobs", error)  # their leases run out
            held = []
        await self._give_back(child, held, how)
        if not child.warm or not held:
            place.tell_gone(f"it {how}", had_begun=child.warm)
            await place.clock.sleep(CHILD_PAUSE)

    async def _give_back(self, child: ChildProcess, held: list[Lease], how: str) -> None:
        place, shutdown = self._place, self._killed is KillReason.SHUTDOWN
        blamed = [] if shutdown else [lease for lease in held if child.alone in (None, lease.holder)]
        for lease in held if shutdown else [lease for lease in held if lease not in blamed]:
            await place.settle(place.queue.release(lease, "shutdown" if shutdown else "not_begun"))
        if not blamed:
            return
        if self._killed is KillReason.SILENT:
            how = f"said nothing for {show_duration(place.settings.child_silence)}, and {how}"
        for lease in blamed:
            place.tell_lost(child.pid, lease, how)
        await place.settle(place.queue.lose_all(blamed, f"its child {how}"))
