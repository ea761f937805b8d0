"""The demands on a Redis server, and the messages about one that cannot be used now."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from shoal.base.clock import FakeClock
from shoal.base.errors import BackendUnavailable, FrontierLost, RedisMisconfigured, ShoalError
from shoal.base.settings import RedisSettings
from shoal.base.signals import Signal, Signals
from shoal.drivers.redis.connection import LoopRedis, RedisClient, ThreadRedis
from shoal.drivers.redis.frontier_records import CrawlPlace
from shoal.drivers.redis.server_check import RECHECK_SECONDS, RedisWarned, WatchedRedis, check_server
from tests.support.patience import with_load
from tests.support.redis_versions import REDIS_NAMES, REDIS_VERSIONS
from tests.support.servers import RedisServer, Servers, ask_redis, wait_until

NewServer = Callable[..., RedisServer]
PLACE = (1, "crl", 1, "generation", None, 0)


@pytest.fixture(params=REDIS_VERSIONS, ids=REDIS_NAMES)
def redis_version(request: pytest.FixtureRequest) -> str:
    """Every supported version in turn."""
    version: str = request.param
    return version


@pytest.fixture(params=[LoopRedis, ThreadRedis])
def client_of(request: pytest.FixtureRequest) -> type[LoopRedis] | type[ThreadRedis]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def new_server(servers: Servers, redis_version: str) -> Iterator[NewServer]:
    """Starts servers with options; all of them end with the test."""
    started: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        started.append(servers.new_redis(version=redis_version, options=options))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@asynccontextmanager
async def connected(server: RedisServer, user: str = "", **settings: Any) -> AsyncIterator[LoopRedis]:
    url = server.url.replace("redis://", f"redis://{user}")
    client = LoopRedis(RedisSettings(url=url, **settings))
    try:
        yield client
    finally:
        await client.close()


async def begin(client: RedisClient) -> None:
    """Begin a frontier."""
    await CrawlPlace(client, *PLACE).run("begin", 0, "")


async def write(client: RedisClient) -> None:
    """Write with a script, as the frontier does."""
    await CrawlPlace(client, *PLACE).run("known", 1, secrets.token_bytes(12), "")


async def refusals(client: RedisClient, *words: str) -> list[str]:
    """Return what Shoal says when a command and a script are refused."""
    said = []
    for call in (client.command("SET", "scan:{crl}:a", "b"), write(client)):
        with pytest.raises(ShoalError) as refused:
            await call
        said.append(str(refused.value))
        assert all(word in said[-1] for word in words), said[-1]
    return said


async def test_a_server_that_may_evict_is_refused_with_the_command_that_fixes_it(
    own_redis: RedisServer, client_of: type[LoopRedis] | type[ThreadRedis]
) -> None:
    """F36: the server may evict keys."""
    redis = client_of(RedisSettings(url=own_redis.url))
    assert (await check_server(redis)).warning is not None  # it keeps nothing over a restart
    await redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(RedisMisconfigured, match="CONFIG SET maxmemory-policy noeviction"):
        await check_server(redis)
    await redis.close()


async def test_a_server_that_does_not_answer_is_not_waited_for(own_redis: RedisServer) -> None:
    redis = LoopRedis(RedisSettings(url=own_redis.url, timeout=timedelta(seconds=with_load(0.1))))
    other = ThreadRedis(RedisSettings(url=own_redis.url))
    await other.command("CLIENT", "PAUSE", 60_000)
    with pytest.raises(BackendUnavailable, match="in time"):
        await redis.command("SET", "a", "b")
    own_redis.kill()
    with pytest.raises(BackendUnavailable):
        await redis.command("SET", "a", "b")
    own_redis.start()
    assert await redis.command("SET", "a", "b")
    await redis.close()
    await other.close()


async def test_a_server_that_may_evict_from_now_on_is_noticed_and_crawls_wait(own_redis: RedisServer) -> None:
    """F36: the policy is changed while Shoal uses the server."""
    clock, signals, seen = FakeClock(), Signals(), list[Signal]()
    signals.subscribe(seen.append)
    redis = WatchedRedis(LoopRedis(RedisSettings(url=own_redis.url)), clock, signals)
    await begin(redis)
    await redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    clock.jump(RECHECK_SECONDS)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match=r"may evict keys.*CONFIG SET maxmemory-policy noeviction"):
            await write(redis)
    await redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert [type(signal) for signal in seen] == [RedisWarned], "it is said once"
    clock.jump(RECHECK_SECONDS)
    await write(redis)
    own_redis.kill()
    own_redis.start()
    clock.jump(RECHECK_SECONDS)
    with pytest.raises(BackendUnavailable):  # the connection was cut
        await write(redis)
    with pytest.raises(FrontierLost):
        await write(redis)
    await redis.command("PING")  # signals are emitted by the event loop, soon
    assert [type(signal) for signal in seen] == [RedisWarned] * 2, "another start, or another server"
    await redis.close()


# Answers that name their fix


async def test_a_server_that_is_full_names_its_memory_limit(own_redis: RedisServer) -> None:
    async with connected(own_redis) as redis:
        await begin(redis)
        await redis.command("CONFIG", "SET", "maxmemory", "1")
        await refusals(redis, "reached its memory limit", "CONFIG SET maxmemory")
        await redis.command("CONFIG", "SET", "maxmemory", "0")
        await write(redis)


async def test_a_replica_names_the_primary_and_is_used_once_it_is_one(new_server: NewServer) -> None:
    primary, replica = new_server("--repl-diskless-sync-delay", "0"), new_server()
    async with connected(primary) as redis:
        await begin(redis)
    async with connected(replica) as redis:
        await redis.command("REPLICAOF", "127.0.0.1", primary.port)
        wait_until(lambda: "master_link_status:up" in ask_redis(replica.url, "INFO", "replication"), "a replica")
        await refusals(redis, "does not accept writes", "point REDIS_URL at the primary")
        with pytest.raises(RedisMisconfigured, match="is a replica"):
            await check_server(redis)
        await redis.command("REPLICAOF", "NO", "ONE")
        await write(redis)


async def test_a_replica_that_has_lost_its_primary_says_so(new_server: NewServer) -> None:
    primary, replica = new_server(), new_server("--replica-serve-stale-data", "no")
    async with connected(replica) as redis:
        await redis.command("REPLICAOF", "127.0.0.1", primary.port)
        primary.kill()
        wait_until(lambda: "master_link_status:down" in ask_redis(replica.url, "INFO", "replication"), "a lost link")
        with pytest.raises(BackendUnavailable, match=r"has lost its primary.*check the primary"):
            await write(redis)


async def test_a_server_that_loads_its_data_is_waited_for(new_server: NewServer) -> None:
    server = new_server("--key-load-delay", "500", "--rdbcompression", "no")
    fill = "for number = 1, 3000 do redis.call('SET', 'key:' .. number, string.rep('x', 10000)) end"
    ask_redis(server.url, "EVAL", fill, "0")
    ask_redis(server.url, "SAVE")
    server.kill()
    server.launch()
    wait_until(lambda: _is_loading(server) is True, "the loading of data")
    async with connected(server) as redis:
        await refusals(redis, "is loading its data", "wait until it has started")
        wait_until(lambda: _is_loading(server) is False, "the end of loading")
        await begin(redis)


def _is_loading(server: RedisServer) -> bool | None:
    try:
        return "loading:1" in ask_redis(server.url, "INFO", "persistence").splitlines()
    except OSError:  # it does not listen yet
        return None


async def test_a_server_that_runs_a_long_script_is_waited_for(new_server: NewServer) -> None:
    server = new_server("--lua-time-limit", "10")
    async with connected(server) as redis, connected(server, timeout=timedelta(seconds=60)) as other:
        endless = asyncio.create_task(other.command("EVAL", "while true do end", 0))
        await asyncio.to_thread(wait_until, lambda: _is_busy(server), "a busy server")
        await refusals(redis, "a script of somebody else is running", "SCRIPT KILL")
        await redis.command("SCRIPT", "KILL")
        with pytest.raises(BackendUnavailable):
            await endless
        await begin(redis)


def _is_busy(server: RedisServer) -> bool:
    try:
        ask_redis(server.url, "GET", "a")
    except ConnectionError as error:
        return str(error).startswith("BUSY")
    return False


async def test_a_server_that_wants_a_password_says_where_to_put_it(own_redis: RedisServer) -> None:
    ask_redis(own_redis.url, "CONFIG", "SET", "requirepass", "secret")
    async with connected(own_redis) as stranger:
        await refusals(stranger, "wants a password", "redis://:password@host:6379/0")
        with pytest.raises(RedisMisconfigured, match="wants a password"):
            await check_server(stranger)
    async with connected(own_redis, ":wrong@") as stranger:
        said = await refusals(stranger, "refuses the user or the password", "REDIS_URL")
        assert not any("wrong" in words for words in said)
    async with connected(own_redis, ":secret@") as redis:
        await begin(redis)


async def test_a_user_without_rights_is_told_which_ones_are_needed(own_redis: RedisServer) -> None:
    async with connected(own_redis) as redis:
        await begin(redis)
    ask_redis(own_redis.url, "ACL", "SETUSER", "other", "on", ">pw", "~other:*", "+@all")
    ask_redis(own_redis.url, "ACL", "SETUSER", "reader", "on", ">pw", "~scan:*", "+@read", "+evalsha", "+eval")
    for user in ("other", "reader"):
        async with connected(own_redis, f"{user}:pw@") as redis:
            await refusals(redis, "refuses a command", "~scan:*")


async def test_the_rights_that_the_guide_names_are_enough(own_redis: RedisServer) -> None:
    rights = ["~scan:*", "~{shoal}:*", "+@all", "-@admin", "+config|get"]
    ask_redis(own_redis.url, "ACL", "SETUSER", "shoal", "on", ">pw", *rights)
    async with connected(own_redis, "shoal:pw@") as redis:
        facts = await check_server(redis)
        assert not facts.is_persistent
        assert facts.warning is not None
        await begin(redis)
        await write(redis)
        for forbidden in (("CONFIG", "SET", "maxmemory", "1"), ("GET", "other")):
            with pytest.raises(RedisMisconfigured, match="refuses a command"):
                await redis.command(*forbidden)


async def test_a_node_of_a_cluster_names_the_alternatives(new_server: NewServer) -> None:
    """MOVED, and CLUSTERDOWN before any node serves the slot."""
    ours, other = new_server("--cluster-enabled", "yes"), new_server("--cluster-enabled", "yes")
    async with connected(ours) as redis:
        await refusals(redis, "its cluster is down", "check the cluster")
        ask_redis(other.url, "CLUSTER", "ADDSLOTS", *map(str, range(16_384)))
        wait_until(lambda: _says_moved(ours, other), "an answer that names the other node")
        await refusals(redis, "is a node of a cluster", "a server that is not part of a cluster", "a proxy")


def _says_moved(ours: RedisServer, other: RedisServer) -> bool:
    """Introduce the nodes until they know who serves the slots: a busy server may forget an introduction."""
    ask_redis(ours.url, "CLUSTER", "MEET", "127.0.0.1", str(other.port))
    try:
        ask_redis(ours.url, "SET", "scan:{crl}:a", "b")
    except ConnectionError as error:
        return str(error).startswith("MOVED")
    return False
