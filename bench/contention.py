"""Page jobs of a few groups, leased by host through several workers: the time spent waiting for locks, the number of
leased jobs, and the number of written rows. Only PostgreSQL has concurrent writers."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg
import orjson
import uvloop

from bench.report import Table
from shoal.app import App, opened
from shoal.base.database import Tx
from shoal.base.settings_loader import load
from shoal.hosts.rate import HostDelay
from shoal.hosts.rate_limiter import RateLimiter
from shoal.page_jobs.leasing import PageLeases, PageTask, PutOff
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.page_jobs.spec import KIND, GroupConfig
from shoal.queue.job import Lease, LeaseRequest
from shoal.work.page_job_loop import LoopCallbacks, PageJobLoop
from tests.support.plain_jobs import JobsWithoutPages

WORKERS, SLOTS, GROUPS, HOSTS = 4, 15, 2, 250
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.01
# Seconds between two requests to a host, and seconds that a page takes.
SPEEDS = {"no delay": (0.0, 0.01), "a request per second and host": (1.0, 0.2)}
WAITING = "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
KNOWN = (
    "INSERT INTO host (origin, robots_state, robots_at)"
    " SELECT 'http://h' || i || '.example.com', 'absent', shoal_now() FROM generate_series(0, $1::int - 1) AS i"
    " ON CONFLICT DO NOTHING"
)
LEFT = "SELECT 1 FROM job WHERE finished_at IS NULL LIMIT 1"


class TimedPages(JobsWithoutPages):
    """Page work without requests; each page takes the same time."""

    def __init__(self, app: App, delay_seconds: float, page_seconds: float) -> None:
        super().__init__(app.clock)
        self._app = app
        self._page_seconds = page_seconds
        self._leases = PageLeases(app.queue, RateLimiter(HostDelay(delay_seconds)))

    async def run(self, lease: Lease) -> ResultDelivery:  # type: ignore[override]
        await asyncio.sleep(self._page_seconds)
        url = orjson.loads(lease.payload)["url"]
        return ResultDelivery(lease.fence, Result(Status.SUCCESS, url, self._app.clock.micros(), http_status=200))

    def put_off(self, task: PageTask, wait_seconds: float) -> PutOff:  # type: ignore[override]
        return PutOff(task.lease.fence, wait_seconds)

    async def settle(self, results: Sequence[ResultDelivery | PutOff], holder: str, want: int) -> list[PageTask]:
        request = self._leases.by_host(LeaseRequest(holder, [KIND]))

        deliveries = [one for one in results if isinstance(one, ResultDelivery)]
        put_off = [one.move for one in results if isinstance(one, PutOff)]

        async def commit(tx: Tx) -> list[PageTask]:
            settlement = await self._app.page_jobs.ingest.settle_in(tx, request, deliveries, want, put_off)
            return await self._leases.reserve(tx, settlement.leases)

        return await self._app.database.run(commit)


async def work(url: str, delay_seconds: float, page_seconds: float) -> None:
    """Run one worker until all jobs have ended."""
    async with opened(load({"DATABASE_URL": url}).settings) as app:
        pages, holder = TimedPages(app, delay_seconds, page_seconds), f"bench/{os.getpid()}"
        callbacks = LoopCallbacks(leased=_nothing, alone=_nothing, error=_report)
        loop = PageJobLoop(
            pages,  # type: ignore[arg-type]
            app.queue,
            SLOTS,
            holder,
            callbacks,
        )
        working = asyncio.create_task(loop.run())
        renewing = asyncio.create_task(_renew(app, loop))
        while await app.queue.waits(KIND, ["shared"]) or loop.held:
            await app.clock.sleep(0.1)
        renewing.cancel()
        loop.leave(finish_first=True)
        await working


async def _renew(app: App, loop: PageJobLoop) -> None:
    """Extend the leases, like the parent of a page child."""
    while True:
        await app.clock.sleep(app.settings.queue.extend_every.total_seconds())
        if loop.held:
            await app.queue.extend(loop.held)
        loop.renewed()


def _nothing(*_: object) -> None:
    """Do nothing: no caller needs the notification."""


def _report(doing: str, error: Exception) -> None:
    print(f"{doing}: {error}", file=sys.stderr)


def measure(url: str, jobs: int) -> Table:
    """Measure each speed in turn, on one store."""
    columns = ["speed", "jobs", "s waited for groups", "for quotas", "for other locks", "locked jobs, mean"]
    table = Table("Contention on PostgreSQL", [*columns, "updates per job", "host rows written per job"])
    table.notes.append(
        f"{WORKERS} workers with {SLOTS} slots, {GROUPS} groups, {HOSTS} hosts. Waits are the sum over all workers."
    )
    for speed, (delay_seconds, page_seconds) in SPEEDS.items():
        row = uvloop.run(_measure(url, jobs, delay_seconds, page_seconds))
        table.rows.append([speed, jobs, *row])
    return table


async def _measure(url: str, jobs: int, delay_seconds: float, page_seconds: float) -> list[float]:
    async with opened(load({"DATABASE_URL": url}).settings, upgrade=True) as app:
        for group in range(GROUPS):
            hosts = [f"http://h{number % HOSTS}.example.com/{group}/{number}" for number in range(jobs // GROUPS)]
            await app.page_jobs.groups.make(GroupConfig(urls=hosts))
    connection = await asyncpg.connect(url)
    await connection.execute(KNOWN, HOSTS)
    await connection.execute("SELECT pg_stat_reset()")
    command = [sys.executable, "-m", __name__, url, str(delay_seconds), str(page_seconds)]
    here = Path(__file__).parents[1]
    workers = [await asyncio.create_subprocess_exec(*command, cwd=here) for _ in range(WORKERS)]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            waits, locked = await _watch(connection)
            for worker in workers:
                await worker.wait()
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
    await asyncio.sleep(1)  # PostgreSQL updates its statistics with a delay
    written = "SELECT sum(n_tup_ins + n_tup_upd) / $2::float FROM pg_stat_user_tables WHERE relname = $1"
    per_job = [await connection.fetchval(written, table, jobs) for table in ("job", "job_host")]
    await connection.close()
    return [*waits, locked, *per_job]


async def _watch(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[list[float], float]:
    """Sample the database until all jobs have ended. Return the seconds spent waiting for groups, quota keys and other
    locks, and how many jobs were locked on average."""
    waits, locked, last = {"job_group": 0.0, "advisory": 0.0, "": 0.0}, [0], time.monotonic()
    while await connection.fetchval(LEFT):
        await asyncio.sleep(LOOK_SECONDS)
        now = time.monotonic()
        for (query,) in await connection.fetch(WAITING):
            waits[next(word for word in waits if word in query)] += now - last
        locked.append(await connection.fetchval("SELECT count(*) FROM job WHERE state = 'locked'"))
        last = now
    return list(waits.values()), sum(locked) / len(locked)


if __name__ == "__main__":
    uvloop.run(work(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
