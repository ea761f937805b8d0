"""Shoal's queue behind the commands that comparisons of job queues use: setup | enqueue N | bulk N | latency N |
worker.

A no-op job appends its number and the time to a file. It is a page job that fetches nothing: a real worker with its
page child leases and ends it, and a janitor runs beside the worker, as `shoal serve --workers 1` has it. The
environment names the server and the options: BQ_PG (the server's address, with {db}) and BQ_DB, or DATABASE_URL;
BQ_LOG, BQ_CONC (jobs at once), BQ_SLOW (seconds that a job sleeps).
"""

import asyncio
import json
import os
import resource
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from shoal.app import App, opened
from shoal.base.clock import Clock
from shoal.base.ids import JobId, new_id
from shoal.base.machine import on_stop
from shoal.base.service import Service
from shoal.base.settings import HostSettings
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.hosts.throttle import ThrottleTracker
from shoal.page_jobs.leasing import PageTask
from shoal.process.child import main as serve_parent
from shoal.process.worker import workers_of
from shoal.queue import states
from shoal.queue.job import Lease, LeaseRequest, NewJob
from shoal.queue.queue import Queue
from shoal.web.fetch_pool import Admitted
from shoal.web.page_fetcher import Fetched

CHILD = (sys.executable, str(Path(__file__).resolve()), "child")
KIND = "page"
AT_ONCE = 1000
PAUSE_SECONDS = 0.025
LATE = 1_000_000  # the numbers of timed jobs start here
NOTHING = Fetched("http://127.0.0.1/", 0.0)


class NoPages:
    """Page work that fetches nothing: it records when it began."""

    def __init__(self, queue: Queue, lanes: Sequence[str], clock: Clock) -> None:
        self._queue = queue
        self._lanes = lanes
        self._log = os.open(os.environ["BQ_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._seconds = float(os.environ.get("BQ_SLOW") or 0)
        self.throttle = ThrottleTracker(HostSettings(), clock)
        self.connections = AT_ONCE

    def admit(self, task: PageTask) -> Admitted:
        return Admitted.NOW

    def start(self, task: PageTask, send_by: float, done: Callable[[Fetched], None]) -> asyncio.Handle:
        os.write(self._log, struct.pack("<qd", int(task.lease.payload), time.time()))
        loop = asyncio.get_running_loop()
        return loop.call_later(self._seconds, done, NOTHING) if self._seconds else loop.call_soon(done, NOTHING)

    def read(self, task: PageTask, fetched: Fetched) -> Lease:
        return task.lease

    def size_of(self, result: Lease) -> int:
        return 0

    async def settle(self, results: Sequence[Lease], holder: str, want: int) -> list[PageTask]:
        moves = [states.finish(lease.fence.job_id, lease.fence.epoch) for lease in results]
        turn = await self._queue.finish_and_lease(moves, LeaseRequest(holder, [KIND], self._lanes), want)
        return [PageTask(lease, None) for lease in turn.leases]

    def close(self) -> None:
        os.close(self._log)


def no_pages(app: App, lanes: Sequence[str]) -> Any:
    return NoPages(app.queue, lanes, app.clock)


def environment() -> dict[str, str]:
    store = os.environ.get("DATABASE_URL") or os.environ["BQ_PG"].format(db=os.environ["BQ_DB"])
    redis = os.environ.get("REDIS_URL", "")  # carries the lanes, if given
    return {
        "DATABASE_URL": store,
        "REDIS_URL": redis,
        "SHOAL_LANES": "redis" if redis else "sql",
        "MAX_CONCURRENT_CURL": os.environ.get("BQ_CONC", "16"),
        "SHOAL_LOG_LEVEL": "error",
    }


async def work() -> None:
    """A worker, and the janitor that gives back what a killed one held."""
    flags = environment()
    loaded, signals = load(flags), Signals()
    async with opened(loaded.settings, signals) as app, workers_of(app, loaded, flags, 1, CHILD) as [node]:
        on_stop(node.stop)
        janitor = Service(app.chores.janitor, loaded.settings.queue.sweep_every, app.clock, signals)
        janitor.start()
        await node.run()
        await janitor.stop()


async def ask(word: str, count: int) -> None:
    async with opened(load(environment()).settings, upgrade=True) as app:
        if word == "enqueue":
            await timed(count, lambda: one_by_one(app.queue, count))
        elif word == "bulk":
            await timed(count, lambda: in_batches(app.queue, count))
        elif word == "latency":
            print("RESULT " + json.dumps({"ts": await now_and_then(app.queue, count)}), flush=True)
        elif word != "setup":
            sys.exit(f"no such word: {word}")


async def one_by_one(queue: Queue, count: int) -> None:
    for number in range(count):
        await queue.enqueue([job(number)])


async def in_batches(queue: Queue, count: int) -> None:
    for first in range(0, count, AT_ONCE):
        await queue.enqueue([job(number) for number in range(first, min(count, first + AT_ONCE))])


async def now_and_then(queue: Queue, count: int) -> list[float]:
    sent = []
    for number in range(count):
        await asyncio.sleep(PAUSE_SECONDS)
        sent.append(time.time())
        await queue.enqueue([job(LATE + number)])
    return sent


def job(number: int) -> NewJob:
    return NewJob(JobId(new_id("job")), KIND, None, payload=str(number))


async def timed(count: int, call: Callable[[], Awaitable[None]]) -> None:
    wall, cpu = time.perf_counter(), cpu_seconds()
    await call()
    spent = {"n": count, "wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu}
    print("RESULT " + json.dumps(spent), flush=True)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    word, *rest = sys.argv[1:] or [""]
    if word == "child":
        del sys.argv[1]
        serve_parent(pages=no_pages)
    elif word == "worker":
        uvloop.run(work())
    else:
        uvloop.run(ask(word, int(rest[0]) if rest else 0))


if __name__ == "__main__":
    main()
