"""`shoal.compat`: code written for the replaced queues runs unchanged, and survives a kill."""

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis

from shoal.app import database_of, opened
from shoal.base.clock import SystemClock
from shoal.base.database import sqlite
from shoal.base.errors import FrontierLost, InvalidInput, NotFound, StateConflict
from shoal.base.settings_loader import load
from shoal.compat import DatabaseUrlQueueManager, PersistentUrlQueueManager, UrlQueueManager
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.drivers.redis import server_check, single_calls
from shoal.work.leases import holder_name
from tests.support.redis_versions import on_every_redis
from tests.support.servers import ask_redis

ROOT = Path(__file__).parents[2]
SITE = "http://example.org"
SEEDS = [f"{SITE}/", f"{SITE}/a", f"{SITE}/b"]
DEADLINE_SECONDS = 120

PERSISTENT = """
import sys
from shoal.compat import PersistentUrlQueueManager
queue = PersistentUrlQueueManager("scan-1", sys.argv[2:])
for _ in range(int(sys.argv[1])):
    print(queue.next(), flush=True)
print("waiting", flush=True)
sys.stdin.read()
"""
ADDING = """
import sys
from shoal.compat import PersistentUrlQueueManager
queue = PersistentUrlQueueManager("scan-1", sys.argv[2:])
for place in range(10):
    queue.add(f"/{place}", parent_url=sys.argv[2], depth=1)
print("added", queue.has_next(), "waiting", sep="\\n", flush=True)
sys.stdin.read()
"""
POOLED = """
import asyncio, os, sys, asyncpg
from shoal.compat import DatabaseUrlQueueManager
async def main():
    queue = DatabaseUrlQueueManager("scan-1", await asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1))
    await queue.initialize_scan(sys.argv[2:])
    given = [await queue.next() for _ in range(int(sys.argv[1]))]
    await queue.mark_completed(given[0])
    print(*given, "waiting", sep="\\n", flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""

pytestmark = pytest.mark.usefixtures("bare_environment")


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default store, each kind in turn; in Redis, with SQLite beside it."""
    name = "sqlite" if request.param == "redis" else request.param
    store_url: str = request.getfixturevalue(f"{name}_url")
    monkeypatch.setenv("DATABASE_URL", store_url)
    if request.param == "redis":
        monkeypatch.setenv("REDIS_URL", request.getfixturevalue("redis_url"))
    return store_url


@pytest.fixture
def queue(store: str) -> Iterator[PersistentUrlQueueManager]:
    with PersistentUrlQueueManager("scan-1", SEEDS) as queue:
        yield queue


@pytest.fixture
async def pool(store_url: str) -> AsyncIterator[Any]:
    """Yield the connection that a caller passes in: an asyncpg pool with PostgreSQL, otherwise a database of Shoal."""
    if store_url.startswith("postgresql"):
        async with asyncpg.create_pool(store_url, min_size=1, max_size=3) as pool:
            yield pool
    else:
        database = database_of(load({"DATABASE_URL": store_url}).settings.database, SystemClock())
        await database.open(upgrade=True)
        yield database
        await database.close()


class Process:
    """A user's script that takes some URLs and then hangs."""

    def __init__(self, script: str, take: int, *seeds: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, str(take), *seeds],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.given = [
            line.strip() for line in itertools.takewhile(lambda line: line != "waiting\n", self._process.stdout)
        ]
        assert len(self.given) == take

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=DEADLINE_SECONDS)

    def finish(self) -> int:
        self._process.communicate(timeout=DEADLINE_SECONDS)
        return self._process.returncode


def rest_of(queue: UrlQueueManager | PersistentUrlQueueManager) -> list[str]:
    """The caller's own loop."""
    given = []
    while queue.has_next():
        given.append(queue.next())
    return given


async def rest_of_async(queue: DatabaseUrlQueueManager) -> list[str]:
    given = []
    while (url := await queue.next()) is not None:
        given.append(url)
        await queue.mark_completed(url)
    return given


def seen_in(store: str, scan_id: str = "scan-1") -> CrawlStatus:
    async def look() -> CrawlStatus:
        async with opened(load({"DATABASE_URL": store}).settings) as app:
            return await app.crawls.get(scan_id)

    return asyncio.run(look())


def operator(store: str, verb: str) -> None:
    """Run `shoal crawls pause|stop` in another process."""

    async def move() -> None:
        async with opened(load({"DATABASE_URL": store}).settings) as app:
            await getattr(app.crawls, verb)("scan-1")

    asyncio.run(move())


def test_the_queue_in_memory_gives_every_url_once_in_order() -> None:
    queue = UrlQueueManager([SITE, f"{SITE}/a", "mailto:me"], max_depth=1)
    assert queue.next() == f"{SITE}/"
    assert queue.add("b", parent_url=f"{SITE}/dir/", depth=1)
    assert not queue.add(f"{SITE}/dir/b#top", depth=1)
    assert not queue.add("/deep", parent_url=SITE, depth=2)
    assert queue.get_statistics() == {"queued": 2, "seen": 3, "processed": 1}
    assert rest_of(queue) == [f"{SITE}/a", f"{SITE}/dir/b"]
    with pytest.raises(IndexError, match=r"^URL queue is empty$"):
        queue.next()


def test_a_persistent_queue_answers_as_the_one_in_redis_did(queue: PersistentUrlQueueManager) -> None:
    assert queue.has_next() is True
    assert queue.get_statistics() == {"queued": 3, "seen": 3, "processed": 0}
    assert queue.next() == f"{SITE}/"
    assert queue.get_statistics() == {"queued": 2, "seen": 3, "processed": 1}
    assert queue.add("c", parent_url=f"{SITE}/", depth=1) is True
    assert queue.add(f"{SITE}/c", depth=1) is False
    assert queue.add(f"{SITE}/deep", depth=4) is False
    assert queue.add("javascript:void(0)", parent_url=f"{SITE}/") is False
    assert queue.add("http://[broken/") is False
    assert rest_of(queue) == [f"{SITE}/a", f"{SITE}/b", f"{SITE}/c"]
    assert queue.has_next() is False
    with pytest.raises(IndexError, match=r"^URL queue is empty$"):
        queue.next()
    assert queue.get_statistics() == {"queued": 0, "seen": 4, "processed": 4}


def test_an_orchestrator_begins_a_scan_or_resumes_it(store: str) -> None:
    class ScanOrchestrator:
        def execute_scan(self, targets: list[str], resume_scan_id: str | None = None) -> PersistentUrlQueueManager:
            if resume_scan_id:
                return PersistentUrlQueueManager.resume(resume_scan_id)
            return PersistentUrlQueueManager(scan_id="scan-1", seeds=[str(t) for t in targets], max_depth=1)

    with ScanOrchestrator().execute_scan(SEEDS) as first:
        assert first.next() == f"{SITE}/"
        assert first.next() == f"{SITE}/a"
    with ScanOrchestrator().execute_scan([], "scan-1") as second:
        assert second.max_depth == 1
        assert second.add(f"{SITE}/deep", depth=2) is False
        assert rest_of(second) == [f"{SITE}/b"]


def test_a_killed_process_loses_nothing(store: str) -> None:
    process = Process(PERSISTENT, 2, *SEEDS)
    process.kill()
    with PersistentUrlQueueManager.resume("scan-1") as queue:
        assert queue.get_statistics() == {"queued": 2, "seen": 3, "processed": 1}
        assert sorted(rest_of(queue)) == sorted({*SEEDS} - {process.given[0]})


def test_a_url_whose_process_dies_again_and_again_still_comes_back(store: str) -> None:
    given = []
    for _ in range(4):
        process = Process(PERSISTENT, 1, f"{SITE}/only")
        process.kill()
        given += process.given
    assert given == [f"{SITE}/only"] * 4
    with PersistentUrlQueueManager.resume("scan-1") as queue:
        assert rest_of(queue) == [f"{SITE}/only"]


def test_a_script_that_ends_without_closing_leaves_nothing_behind(store: str) -> None:
    process = Process(PERSISTENT, 1, *SEEDS)
    assert process.finish() == 0
    with PersistentUrlQueueManager("scan-1", []) as queue:
        assert process.given[0] in rest_of(queue)


def test_a_url_held_on_another_machine_comes_back_when_its_lease_ends(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setenv("SHOAL_LEASE", "1s")
    monkeypatch.setenv("SHOAL_LEASE_EXTEND", "200ms")
    monkeypatch.setenv("SHOAL_LEASE_SWEEP", "200ms")
    Process(PERSISTENT, 1, f"{SITE}/only").kill()
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE job SET lease_holder = 'local/elsewhere/1/1' WHERE state = 'locked'")
    connection.close()
    with PersistentUrlQueueManager.resume("scan-1") as queue:
        assert rest_of(queue) == [f"{SITE}/only"]


def test_two_processes_work_on_one_scan_and_share_no_url(store: str) -> None:
    process = Process(PERSISTENT, 2, *SEEDS)
    with PersistentUrlQueueManager("scan-1", SEEDS) as queue:
        assert rest_of(queue) == sorted({*SEEDS} - {*process.given})
        with pytest.raises(StateConflict, match="another process"):
            queue.cleanup()
        process.kill()
        assert rest_of(queue) == process.given[1:]


def test_the_block_settles_the_last_url_and_an_exception_does_not(store: str) -> None:
    with PersistentUrlQueueManager("scan-1", SEEDS[:2]) as queue:
        first = queue.next()
    with pytest.raises(KeyError), PersistentUrlQueueManager("scan-1", []) as queue:
        raise KeyError(queue.next())
    with PersistentUrlQueueManager("scan-1", []) as queue:
        assert [first, *rest_of(queue)] == SEEDS[:2]


def test_a_closed_queue_says_so_and_gives_its_url_back(queue: PersistentUrlQueueManager, store: str) -> None:
    given = queue.next()
    queue.close()
    queue.close()
    with pytest.raises(StateConflict, match="closed"):
        queue.next()
    assert queue.scan_id == "scan-1"
    with PersistentUrlQueueManager.resume("scan-1") as again:
        assert given in rest_of(again)


def test_a_paused_scan_reports_its_state_and_goes_on(queue: PersistentUrlQueueManager, store: str) -> None:
    queue.next()
    snapshot = queue.pause_scan()
    assert sorted(snapshot) == ["paused_at", "redis_keys", "scan_id", "statistics"]
    assert snapshot["scan_id"] == "scan-1"
    assert snapshot["statistics"] == {"queued": 2, "seen": 3, "processed": 1}
    assert datetime.fromisoformat(snapshot["paused_at"]).tzinfo is None
    assert snapshot["redis_keys"] == {
        "queue": queue.queue_key,
        "seen": queue.seen_key,
        "processed": queue.processed_key,
    }
    assert seen_in(store).crawl.state == "paused"
    assert queue.resume_scan() is True
    assert seen_in(store).crawl.state == "running"
    assert sorted(rest_of(queue)) == sorted(SEEDS)
    assert queue.resume_scan() is False


def test_the_keys_that_a_paused_scan_names_exist_in_redis(
    sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    with PersistentUrlQueueManager("scan-1", SEEDS) as queue:
        queue.next()
        queue.next()
        snapshot = queue.pause_scan()
        assert snapshot["redis_keys"]["queue"] == "scan:{scan-1}:url_queue"
        assert [ask_redis(redis_url, "EXISTS", key) for key in snapshot["redis_keys"].values()] == ["1"] * 3
        assert ask_redis(redis_url, "SCARD", queue.seen_key) == "3"
        with queue.redis_client as client:
            assert client.exists(queue.queue_key, queue.seen_key) == 2
        queue.cleanup()
        assert ask_redis(redis_url, "DBSIZE") == "0"
    monkeypatch.setenv("SHOAL_FRONTIER", "sql")
    with PersistentUrlQueueManager("scan-2", SEEDS) as queue:
        assert "table frontier" in queue.queue_key
        with pytest.raises(
            StateConflict, match="is kept in the database, so it cannot have a Redis client; set REDIS_"
        ):
            _ = queue.redis_client
        assert not hasattr(queue, "redis_client")
        assert getattr(queue, "redis_client", None) is None


@pytest.fixture
def scan_in_redis(
    sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PersistentUrlQueueManager]:
    """A scan in Redis whose lease is not renewed during the test."""
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("SHOAL_LEASE", "300s")
    monkeypatch.setenv("SHOAL_LEASE_EXTEND", "100s")
    monkeypatch.setenv("SHOAL_STALL_DEADLINE", "600s")
    with PersistentUrlQueueManager("scan-1", SEEDS) as queue:
        yield queue


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Statements of SQLite and calls to Redis, as they are made."""
    made: Counter[str] = Counter()

    def execute(self: Any, *given: Any) -> Any:
        made["sql"] += 1
        return sqlite3.Connection.execute(self, *given)

    def execute_command(self: Any, *given: Any, **options: Any) -> Any:
        made["redis"] += 1
        return send(self, *given, **options)

    send = redis.Redis.execute_command
    monkeypatch.setattr(redis.Redis, "execute_command", execute_command)
    monkeypatch.setattr(sqlite._Connection, "execute", execute, raising=False)
    return made


def test_single_calls_in_redis_make_one_round_trip_and_no_statement(
    scan_in_redis: PersistentUrlQueueManager, round_trips: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_calls, "FRESH_SECONDS", 60.0)
    monkeypatch.setattr(server_check.WatchedRedis, "_check", no_check)
    queue = scan_in_redis
    assert queue.add(f"{SITE}/0", depth=1)
    assert queue.next() == f"{SITE}/"
    steps: dict[str, Callable[[int], object]] = {
        "add": lambda place: queue.add(f"/{place}", f"{SITE}/", 1),
        "add of a known URL": lambda place: not queue.add(f"/{place}", f"{SITE}/", 1),
        "has_next": lambda place: queue.has_next(),
        "next": lambda place: queue.next(),
    }
    for name, step in steps.items():
        step(0)  # the server may not know the script yet
        round_trips.clear()
        assert all(step(place) for place in range(1, 21))
        assert (name, round_trips) == (name, {"redis": 20})


async def no_check(server: server_check.WatchedRedis) -> None:
    """The server is checked every few seconds, which is no part of a call."""


@on_every_redis
def test_single_calls_give_urls_in_the_same_order_as_the_database(
    store_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", store_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    urls = [(f"http://{host}.example/{place}", depth) for place in range(3) for depth in (2, 1) for host in "abc"]
    given = []
    for scan_id, seconds in (("database", 0.0), ("single", 60.0)):
        monkeypatch.setattr(single_calls, "FRESH_SECONDS", seconds)
        with PersistentUrlQueueManager(scan_id, SEEDS) as queue:
            for url, depth in urls:
                assert queue.add(f"{url}-{depth}", depth=depth)
            given.append(rest_of(queue))
            assert queue.get_statistics() == {"queued": 0, "seen": 21, "processed": 21}
    assert given[0] == given[1]


def test_a_process_that_lost_its_lease_without_noticing_takes_and_settles_nothing(
    scan_in_redis: PersistentUrlQueueManager, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_calls, "FRESH_SECONDS", 60.0)
    queue = scan_in_redis
    assert [queue.next(), queue.next()] == SEEDS[:2]
    client: Any = queue.redis_client
    [walker] = client.hkeys("scan:{scan-1}:walkers")
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        gone = f"{holder_name().rsplit('/', 2)[0]}/{2**22}/1"  # beyond the largest process id
        connection.execute("UPDATE job SET lease_holder = ? WHERE state = 'locked'", [gone])
    connection.close()
    with PersistentUrlQueueManager("scan-1", []) as other:
        assert sorted([other.next(), queue.next()]) == SEEDS[1:]
        assert not client.exists(f"scan:{{scan-1}}:held:{walker}")
        assert client.scard(queue.processed_key) == 1  # the first of the two
    client.close()


def test_what_single_calls_added_outlives_a_kill_and_reaches_the_database(
    sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    process = Process(ADDING, 2, SITE)
    process.kill()
    with PersistentUrlQueueManager.resume("scan-1") as queue:
        assert queue.get_statistics() == {"queued": 11, "seen": 11, "processed": 0}
        assert queue.add(f"{SITE}/more", depth=1)
        assert queue.add(f"{SITE}/most", depth=1)
    assert seen_in(sqlite_url).counts.opened == 13


def test_single_calls_notice_that_the_scan_was_lost_or_stopped(
    scan_in_redis: PersistentUrlQueueManager, sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = scan_in_redis
    assert queue.add(f"{SITE}/c", depth=1)
    ask_redis(redis_url, "FLUSHDB")
    for call in (queue.has_next, lambda: queue.add(f"{SITE}/d", depth=1), queue.next):
        with pytest.raises(FrontierLost):
            call()
    assert queue.next() == f"{SITE}/"  # built again, from its seeds
    assert queue.add(f"{SITE}/d", depth=1)
    operator(sqlite_url, "stop")
    monkeypatch.setattr(single_calls, "FRESH_SECONDS", 0.0)  # as if that time were over
    with pytest.raises(StateConflict, match="stopping"):
        queue.add(f"{SITE}/e", depth=1)


def test_a_scan_goes_on_after_its_own_pause_without_being_asked_to(queue: PersistentUrlQueueManager) -> None:
    queue.pause_scan()
    assert queue.next() == f"{SITE}/"


def test_a_scan_that_an_operator_paused_waits_for_its_resume(
    queue: PersistentUrlQueueManager, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.next()
    operator(store, "pause")
    monkeypatch.setattr(single_calls, "FRESH_SECONDS", 0.0)  # as if that time were over
    with pytest.raises(StateConflict, match="resume"):
        queue.next()
    assert seen_in(store).crawl.state == "paused"
    with pytest.raises(StateConflict, match="paused"):
        queue.next()
    assert queue.resume_scan() is True
    assert queue.next() == f"{SITE}/a"


def test_a_scan_that_an_operator_stopped_can_only_be_cleaned_up(queue: PersistentUrlQueueManager, store: str) -> None:
    operator(store, "stop")
    with pytest.raises(StateConflict, match="stopping"):
        queue.next()
    assert seen_in(store).crawl.state == "stopped"
    with PersistentUrlQueueManager("scan-1", SEEDS) as other:
        with pytest.raises(StateConflict, match="clean it up"):
            other.add(f"{SITE}/c")
        assert other.resume_scan() is False
        other.cleanup()
        assert other.add(f"{SITE}/c") is True
        assert rest_of(other) == [f"{SITE}/c"]


def test_cleanup_removes_everything_and_the_queue_begins_anew(queue: PersistentUrlQueueManager, store: str) -> None:
    queue.next()
    queue.cleanup()
    with pytest.raises(NotFound):
        seen_in(store)
    assert queue.get_statistics() == {"queued": 0, "seen": 0, "processed": 0}
    assert (queue.has_next(), queue.resume_scan()) == (False, False)
    assert queue.add(f"{SITE}/", depth=1) is True
    assert rest_of(queue) == [f"{SITE}/"]


def test_a_scan_without_a_usable_seed_begins_with_what_is_added(store: str) -> None:
    with PersistentUrlQueueManager("scan-1", ["mailto:me"], max_depth=2) as queue:
        assert (queue.has_next(), queue.resume_scan()) == (False, False)
        with pytest.raises(IndexError):
            queue.next()
        assert queue.add(SITE) is True
        assert rest_of(queue) == [f"{SITE}/"]
    with PersistentUrlQueueManager.resume("scan-1") as again:
        assert again.max_depth == 2


def test_more_seeds_than_a_crawl_may_have_are_taken(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    monkeypatch.setattr("shoal.compat.scan.MOST_SEEDS", 2)
    with PersistentUrlQueueManager("scan-1", SEEDS) as queue:
        assert rest_of(queue) == SEEDS


@pytest.mark.parametrize("scan_id", ["", "a b", "../x", "x" * 65])
def test_a_scan_id_that_cannot_be_one_is_refused(
    scan_id: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    with pytest.raises(InvalidInput, match="scan_id"):
        PersistentUrlQueueManager(scan_id, SEEDS)


def test_a_depth_that_cannot_be_one_is_refused(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    with pytest.raises(InvalidInput, match="max_depth"):
        PersistentUrlQueueManager("scan-1", SEEDS, max_depth=-1)


def test_a_scan_that_was_never_begun_is_not_resumed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", sqlite_url)
    with pytest.raises(NotFound, match="scan"):
        PersistentUrlQueueManager.resume("scan-1")


async def test_a_queue_on_a_pool_answers_as_the_one_in_postgresql_did(pool: Any) -> None:
    queue = DatabaseUrlQueueManager("scan-1", pool)
    assert await queue.next() is None
    assert await queue.add(f"{SITE}/early") is False
    await queue.initialize_scan(SEEDS, max_depth=3)
    await queue.initialize_scan([*SEEDS, f"{SITE}/c"])
    assert await queue.add(f"{SITE}/d", depth=1) is True
    assert await queue.add(f"{SITE}/d", depth=1) is True
    assert await queue.add("mailto:me") is False
    first = await queue.next()
    assert first == f"{SITE}/"
    await queue.mark_completed(first)
    await queue.mark_completed(f"{SITE}/never-given")
    assert await rest_of_async(queue) == [f"{SITE}/a", f"{SITE}/b", f"{SITE}/c", f"{SITE}/d"]
    assert await queue.next() is None
    await queue.aclose()


async def test_tasks_and_managers_share_no_url(pool: Any) -> None:
    one, two = DatabaseUrlQueueManager("scan-1", pool), DatabaseUrlQueueManager("scan-1", pool)
    urls = [f"{SITE}/{place}" for place in range(24)]
    await one.initialize_scan(urls)
    given = await asyncio.gather(*(rest_of_async(queue) for queue in (one, one, two, two)))
    assert sorted(url for urls in given for url in urls) == sorted(urls)
    await asyncio.gather(one.aclose(), two.aclose())


async def test_closing_a_manager_gives_back_the_urls_it_did_not_complete(pool: Any) -> None:
    one, two = DatabaseUrlQueueManager("scan-1", pool), DatabaseUrlQueueManager("scan-1", pool)
    await one.initialize_scan(SEEDS[:2])
    done, left = await one.next(), await one.next()
    assert (done, left) == (SEEDS[0], SEEDS[1])
    await one.mark_completed(SEEDS[0])
    assert await two.next() is None
    await one.aclose()
    assert await rest_of_async(two) == [left]
    await one.mark_completed(SEEDS[1])  # too late: it no longer holds this URL
    await two.aclose()


async def test_a_caller_that_stops_waiting_loses_no_url(pool: Any) -> None:
    async with DatabaseUrlQueueManager("scan-1", pool) as queue:
        await queue.initialize_scan(SEEDS)
        for ticks in range(1, 8):
            asking = asyncio.create_task(queue.next())
            await ticks_of(ticks)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        assert await rest_of_async(queue) == SEEDS


async def ticks_of(count: int) -> None:
    """Run the event loop for a few iterations."""
    for _ in range(count):
        turned = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turned.set_result, None)
        await turned


async def test_a_killed_process_with_a_pool_of_its_own_loses_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    process = await asyncio.to_thread(Process, POOLED, 2, *SEEDS)
    await asyncio.to_thread(process.kill)
    async with (
        asyncpg.create_pool(postgres_url, min_size=1) as pool,
        DatabaseUrlQueueManager("scan-1", pool) as queue,
    ):
        assert sorted(await rest_of_async(queue)) == sorted({*SEEDS} - {process.given[0]})
