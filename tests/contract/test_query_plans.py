"""Query plans: at any store size, a commit of the frontier or the queue reads only the rows it needs.

The real operations run on a large store, and every statement is examined before it runs. PostgreSQL says how many rows
each step of a plan read, SQLite how many steps its machine took. Statistics are fresh, or there are none yet, as in the
first minute of every new store; and PostgreSQL plans with the actual parameter values, or without them, as for prepared
statements that run often. test_query_indexes.py checks which index each statement of the whole program uses.
"""

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from msgspec.structs import replace

from shoal.base.database import Call, Callback, Database, Rows, Tx, Work
from shoal.base.database.queries import Query, files, load
from shoal.base.ids import JobId, new_id
from shoal.base.settings import EventSettings
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import TRAP_SCORE, pattern_of
from shoal.crawl.frontier.values import NewUrl, Settled, SitemapRecord, TrapPoints, WalkerBatch
from shoal.crawl.store import HostRate
from shoal.events.forwarder import EventRetention
from shoal.events.store import EventStore, WebhookStore
from shoal.hosts.rate import HostDelay, SlotRequest
from shoal.hosts.rate_limiter import RateLimiter
from shoal.hosts.robots import RobotsRecord, RobotsState
from shoal.hosts.throttle import HostUpdate
from shoal.page_jobs.leasing import PageLeases
from shoal.plan.policy import PolicyForm
from shoal.plan.scheduler import Scheduler
from shoal.plan.store import PolicyStore
from shoal.queue import states
from shoal.queue.job import Lease, LeaseRequest, NewJob, Offer
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.states import JobState
from tests.contract.conftest import (
    SITE,
    Bench,
    Walker,
    clock_for,
    database_at,
    failed,
    fetched,
    later,
    new_url,
    redirected,
)

T = TypeVar("T")
Look = Callable[[Any, Query, Any], Awaitable[list[str]]]

SIZE = 30_000
LINKS = 1_000
TABLES = {
    *(
        "fate",
        "frontier",
        "frontier_touched",
        "frontier_host",
        "page",
        "job",
        "job_grant",
        "job_host",
        "host",
        "policy",
    ),
    *("outbox", "delivery", "redirect_target"),
}
THEN = 1_000_000_000_000_000  # when the first event happened
MOST_ROWS = 4 * LINKS  # rows that a step of a plan may read
MOST_BLOCKS = (
    60 * LINKS
)  # of a statement; a row of a batch needs a few index lookups, and is written to several indexes
MOST_STEPS = 150 * LINKS  # of SQLite's machine; reading the smallest of the large tables once takes more
SLOW = HostRate(1.0)
SHARED = HostRate(0.0, walkers=2)
SHORT = 1e-6  # seconds
FEW = HostRate(0.0, per_host=1)
SKIP = Fate.SKIPPED_SCOPE
QUERY_FILES = ("crawl/frontier/sql_frontier", "queue/store", "queue/job_hosts", "hosts/store")
PLAN = {"ready_in_queue", "due_policies", "owed_policies", "advance_policies", "waiting_page_jobs", "live_jobs_of_keys"}
PLAN |= {"policies_after", "policies_of_project"}
EVENTS = {
    "last_event_before",
    "old_events",
    "forget_events",
    "forget_deliveries",
    "event_types_between",
    "put_deliveries",
}
EVENTS |= {
    "new_events",
    "event_types_after",
    "sizes_of_events",
    "events_until",
    "due_webhooks",
    "due_deliveries",
    "numbered_events",
}
EVENTS |= {"waiting_deliveries", "dead_deliveries", "deliveries_that_died", "empty_webhook"}

NUMBERS = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {SIZE})"
JOB = "id, kind, state, run_id, payload, lane, priority, rank, not_before, max_attempts, created_at, finished_at, due"
FILL = (
    "INSERT INTO host (origin) SELECT 'http://www' || i || '.example.org' FROM n WHERE i <= 20000",
    "INSERT INTO fate (crawl, key, chk, fate) SELECT {crawl}, i * 7919, i, 0 FROM n",
    "INSERT INTO frontier (crawl, host, seq, parent, kind, path)"
    " SELECT {crawl}, {host}, 1099511627776 + i, 7919 * ({size} - i / 5), 0, '/a/path/of/some/length/' || i FROM n",
    "INSERT INTO frontier (crawl, host, seq, kind, path)"
    " SELECT {crawl}, {host} + 1 + i % 20, 1099511727776 + i, 0, '/' || i FROM n WHERE i <= 200",
    "INSERT INTO frontier_touched (crawl, host, seq, due, parent, kind, path)"  # in quarantine, or due much later
    " SELECT {crawl}, {host}, 1099511827776 + i, 4611686018427387904 - i % 2, 7919 * i, 0, '/trap/' || i FROM n",
    "INSERT INTO redirect_target (crawl, key, chk, fate, url, via)"
    " SELECT {crawl}, i * 7919, i, 4, 'http://example.org/' || i, 'http://example.org/via/' || i FROM n",
    "INSERT INTO frontier_touched (crawl, host, seq, due, kind, path, start, chain)"
    " SELECT {crawl}, {host}, 1099512827776 + i, 4611686018427387903, 0, '/to/' || i, 'http://example.org/f/' || i, ''"
    " FROM n",
    "INSERT INTO frontier_host (crawl, host, ready_at) SELECT {crawl}, {host} + i, 1 FROM n WHERE i <= 20",
    "INSERT INTO page (crawl, key, chk, url, depth, attempt, fetched_at, bytes, status, content_type, error_code)"
    " SELECT {crawl}, i * 7919, i, 'http://example.org/a/path/of/some/length/' || i, 1, 1, 1, 100, 200, 'text/html',"
    " 'timeout' FROM n",
    f"INSERT INTO job ({JOB})"
    " SELECT 'job_' || i, 'page', 'pending', 'run_' || (i / 2), '', 'shared', 50, i, 0, 2, i, NULL, 1 FROM n",
    f"INSERT INTO job ({JOB})"
    " SELECT 'later_' || i, 'page', 'pending', NULL, '', 'shared', 50, i, 4611686018427387904, 2, i, NULL, 0 FROM n",
    f"INSERT INTO job ({JOB})"
    " SELECT 'old_' || i, 'page', 'done', 'run_' || (i / 2), '', 'shared', 50, i, 0, 2, i, i, 1 FROM n",
    f"INSERT INTO job ({JOB}, host)"
    " SELECT 'at_' || i, 'page', 'pending', NULL, '{{}}', 'with_hosts', 50, i, 0, 2, i, NULL, 1,"
    " 'http://www' || (i % 20000) || '.example.org' FROM n WHERE i <= 5000",
    "INSERT INTO job_host (lane, kind, capability, host, rank, due, ready_at)"
    " SELECT CASE WHEN i % 2 = 0 THEN 'with_hosts' ELSE 'shared' END, 'page',"
    " CASE WHEN i % 2 = 0 THEN 'http' ELSE 'js' END,"
    " 'http://www' || i || '.example.org', i, CASE WHEN i % 4 < 2 THEN 0 ELSE 1 END, 4611686018427387904"
    " FROM n WHERE i < 20000",
    "INSERT INTO job_grant (job_id, epoch, holder, granted_at, ended_at, ended)"
    " SELECT 'old_' || i, 1, 'w0', 1, 2, 'done' FROM n",
    "INSERT INTO policy (id, project, line, spec, enabled, planned_at, next_run_at, created_at)"
    " SELECT 'pol_' || i, 'default', 'js', '{spec}', 1, i, CASE WHEN i % 500 = 0 THEN i ELSE 4611686018427387904 END, i"
    " FROM n",
    "INSERT INTO outbox (id, type, subject, body, created_at, sequence)"
    " SELECT 'evt_' || i, 'crawl.started', 'c', '1', {then} + i, i FROM n",
    "UPDATE event_number SET last = {size}",
    "INSERT INTO webhook (id, url, events, secret, enabled, seen, created_at) SELECT 'whk', '', '[]', '', 1, {size}, 1",
    "INSERT INTO delivery (webhook, sequence, state, next_at)"
    " SELECT 'whk', i, CASE WHEN i % 500 = 0 THEN 'dead' ELSE 'delivered' END, 1 FROM n",
)
SPEC = PolicyForm.read({"url": "http://example.org/", "frequency": "1h", "queue": "js", "overlap": "replace"}).text()


class Watched:
    """A database that examines statements before they run."""

    def __init__(self, database: Database, look: Look, dialect: str) -> None:
        self._database = database
        self._look = look
        self._queries = load(dialect)
        self._all = names_in(dialect)
        self.names: set[str] = set()
        self.problems: set[str] = set()

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.run(lambda tx: work(WatchedTx(tx, self)), within=within)

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work, within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.read(lambda tx: work(WatchedTx(tx, self)))

    async def close(self) -> None:
        await self._database.close()

    async def look(self, tx: Any, query: str, rows: Rows) -> None:
        if query not in self._all:
            return
        self.names.add(query)
        for problem in await self._look(tx._connection, self._queries[query], rows):
            self.problems.add(f"{query}: {problem}")


class WatchedTx:
    """A transaction that records its statements."""

    def __init__(self, tx: Tx, watched: Watched) -> None:
        self._tx = tx
        self._watched = watched

    async def all(self, query: str, **values: Any) -> list[Any]:
        await self._watched.look(self._tx, query, [values])
        return await self._tx.all(query, **values)

    async def one(self, query: str, **values: Any) -> Any | None:
        await self._watched.look(self._tx, query, [values])
        return await self._tx.one(query, **values)

    async def value(self, query: str, **values: Any) -> Any:
        await self._watched.look(self._tx, query, [values])
        return await self._tx.value(query, **values)

    async def execute(self, query: str, **values: Any) -> int:
        await self._watched.look(self._tx, query, [values])
        return await self._tx.execute(query, **values)

    async def many(self, query: str, rows: Rows) -> int:
        if rows:
            await self._watched.look(self._tx, query, rows)
        return await self._tx.many(query, rows)

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        if rows:
            await self._watched.look(self._tx, query, rows)
        return await self._tx.batch(query, rows)

    def on_commit(self, callback: Callback) -> None:
        self._tx.on_commit(callback)

    def after_commit(self, call: Call) -> None:
        self._tx.after_commit(call)

    def after_rollback(self, call: Call) -> None:
        self._tx.after_rollback(call)

    def afterwards(self, work: Work[Any]) -> None:
        self._tx.afterwards(lambda tx: work(WatchedTx(tx, self._watched)))


async def look_in_sqlite(connection: sqlite3.Connection, query: Query, rows: Any) -> list[str]:
    """Return the problems of a query on SQLite: scanned tables, and too many steps of the virtual machine."""
    rows = [tuple(map(_as_json, row)) for row in query.rows(rows)]
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query.sql}", rows[0])]
    scans = [line for line in plan if line.startswith("SCAN ") and not re.match(SMALL, line)]
    with undone(connection, reads=query.sql.startswith("SELECT")):
        steps = _steps(connection, query, rows)
    return scans + ([f"takes {steps:,} steps: {'; '.join(plan)}"] if steps > MOST_STEPS else [])


# Lists that were passed in, tables of one row, the last of all ids, and tables that are read in batches.
SMALL = (
    r"SCAN (json_each|[a-z]) VIRTUAL TABLE|SCAN CONSTANT ROW|SCAN frontier_seq|SCAN \(subquery|SCAN w USING INDEX"
    r"|SCAN (t|w|j|p|ahead|found|ready|free_hosts|quota\b.*|job_seat\b.*|job USING INDEX job_dead"
    r"|job USING COVERING INDEX sqlite_autoindex_job_1)$"
)


def _steps(connection: sqlite3.Connection, query: Query, rows: list[tuple[Any, ...]]) -> int:
    hundreds = 0

    def count() -> int:
        nonlocal hundreds
        hundreds += 1
        return 0

    connection.set_progress_handler(count, 100)
    for row in rows:
        connection.execute(query.sql, row).fetchall()
    connection.set_progress_handler(None, 0)
    return hundreds * 100


@contextmanager
def undone(connection: sqlite3.Connection, *, reads: bool) -> Iterator[None]:
    if reads:
        yield
        return
    connection.execute("SAVEPOINT look")
    yield
    connection.execute("ROLLBACK TO look")
    connection.execute("RELEASE look")


def _as_json(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, list) else value


async def look_in_postgres(connection: Any, query: Query, rows: Any) -> list[str]:
    """No large table is read from end to end, by whatever kind of scan."""
    rows = query.rows(rows)
    values = [list(column) for column in zip(*rows, strict=True)] if query.arrays else list(rows[0])
    given = f"({', '.join(map(_literal, values))})" if values else ""
    problems = await _read(connection, "while empty", f"EXECUTE {early(query)}{given}", "force_generic_plan")
    for mode in ("force_custom_plan", "force_generic_plan"):
        await connection.execute(f"PREPARE look AS {query.sql}")
        problems += await _read(connection, mode, f"EXECUTE look{given}", mode)
        await connection.execute("DEALLOCATE look")
    return problems


async def _read(connection: Any, when: str, statement: str, mode: str) -> list[str]:
    """Run a statement and undo it; return the parts of its plan, made at that time and in that mode, that read too
    much."""
    undo = connection.transaction()
    await undo.start()
    await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
    plan = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}")
    await undo.rollback()
    root = json.loads(plan)[0]["Plan"]
    blocks = root["Shared Hit Blocks"] + root["Shared Read Blocks"]  # including entries skipped inside an index
    many = [f"reads {blocks:,} blocks"] if blocks > MOST_BLOCKS else []
    return [f"planned {when}: {problem}" for problem in _problems(root) + many]


def _problems(step: dict[str, Any]) -> list[str]:
    table, kind = step.get("Relation Name"), step["Node Type"]
    counts = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    read = sum(step.get(name, 0) for name in counts) * step["Actual Loops"]
    bad = table in TABLES and kind != "ModifyTable" and read > MOST_ROWS
    compared = step.get("Rows Removed by Join Filter", 0) * step["Actual Loops"]
    using = f" using {step['Index Name']}" if "Index Name" in step else ""
    found = [f"{kind}{using} on {table} reads {read:,} rows"] if bad else []
    found += [f"{kind} compares {compared:,} pairs of rows"] if compared > 10 * MOST_ROWS else []
    return found + [problem for inner in step.get("Plans", []) for problem in _problems(inner)]


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"{{{','.join(map(_element, value))}}}" if isinstance(value, list) else str(value)
    return "'" + text.replace("'", "''") + "'"


def _element(value: Any) -> str:
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "NULL" if value is None else f'"{escaped}"'


def early(query: Query) -> str:
    return f"early_{query.name}"


async def plan_early(tx: Any) -> None:
    """Make PostgreSQL plan without parameter values now; it keeps these plans until it analyzes the tables again."""
    connection = tx._tx._connection
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    for query in map(load("postgres").__getitem__, names_in("postgres")):
        nothing = f"({', '.join(['NULL'] * len(query.parameters))})" if query.parameters else ""
        await connection.execute(f"PREPARE {early(query)} AS {query.sql}")
        await connection.fetch(f"EXPLAIN EXECUTE {early(query)}{nothing}")
    await connection.execute("RESET plan_cache_mode")


async def fill(bench: Bench, crawl: Crawl) -> None:
    """Make the store large around a crawl."""
    host = await bench.number(f"SELECT number FROM host WHERE origin = '{SITE}'")
    for statement in FILL:
        facts = {"crawl": crawl.number, "host": host, "spec": SPEC, "then": THEN, "size": SIZE}
        await bench.sql(f"{NUMBERS} {statement}".format(**facts))
    moved = "UPDATE frontier_seq SET value = 1000000"
    await bench.sql(moved if bench.dialect == "sqlite" else "SELECT setval('frontier_seq', 1000000)")


async def crawl_on(bench: Bench, crawl: Crawl) -> None:
    """Run all frontier operations of walkers: add, take, settle, retry, hand back, get lost, resume."""
    walker = await bench.walker(crawl, pace=SHARED)
    links = [new_url(crawl, f"/link/{number}") for number in range(LINKS)]
    await walker.turn(found=links, want=100)
    done = [fetched(task) for task in walker.held[:60]] + [later(task, 5) for task in walker.held[60:90]]
    await walker.turn(*done, found=[*links[200:], new_url(crawl, "/new"), new_url(crawl, "/out", fate=SKIP)], want=100)
    record = SitemapRecord(walker.held[0].url, 1)
    await walker.turn(Settled(walker.held[0], Fate.FETCHED, sitemap=record), want=0)
    other = await bench.walker(crawl, "w2", pace=SHARED)
    await walker.turn(want=100)  # leaves some of its hosts to the other
    await other.turn(want=100)
    await walker.turn(want=LINKS)  # more than some hosts have
    await trap(bench, crawl, walker)
    await redirect(bench, crawl, walker)
    await walker.commits.seeds_landed()
    await walker.commits.hand_back(WalkerBatch(), "draining")
    slow = await bench.walker(crawl, pace=SLOW)
    await slow.turn(want=10)
    await bench.database.run(lambda tx: bench.frontier.next_in_seconds(tx, crawl.number))
    await bench.database.run(lambda tx: bench.frontier.taken(tx, crawl.number))
    await bench.lose()
    await (await bench.walker(crawl, pace=FEW)).turn(want=100)


async def trap(bench: Bench, crawl: Crawl, walker: Walker) -> None:
    """Put what a walker holds of one pattern into quarantine, and release it."""
    task = walker.held[0]
    pattern = pattern_of(task.url)
    new = new_url(crawl, "/trap", fate=Fate.QUARANTINED)
    points = {kind: TrapPoints(url, TRAP_SCORE) for url in (task.url, new.url) for kind in [pattern_of(url)]}
    await bench.database.run(lambda tx: bench.frontier.score_traps(tx, crawl.number, points))
    await walker.turn(Settled(task, Fate.QUARANTINED), found=[new])
    await bench.database.read(lambda tx: bench.frontier.traps(tx, crawl.number))
    await bench.crawls.release(crawl.id, pattern)


async def redirect(bench: Bench, crawl: Crawl, walker: Walker) -> None:
    """Let what a walker holds redirect to URLs that are new, that wait, that were skipped, and that other URLs have;
    then fail there, and be opened again."""
    places = [f"/target/{number}" for number in range(30)] + [f"/link/{LINKS - 1 - number}" for number in range(20)]
    tasks = walker.held[: len(places)]
    await walker.turn(*[redirected(crawl, *pair) for pair in zip(tasks, [*places, "/out"], strict=False)], want=100)
    others = [task for task in walker.held if task.chain is None][:10]
    await walker.turn(*[redirected(crawl, *pair) for pair in zip(others, places, strict=False)], want=100)
    ended = [task for task in walker.held if task.chain is not None]
    await walker.turn(*map(failed, ended), want=100)
    again = [NewUrl(task.key, task.chk, task.url, task.depth, Fate.OPEN) for task in ended]
    await bench.database.run(lambda tx: bench.frontier.reopen(tx, crawl.number, again, []))


async def end_many(bench: Bench) -> None:
    """Extend and end many jobs while as many others are locked."""
    request = LeaseRequest("w7", ["page"])
    held = (await bench.queue.finish_and_lease([], request, LINKS // 2)).leases
    await bench.queue.extend([lease.fence for lease in held])
    moves = [states.finish(lease.fence.job_id, lease.fence.epoch) for lease in held]
    for half in (moves[::2], moves[1::2]):
        await bench.queue.finish_and_lease(half, request, 0)


async def lease_by_host(bench: Bench) -> None:
    """Run the statements with which page children and bots lease by host."""
    host = "http://www1.example.org"
    await bench.sql("UPDATE job_host SET ready_at = shoal_now() + CASE WHEN rank % 100 = 0 THEN 0 ELSE 50000000 END")
    await bench.enqueue(lane="with_hosts", host=host)
    slots = PageLeases(bench.queue, RateLimiter(HostDelay(1.0)))
    request = slots.by_host(LeaseRequest("w5", ["page"], ["with_hosts"]))
    [lease, *_] = await bench.database.run(lambda tx: reserve_and_lease(bench, slots, tx, request))
    await bench.job_admin.explain(lease.fence.job_id)
    release = [states.release(lease.fence.job_id, lease.fence.epoch, "no")]
    await bench.database.run(lambda tx: bench.queue.finish_and_lease_in(tx, release, request, 20))


async def reserve_and_lease(bench: Bench, slots: PageLeases, tx: Tx, request: LeaseRequest) -> list[Lease]:
    turned = await bench.queue.finish_and_lease_in(tx, [], request, 200)
    await slots.reserve(tx, turned.leases)
    return turned.leases


async def work_on(bench: Bench) -> None:
    """Run all queue operations of workers: enqueue, lease, extend, finish, fail, release, get lost, cancel."""
    await bench.enqueue(key="once", run_id="run_1")
    await bench.enqueue(key="once", run_id="run_1")
    await bench.enqueue(lane="node/n1", offer=Offer("n1:1", timedelta(seconds=1)), dispatch="{}")
    await bench.enqueue(not_before=await bench.number("SELECT shoal_now()") + 5_000_000)
    await bench.jump(6)
    leases = await bench.queue.lease("w1", ["page", "audit"], ["shared", "n1"], 20)
    await bench.queue.extend([lease.fence for lease in leases])
    await end_many(bench)
    await bench.queue.began(leases[0].fence, "n1", 1)
    await bench.queue.held_by("w1")
    await bench.queue.recovery.recover("w0")
    await bench.queue.depth_up_to("shared", LINKS)
    await bench.database.run(lambda tx: tx.value("begin_lanes", id="1"))
    await bench.database.read(lambda tx: tx.all("job_hosts_after", number=0, limit=10))
    await bench.database.run(lambda tx: tx.all("lock_job_hosts", numbers=[1, 2]))
    await bench.database.run(lambda tx: tx.execute("drop_idle_job_hosts", numbers=[1, 2]))
    await bench.database.read(lambda tx: tx.value("lane_generation"))
    await bench.database.run(lambda tx: tx.execute("forget_lanes"))
    await bench.database.run(lambda tx: bench.jobs.set_attempts(tx, leases[0].fence, 3))
    await bench.database.read(lambda tx: tx.all("lane_entries", ids=[lease.fence.job_id for lease in leases]))
    place = {"lane": "shared", "kind": "page", "capability": "", "rank": 0, "id": ""}
    await bench.database.read(lambda tx: tx.all("waiting_jobs_after", **place, limit=10))
    await bench.database.run(lambda tx: bench.lanes.return_lane(tx, "n1"))
    await bench.grants(leases[0].fence.job_id)
    await bench.queue.finish(leases[0])
    await bench.queue.began(leases[0].fence, "n1", 1)
    await bench.queue.fail(leases[1], "no")
    await bench.queue.release(leases[2], "draining")
    await bench.queue.recovery.lose(leases[3], "gone")
    await bench.job(leases[4].fence.job_id)
    await bench.database.read(lambda tx: bench.jobs.live_among(tx, [lease.fence.job_id for lease in leases]))
    await bench.queue.lease_one(leases[2].fence.job_id, "w2")
    await bench.lose()
    await bench.database.read(bench.jobs.freshest_lease)
    await bench.database.read(lambda tx: bench.jobs.jobs_of_run(tx, "run_9"))
    await bench.database.read(lambda tx: bench.jobs.live_of_run(tx, "run_9"))
    await bench.database.read(bench.jobs.freshest_lease)
    await bench.database.read(lambda tx: bench.jobs.other_run_waits(tx, leases[4].fence.job_id, timedelta(0)))
    await bench.database.run(lambda tx: bench.jobs.set_priority(tx, "run_9", 60))
    await bench.database.run(lambda tx: bench.jobs.kill_run(tx, "run_9", timedelta(0)))
    await bench.database.run(lambda tx: bench.jobs.cancel_waiting(tx, "run_9", "asked"))
    await bench.queue.waits("page", ["shared", "n1"])
    await bench.queue.held_by("w2")
    await serve_bots(bench)
    await ask_desk(bench)


async def serve_bots(bench: Bench) -> None:
    """Run all queue operations of bots: lease, heartbeat, count."""
    owner = "bot/tok_a/"
    request = LeaseRequest(f"{owner}b1", ["page"], ["shared"], ["http", "js"], timedelta(minutes=10))
    [lease] = (await bench.queue.finish_and_lease([], request, 1)).leases
    await bench.queue.beat(owner, lease.fence, timedelta(minutes=10), timedelta(hours=1))
    await bench.database.read(lambda tx: bench.jobs.held_by_owner(tx, owner))
    await bench.queue.cancel(lease, "asked")
    await bench.queue.beat(owner, lease.fence, timedelta(minutes=10), timedelta(hours=1))


async def ask_desk(bench: Bench) -> None:
    """Run all job administration: lists, retry, cancel, purge, quotas, explain."""
    keys = [f"project:{new_id('job')}" for _ in range(2)]  # other tests count jobs in the same database
    for key in keys:
        await bench.job_admin.set_quota(key, 1)
        jobs = [NewJob(JobId(new_id("job")), "page", None, lane="n2", quota_keys=(key,)) for _ in range(2)]
        await bench.queue.enqueue([*jobs, NewJob(JobId(new_id("job")), "page", None, lane="n2")])
    [hurried] = (await bench.queue.finish_and_lease([], LeaseRequest("w9", ["page"], ["n2"], waits=False), 1)).leases
    await bench.queue.release(hurried, "draining")
    leases = await bench.queue.lease("w9", ["page"], ["n2"], 4)
    assert len(leases) == 4
    await bench.queue.recovery.lose_all(leases[1:3], "gone")
    await bench.queue.finish(leases[0])
    await bench.lose()
    leases = await bench.queue.lease("w9", ["page"], ["n2"], 4)
    await bench.job_admin.quotas()
    await bench.job_admin.remove_quota(keys[1])
    failing = replace(leases[0], attempts=leases[0].max_attempts - 1)
    await bench.queue.fail(failing, "no")
    lists = (JobFilter(), JobFilter(kind="rare"), JobFilter(JobState.LOCKED), JobFilter(dead=True))
    for which in (*lists, JobFilter(run_id="run_9")):
        await bench.job_admin.newest(which, limit=20)
    parked = await bench.sql("SELECT id FROM job WHERE due = 2 LIMIT 1")
    for job_id in (f"job_{SIZE - 1000}", f"later_{SIZE - 1000}", *[row["id"] for row in parked]):
        await bench.job_admin.explain(job_id)
    await bench.job_admin.retry(leases[0].fence.job_id)
    await bench.job_admin.cancel(f"job_{SIZE - 1000}")
    await bench.jump(1)
    for which in (JobFilter(dead=True), JobFilter(dead=False)):
        await bench.job_admin.purge(which, limit=50)


async def ask_hosts(bench: Bench, crawl: Crawl) -> None:
    """Run all host store operations: slots, holds, robots.txt."""
    hosts, run = bench.hosts, bench.database.run
    numbers = await run(lambda tx: hosts.numbers(tx, [f"http://new{number}.example.org" for number in range(60)]))
    await run(lambda tx: hosts.states(tx, numbers.values()))
    await run(lambda tx: tx.all("hosts_in_full", numbers=sorted(numbers.values())))
    await run(lambda tx: hosts.at_origins(tx, ["http://new1.example.org", "http://new99.example.org"]))
    await run(lambda tx: hosts.reserve(tx, [SlotRequest(host, 2, 1.0) for host in numbers.values()]))
    news = {
        host: HostUpdate(SITE, 429, shortest_backoff_seconds=SHORT, longest_backoff_seconds=SHORT, refused=[host])
        for host in numbers.values()
    }
    await run(lambda tx: hosts.record(tx, news))
    refused = {host: HostUpdate(SITE, refused=[7919]) for host in numbers.values()}
    await run(lambda tx: hosts.record(tx, refused))
    await run(lambda tx: bench.frontier.held_hosts(tx, crawl.number, 100))
    record = RobotsRecord(RobotsState.FOUND, "User-agent: *")
    for _ in range(2):
        await run(lambda tx: hosts.keep_robots(tx, SITE, record, timedelta(0)))
    await run(lambda tx: hosts.robots(tx, SITE))


async def schedule(bench: Bench) -> None:
    """Run the scheduler over many policies of which few are due, beside a full queue; then these have missed a run."""
    scheduler = Scheduler(bench.queue, bench.job_admin, LINKS)
    await scheduler.run_once()
    assert await bench.number("SELECT count(*) FROM policy WHERE runs = 1") == SIZE // 500
    await bench.sql("UPDATE policy SET queued = 1 WHERE runs = 1")
    await scheduler.run_once()


async def look_at_policies(bench: Bench) -> None:
    """Lists of all of them, and of a project that has none."""
    for project in (None, "rare"):
        await bench.database.read(lambda tx, name=project: PolicyStore().page_of(tx, 0, 50, name, None))


async def tell(bench: Bench) -> None:
    """Run all event operations on a store with many events, few of them old or dead."""
    events, hooks, run = EventStore(), WebhookStore(), bench.database.run
    await run(lambda tx: events.number(tx, 100))
    await run(lambda tx: events.heads(tx, SIZE - 10, 100))
    await run(lambda tx: events.after(tx, SIZE - 10, 100))
    found = await run(lambda tx: events.between(tx, (THEN + 100, 0), THEN + 120, 100))
    assert [number for _, number, _ in found] == list(range(100, 120))
    await run(lambda tx: hooks.put(tx, "whk", [SIZE]))
    await run(hooks.due)
    await run(lambda tx: hooks.take(tx, "whk", 8, timedelta(minutes=1)))
    assert (await run(lambda tx: hooks.counts(tx, "whk")))["dead"] == SIZE // 500 - 1
    await run(lambda tx: hooks.deliveries(tx, "whk", "dead", SIZE, 50))
    assert await run(lambda tx: hooks.empty(tx, "whk", 20)) == 20
    retention = EventRetention(EventSettings(), bench.signals)
    assert (await retention.prune(bench.database, THEN, 100))[0] == 0
    assert (await retention.prune(bench.database, THEN + 20, 100))[0] == 19


@cache
def names_in(dialect: str) -> set[str]:
    """The queries of the frontier, of the queue and of the hosts, and those of plans and events that may read much."""
    found = set[str]()
    for name in QUERY_FILES:
        texts = [Path(path).read_text() for path in files(dialect) if f"/{name}." in path]
        assert texts, f"{name} has moved"
        found |= set(re.findall(r"^-- name: (\w+)$", "\n".join(texts), re.MULTILINE))
    return PLAN | EVENTS | found


async def check(bench: Bench, watched: Watched, crawl: Crawl) -> None:
    await crawl_on(bench, crawl)
    await work_on(bench)
    await lease_by_host(bench)
    await ask_hosts(bench, crawl)
    await schedule(bench)
    await look_at_policies(bench)
    await tell(bench)
    assert not watched.problems, "\n".join(sorted(watched.problems))
    # `lock_one_host` reads one row by its key, and only when two walkers meet at one host.
    unseen = names_in(bench.dialect) - watched.names - {"lock_one_host"}
    assert unseen == set(), "not looked at: let crawl_on, work_on or ask_hosts use them"


@asynccontextmanager
async def watched_bench(url: str, look: Look) -> AsyncIterator[tuple[Bench, Watched]]:
    clock = clock_for(url)
    # One connection: a plan belongs to the connection that made it.
    database = database_at(url, clock, pool_size=1)
    await database.open(upgrade=True)
    watched = Watched(database, look, database.dialect)
    bench = Bench(url, watched, clock, database.dialect)
    try:
        yield bench, watched
    finally:
        await bench.close()


async def test_sqlite_reads_only_what_a_commit_is_about(sqlite_url: str) -> None:
    async with watched_bench(sqlite_url, look_in_sqlite) as (bench, watched):
        crawl = await bench.submit(workers=2)
        await fill(bench, crawl)
        await check(bench, watched, crawl)


COUNTED = [
    pytest.param("", "ANALYZE", id="analyzed"),
    pytest.param("", "", id="never counted", marks=pytest.mark.exhaustive),
    pytest.param("VACUUM", "", id="vacuumed while empty", marks=pytest.mark.exhaustive),
    pytest.param("", "VACUUM", id="vacuumed", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("empty", "full"), COUNTED)
async def test_postgres_reads_only_what_a_commit_is_about(own_database: str, empty: str, full: str) -> None:
    """`empty`, `full`: how the tables were counted before the first plans were made, and when the store was large."""
    async with watched_bench(own_database, look_in_postgres) as (bench, watched):
        for table in TABLES:  # nobody but the test counts
            await bench.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        for table in TABLES if empty else ():
            await bench.sql(f"{empty} {table}")
        await bench.database.run(plan_early)
        crawl = await bench.submit(workers=2)
        await fill(bench, crawl)
        for table in TABLES if full else ():
            await bench.sql(f"{full} {table}")
        await check(bench, watched, crawl)
