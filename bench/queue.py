"""The queue: no-op jobs through a real worker, store calls in batches, pick-up time, backlogs, and killed workers.

Jobs are page jobs that fetch nothing (`bench.peers.jobs`). With `--queues DIR`, a comparison that uses our adapter
(`DIR/compare.py`) is run as well, and its table is included.
"""

import asyncio
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import uvloop

from bench import contention
from bench.frontier import RedisStore, Spent, opened_store
from bench.peers import jobs
from bench.process import ServerCpu
from bench.report import Report, Table
from shoal.app import App, opened
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.process.worker import workers_of
from shoal.queue import states
from shoal.queue.job import Lease, LeaseRequest
from tests.support.programs import ServerUnavailable

ADAPTER = Path(jobs.__file__).resolve()
BACKLOGS = (10_000, 1_000_000)
BATCHES = (1, 10, 100)
ROUNDS = {1: 300, 10: 200, 100: 100}
NO_OPS, FEW_NO_OPS = 20_000, 2_000
PICKED, FEW_PICKED = 200, 40
CONTENDED, FEW_CONTENDED = 8_000, 2_000
SLOW_SECONDS = 60.0
SLOW_JOBS = 8
PATIENCE_SECONDS = 120.0
TAKER = LeaseRequest("bench", ["page"])
ABOUT = (
    "Four measurements: (1) no-op jobs run through `shoal worker` and its page child; (2) the same store calls without "
    "a worker, where each `finish_and_lease` call handles one batch and is a commit that waits for the disk; (3) how "
    "soon an idle worker starts a newly enqueued job; (4) how soon jobs run again after their worker was killed with "
    "SIGKILL, with the default lease times."
)


class Store:
    """A store of jobs, and the Redis server with its lanes, if there is one."""

    def __init__(self, name: str, url: str, version: str, server: ServerCpu | None, redis: RedisStore | None) -> None:
        self.name = name if redis is None else f"{name}, lanes on Redis"
        self.version = version if redis is None else f"{version}, {redis.version}"
        self.redis = redis
        lanes = {} if redis is None else {"REDIS_URL": redis.redis_url, "SHOAL_LANES": "redis"}
        self.flags = {"DATABASE_URL": url, **lanes}
        self._servers = [one for one in (server, None if redis is None else redis.server) if one is not None]
        self.is_embedded = server is None

    @property
    def has_servers(self) -> bool:
        return bool(self._servers)

    def seconds(self) -> float:
        """Return the CPU time of the store's servers."""
        return sum(server.seconds() for server in self._servers)


@contextmanager
def opened_queue(driver: str) -> Iterator[Store]:
    """Open `sqlite` or `postgres`; with `+redis`, the lanes are in a Redis server."""
    name, _, lanes = driver.partition("+")
    with ExitStack() as opened_here:
        store = opened_here.enter_context(opened_store(name))
        redis = opened_here.enter_context(opened_store(lanes)) if lanes else None
        assert redis is None or isinstance(redis, RedisStore), "lanes can be moved only to Redis"
        yield Store(store.name, store.url, store.version, store.server, redis)


def drivers(names: Sequence[str]) -> list[str]:
    """Return the stores to measure. If `names` has `redis`, each store is measured without and with lanes in Redis."""
    stores = [name for name in names if name != "redis"]
    return [driver for name in stores for driver in ([name, f"{name}+redis"] if "redis" in names else [name])]


class Log:
    """A log in which no-op jobs record their start."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "began"
        self.file.touch()

    def clear(self) -> None:
        self.file.write_bytes(b"")

    def began(self) -> list[tuple[int, float]]:
        data = self.file.read_bytes()
        return [struct.unpack_from("<qd", data, place) for place in range(0, len(data) - 15, 16)]

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while self.file.stat().st_size < 16 * count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.began())} of {count} jobs began in {PATIENCE_SECONDS:g} s")
            time.sleep(0.005)


def environment(store: Store, log: Log, **more: str) -> dict[str, str]:
    home = {"XDG_DATA_HOME": str(log.file.parent)}
    return {**os.environ, **home, **store.flags, "BQ_LOG": str(log.file), **more}


@contextmanager
def worker(store: Store, log: Log, **more: str) -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, str(ADAPTER), "worker"]
    process = subprocess.Popen(command, env=environment(store, log, **more))
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


def run(options: Namespace) -> Report:
    """Measure the queue on each driver, and compare it with other queues if `--queues` is given."""
    report = Report("queue", ABOUT)
    through = Table("Through a worker", ["store", "jobs", "jobs per second", "worker CPU µs", "server CPU µs"])
    picked = Table("Time until an idle worker starts a new job, ms", ["store", "worker", "p50", "p99", "longest"])
    killed = Table("Killed work", ["store", "running jobs", "run again after, s"])
    for driver in drivers(options.drivers):
        try:
            with opened_queue(driver) as store, tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
                report.versions.append(store.version)
                log = Log(Path(folder))
                through.rows.append(through_worker(store, log, FEW_NO_OPS if options.short else NO_OPS))
                picked.rows += pick_ups(store, log, FEW_PICKED if options.short else PICKED)
                if not options.short:
                    killed.rows.append(killed_work(store, log))
            with opened_queue(driver) as store:
                uvloop.run(calls(store, BACKLOGS[:1] if options.short else BACKLOGS, report))
            if driver == "postgres":
                with opened_queue(driver) as store:
                    jobs_of_groups = FEW_CONTENDED if options.short else CONTENDED
                    report.tables.append(contention.measure(store.flags["DATABASE_URL"], jobs_of_groups))
        except ServerUnavailable as error:
            print(f"{driver} is not measured: {error}")
    report.tables += [through, picked, *([killed] if killed.rows else [])]
    if options.queues:
        report.tables.append(beside(options.queues, options.short))
    return report


def through_worker(store: Store, log: Log, count: int) -> list[str | int | float | None]:
    """Measure the second of two loads, when the worker and its child are warm."""
    with worker(store, log) as process:
        ask(store, lambda app: jobs.in_batches(app.queue, 100))
        log.wait_for(100)
        log.clear()
        own = ServerCpu(process.pid)
        before = own.seconds(), store.seconds()
        ask(store, lambda app: jobs.in_batches(app.queue, count))
        log.wait_for(count)
        time.sleep(0.5)
        spent, served = own.seconds() - before[0], store.seconds() - before[1]
    times = sorted(at for _, at in log.began())
    served_each = served / count * 1e6 if store.has_servers else None
    return [store.name, count, (count - 1) / (times[-1] - times[0]), spent / count * 1e6, served_each]


def pick_ups(store: Store, log: Log, count: int) -> list[list[str | int | float | None]]:
    log.clear()
    with worker(store, log):
        apart = uvloop.run(timed(store, log, count))
    rows: list[list[str | int | float | None]] = [[store.name, "another process", *apart]]
    if store.is_embedded:
        log.clear()
        rows.append([store.name, "the same process", *uvloop.run(timed_within(store, log, count))])
    return rows


async def timed(store: Store, log: Log, count: int) -> tuple[float, float, float]:
    async with opened(settings_of(store), upgrade=True) as app:
        return await wait_between(app, log, count)


async def timed_within(store: Store, log: Log, count: int) -> tuple[float, float, float]:
    os.environ |= {"BQ_LOG": str(log.file), "XDG_DATA_HOME": str(log.file.parent)}
    async with within(store) as app:
        return await wait_between(app, log, count)


@asynccontextmanager
async def within(store: Store) -> AsyncIterator[App]:
    """A worker in this process, like the worker of `shoal serve --workers 1`."""
    loaded, signals = load(store.flags), Signals()
    async with opened(loaded.settings, signals) as app, workers_of(app, loaded, store.flags, 1, jobs.CHILD) as [node]:
        working = asyncio.create_task(node.run())
        yield app
        node.stop()
        await working


async def wait_between(app: App, log: Log, count: int) -> tuple[float, float, float]:
    """Return the milliseconds from enqueue to start: median, 99th percentile, maximum. The first jobs wake the
    child."""
    await jobs.one_by_one(app.queue, 3)
    await asyncio.to_thread(log.wait_for, 3)
    log.clear()
    sent = await jobs.now_and_then(app.queue, count)
    await asyncio.to_thread(log.wait_for, count)
    began = {number - jobs.LATE: at for number, at in log.began()}
    waits = sorted((began[place] - at) * 1e3 for place, at in enumerate(sent))
    return statistics.median(waits), waits[int(len(waits) * 0.99)], waits[-1]


def killed_work(store: Store, log: Log) -> list[str | int | float | None]:
    log.clear()
    slow = {"BQ_SLOW": str(SLOW_SECONDS)}
    ask(store, lambda app: jobs.in_batches(app.queue, SLOW_JOBS))
    with worker(store, log, **slow) as process:
        log.wait_for(SLOW_JOBS)
        time.sleep(1)
        process.kill()
        process.wait()
    at = time.time()
    log.clear()
    with worker(store, log, **slow) as process:
        log.wait_for(1)
        first = min(began for _, began in log.began()) - at
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # the shutdown is slow, and nothing depends on it
    return [store.name, SLOW_JOBS, first]


async def calls(store: Store, backlogs: tuple[int, ...], report: Report) -> None:
    columns = ("waiting", "batch", "jobs per second", "µs", "client CPU µs", "server CPU µs")
    table = report.table(f"Finish and lease on {store.name}", *columns)
    async with opened(settings_of(store), upgrade=True) as app:
        while (await app.queue.recovery.repair_lanes()).more:
            pass  # creates the lanes, as a controller does
        waiting = 0
        for backlog in backlogs:
            await jobs.in_batches(app.queue, backlog - waiting)
            for batch in BATCHES:
                spent = await turns(app, store, batch)
                server = spent.each(spent.server) if store.has_servers else None
                each = spent.each(spent.wall)
                table.rows.append([backlog, batch, 1e6 / each, each, spent.each(spent.client), server])
            waiting = backlog - sum(batch * (ROUNDS[batch] + 1) for batch in BATCHES)


async def turns(app: App, store: Store, batch: int) -> Spent:
    """Finish the jobs of a batch and lease the same number of new jobs, in one commit. `page_jobs/ingest.py` makes
    these calls in the commit that stores the results of a page child; here, there are no results."""
    spent = Spent()
    held: list[Lease] = (await app.queue.finish_and_lease([], TAKER, batch)).leases
    server, client, wall = store.seconds(), time.process_time(), time.perf_counter()
    for _ in range(ROUNDS[batch]):
        moves = [states.finish(lease.fence.job_id, lease.fence.epoch) for lease in held]
        spent.urls += len(moves)
        held = (await app.queue.finish_and_lease(moves, TAKER, batch)).leases
    spent.wall = time.perf_counter() - wall
    spent.client = time.process_time() - client
    spent.server = store.seconds() - server
    return spent


def ask(store: Store, call: Callable[[App], Awaitable[None]]) -> None:
    async def asked() -> None:
        async with opened(settings_of(store), upgrade=True) as app:
            await call(app)

    uvloop.run(asked())


def settings_of(store: Store) -> Settings:
    return load(store.flags).settings


def beside(folder: Path, short: bool) -> Table:
    """Run a comparison of queues, which has its own servers and peers; return its table."""
    home = Path(os.environ.get("BENCH_HOME") or Path(tempfile.gettempdir()) / "shoal-bench")
    command = [str(home / "venv" / "servers" / "bin" / "python"), str(folder / "compare.py")]
    command += ["-n", "500" if short else "5000", "--peer", f"shoal={sys.executable} {ADAPTER}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.strip("| \n").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    table = Table("Compared with other queues", lines[0] if lines else [])
    table.rows += [list(line) for line in lines[1:]]
    table.notes.append(
        "PostgreSQL waits until the disk has stored each commit; the Redis servers of the other queues store nothing "
        "on disk."
    )
    return table
