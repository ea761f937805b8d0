"""A child whose jobs do what their payload says: nothing, sleep, wait for a file, raise, hang, block the loop, or die.

Its runs (kind `plain`) are handed back when they are asked to leave."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from shoal.app import App
from shoal.base.clock import SystemClock
from shoal.base.errors import StorageFull
from shoal.page_jobs.leasing import PageTask, PutOff
from shoal.queue import states
from shoal.queue.job import Lease, LeaseRequest
from shoal.queue.queue import Queue
from tests.support.plain_jobs import JobsWithoutPages, task_of

CLOCK = SystemClock()
GROWN: list[bytes] = []  # megabytes that jobs have taken


class PlainPages(JobsWithoutPages):
    """Page work without pages: a job does what its payload says."""

    def __init__(self, queue: Queue, lanes: Sequence[str] = ("shared",)) -> None:
        super().__init__(CLOCK)
        self._queue = queue
        self._lanes = lanes
        self.commits: list[int] = []  # how many results each commit had

    async def run(self, lease: Lease) -> Lease:
        await obey(orjson.loads(lease.payload))
        return lease

    def put_off(self, task: PageTask, wait_seconds: float) -> PutOff:  # type: ignore[override]
        return PutOff(task.lease.fence, wait_seconds)

    async def settle(self, results: Sequence[Lease | PutOff], holder: str, want: int) -> list[PageTask]:
        moves = [
            one.move if isinstance(one, PutOff) else states.finish(one.fence.job_id, one.fence.epoch) for one in results
        ]
        turned = await self._queue.finish_and_lease(moves, LeaseRequest(holder, ["page"], self._lanes), want)
        self.commits.append(len(results))
        return [task_of(lease) for lease in turned.leases]


def is_there(sign: str) -> bool:
    return Path(sign).exists()


def find_room(sign: str) -> None:
    """Report full storage while this file exists, so that no child starts."""
    if is_there(sign):
        raise StorageFull("the disk")


async def obey(wish: dict[str, Any]) -> None:
    if "grow" in wish:
        GROWN.append(b"x" * (wish["grow"] << 20))
    if "sleep" in wish:
        await CLOCK.sleep(wish["sleep"])
    while "until" in wish and not is_there(wish["until"]):
        await CLOCK.sleep(0.02)
    if "raise" in wish:
        raise RuntimeError(wish["raise"])
    if "full" in wish:
        find_room(wish["full"])
    if "hang" in wish:
        await asyncio.Event().wait()
    if "block" in wish:
        block(wish["block"])
    if "die" in wish:
        os.kill(os.getpid(), signal.SIGKILL)


def block(seconds: float) -> None:
    """Block the event loop, like a parser that never ends."""
    time.sleep(seconds)


class PlainRun:
    """A run that does what its payload says."""

    def __init__(self, queue: Queue, lease: Lease) -> None:
        self._queue = queue
        self._lease = lease
        self._reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> str:
        working = asyncio.create_task(obey(orjson.loads(self._lease.payload)))
        working.add_done_callback(lambda task: self.leave("done"))
        reason = await self._reason
        if working.done():
            await self._queue.finish(self._lease)
            return "done"
        working.cancel()
        await self._queue.release(self._lease, reason)
        return "handed_back"

    def leave(self, reason: str) -> None:
        if not self._reason.done():
            self._reason.set_result(reason)

    def limit_rate(self, per_second: float | None) -> None:
        """Write the limit to the file that the payload names: it fetches nothing."""
        if log := orjson.loads(self._lease.payload).get("rates"):
            with Path(log).open("a") as file:
                file.write(f"{per_second}\n")

    def stalled_seconds(self) -> float:
        return 0.0


async def plain_run(app: App, lease: Lease, alive: Callable[[], bool]) -> PlainRun:
    return PlainRun(app.queue, lease)


def pages(app: App, lanes: Sequence[str]) -> PlainPages:
    return PlainPages(app.queue, lanes)


if __name__ == "__main__":
    from shoal.process.child import main
    from shoal.process.runners import RUNNERS

    main({**RUNNERS, "plain": plain_run, "crawl": plain_run}, pages)  # type: ignore[arg-type]
