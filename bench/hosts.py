"""Policies on many hosts through one worker: how many pages the worker fetches if all policies have the same priority,
and if priorities differ by host. Every host is requested once per second, so the number of hosts is the maximum number
of pages per second."""

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from urllib.parse import urlsplit

import uvloop

from bench.frontier import Store, opened_store
from bench.report import Cell, Report
from shoal.app import App, opened
from shoal.base.database import Tx
from shoal.base.ids import JobId, new_id
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.plan.policies import new_policy
from shoal.plan.policy import PolicyForm
from shoal.plan.store import PolicyStore
from shoal.process.runners import page_job_executor
from shoal.queue.job import Fence, NewJob
from shoal.work.page_job_loop import LoopCallbacks, PageJobLoop
from tests.support.programs import ServerUnavailable

HOSTS, POLICIES = 100, 4_000
SECONDS, FEW_SECONDS = 24, 8
MANY_HOSTS, JOBS, FEW_JOBS, COMMITS = 10_000, 1_000_000, 20_000, 100
FIRST_SECONDS = 4  # not counted, because the request for robots.txt uses the first slot of every host
EXTEND_EVERY = 2.0
PRIORITIES: dict[str, Callable[[int], int]] = {"equal": lambda host: 50, "by host": lambda host: host % 101}
ABOUT = (
    f"{POLICIES:,} due policies on {HOSTS} hosts run through the page slots of one worker, with one request per second "
    "to each host. A grant is one lease of a job. One grant per page is the ideal; a higher number means that jobs "
    "were leased and released without being run. The first page of each host needs two grants, because the request "
    "for robots.txt used the first slot. The second table measures commits that lease 50 jobs each, from many jobs on "
    "many hosts, with priorities that differ by host."
)


def run(options: Namespace) -> Report:
    """Measure both kinds of priorities on each driver."""
    report = Report("hosts", ABOUT)
    table = report.table(
        "Policies on many hosts", "store", "priorities", "pages per second", "grants per page", "hosts requested"
    )
    leases = report.table(
        "Leases among many hosts", "store", "waiting jobs", "hosts", "ms per commit", "jobs per commit"
    )
    seconds = FEW_SECONDS if options.short else SECONDS
    for driver in options.drivers:
        for priorities in PRIORITIES:
            try:
                with opened_store(driver) as store:
                    report.versions.append(store.version)
                    table.rows.append([store.name, priorities, *uvloop.run(measured(store, priorities, seconds))])
            except ServerUnavailable as error:
                print(f"{driver} is not measured: {error}")
        with suppress(ServerUnavailable), opened_store(driver) as store:
            leases.rows.append([store.name, *uvloop.run(leased(store, FEW_JOBS if options.short else JOBS))])
    return report


async def measured(store: Store, priorities: str, seconds: int) -> list[Cell]:
    async with opened(settings_of(store), upgrade=True) as app, Site.serving() as site:
        await make_policies(app, site, priorities)
        async with working(app):
            await asyncio.sleep(FIRST_SECONDS)
            first = site.pages.copy()
            await asyncio.sleep(seconds - FIRST_SECONDS)
            counted = {host: count - first.get(host, 0) for host, count in site.pages.items()}
        grants = await app.database.read(grants_of_done)
    asked = sum(count > 0 for count in counted.values())
    return [sum(counted.values()) / (seconds - FIRST_SECONDS), grants, asked]


async def leased(store: Store, count: int) -> list[Cell]:
    """Lease jobs again and again. Nothing is fetched, so the leases reserve all slots that the hosts have."""
    async with opened(settings_of(store), upgrade=True) as app:
        for first in range(0, count, 10_000):
            await app.queue.enqueue([job_at(place) for place in range(first, first + 10_000)])
        work = page_job_executor(app)
        times, found = [], 0
        for _ in range(COMMITS):
            begun = time.perf_counter()
            found += len(await work.settle([], "bench/pages/1", 50))
            times.append(time.perf_counter() - begun)
        work.close()
    return [count, MANY_HOSTS, statistics.median(times) * 1e3, found / COMMITS]


def job_at(place: int) -> NewJob:
    host = place % MANY_HOSTS
    named = {"host": f"http://h{host}.example"} if "host" in NewJob.__struct_fields__ else {}
    payload = f'{{"url": "http://h{host}.example/{place}"}}'
    return NewJob(JobId(new_id("job")), "page", None, payload, priority=host % 101, **named)  # type: ignore[arg-type]


async def grants_of_done(tx: Tx) -> float:
    """Return how many times a finished job was leased, on average."""
    found = await tx.all(
        "newest_jobs", before=None, scan=10 * POLICIES, limit=10 * POLICIES, state="done", kind=None, lane=None
    )
    grants: int = sum(row["lease_epoch"] for row in found)
    return grants / max(1, len(found))


async def make_policies(app: App, site: "Site", priorities: str) -> None:
    now, store = app.clock.micros(), PolicyStore()
    rank = PRIORITIES[priorities]
    policies = []
    for place in range(POLICIES):
        host = place % HOSTS
        form = {"url": f"{site.origin(host)}/{place}", "frequency": "1h", "priority_base": rank(host)}
        policies.append(new_policy(PolicyForm.read(form), now))
    for first in range(0, POLICIES, 1_000):
        await app.database.run(partial(store.insert, policies=policies[first : first + 1_000]))
    while (await app.plan.scheduler.run_once()).again_in is not None:
        pass


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    """Run the page slots of a worker, and extend their leases."""
    work = page_job_executor(app)
    slots = app.settings.crawl.max_concurrent_curl

    def trouble(doing: str, error: Exception) -> None:
        print(f"{doing}: {error}")

    callbacks = LoopCallbacks(leased=lambda: None, alone=lambda fence: None, error=trouble)
    page_loop = PageJobLoop(work, app.queue, slots, "bench/pages/1", callbacks)

    async def extend() -> None:
        while True:
            await asyncio.sleep(EXTEND_EVERY)
            held: list[Fence] = page_loop.held
            if held:
                await app.queue.extend(held)
            page_loop.renewed()

    looping, extending = asyncio.create_task(page_loop.run()), asyncio.create_task(extend())
    try:
        yield
    finally:
        page_loop.leave(finish_first=False)
        await looping
        extending.cancel()
        await asyncio.gather(extending, return_exceptions=True)
        work.close()


class Site:
    """One small site at many addresses of this machine; each address is a separate host."""

    def __init__(self) -> None:
        self.pages: dict[str, int] = {}
        self.port = 0

    def origin(self, host: int) -> str:
        return f"http://127.0.2.{host + 1}:{self.port}"

    @classmethod
    @asynccontextmanager
    async def serving(cls) -> AsyncIterator["Site"]:
        site = cls()
        first = await asyncio.start_server(site._talk, "127.0.2.1", 0)
        site.port = first.sockets[0].getsockname()[1]
        others = [urlsplit(site.origin(host)).hostname or "" for host in range(1, HOSTS)]
        servers = [first, await asyncio.start_server(site._talk, others, site.port)]
        try:
            yield site
        finally:
            for server in servers:
                server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("sockname")[0]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                is_page = not head.startswith(b"GET /robots.txt")
                body = b"<title>a page</title>" if is_page else b""
                status = b"200 OK" if is_page else b"404 Not Found"
                length = str(len(body)).encode()
                kind = b"\r\nContent-Type: text/html\r\nContent-Length: "
                writer.write(b"HTTP/1.1 " + status + kind + length + b"\r\n\r\n" + body)
                self.pages[host] = self.pages.get(host, 0) + is_page
        writer.close()


def settings_of(store: Store) -> Settings:
    free = {"SHOAL_ALLOW_NETWORKS": "127.0.0.0/8", "SHOAL_SCHEDULE_BACKLOG": "1000000", "SHOAL_PAGE_SPEED": "normal"}
    return load({"DATABASE_URL": store.url, **free}).settings
