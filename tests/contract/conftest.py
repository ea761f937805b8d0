"""The bench of the contract tests: the app as the program builds it on a real store, a clock that jumps, and
breakpoints that stop a commit between two statements. `store_url` chooses the store; tests/conftest.py starts the
servers."""

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg
import orjson
import pytest
from msgspec import structs

from shoal.app import App, database_of
from shoal.app.stores import Stores
from shoal.base.clock import FakeClock, SystemClock
from shoal.base.database import Call, Callback, Database, Rows, Tx, Work
from shoal.base.errors import BackendUnavailable, LeaseLost
from shoal.base.ids import JobId, new_id
from shoal.base.settings import DatabaseSettings, QueueSettings, RedisSettings, Settings
from shoal.base.signals import Signal, Signals
from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.engine.walker_commits import TurnRequest, WalkerCommits
from shoal.crawl.engine.walker_context import WalkerStores
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import (
    FrontierTask,
    NewUrl,
    PendingRedirect,
    Settled,
    Turn,
    UrlKind,
    WalkerBatch,
    key_of,
)
from shoal.crawl.lifecycle.crawls import KIND
from shoal.crawl.states import CrawlState
from shoal.crawl.store import FrontierStore, HostRate
from shoal.events.event import TYPES
from shoal.hosts.store import HostStore
from shoal.page_jobs.ingest import Ingest
from shoal.page_jobs.result import ResultDelivery
from shoal.page_jobs.store import ResultStore
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue.janitor import Janitor
from shoal.queue.job import Fence, Job, Lease, NewJob
from shoal.queue.queue import Queue
from shoal.queue.states import JobState
from shoal.web.page_fetcher import RedirectChain, RedirectStep
from shoal.work.worker_context import Check, StorageWatch
from tests.support.patience import wait_until
from tests.support.servers import Service, ask_postgres

T = TypeVar("T")

SITE = "http://example.org"
PATIENCE = 60.0  # seconds to wait for something that normally happens at once
FREE = HostRate(0.0)
DEFAULTS = Settings()
ON_BOTH_LANES = {
    "test_bot_leases",
    "test_dispatch",
    "test_fleet_races",
    "test_host_leases",
    "test_job_admin",
    "test_job_groups",
    "test_nodes",
    "test_page_job_loop",
    "test_queue",
    "test_queue_batches",
    "test_queue_quotas",
    "test_run_status",
    "test_wake",
}


def database_at(url: str, clock: FakeClock, pool_size: int = 6) -> Database:
    # Deadlines are what other tests are about: a slow machine is no reason for a connection to be replaced here.
    patient = timedelta(seconds=60)
    settings = DatabaseSettings(url=url, pool_size=pool_size, connect_timeout=patient, statement_timeout=2 * patient)
    return database_of(settings, clock)


@dataclass
class Bench:
    """An app on one store, with a clock that jumps and a list of the signals that were emitted."""

    url: str
    database: Database
    clock: FakeClock
    dialect: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    defaults: Settings = DEFAULTS  # the settings of the other packages
    signals_seen: list[Signal] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)  # at most one; shared by the benches on one store
    pools: list[Any] = field(default_factory=list)  # the pool of that connection, on PostgreSQL
    opened_stores: list[Stores] = field(default_factory=list)  # shared, too; the first bench closes all of them
    redis_url: str = ""  # if given, new crawls have their frontiers there
    lanes_url: str = ""  # if given, Redis carries the lanes

    def __post_init__(self) -> None:
        self.signals = Signals()
        self.signals.subscribe(self.signals_seen.append)
        settings = structs.replace(self.defaults, queue=self.settings)
        if self.redis_url:
            crawl = self.defaults.crawl.but(frontier="redis")
            settings = structs.replace(settings, redis=RedisSettings(url=self.redis_url, lanes="sql"), crawl=crawl)
        if self.lanes_url:
            settings = structs.replace(settings, redis=RedisSettings(url=self.lanes_url, lanes="redis"))
        stores = self.open_stores(settings)
        self.app = App(stores, cast(Any, self.database))
        self.queue, self.crawls, self.journal = self.app.queue, self.app.crawls, self.app.crawls.journal
        self.job_admin, self.analyses = self.app.job_admin, self.app.audit.analyses
        self.groups, self.ingest = self.app.page_jobs.groups, self.app.page_jobs.ingest
        self.jobs, self.job_admin_store, self.results = stores.jobs, stores.job_admin, ResultStore()
        self.lanes, self.hosts, self.pages = stores.lanes, HostStore(), PageStore()
        redis = stores.frontiers.redis if settings.crawl.frontier == "redis" else None
        self.frontier: FrontierStore = redis or stores.frontiers.sql

    def open_stores(self, settings: Settings) -> Stores:
        """Return stores that are closed with this bench."""
        stores = Stores(self.dialect, settings, self.clock, self.signals)
        self.opened_stores.append(stores)
        return stores

    def over(self, database: Database) -> "Bench":
        """Return a bench on the same store that uses another database object."""
        return replace(self, database=database, signals_seen=[])

    def janitor(self) -> Janitor:
        """Return a janitor whose first pass expires leases at once, like that of a local crawl. The one of a
        controller (`app.chores.janitor`) first waits a lease term if nobody renewed a lease before its start."""
        return Janitor(self.queue.recovery, self.clock)

    def storage(self, **checks: Check) -> StorageWatch:
        """Return a watch over storage. Storage without a check has free space when it is tried again."""
        return StorageWatch(checks, self.clock, self.signals)

    async def jump(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.jump(seconds)
        if self.dialect == "postgres":
            await self.sql(f"UPDATE store_clock SET shift = shift + {round(seconds * 1e6)}")

    async def step(self, seconds: float) -> None:
        """Set the clock below the store's: the server's, or for a file the machine's."""
        if self.dialect == "postgres":
            await self.sql(f"UPDATE store_clock SET shift = shift + {round(seconds * 1e6)}")
        else:
            self.clock.step(seconds)

    async def sql(self, text: str) -> list[dict[str, Any]]:
        """Run one statement directly, without the app."""
        if not self.connections:
            self.connections.append(await self._connect())
        connection = self.connection
        rows = connection.execute(text).fetchall() if self.dialect == "sqlite" else await connection.fetch(text)
        return [dict(row) for row in rows]

    @property
    def connection(self) -> Any:
        """The connection of `sql`, which opens it."""
        return self.connections[0]

    async def _connect(self) -> Any:
        if self.dialect == "postgres":
            pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1, timeout=60, init=_no_setup)
            self.pools.append(pool)
            return await pool.acquire(timeout=60)
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.create_function("shoal_now", 0, self.clock.micros)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    async def close(self) -> None:
        if self.connections:
            if self.dialect == "postgres":
                [pool] = self.pools
                await pool.release(self.connection)
                await pool.close()
            else:
                self.connection.close()
        for stores in self.opened_stores:
            await stores.close()
        await self.database.close()

    async def number(self, text: str) -> int:
        """The single number that a statement returns."""
        [row] = await self.sql(text)
        [value] = row.values()
        return int(value)

    async def events(self, *kinds: str, subject: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Return type and body of the events so far, those of some types or of one subject, the oldest first."""
        rows = await self.sql("SELECT type, subject, body FROM outbox ORDER BY created_at, id")
        wanted = [row for row in rows if row["type"] in (kinds or TYPES) and subject in (None, row["subject"])]
        found = [(row["type"], orjson.loads(row["body"])) for row in wanted]
        assert all(set(body) == set(TYPES[kind].data) for kind, body in found), "a body has the fields of its type"
        return found

    async def enqueue(
        self,
        *,
        kind: str = "page",
        lane: str = "shared",
        priority: int = 50,
        max_attempts: int = 2,
        key: str | None = None,
        run_id: str | None = None,
        **more: Any,
    ) -> JobId:
        asked = {"lane": lane, "priority": priority, "max_attempts": max_attempts, "dedupe_key": key}
        job = NewJob(JobId(new_id("job")), kind, run_id, **asked, **more)
        [enqueued] = await self.queue.enqueue([job])
        return enqueued.id

    async def lease(self, holder: str = "w1", kind: str = "page", lane: str = "shared") -> Lease:
        """The one job that is due."""
        [lease] = await self.queue.lease(holder, [kind], [lane], 1)
        return lease

    async def job(self, job_id: str) -> Job:
        found = await self.database.read(lambda tx: self.jobs.get(tx, JobId(job_id)))
        assert found is not None
        return found

    async def grants(self, job_id: str) -> list[dict[str, Any]]:
        """The history of a job, the grant that it has now included."""
        return [
            structs.asdict(grant) for grant in await self.database.read(lambda tx: self.jobs.history(tx, JobId(job_id)))
        ]

    async def settle_something(self, fence: Fence) -> None:
        await self.database.run(lambda tx: self.jobs.mark_settled(tx, fence))

    async def lose(self, seconds: float = 10.5) -> None:
        """Let every lease run out, and sweep."""
        await self.jump(seconds)
        await self.janitor().run_once()

    async def submit(self, *seeds: str, policy_id: str | None = None, **config: Any) -> Crawl:
        return await self.crawls.submit(
            CrawlConfig(**{"seeds": list(seeds) or [f"{SITE}/"], "sitemap": "off", **config}), policy_id=policy_id
        )

    async def state(self, crawl: Crawl) -> CrawlState:
        return (await self.crawls.get(crawl.id)).crawl.state

    async def reason(self, crawl: Crawl) -> str | None:
        return (await self.crawls.get(crawl.id)).crawl.state_reason

    async def counts(self, crawl: Crawl) -> Counts:
        return (await self.crawls.get(crawl.id)).counts

    async def live(self, crawl: Crawl) -> tuple[int, int]:
        """Return how many of the crawl's jobs are pending, and how many locked."""
        return await self.database.read(lambda tx: self.jobs.live_of_run(tx, crawl.id))

    async def walker(self, crawl: Crawl, holder: str = "w1", *, pace: HostRate = FREE) -> "Walker":
        """Lease a walker's job of the crawl and attach."""
        walker = Walker(self, crawl, await self.lease(holder, KIND), pace)
        await walker.attach()
        return walker

    async def fates(self, crawl: Crawl) -> dict[tuple[int, int], Fate]:
        rows = await self.sql(f"SELECT key, chk, fate FROM fate WHERE crawl = {crawl.number}")
        return {(row["key"], row["chk"]): Fate(row["fate"]) for row in rows}

    async def fate(self, crawl: Crawl, url: str) -> Fate:
        return (await self.fates(crawl))[key_of(Url(url), crawl.key_seed)]


class Walker:
    """A walker without an engine: it fetches nothing, and settles the URLs that a test names."""

    def __init__(self, bench: Bench, crawl: Crawl, lease: Lease, pace: HostRate = FREE) -> None:
        self.bench = bench
        self.crawl = crawl
        self.lease = lease
        self.fence = lease.fence
        self.held: list[FrontierTask] = []
        self.attached = False
        stores = WalkerStores(
            database=bench.database,
            crawls=bench.crawls,
            frontiers=bench.app.stores.frontiers,
            queue=bench.queue,
            bodies=bench.app.bodies,
        )
        self.commits = WalkerCommits(stores, crawl, lease.fence, rate=pace)

    async def attach(self) -> None:
        await self.commits.attach()
        self.held = []
        self.attached = True

    async def turn(self, *settled: Settled, found: Iterable[NewUrl] = (), want: int = 10) -> Turn:
        """One commit: settle these, add those, take more."""
        left = [task for task in self.held if task not in [done.task for done in settled]]
        turn = await self.commits.turn(WalkerBatch(list(settled), list(found)), TurnRequest(want, len(left)))
        self.held = left + turn.work
        return turn

    async def take(self, want: int = 10) -> list[FrontierTask]:
        return (await self.turn(want=want)).work

    async def fetch_all(self, *found: NewUrl, want: int = 10) -> Turn:
        """Settle everything that is held as fetched."""
        return await self.turn(*[fetched(task) for task in self.held], found=found, want=want)

    def link(self, url: str, depth: int = 1, fate: Fate = Fate.OPEN) -> NewUrl:
        return new_url(self.crawl, url, depth, fate)


def new_url(crawl: Crawl, url: str, depth: int = 1, fate: Fate = Fate.OPEN, kind: UrlKind = UrlKind.PAGE) -> NewUrl:
    address = Url(url if "://" in url else SITE + url)
    return NewUrl(*key_of(address, crawl.key_seed, kind), address, depth, fate, kind=kind)


async def suspected(bench: Bench, which: str = "TRUE") -> None:
    """Mark the waiting URLs (those that match `which`) as in flight in two crashes."""
    columns = "crawl, host, seq, parent, kind, path"
    await bench.sql(
        f"INSERT INTO frontier_touched ({columns}, crashes) SELECT {columns}, 2 FROM frontier WHERE {which}"
    )
    await bench.sql(f"DELETE FROM frontier WHERE {which}")


async def settle_one(ingest: Ingest, owner: str, delivery: ResultDelivery) -> JobState:
    """Ingest a single result; raises `LeaseLost` if it is not accepted."""
    [receipt] = (await ingest.settle(owner, [delivery])).receipts
    if receipt.state is None:
        raise LeaseLost(delivery.fence.job_id, delivery.fence.epoch)
    return receipt.state


def page_of(task: FrontierTask, **facts: Any) -> Page:
    facts = {"depth": task.depth, **facts}
    return Page(url=task.url, fetched_at=1, attempt=task.attempts + 1, parent=task.parent, **facts)


def fetched(task: FrontierTask, size: int = 10) -> Settled:
    return Settled(task, Fate.FETCHED, page_of(task, status=200, bytes=size))


def redirected(crawl: Crawl, task: FrontierTask, url: str) -> Settled:
    """A taken URL was answered with a redirect to another one."""
    target = new_url(crawl, url)
    steps = () if task.chain is None else task.chain.steps
    chain = RedirectChain((*steps, RedirectStep(task.at, 302, 1)), target.key, target.chk)
    hops = [{"url": hop.url, "status": hop.status} for hop in chain.hops]
    page = page_of(task, status=302, final_url=target.url, redirects=hops)
    return Settled(task, Fate.OPEN, onward=PendingRedirect(target.url, target.url, chain, page))


def failed(task: FrontierTask) -> Settled:
    return Settled(task, Fate.FAILED, page_of(task, error_code="connect", error_message="refused"))


def later(task: FrontierTask, seconds: float) -> Settled:
    return Settled(task, Fate.OPEN, retry_in_seconds=seconds)


@dataclass
class Breakpoint:
    """A place inside a commit: `reached` is set when a commit arrives, and the commit continues after `resume`."""

    query: str
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_until_reached(self, *tasks: "asyncio.Task[Any]") -> None:
        """Wait until a commit of these tasks arrives; one that ends before fails the test."""
        await wait_until(self.reached.is_set, self.reached, *tasks)

    def resume(self) -> None:
        self.go.set()

    async def passing(self, query: str) -> None:
        if query == self.query and not self.reached.is_set():
            self.reached.set()
            await asyncio.wait_for(self.go.wait(), PATIENCE)


class BreakpointTx:
    """A transaction that stops after the first run of the breakpoint's query."""

    def __init__(self, tx: Tx, point: Breakpoint) -> None:
        self._tx = tx
        self._point = point

    async def all(self, query: str, **values: Any) -> list[Any]:
        found = await self._tx.all(query, **values)
        await self._point.passing(query)
        return found

    async def one(self, query: str, **values: Any) -> Any | None:
        found = await self._tx.one(query, **values)
        await self._point.passing(query)
        return found

    async def value(self, query: str, **values: Any) -> Any:
        found = await self._tx.value(query, **values)
        await self._point.passing(query)
        return found

    async def execute(self, query: str, **values: Any) -> int:
        touched = await self._tx.execute(query, **values)
        await self._point.passing(query)
        return touched

    async def many(self, query: str, rows: Rows) -> int:
        touched = await self._tx.many(query, rows)
        await self._point.passing(query)
        return touched

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        found = await self._tx.batch(query, rows)
        await self._point.passing(query)
        return found

    def on_commit(self, callback: Callback) -> None:
        self._tx.on_commit(callback)

    def after_commit(self, call: Call) -> None:
        self._tx.after_commit(call)

    def after_rollback(self, call: Call) -> None:
        self._tx.after_rollback(call)

    def afterwards(self, work: Work[Any]) -> None:
        self._tx.afterwards(lambda tx: work(BreakpointTx(tx, self._point)))


class BreakpointDatabase:
    """A PostgreSQL whose commits stop at a breakpoint. (On SQLite commits run one after the other and cannot be
    interrupted.)"""

    def __init__(self, database: Database, point: Breakpoint) -> None:
        self._database = database
        self._point = point

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.run(lambda tx: work(BreakpointTx(tx, self._point)), within=within)

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work, within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.read(work)

    async def close(self) -> None:
        await self._database.close()


class Severed:
    """A store that can be made unavailable, separately for reads and for writes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.reads = self.writes = True

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        self._check(self.writes)
        return await self._database.run(work, within=within)

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work, within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        self._check(self.reads)
        return await self._database.read(work)

    async def close(self) -> None:
        await self._database.close()

    def _check(self, reachable: bool) -> None:
        if not reachable:
            raise BackendUnavailable("the store", "the cable is cut", "plug it in")


class Measured:
    """Measures how much text each statement of a store returns to readers."""

    def __init__(self, database: Database) -> None:
        self._read = database.read
        self.sizes: list[int] = []  # of the text of all rows, for each statement
        database.read = self.read  # type: ignore[method-assign]

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._read(lambda tx: work(_MeasuredTx(tx, self.sizes)), within=within)


class _MeasuredTx:
    def __init__(self, tx: Tx, sizes: list[int]) -> None:
        self._tx = tx
        self._sizes = sizes

    async def all(self, query: str, **values: Any) -> list[Any]:
        rows = await self._tx.all(query, **values)
        self._sizes.append(sum(len(value) for row in rows for value in tuple(row) if isinstance(value, str)))
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


BLOCKED = """
    SELECT count(DISTINCT pid) FROM pg_locks
    JOIN pg_class ON pg_class.oid = relation
    JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = current_schema()
    WHERE cardinality(pg_blocking_pids(pid)) > 0
"""


async def until_blocked(bench: Bench) -> None:
    """Wait until a commit in this test's schema waits for a lock."""

    async def look() -> None:
        while not await bench.number(BLOCKED):
            pass  # each check is a round trip, during which the others continue

    await asyncio.wait_for(look(), PATIENCE)


class ServerClock(FakeClock):
    """The clock of a bench on PostgreSQL. The clock of that server keeps running, and so does our uptime; all other
    clocks stand still."""

    _began = SystemClock().uptime()

    def uptime(self) -> int:
        return super().uptime() + SystemClock().uptime() - self._began


def clock_for(url: str) -> FakeClock:
    return FakeClock() if url.startswith("sqlite") else ServerClock()


async def begin_lanes(queue: Queue) -> None:
    """Let Redis carry lanes, as the first passes of a controller's janitor do."""
    while (await queue.recovery.repair_lanes()).more:
        pass


async def _no_setup(_: Any) -> None:
    """Do nothing with a new connection. Only pools with an `init` are kept for the next test (kept_pools.py)."""


async def open_bench(url: str, clock: FakeClock | None = None, redis_url: str = "", lanes_url: str = "") -> Bench:
    clock = clock or clock_for(url)
    database = database_at(url, clock)
    await database.open(upgrade=True)
    bench = Bench(url, database, clock, database.dialect, redis_url=redis_url, lanes_url=lanes_url)
    if lanes_url:
        await begin_lanes(bench.queue)
    return bench


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the suites of queue and fleet on both drivers of lanes."""
    if "lanes_url" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in ON_BOTH_LANES:
        metafunc.parametrize("lanes_url", ["sql", "redis"], indirect=True)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` runs the suites of lanes on Redis beside PostgreSQL only, and `test_redis_lanes` beside both."""
    for item in items:
        if _drivers_of(item) == ("sqlite", "redis"):
            item.add_marker("exhaustive")


def _drivers_of(item: pytest.Item) -> tuple[str | None, str | None]:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return parameters.get("store_url"), parameters.get("lanes_url")


@pytest.fixture
def lanes_url(request: pytest.FixtureRequest) -> str:
    """The Redis server that carries the lanes; empty: they are in the database."""
    if getattr(request, "param", "sql") == "sql":
        return ""
    url: str = request.getfixturevalue("redis_url")
    return url


@pytest.fixture
async def bench(store_url: str, lanes_url: str) -> AsyncIterator[Bench]:
    """A bench on each store in turn."""
    bench = await open_bench(store_url, lanes_url=lanes_url)
    yield bench
    await bench.close()


@pytest.fixture
async def postgres_bench(postgres_url: str, lanes_url: str) -> AsyncIterator[Bench]:
    """A bench on PostgreSQL, for races between commits; SQLite runs one commit at a time."""
    bench = await open_bench(postgres_url, lanes_url=lanes_url)
    yield bench
    await bench.close()


@pytest.fixture
def own_database(postgres: Service) -> Iterator[str]:
    """A PostgreSQL database for one test alone, without a table. When a schema is created or dropped, as other tests do
    all the time, every connection to that database plans its statements again; that does not happen here."""
    name = f"t_{secrets.token_hex(8)}"
    ask_postgres(postgres.url, f"CREATE DATABASE {name} TEMPLATE template0")
    yield urlsplit(postgres.url)._replace(path=f"/{name}").geturl()
    ask_postgres(postgres.url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def sqlite_bench(sqlite_url: str) -> AsyncIterator[Bench]:
    """A bench on SQLite, for behaviour of embedded stores only."""
    bench = await open_bench(sqlite_url)
    yield bench
    await bench.close()
