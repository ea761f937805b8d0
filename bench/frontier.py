"""Large frontiers: add, take and settle through the real store on each driver, and the bytes that a URL needs.

One crawl grows from size to size. These calls are measured at each size: adding batches of 1,000 links, of which 80 %
are known; taking and settling 100 URLs, with and without the page that a fetch would store; and all of this in one
commit, as a walker does. Every call is a commit that waits for the disk. URLs are hashed before the time is measured.
"""

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop

from bench.process import ServerCpu
from bench.report import Report, Table, ratio
from shoal.app import App, opened
from shoal.base.database import Tx
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, NewUrl, Settled, key_of
from shoal.crawl.frontier.values import WalkerBatch as Brought
from shoal.crawl.lifecycle.crawls import KIND
from shoal.crawl.store import HostRate
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue.job import Fence
from tests.support.programs import ServerUnavailable
from tests.support.servers import PostgresServer, RedisServer, Servers, ask_postgres, ask_redis

T = TypeVar("T")
Commit = Callable[[Tx], Awaitable[T]]

SIZES = (100_000, 1_000_000, 5_000_000)
SHORT_SIZES = (100_000,)
DRIVERS = ("sqlite", "postgres", "redis")
PEER = "scrapy-redis==0.9.1"
PEER_SIZE, PEER_BATCHES = 20_000, 10  # small, because scrapy-redis makes one round trip per link
BATCH = 1_000  # links per add
KNOWN = 0.8  # share of these links that are already known
ROUND = 100  # URLs per take or settle
ROUNDS = 100
BROAD = 1_000  # hosts of the crawl with many sites
NO_DELAY = HostRate(0.0)
ABOUT = (
    "The calls use the real frontier store, and each call is a commit that waits for the disk. `load` fills the "
    "frontier with new URLs. `add` adds batches of 1,000 links, of which 80 % are already known. `take` and `settle` "
    "process 100 URLs per call. `turn` settles 100 URLs with their pages, adds 1,000 links and takes 100 URLs in one "
    "commit; its rate is in pages. Microseconds are per URL."
)


@dataclass
class Spent:
    """The time spent so far on one kind of work."""

    urls: int = 0
    wall: float = 0.0
    client: float = 0.0
    server: float = 0.0

    def each(self, seconds: float) -> float:
        return seconds / self.urls * 1e6 if self.urls else 0.0


@dataclass
class NumberedCrawl:
    """A crawl whose URLs are numbered, so that each URL can be computed from its number."""

    crawl: Crawl
    hosts: int
    known: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def fresh(self, count: int) -> list[NewUrl]:
        self.known += count
        return [self._url(number) for number in range(self.known - count, self.known)]

    def links(self) -> list[NewUrl]:
        """Return the links of a page: mostly known, some new, in random order."""
        seen = [self._url(self.chance.randrange(self.known)) for _ in range(int(BATCH * KNOWN))]
        links = seen + self.fresh(BATCH - len(seen))
        self.chance.shuffle(links)
        return links

    def _url(self, number: int) -> NewUrl:
        url = self._address(number)
        parent, _ = key_of(self._address(number // 5), self.crawl.key_seed)
        return NewUrl(*key_of(url, self.crawl.key_seed), url, depth_of(number), Fate.OPEN, parent)

    def _address(self, number: int) -> Url:
        host = number * 2654435761 % self.hosts
        return Url(f"https://www{host}.example.com/section-{number % 97}/some-article-title-{number:08d}.html")


def depth_of(number: int) -> int:
    """Return the depth of a URL. Crawls fetch shallow URLs first, so URLs are found in the order of their depth, and
    each depth has more URLs than the previous one."""
    return 1 + number.bit_length() // 4


class Rig:
    """One measured store: the packages that use it, a crawl in it, and the holder of the crawl's job."""

    def __init__(self, app: App, numbered: NumberedCrawl, fence: Fence, server: ServerCpu | None) -> None:
        self._app = app
        self._numbered = numbered
        self._fence = fence
        self._server = server
        self.spent: dict[str, Spent] = {}

    async def grow(self, size: int) -> None:
        while self._numbered.known < size:
            urls = self._numbered.fresh(min(BATCH, size - self._numbered.known))
            await self._commit("load", len(urls), partial(self._add, urls=urls))

    async def work(self, rounds: int) -> None:
        for _ in range(rounds):
            links = self._numbered.links()
            await self._commit("add", len(links), partial(self._add, urls=links))
        for place in range(rounds):
            tasks = await self._commit("take", ROUND, self._take)
            paged = place % 2 == 1
            done = [settled(task, paged=paged) for task in tasks]
            name = "settle with page" if paged else "settle"
            await self._commit(name, len(done), partial(self._settle, brought=Brought(done)))
        await self._walk(rounds // 2)

    async def _walk(self, rounds: int) -> None:
        tasks = await self._app.database.run(self._take)
        for _ in range(rounds):
            brought = Brought([settled(task, paged=True) for task in tasks], self._numbered.links())
            tasks = await self._commit("turn", len(tasks), partial(self._turn, brought=brought))

    async def _add(self, tx: Tx, urls: list[NewUrl]) -> int:
        return await self._app.crawls.add_urls(tx, self._numbered.crawl, urls, self._fence.job_id)

    async def _take(self, tx: Tx) -> list[FrontierTask]:
        crawl = self._numbered.crawl
        frontier = self._app.stores.frontiers.of(crawl)
        taken = await frontier.take(tx, crawl.number, self._fence, ROUND, 0, NO_DELAY)
        return taken.tasks

    async def _settle(self, tx: Tx, brought: Brought) -> None:
        app, number = self._app, self._numbered.crawl.number
        settlement = await app.stores.frontiers.of(self._numbered.crawl).settle(tx, number, self._fence, brought)
        await PageStore().insert(tx, number, settlement.pages)
        await app.crawls.store.add_counts(tx, number, self._fence.job_id, settlement.counts())

    async def _turn(self, tx: Tx, brought: Brought) -> list[FrontierTask]:
        await self._settle(tx, brought)
        return await self._take(tx)

    async def _commit(self, name: str, urls: int, work: Commit[T]) -> T:
        spent = self.spent.setdefault(name, Spent())
        spent.urls += urls
        server, client, wall = self._served(), time.process_time(), time.perf_counter()
        answer = await self._app.database.run(work)
        spent.wall += time.perf_counter() - wall
        spent.client += time.process_time() - client
        spent.server += self._served() - server
        return answer

    def _served(self) -> float:
        return self._server.seconds() if self._server else 0.0


def settled(task: FrontierTask, *, paged: bool) -> Settled:
    return Settled(task, Fate.FETCHED, page_of(task) if paged else None)


def page_of(task: FrontierTask) -> Page:
    words = f"A page about number {task.seq}, which is one of many of its kind"
    return Page(
        url=task.url, depth=task.depth, fetched_at=task.seq, attempt=1, status=200, parent=task.parent,
        content_type="text/html", encoding="utf-8", bytes=26_000, title=words, description=f"{words}. {words}.",
        lang="en", h1=words, word_count=4_000, content_hash=f"{task.key:032x}"[-32:], links_internal=40,
        links_external=20, duration_ms=12.5,
    )  # fmt: skip


class SqliteStore:
    """A SQLite file in a temporary folder."""

    name = "SQLite"
    server: ServerCpu | None = None

    def __init__(self, folder: Path) -> None:
        self._file = folder / "frontier.db"
        self.url = f"sqlite:///{self._file}"
        self.version = f"SQLite {sqlite3.sqlite_version}"

    def sizes(self) -> dict[str, int]:
        connection = sqlite3.connect(self._file)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes = connection.execute(
            "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat AS d JOIN sqlite_schema AS s ON s.name = d.name "
            "WHERE d.aggregate = TRUE GROUP BY s.tbl_name"
        ).fetchall()
        connection.close()
        return dict(sizes) | {"all": self._file.stat().st_size}

    def rows(self, table: str) -> int:
        connection = sqlite3.connect(self._file)
        count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        connection.close()
        return count


class PostgresStore:
    """Our own PostgreSQL server, whose commits wait for the disk."""

    name = "PostgreSQL"

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        self.version = f"PostgreSQL {server.service.version}"
        folder = str(ask_postgres(server.url, "SHOW data_directory"))
        self.server = ServerCpu(int((Path(folder) / "postmaster.pid").read_text().split()[0]))

    def sizes(self) -> dict[str, int]:
        tables = ("fate", "frontier", "frontier_host", "page")
        sizes = {table: self._number(f"SELECT pg_total_relation_size('{table}')") for table in tables}
        return sizes | {"all": self._number("SELECT pg_database_size(current_database())")}

    def rows(self, table: str) -> int:
        return self._number(f"SELECT count(*) FROM {table}")

    def _number(self, statement: str) -> int:
        number = ask_postgres(self.url, statement)
        assert isinstance(number, int)
        return number


class RedisStore:
    """Our own Redis server, with an append-only file that is flushed every second, and a SQLite file that waits for the
    disk. The size is the memory of the Redis server."""

    name = "Redis"

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'frontier.db'}"
        self.redis_url = server.url
        self.version = f"{server.service.name} {server.service.version}"
        self.server = ServerCpu(int((server.folder / "pid").read_text()))
        self._empty = self._memory()

    def _memory(self) -> int:
        return int(self._info("memory")["used_memory"])

    def _info(self, section: str) -> dict[str, str]:
        return dict(
            line.split(":", 1) for line in ask_redis(self.redis_url, "INFO", section).splitlines() if ":" in line
        )

    def bytes_row(self, size: int) -> list[str | int | float | None]:
        used = self._memory() - self._empty
        return [self.name, size, used / size, None, used / 1e6]


Store = SqliteStore | PostgresStore | RedisStore


@contextmanager
def opened_store(driver: str) -> Iterator[Store]:
    if driver == "sqlite":
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            yield SqliteStore(Path(folder))
        return
    with Servers.open() as servers:
        if driver == "redis":
            with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
                redis = servers.new_redis(durable=True)
                yield RedisStore(redis, Path(folder))
                redis.kill()
            return
        server = servers.new_postgres(durable=True)
        yield PostgresStore(server)
        server.stop()


def run(options: Namespace) -> Report:
    """Measure the frontier on each driver."""
    report = Report("frontier", ABOUT)
    sizes = sorted(options.sizes or (SHORT_SIZES if options.short else SIZES))
    bytes_table = Table("Bytes per URL", ["store", "URLs", "waiting", "settled", "whole store, MB"])
    for driver in options.drivers:
        try:
            with opened_store(driver) as store:
                report.versions.append(store.version)
                uvloop.run(measure(store, sizes, options.rounds, report, bytes_table))
        except ServerUnavailable as error:
            print(f"{driver} is not measured: {error}")
            continue
        with opened_store(driver) as store:
            uvloop.run(measure_broad(store, sizes[0], options.rounds, report.tables[-1]))
    report.tables.append(bytes_table)
    if "redis" in options.drivers:
        measure_peer(report, bytes_table)
    return report


def measure_peer(report: Report, bytes_table: Table) -> None:
    """Measure the frontier of scrapy-redis on the same server, if it can be installed."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, Servers.open() as servers:
        python = Path(folder) / "bin" / "python"
        steps = [[sys.executable, "-m", "venv", folder], [str(python), "-m", "pip", "install", "--quiet", PEER]]
        if any(subprocess.run(step, capture_output=True, check=False).returncode for step in steps):
            print(f"{PEER} is not measured: it cannot be installed here")
            return
        redis = servers.new_redis(durable=True)
        script = Path(__file__).parent / "peers" / "scrapy_frontier.py"
        command = [str(python), str(script), redis.url, str(PEER_SIZE), str(PEER_BATCHES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        redis.kill()
    if done.returncode:
        print(f"{PEER} is not measured: {done.stderr.strip().splitlines()[-1]}")
        return
    found = json.loads(done.stdout)
    table = report.table(f"Frontier of {PEER}", "URLs", "work", "per second", "µs")
    table.rows.append([f"{PEER_SIZE:,}", "add", found["add_per_second"], 1e6 / found["add_per_second"]])
    bytes_table.rows.append([PEER, PEER_SIZE, found["bytes_per_url"], None, None])


async def measure(store: Store, sizes: list[int], rounds: int, report: Report, bytes_table: Table) -> None:
    table = report.table(
        f"Frontier on {store.name}", "URLs", "work", "per second", "µs", "client CPU µs", "server CPU µs"
    )
    adds: dict[int, float] = {}
    async with opened(settings_of(store), upgrade=True) as app:
        rig = await rig_of(app, 1, store.server)
        for size in sizes:
            await rig.grow(size)
            bytes_table.rows.append(bytes_row(store, size))
            await rig.work(rounds)
            adds[size] = rig.spent["add"].each(rig.spent["add"].wall)
            add_rows(table, f"{size:,}", rig)
    if len(sizes) > 1:
        grown = ratio(adds[sizes[-1]], adds[sizes[0]])
        table.notes.append(f"`add` at {sizes[-1]:,} URLs costs {grown:.2f} times what it costs at {sizes[0]:,}.")


async def measure_broad(store: Store, size: int, rounds: int, table: Table) -> None:
    """Measure a crawl of many hosts instead of one; each take then rotates over the hosts."""
    async with opened(settings_of(store), upgrade=True) as app:
        rig = await rig_of(app, BROAD, store.server)
        await rig.grow(size)
        await rig.work(rounds)
        add_rows(table, f"{size:,} on {BROAD:,} hosts", rig)


def settings_of(store: Store) -> Settings:
    names = {"DATABASE_URL": store.url}
    if isinstance(store, RedisStore):
        names |= {"REDIS_URL": store.redis_url, "SHOAL_FRONTIER": "redis"}
    return load(names).settings


async def rig_of(app: App, hosts: int, server: ServerCpu | None) -> Rig:
    crawl = await app.crawls.submit(CrawlConfig(seeds=["https://www.example.com/"]))
    [lease] = await app.queue.lease("bench", [KIND], ["shared"], 1)
    return Rig(app, NumberedCrawl(crawl, hosts), lease.fence, server)


def add_rows(table: Table, label: str, rig: Rig) -> None:
    for name, spent in rig.spent.items():
        server = spent.each(spent.server) if spent.server else None
        each = spent.each(spent.wall)
        table.rows.append([label, name, spent.urls / spent.wall, each, spent.each(spent.client), server])
    rig.spent = {}


def bytes_row(store: Store, size: int) -> list[str | int | float | None]:
    """Return the row with the bytes per URL. A waiting URL has a row in `fate` and one in the frontier; a settled URL
    has only its row in `fate`."""
    if isinstance(store, RedisStore):
        return store.bytes_row(size)
    sizes = store.sizes()
    fate = sizes["fate"] / store.rows("fate")
    waiting = (sizes["frontier"] + sizes["frontier_host"]) / store.rows("frontier")
    return [store.name, size, fate + waiting, fate, sizes["all"] / 1e6]
