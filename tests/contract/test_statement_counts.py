"""How many statements an operation needs on each database. A number may fall, and then its row here falls, too."""

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar

from shoal.base.database import Database, Work
from shoal.base.ids import JobId
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.page_jobs.spec import PageWork
from shoal.queue import states
from shoal.queue.job import LeaseRequest
from tests.contract.conftest import SITE, Bench, Walker, fetched

T = TypeVar("T")
STATEMENTS = {"all", "one", "value", "execute", "many", "batch"}
URL = f"{SITE}/product"
LIMITS = {  # on PostgreSQL and on SQLite
    "enqueue a job": (1, 1),
    "lease 1 page job": (1, 2),
    "lease 40 page jobs": (1, 2),
    "extend 40 leases": (1, 1),
    "finish 20 and lease 20": (1, 5),
    "ingest 20 results": (5, 7),
    "fail": (1, 3),
    "release": (2, 4),
    "expire 20 leases": (12, 13),
    "heartbeat of a bot": (1, 1),
    "cancel a job": (4, 6),
    "submit a crawl": (11, 13),
    "lease a crawl": (1, 3),
    "attach": (12, 12),
    "take": (12, 12),
    "settle 1 page with 5 links": (23, 25),
    "settle the last pages": (33, 36),
}


class CountedTx:
    """A transaction that notes the names of its queries."""

    def __init__(self, tx: Any, names: list[str]) -> None:
        self._tx = tx
        self._names = names

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._tx, method)
        if method == "afterwards":
            return lambda work: call(lambda tx: work(CountedTx(tx, self._names)))
        return self._noting(call) if method in STATEMENTS else call

    def _noting(self, call: Any) -> Any:
        def noting(query: str, *rows: Any, **values: Any) -> Any:
            if rows != ([],):  # an empty batch is not sent
                self._names.append(query)
            return call(query, *rows, **values)

        return noting


class CountedDatabase:
    """A database that notes the names of all queries."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.names: list[str] = []

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.run(lambda tx: work(CountedTx(tx, self.names)), within=within)

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.once(lambda tx: work(CountedTx(tx, self.names)), within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.read(lambda tx: work(CountedTx(tx, self.names)))

    async def close(self) -> None:
        await self._database.close()


class Counts:
    """Counts the statements of one operation after the other."""

    def __init__(self, bench: Bench) -> None:
        self._database = CountedDatabase(bench.database)
        self.bench = bench.over(self._database)
        self._place = ("postgres", "sqlite").index(bench.dialect)
        self._found: dict[str, list[str]] = {}

    async def of(self, operation: str, done: Awaitable[T]) -> T:
        self._database.names.clear()
        result = await done
        self._found[operation] = list(self._database.names)
        return result

    def check(self) -> None:
        found = self._found
        assert {name: found[name] for name in found if len(found[name]) > LIMITS[name][self._place]} == {}


async def test_the_queue_needs_no_more_statements(bench: Bench) -> None:
    counts = Counts(bench)
    bench = counts.bench
    for _ in range(161):
        await bench.enqueue(payload=PageWork.read({"url": URL}).text())
    await counts.of("enqueue a job", bench.enqueue(payload=PageWork.read({"url": URL}).text()))
    [_] = await counts.of("lease 1 page job", bench.queue.lease("w1", ["page"], ["shared"], 1))
    leases = await counts.of("lease 40 page jobs", bench.queue.lease("w1", ["page"], ["shared"], 40))
    await counts.of("extend 40 leases", bench.queue.extend([lease.fence for lease in leases]))
    moves = [states.finish(lease.fence.job_id, lease.fence.epoch) for lease in leases[:20]]
    request = LeaseRequest("w1", ["page"])
    await counts.of("finish 20 and lease 20", bench.queue.finish_and_lease(moves, request, 20))
    result = Result(Status.SUCCESS, URL, 1, http_status=200, data={"name": "Anchor"})
    deliveries = [ResultDelivery(lease.fence, result) for lease in leases[20:]]
    await counts.of("ingest 20 results", bench.ingest.settle("w1", deliveries))
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 1)
    await counts.of("fail", bench.queue.fail(lease, "it did not answer"))
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 1)
    await counts.of("release", bench.queue.release(lease, "shutdown"))
    await bench.jump(11)
    await counts.of("expire 20 leases", bench.janitor().run_once())
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 1)
    beat = bench.queue.beat("w1", lease.fence, timedelta(seconds=10), timedelta(hours=1))
    await counts.of("heartbeat of a bot", beat)
    job = JobId(lease.fence.job_id)
    await counts.of("cancel a job", bench.job_admin.cancel(job))
    counts.check()


async def test_a_walker_needs_no_more_statements(bench: Bench) -> None:
    counts = Counts(bench)
    bench = counts.bench
    crawl = await counts.of("submit a crawl", bench.submit())
    [lease] = await counts.of("lease a crawl", bench.queue.lease("w1", ["crawl"], ["shared"], 1))
    walker = Walker(bench, crawl, lease)
    await counts.of("attach", walker.attach())
    [seed] = await counts.of("take", walker.take())
    links = [walker.link(f"{SITE}/{number}") for number in range(5)]
    await counts.of("settle 1 page with 5 links", walker.turn(fetched(seed), found=links))
    await counts.of("settle the last pages", walker.fetch_all())
    counts.check()
