"""Behaviour of frontiers in Redis only: they can be lost, can lose their last second, and need two commits per turn."""

import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.base.database import Tx
from shoal.base.errors import (
    BackendUnavailable,
    BadConfig,
    FrontierLost,
    InvalidInput,
    StateConflict,
)
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, Settled, WalkerBatch
from shoal.crawl.lifecycle.crawl_jobs import FrontierOutOfReach
from shoal.crawl.states import CrawlState
from shoal.drivers.redis.server_check import RedisWarned
from shoal.pages.links import LinkFlag, pack, pack_key
from shoal.process.crawl_request import read_id
from tests.contract.conftest import SITE, Bench, Walker, fetched, later, new_url, open_bench, page_of
from tests.contract.frontier_driver import RedisFrontierDriver, check_counters
from tests.contract.test_frontier_admin import dump_of
from tests.support import ledger
from tests.support.delay_proxy import delay_proxy
from tests.support.redis_versions import REDIS_NAMES, REDIS_VERSIONS
from tests.support.servers import RedisServer, Servers, ask_redis, wait_until

PATHS = [f"/{number}" for number in range(30)]
LINKS = {path: [PATHS[(place * 2 + step) % 30] for step in (1, 2, 15)] for place, path in enumerate(PATHS)}
"""A site on which every page can be reached from the first one."""


@pytest.fixture(params=REDIS_VERSIONS, ids=REDIS_NAMES)
def redis_version(request: pytest.FixtureRequest) -> str:
    """Every supported version in turn."""
    version: str = request.param
    return version


@pytest.fixture
async def driver(sqlite_url: str, redis_url: str) -> AsyncIterator[RedisFrontierDriver]:
    bench = await open_bench(sqlite_url, redis_url=redis_url)
    yield RedisFrontierDriver(bench)
    await bench.close()


def read_page(walker: Walker, task: Any, links: dict[str, list[str]]) -> tuple[Settled, list[NewUrl]]:
    """A fetched page as the engine settles it: with the hashes of its links, and the links."""
    found = [walker.link(path, task.depth + 1) for path in links.get(task.url.removeprefix(SITE), [])]
    for url in found:
        url.parent_key = task.key
    blob = pack([pack_key(url.key) for url in found], bytes([LinkFlag.INTERNAL] * len(found)))
    return Settled(task, Fate.FETCHED, page_of(task, status=200, bytes=10, links=blob)), found


async def advance(walker: Walker, want: int = 4) -> bool:
    """One turn as the engine makes it; return whether the crawl is drained."""
    read = [read_page(walker, task, LINKS) for task in walker.held]
    turn = await walker.turn(*[done for done, _ in read], found=[url for _, found in read for url in found], want=want)
    return turn.drained


async def crawl_to_the_end(bench: Bench, crawl: Crawl, attempts: int = 500) -> None:
    """Crawl as an engine does: after an outage, attach again and take what is there."""
    walker = await bench.walker(crawl)
    for _ in range(attempts):
        try:
            if await advance(walker):
                return
        except BackendUnavailable:
            await attach_again(walker)
        await bench.jump(0.01)
        await bench.queue.extend([walker.fence])
    raise AssertionError("never drained")


async def attach_again(walker: Walker) -> None:
    for _ in range(5):  # the first call on each cut connection fails
        try:
            return await walker.attach()
        except BackendUnavailable:
            continue
    raise AssertionError("Redis never came back")


def is_primary(server: RedisServer) -> bool:
    try:
        return "role:master" in ask_redis(server.url, "INFO", "replication")
    except OSError:  # a sentinel that promotes a replica cuts the connections of its clients
        return False


def ledger_of(bench: Bench, crawl: Crawl) -> list[str]:
    expected = ledger.Expected(urls=[SITE + path for path in PATHS])
    return ledger.check(bench.url, crawl.id, expected, bench.redis_url)


async def test_the_keys_of_a_crawl_have_literal_braces_and_one_slot(driver: RedisFrontierDriver) -> None:
    crawl = await driver.bench.submit(f"{SITE}/0", depth=100)
    walker = await driver.bench.walker(crawl)
    await advance(walker)
    await advance(walker, want=1)
    await advance(walker, want=1)
    keys = {key.decode() for key in await driver.call("KEYS", "*")}
    assert {key.partition("}:")[0] for key in keys} == {f"scan:{{{crawl.id}"}
    named = {f"scan:{{{crawl.id}}}:{name}" for name in ("url_queue", "seen_urls", "processed_urls", "url_depths")}
    assert named <= keys


async def test_a_page_committed_before_its_url_was_settled_is_counted_once(driver: RedisFrontierDriver) -> None:
    """The process dies between the two commits: the URL is fetched again, the page is kept, its links are found."""
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await walker.take()
    done, found = read_page(walker, walker.held[0], LINKS)
    await walker.commits._commit_pages(WalkerBatch([done], found))
    assert (await bench.counts(crawl)).pages == 1
    assert await driver.taken_urls() == 1
    await bench.lose()
    await crawl_to_the_end(bench, crawl)
    assert (await bench.counts(crawl)).pages == len(PATHS)
    assert ledger_of(bench, crawl) == []


async def test_a_lost_frontier_is_rebuilt_and_the_crawl_is_whole(driver: RedisFrontierDriver) -> None:
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    for _ in range(4):
        await advance(walker)
    stored = (await bench.counts(crawl)).pages
    assert 0 < stored < len(PATHS)
    await driver.call("FLUSHDB")
    with pytest.raises(BackendUnavailable):
        await advance(walker)
    await walker.attach()
    counts = await bench.counts(crawl)
    assert counts.queued > 0
    assert counts.queued < counts.opened, "pages without unknown links are not fetched again"
    await crawl_to_the_end_with(walker)
    assert await bench.state(crawl) is CrawlState.COMPLETED
    assert ledger_of(bench, crawl) == []


async def crawl_to_the_end_with(walker: Walker) -> None:
    for _ in range(200):
        if await advance(walker):
            return
        await walker.bench.jump(0.01)
    raise AssertionError("never drained")


async def test_a_rebuilt_frontier_finds_urls_at_their_smallest_depth(driver: RedisFrontierDriver) -> None:
    """A page that was stored later, at a smaller depth, is fetched again, too."""
    links = {"/": ["/near", "/far"], "/far": ["/farther"], "/farther": ["/both"], "/near": ["/both"]}
    crawl = await driver.bench.submit(f"{SITE}/", depth=100)
    walker = await driver.bench.walker(crawl)

    async def read(path: str, want: int) -> None:
        tasks = [task for task in walker.held if task.url == SITE + path]
        done, found = read_page(walker, tasks[0], links)
        await walker.turn(done, found=found, want=want)

    await walker.take()
    await read("/", 2)
    await read("/far", 1)
    await read("/farther", 0)
    await read("/near", 0)
    await driver.call("FLUSHDB")
    with pytest.raises(BackendUnavailable):
        await walker.turn(want=1)
    await walker.attach()
    await walker.turn(want=10)
    await read("/near", 10)
    assert [task.depth for task in walker.held if task.url == f"{SITE}/both"] == [2]


async def test_a_frontier_lost_before_the_first_walker_starts_from_its_seeds(driver: RedisFrontierDriver) -> None:
    crawl = await driver.bench.submit(f"{SITE}/0", depth=100)
    await driver.call("FLUSHDB")
    await crawl_to_the_end(driver.bench, crawl)
    assert ledger_of(driver.bench, crawl) == []


async def test_a_lost_frontier_is_never_called_completed(driver: RedisFrontierDriver) -> None:
    """The queues are gone but the generation is there, as after an eviction: nobody waits for ever, nobody is done."""
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await advance(walker)
    await advance(walker, want=1)
    prefix = f"scan:{{{crawl.id}}}:"
    await driver.call("DEL", f"{prefix}url_queue", f"{prefix}url_depths")
    with pytest.raises(BackendUnavailable, match="lost"):
        await walker.fetch_all()
    assert await bench.state(crawl) is CrawlState.RUNNING


KEYS = ["busy_urls", "counts", "generation", "held", "host_claims", "processed_urls", "retries", "seen_urls"]
KEYS += ["touched_urls", "url_depths", "url_queue", "url_queue:", "walkers"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KEYS)
async def test_whichever_key_is_evicted_the_frontier_is_rebuilt(
    own_redis: RedisServer, sqlite_url: str, name: str
) -> None:
    """F36: the server evicts a key, whichever. What it leaves behind is in nobody's way."""
    bench = await open_bench(sqlite_url, redis_url=own_redis.url)
    driver = RedisFrontierDriver(bench)
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await advance(walker)
    await advance(walker, want=3)
    read = [read_page(walker, task, LINKS) for task in walker.held[1:]]
    found = [url for _, links in read for url in links]
    await walker.turn(later(walker.held[0], 0.01), *[done for done, _ in read], found=found, want=2)
    keys = await driver.call("KEYS", f"scan:{{{crawl.id}}}:{name}*")
    await driver.call("EXPIRE", min(keys), 1_000)
    await driver.call("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")  # evicts only keys that expire
    await driver.call("CONFIG", "SET", "maxmemory", 1)
    await driver.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await driver.call("CONFIG", "SET", "maxmemory", 0)
    assert not await driver.call("EXISTS", min(keys))
    with pytest.raises(BackendUnavailable, match="lost"):
        await advance(walker)
    await walker.attach()
    await crawl_to_the_end_with(walker)
    assert ledger_of(bench, crawl) == []
    await bench.close()


async def test_a_rebuild_that_was_cut_off_is_begun_again_by_the_next_walker(driver: RedisFrontierDriver) -> None:
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100, workers=2)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    await advance(first)
    await driver.call("FLUSHDB")
    await bench.database.run(lambda tx: bench.frontier.restart(tx, crawl.number, first.fence, "half"))  # type: ignore[attr-defined]
    with pytest.raises(BackendUnavailable, match="being rebuilt"):
        await second.attach()
    await bench.queue.recovery.lose(first.lease, "killed")
    await second.attach()
    await crawl_to_the_end_with(second)
    assert (await bench.counts(crawl)).pages == len(PATHS)


def before_commit(bench: Bench, number: int, act: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    """Do something before the commit of this number, counted from now."""
    run, left = bench.database.run, number

    async def counted(work: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            await act()
        return await run(work)

    patch.setattr(bench.database, "run", counted)


COMMITS_OF_A_REBUILD = 4  # the attempt to attach, the beginning, the pages, the end; the next one attaches


@pytest.mark.parametrize("commit", range(2, COMMITS_OF_A_REBUILD + 2))
async def test_a_frontier_lost_again_while_it_is_rebuilt_is_rebuilt_again(
    driver: RedisFrontierDriver, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    """Redis is flushed between two commits of a rebuild: the crawl does not fail, and nobody waits for ever."""
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    for _ in range(4):
        await advance(walker)
    await driver.call("FLUSHDB")
    before_commit(bench, commit, lambda: driver.call("FLUSHDB"), monkeypatch)
    await attach_again(walker)
    await crawl_to_the_end_with(walker)
    assert ledger_of(bench, crawl) == []


UNUSED = ["quarantine", "redirect_targets", "retries:1", "suspects", "url_fates"]  # by the crawl that is damaged


async def test_a_rebuild_that_died_before_its_first_commit_is_begun_again(driver: RedisFrontierDriver) -> None:
    """Redis then has a generation that the database never stored."""
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await advance(walker)
    prefix = f"scan:{{{crawl.id}}}:"
    await driver.call("DEL", *await driver.call("KEYS", f"{prefix}*"))

    async def die(tx: Tx) -> None:
        await bench.frontier.restart(tx, crawl.number, walker.fence, "never stored")  # type: ignore[attr-defined]
        raise BackendUnavailable("the store", "it failed", "try again")

    with pytest.raises(BackendUnavailable):
        await bench.database.run(die)
    await crawl_through_outages(walker)
    assert ledger_of(bench, crawl) == []
    assert await driver.call("TTL", f"{prefix}generation") < 0, "it lasts"


async def test_a_frontier_with_a_key_of_a_wrong_type_is_rebuilt(driver: RedisFrontierDriver) -> None:
    """F69: each key in turn is replaced by one of another type, in a crawl of its own."""
    bench, names, at = driver.bench, list[str](), 0
    while not names or at < len(names):
        crawl = await bench.submit(f"{SITE}/0", depth=100)
        walker = await bench.walker(crawl)
        for _ in range(4):
            await advance(walker)
        prefix = f"scan:{{{crawl.id}}}:"
        keys = sorted(key.decode().removeprefix(prefix) for key in await driver.call("KEYS", f"{prefix}*"))
        names = names or keys + UNUSED
        name = names[at] if at >= len(keys) else keys[at]  # some are named after the walker
        await replace_by_another_type(driver, prefix + name)
        outages = await crawl_through_outages(walker)
        assert outages <= 1, f"{name}: a walker that has attached again can go on"
        assert ledger_of(bench, crawl) == [], name
        at += 1


async def replace_by_another_type(driver: RedisFrontierDriver, key: str) -> None:
    kind = await driver.call("TYPE", key)
    await driver.call("DEL", key)
    await driver.call(*(("SET", key, "x") if kind == b"list" else ("RPUSH", key, "x")))


async def crawl_through_outages(walker: Walker) -> int:
    """Crawl to the end as an engine does; return how many outages there were."""
    outages = 0
    for _ in range(100):
        try:
            if await advance(walker):
                return outages
        except BackendUnavailable:
            outages += 1
            await walker.attach()
        await walker.bench.jump(0.01)
    raise AssertionError(f"never drained, after {outages} outages")


async def test_of_two_walkers_that_find_the_frontier_damaged_one_rebuilds_it(driver: RedisFrontierDriver) -> None:
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100, workers=2)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    await advance(first)
    await replace_by_another_type(driver, f"scan:{{{crawl.id}}}:seen_urls")
    for walker in (first, second):
        with pytest.raises(BackendUnavailable, match="wrong type"):
            await walker.turn(found=[walker.link("/5")], want=0)
    await first.attach()
    with pytest.raises(BackendUnavailable, match="begun it again"):
        await second.attach()
    await second.attach()
    await crawl_to_the_end_with(first)
    assert (await bench.counts(crawl)).pages == len(PATHS)


async def test_every_call_on_a_key_of_a_wrong_type_says_that_the_frontier_is_lost(
    driver: RedisFrontierDriver,
) -> None:
    """Whoever asks from outside, such as the console, is told what is wrong, and not that Redis is down."""
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    await advance(await bench.walker(crawl))
    for name in ("url_depths", "url_queue", "seen_urls", "touched_urls"):
        await replace_by_another_type(driver, f"scan:{{{crawl.id}}}:{name}")
    admin = bench.app.stores.frontier_admins.of(crawl)
    for call in (
        lambda tx: bench.frontier.held_hosts(tx, crawl.number, 10),
        lambda tx: bench.frontier.shallowest(tx, crawl.number),
        lambda tx: admin.urls_after(tx, crawl.number, None, 10),
        lambda tx: admin.keys_after(tx, crawl.number, None, 10),
    ):
        with pytest.raises(FrontierLost, match="wrong type"):
            await bench.database.run(call)


@pytest.mark.parametrize("commit", range(2, COMMITS_OF_A_REBUILD + 2))
async def test_a_walker_whose_rebuild_was_interrupted_begins_it_again(
    servers: Servers, redis_version: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    """Redis goes away in the middle of a rebuild and keeps what it has. The walker lives, so nobody takes over."""
    server = servers.new_redis(version=redis_version, durable=True, options=["--appendfsync", "always"])
    bench = await open_bench(sqlite_url, redis_url=server.url)
    driver = RedisFrontierDriver(bench)
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await advance(walker)
    await advance(walker)
    await driver.call("FLUSHALL")

    async def kill() -> None:
        server.kill()

    before_commit(bench, commit, kill, monkeypatch)
    with pytest.raises(BackendUnavailable):
        await walker.attach()
    server.start()
    await attach_again(walker)
    await crawl_to_the_end_with(walker)
    assert ledger_of(bench, crawl) == []
    await bench.close()
    server.kill()


async def test_a_walker_notices_that_the_server_forgot_its_last_call(driver: RedisFrontierDriver) -> None:
    """F34, F35: Redis comes back without its last second. Links of that second would never be sent again."""
    bench = driver.bench
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await advance(walker)
    name = f"{walker.fence.job_id}:{walker.fence.epoch}"
    await driver.call("HINCRBY", f"scan:{{{crawl.id}}}:walkers", name, -1)
    with pytest.raises(BackendUnavailable, match="forgot"):
        await advance(walker)
    await walker.attach()
    await crawl_to_the_end_with(walker)
    assert ledger_of(bench, crawl) == []


async def test_a_crawl_goes_on_after_a_failover_by_sentinel(
    servers: Servers, redis_version: str, sqlite_url: str
) -> None:
    """F35: a sentinel promotes the replica, an address follows the primary, and the crawl lacks nothing."""
    options = ["--repl-diskless-sync-delay", "0"]
    primary, replica, sentinel = (servers.new_redis(version=redis_version, options=options) for _ in range(3))
    ask_redis(replica.url, "REPLICAOF", "127.0.0.1", str(primary.port))
    wait_until(lambda: "master_link_status:up" in ask_redis(replica.url, "INFO", "replication"), "a replica")
    sentinel.stop()
    sentinel.watch_by_sentinel(primary, "shoal")
    watcher = sentinel.url.removesuffix("/0")
    wait_until(lambda: "slaves=1" in ask_redis(watcher, "INFO", "sentinel"), "a sentinel that knows the replica")
    with delay_proxy(primary.url) as proxy:
        bench = await open_bench(sqlite_url, redis_url=proxy.url)
        crawl = await bench.submit(f"{SITE}/0", depth=100)
        walker = await bench.walker(crawl)
        for _ in range(3):
            await advance(walker)
        primary.kill()
        wait_until(partial(is_primary, replica), "a failover")
        proxy.lead_to(replica.url)
        for _ in range(len(PATHS)):  # with one more try for each connection that was cut
            with suppress(BackendUnavailable):
                await advance(walker)
                break
            await attach_again(walker)
        await crawl_to_the_end_with(walker)
        assert (
            ledger.check(bench.url, crawl.id, ledger.Expected(urls=[SITE + path for path in PATHS]), replica.url) == []
        )
        await bench.close()
    for server in (replica, sentinel):
        server.kill()


async def test_the_frontier_of_another_store_is_not_touched(
    driver: RedisFrontierDriver, tmp_path_factory: pytest.TempPathFactory, new_file: Path
) -> None:
    folder = tmp_path_factory.mktemp("other")
    shutil.copy(new_file, folder)
    other = await open_bench(f"sqlite:///{folder}/shoal.db", redis_url=driver.bench.redis_url)
    ours = await driver.bench.crawls.submit((await driver.bench.submit()).config, crawl_id="same")  # type: ignore[arg-type]
    await advance(Walker(driver.bench, ours, await lease_of(driver.bench, ours)))
    with pytest.raises(StateConflict, match="another store"):
        await other.crawls.submit(ours.config, crawl_id="same")  # type: ignore[arg-type]
    await other.close()


async def test_a_frontier_that_cannot_be_rebuilt_fails_the_crawl(driver: RedisFrontierDriver) -> None:
    crawl = await driver.bench.submit(f"{SITE}/0", depth=100)
    walker = await driver.bench.walker(crawl)
    await advance(walker)
    await driver.call("SET", f"scan:{{{crawl.id}}}:generation", "of another store")
    with pytest.raises(FrontierLost):
        await walker.attach()
    assert await driver.bench.state(crawl) is CrawlState.FAILED
    assert await driver.bench.reason(crawl) == "frontier_lost"
    await driver.call("FLUSHDB")
    await driver.bench.crawls.retry(crawl.id)
    await crawl_to_the_end(driver.bench, crawl)
    assert (await driver.bench.counts(crawl)).pages == len(PATHS)


async def test_a_server_that_may_evict_is_reported_on_the_event_loop(own_redis: RedisServer, sqlite_url: str) -> None:
    """The writer of SQLite notices it on a thread of its own, in a transaction that then fails."""
    bench = await open_bench(sqlite_url, redis_url=own_redis.url)
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await advance(walker)
    threads: list[str] = []
    bench.signals.subscribe(
        lambda signal: threads.append(threading.current_thread().name) if isinstance(signal, RedisWarned) else None
    )
    ask_redis(own_redis.url, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    redis = bench.app.stores.redis
    assert redis is not None
    redis.recheck_seconds = 0
    with pytest.raises(BackendUnavailable, match="may evict keys"):
        await advance(walker)
    assert threads == [threading.main_thread().name]
    await bench.close()


async def test_leases_expire_while_redis_is_away(own_redis: RedisServer, sqlite_url: str) -> None:
    """The sweep queries the frontier for URLs of a lost walker; if Redis does not respond, it continues anyway."""
    bench = await open_bench(sqlite_url, redis_url=own_redis.url)
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    await advance(walker)
    own_redis.kill()
    threads: list[str] = []
    bench.signals.subscribe(
        lambda signal: (
            threads.append(threading.current_thread().name) if isinstance(signal, FrontierOutOfReach) else None
        )
    )
    await bench.lose()
    assert await bench.live(crawl) == (1, 0)
    assert threads == [threading.main_thread().name], "once, after the commit and not on the thread of the writer"
    own_redis.start()
    await crawl_to_the_end(bench, crawl)
    assert (await bench.counts(crawl)).pages == len(PATHS)
    await bench.close()


async def lease_of(bench: Bench, crawl: Crawl) -> Any:
    leases = await bench.queue.lease("w", ["crawl"], ["shared"], 10)
    return next(lease for lease in leases if lease.run_id == crawl.id)


async def test_a_crawl_keeps_the_driver_it_was_started_with(sqlite_url: str, redis_url: str) -> None:
    before = await open_bench(sqlite_url)
    on_sql = await before.submit(f"{SITE}/0", depth=100)
    await before.close()
    bench = await open_bench(sqlite_url, redis_url=redis_url)
    on_redis = await bench.submit(f"{SITE}/0", depth=100)
    await crawl_to_the_end(bench, on_sql)
    await crawl_to_the_end(bench, on_redis)
    assert [(await bench.counts(crawl)).pages for crawl in (on_sql, on_redis)] == [30, 30]
    assert await bench.number(f"SELECT count(*) FROM fate WHERE crawl = {on_sql.number}") == 30
    third = await bench.submit(f"{SITE}/0", depth=100)
    await bench.close()
    without = await open_bench(sqlite_url)
    with pytest.raises(BadConfig, match="REDIS_URL"):
        await without.walker(third)
    await without.close()


async def test_a_dump_from_redis_is_loaded_into_a_database(driver: RedisFrontierDriver, postgres_url: str) -> None:
    crawl = await driver.bench.submit(f"{SITE}/0", depth=100)
    walker = await driver.bench.walker(crawl)
    for _ in range(3):
        await advance(walker)
    await driver.bench.crawls.pause(crawl.id)
    await walker.commits.close(WalkerBatch(), "pause")
    other = await open_bench(postgres_url)
    loaded = await dump_of(other).load(dump_of(driver.bench).dump(crawl.id))
    there = (await other.crawls.get(loaded)).crawl
    assert there.frontier == "sql"
    assert await other.fates(there) == await driver.fates(crawl)
    await other.crawls.resume(loaded)
    await crawl_to_the_end(other, there)
    assert (await other.counts(there)).pages == len(PATHS)
    await other.close()


async def test_a_script_that_the_server_forgot_is_sent_again(own_redis: RedisServer, sqlite_url: str) -> None:
    """F37: the server forgets its scripts (SCRIPT FLUSH) between two calls."""
    bench = await open_bench(sqlite_url, redis_url=own_redis.url)
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    ask_redis(own_redis.url, "SCRIPT", "FLUSH")
    walker = await bench.walker(crawl)
    ask_redis(own_redis.url, "SCRIPT", "FLUSH")
    assert len(await walker.take()) == 1
    await bench.close()


@pytest.mark.parametrize("name", ["a:b", "{a}", "*", "[a]", "a b", "ä", "x" * 512, ""])
def test_a_name_that_could_be_taken_for_a_pattern_is_refused(name: str) -> None:
    """F40, B77: such a name never becomes part of a key."""
    with pytest.raises(InvalidInput):
        read_id(name, "id")


async def test_a_thousand_urls_and_more_go_in_batches(driver: RedisFrontierDriver) -> None:
    """F42: no script gets more than a thousand entries."""
    crawl = await driver.bench.submit(f"{SITE}/seed")
    urls = [new_url(crawl, f"/{number}") for number in range(2_500)]
    added = await driver.bench.database.run(lambda tx: driver.frontier.add(tx, crawl.number, urls))
    assert added.new == 2_500
    walker = await driver.bench.walker(crawl)
    await walker.take(1_500)
    assert len(walker.held) == 1_500
    await walker.turn(*[fetched(task) for task in walker.held], want=0)
    assert await driver.taken_urls() == 0
    await check_counters(driver, crawl)


async def test_numbers_beyond_53_bits_pass_unchanged(driver: RedisFrontierDriver) -> None:
    """F41: Lua has no integers of 64 bits, so payloads and keys are bytes."""
    crawl = await driver.bench.submit(f"{SITE}/seed")
    child = new_url(crawl, "/child")
    child.parent_key = -(2**63) + 1
    await driver.bench.database.run(lambda tx: driver.frontier.add(tx, crawl.number, [child]))
    walker = await driver.bench.walker(crawl)
    tasks = await walker.take()
    assert (child.key, child.chk) in [(task.key, task.chk) for task in tasks]
    await walker.attach()
    rows = await driver.bench.database.read(
        lambda tx: driver.bench.app.stores.frontier_admins.of(crawl).urls_after(tx, crawl.number, None, 10)
    )
    assert -(2**63) + 1 in [kept.parent for _, kept in rows]
