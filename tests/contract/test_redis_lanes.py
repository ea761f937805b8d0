"""Behaviour of lanes in Redis only: they can lose entries, have stale ones, and be away; the database decides all the
same. What all lanes must do is in the suites of the queue and the fleet, which run on both drivers."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.base.clock import SystemClock
from shoal.base.database import Tx
from shoal.base.errors import BackendUnavailable
from shoal.base.ids import JobId, new_id
from shoal.base.settings import RedisSettings
from shoal.base.signals import Signals
from shoal.drivers.redis import lane_repair
from shoal.drivers.redis.connection import LoopRedis
from shoal.drivers.redis.lane_server import GENERATION, LanesDegraded, LanesRestored, queue_name
from shoal.drivers.redis.lanes import RedisLanes
from shoal.drivers.redis.wake import RedisWake
from shoal.queue.job import Lease, LeaseRequest, NewJob, local_lane, node_lane
from tests.contract.conftest import Bench, begin_lanes, open_bench
from tests.contract.test_host_leases import places
from tests.contract.test_wake import Subscriber
from tests.support.redis_versions import on_every_redis
from tests.support.servers import RedisServer, ask_redis

QUEUE = "{shoal}:queue:tasks:page:http"
SECOND = timedelta(seconds=1)


@pytest.fixture
async def bench(store_url: str, redis_url: str) -> AsyncIterator[Bench]:
    bench = await open_bench(store_url, lanes_url=redis_url)
    yield bench
    await bench.close()


@pytest.fixture
async def mortal(store_url: str, own_redis: RedisServer) -> AsyncIterator[Bench]:
    """A bench whose Redis server may be killed."""
    bench = await open_bench(store_url, lanes_url=own_redis.url)
    yield bench
    await bench.close()


def call(bench: Bench, *words: str) -> str:
    return ask_redis(bench.lanes_url, *words)


def depth(bench: Bench, queue: str = QUEUE) -> int:
    return int(call(bench, "ZCARD", queue))


async def take(bench: Bench, limit: int = 100, *lanes: str) -> list[str]:
    leases = await bench.queue.lease("w1", ["page"], list(lanes) or ["shared"], limit)
    return [lease.fence.job_id for lease in leases]


async def sweep(bench: Bench) -> str:
    """Run the janitor until it is done, and return what it did."""
    did, again = [], True
    while again:
        result = await bench.janitor().run_once()
        did.append(result.did)
        again = result.again_in is not None
    return ", ".join(filter(None, did))


def server_of(bench: Bench) -> Any:
    assert isinstance(bench.lanes, RedisLanes)
    return bench.lanes._server


# What an operator sees


@on_every_redis
async def test_the_keys_show_how_many_jobs_wait_where(bench: Bench) -> None:
    await bench.enqueue()
    await bench.enqueue(kind="crawl")
    await bench.enqueue(lane=node_lane("n-1"))
    await bench.enqueue(lane=node_lane("n-1"), capability="js")
    await bench.enqueue(lane=local_lane("crawl_1"))
    later = await bench.number("SELECT shoal_now()") + 60_000_000
    await bench.enqueue(not_before=later)
    assert depth(bench) == depth(bench, "{shoal}:queue:tasks:crawl:http") == 1
    assert depth(bench, f"{QUEUE}:node:n-1") == depth(bench, "{shoal}:queue:tasks:page:js:node:n-1") == 1
    assert int(call(bench, "HLEN", "{shoal}:queue:tasks:pending")) == 4, "local and later jobs are only in the database"
    assert await take(bench, 1) != []
    assert (depth(bench), int(call(bench, "ZCARD", "{shoal}:queue:tasks:processing"))) == (0, 1)
    assert await take(bench, 1) == []
    assert int(call(bench, "ZCARD", "{shoal}:queue:tasks:processing")) == 0, "the next call says what was decided"
    assert int(call(bench, "HLEN", "{shoal}:queue:tasks:pending")) == 3


async def test_every_key_is_in_one_slot_and_holds_no_payload(bench: Bench) -> None:
    await bench.enqueue(payload='{"secret": 9007199254740993}', host="https://a.example")
    client = LoopRedis(RedisSettings(url=bench.lanes_url))
    keys = [key.decode() for key in await client.command("KEYS", "*")]
    assert len(keys) > 5
    assert all(key.startswith("{shoal}:queue:tasks:") for key in keys)
    for key in keys:
        assert b"secret" not in await client.command("DUMP", key)
    await client.close()
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 1)
    assert lease.payload == '{"secret": 9007199254740993}'


@on_every_redis
async def test_ranks_are_exact_to_the_microsecond(bench: Bench) -> None:
    jobs = [await bench.enqueue(priority=priority) for priority in (0, 100, 50, 100, 0)]
    assert await take(bench) == [jobs[1], jobs[3], jobs[2], jobs[0], jobs[4]]


@on_every_redis
async def test_a_changed_priority_moves_the_job(bench: Bench) -> None:
    first, second = await bench.enqueue(run_id="run_1"), await bench.enqueue(run_id="run_2")
    await bench.database.run(lambda tx: bench.queue.jobs.set_priority(tx, "run_2", 90))
    assert await take(bench) == [second, first]


async def test_cancelled_jobs_leave_their_lane(bench: Bench) -> None:
    await bench.enqueue(run_id="run_1")
    other = await bench.enqueue()
    await bench.database.run(lambda tx: bench.queue.jobs.cancel_waiting(tx, "run_1", "stopped"))
    await bench.job_admin.cancel(other)
    assert depth(bench) == 0


# What the server loses


@on_every_redis
async def test_flushed_lanes_are_filled_again_and_jobs_go_on_meanwhile(bench: Bench) -> None:
    jobs = [await bench.enqueue() for _ in range(5)]
    private = await bench.enqueue(lane=node_lane("n1"))
    call(bench, "FLUSHDB")
    assert await take(bench, 2) == jobs[:2], "the database has them"
    assert depth(bench) == 0
    await bench.jump(2)
    assert "put 4 jobs back into their lanes" in await sweep(bench)
    assert (depth(bench), depth(bench, f"{QUEUE}:node:n1")) == (3, 1)
    assert await take(bench, 9, node_lane("n1"), "shared") == [private, *jobs[2:]]


@on_every_redis
async def test_a_backlog_of_thousands_is_put_back_in_bounded_steps(bench: Bench) -> None:
    jobs = [NewJob(JobId(new_id("job")), "page", None) for _ in range(7_500)]
    await bench.queue.enqueue(jobs)
    assert depth(bench) == 7_500
    call(bench, "FLUSHDB")
    await take(bench, 1)  # notices it
    await bench.jump(2)
    assert (await bench.queue.recovery.repair_lanes()).more
    assert depth(bench) == lane_repair.BATCHES * 1_000
    await sweep(bench)
    assert depth(bench) == 7_499
    assert await take(bench, 8_000) == [job.id for job in jobs[1:]], "in their order"


@on_every_redis
async def test_forgotten_scripts_are_sent_again(mortal: Bench) -> None:
    job = await mortal.enqueue()
    call(mortal, "SCRIPT", "FLUSH")
    assert await take(mortal) == [job]


@pytest.mark.parametrize("lost", ["entry", "queue", "all but the generation"])
async def test_a_job_lost_at_the_head_of_a_lane_is_put_back(bench: Bench, lost: str) -> None:
    jobs = [await bench.enqueue() for _ in range(3)]
    if lost == "entry":
        call(bench, "ZREM", QUEUE, jobs[0])
    elif lost == "queue":
        call(bench, "DEL", QUEUE)
    else:
        call(bench, "DEL", QUEUE, "{shoal}:queue:tasks:pending", "{shoal}:queue:tasks:lines")
    assert jobs[0] not in await bench_peek(bench)
    assert f"put {1 if lost == 'entry' else 3} jobs back" in await sweep(bench)
    assert await take(bench) == jobs


async def bench_peek(bench: Bench) -> list[str]:
    client = LoopRedis(RedisSettings(url=bench.lanes_url))
    found = [job_id.decode() for job_id in await client.command("ZRANGE", QUEUE, 0, -1)]
    await client.close()
    return found


async def test_a_process_that_died_between_pop_and_commit_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F38: the commit that leases the job never came."""
    jobs = [await bench.enqueue() for _ in range(3)]
    server = server_of(bench)
    assert await on_its_thread(bench, lambda: server.pop(2, [["page:http"]])) == jobs[:2]
    assert await take(bench) == jobs[2:]
    assert await sweep(bench) == "", "it may still come"
    monkeypatch.setattr(lane_repair, "FORGOTTEN_AFTER_SECONDS", -1.0)
    assert "put 2 jobs back" in await sweep(bench)
    assert await take(bench) == jobs[:2]
    assert [(await bench.job(job)).attempts for job in jobs] == [0, 0, 0]


async def test_a_process_that_died_after_its_commit_leaves_no_entry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.enqueue()
    await take(bench)
    monkeypatch.setattr(lane_repair, "FORGOTTEN_AFTER_SECONDS", -1.0)
    assert await sweep(bench) == ""
    assert int(call(bench, "HLEN", "{shoal}:queue:tasks:pending")) == 0
    assert int(call(bench, "ZCARD", "{shoal}:queue:tasks:processing")) == 0


async def on_its_thread(bench: Bench, work: Any) -> Any:
    """Call the server where the commits of this store do."""

    async def unit(tx: Tx) -> Any:
        await server_of(bench).begin(tx)
        return await work()

    return await bench.database.run(unit)


async def test_a_commit_that_fails_gives_back_what_it_popped(bench: Bench) -> None:
    job = await bench.enqueue()

    async def failing(tx: Tx) -> None:
        turned = await bench.lanes.pop(tx, LeaseRequest("w1", ["page"]), 1, SECOND)
        assert [lease.fence.job_id for lease in turned.leases] == [job]
        raise BackendUnavailable("the store", "it failed", "try again")

    with pytest.raises(BackendUnavailable):
        await bench.database.run(failing)
    assert (await bench.job(job)).state == "pending"
    assert depth(bench) == 1
    assert await take(bench) == [job]


async def test_an_idle_worker_finds_jobs_that_redis_does_not_have(bench: Bench) -> None:
    job = await bench.enqueue()
    call(bench, "DEL", QUEUE)
    assert await take(bench) == []
    await bench.jump(1)
    assert await take(bench) == [job]


async def test_entries_of_jobs_that_do_not_wait_are_removed(bench: Bench) -> None:
    jobs = [await bench.enqueue() for _ in range(3)]
    await bench.sql(f"UPDATE job SET state = 'cancelled', finished_at = 1 WHERE id = '{jobs[0]}'")
    await sweep(bench)
    assert depth(bench) == 2
    await bench.sql(f"UPDATE job SET state = 'cancelled', finished_at = 1 WHERE id = '{jobs[1]}'")
    assert await take(bench, 1) == [jobs[2]], "a stale entry hides no job"


@on_every_redis
async def test_a_lane_of_a_node_that_never_returns_is_emptied(bench: Bench) -> None:
    """F39: its hundred jobs go to the shared lane, in Redis too, and in their order."""
    jobs = [NewJob(JobId(new_id("job")), "page", None, lane=node_lane("gone")) for _ in range(100)]
    await bench.queue.enqueue(jobs)
    assert depth(bench, f"{QUEUE}:node:gone") == 100
    assert await bench.queue.recovery.hand_back(node_lane("gone")) == 100
    assert (depth(bench, f"{QUEUE}:node:gone"), depth(bench)) == (0, 100)
    leases = await bench.queue.lease("w1", ["page"], ["shared"], 100)
    assert [lease.fence.job_id for lease in leases] == [job.id for job in jobs]
    assert {lease.attempts for lease in leases} == {0}
    await sweep(bench)
    assert int(call(bench, "SISMEMBER", "{shoal}:queue:tasks:lines", "page:http:node:gone")) == 0


async def test_two_janitors_put_a_job_back_once(bench: Bench) -> None:
    other = bench.over(bench.database)
    jobs = [await bench.enqueue() for _ in range(50)]
    call(bench, "DEL", QUEUE, "{shoal}:queue:tasks:pending")
    done = await asyncio.gather(bench.queue.recovery.repair_lanes(), other.queue.recovery.repair_lanes())
    assert sum(repair.restored for repair in done) == 50
    assert await take(bench) == jobs


@pytest.mark.parametrize("lost", ["page:http", "page:http:at_hosts", "page:http:hosts", "pending", "lines", "wake"])
async def test_whichever_key_is_lost_jobs_at_hosts_are_put_back(bench: Bench, lost: str) -> None:
    jobs = [await at_host(bench, name) for name in "abcd"]
    call(bench, "DEL", f"{{shoal}}:queue:tasks:{lost}")
    await sweep(bench)
    assert sorted(await take_by_host(bench)) == sorted(jobs)


async def test_a_place_whose_job_is_gone_does_not_block_its_host(bench: Bench) -> None:
    first, second = await at_host(bench, "a"), await at_host(bench, "a")
    call(bench, "DEL", "{shoal}:queue:tasks:pending")
    await bench.sql(f"UPDATE job SET state = 'cancelled', finished_at = 1 WHERE id = '{first}'")
    await sweep(bench)
    assert await take_by_host(bench) == [second]


async def test_a_stale_entry_does_not_use_up_the_slot_of_its_host(bench: Bench) -> None:
    first, second = await at_host(bench, "a"), await at_host(bench, "a")
    await bench.sql(f"UPDATE job SET state = 'cancelled', finished_at = 1 WHERE id = '{first}'")
    assert await take_by_host(bench, 1, 30.0) == []
    assert await take_by_host(bench, 1, 30.0) == [second]


async def test_a_lost_push_behind_many_jobs_of_a_slow_host_is_found(bench: Bench) -> None:
    slow = [new_at_host("slow") for _ in range(1_100)]
    await bench.queue.enqueue(slow)
    lost = await at_host(bench, "free")
    await on_its_thread(bench, lambda: server_of(bench).settle([lost]))
    await sweep(bench)
    await sweep(bench)
    assert int(call(bench, "HEXISTS", "{shoal}:queue:tasks:pending", lost)) == 1


async def test_a_queue_that_was_lost_is_filled_to_its_end(bench: Bench) -> None:
    await bench.queue.enqueue([NewJob(JobId(new_id("job")), "page", None) for _ in range(7_500)])
    call(bench, "DEL", QUEUE)
    await sweep(bench)
    assert depth(bench) == 7_500


async def test_a_repair_whose_call_fails_compares_the_same_rows_again(bench: Bench) -> None:
    jobs = [NewJob(JobId(new_id("job")), "page", None, lane=node_lane("n1")) for _ in range(3_000)]
    await bench.queue.enqueue(jobs)
    call(bench, "FLUSHDB")
    await take(bench, 1, node_lane("n1"))  # notices it
    await bench.jump(2)
    server = server_of(bench)
    put, failed = server.put, []

    async def fail_once(*arguments: Any, **more: Any) -> int:
        if not failed:
            failed.append(server._fail("it was cut off"))
            return 0
        return int(await put(*arguments, **more))

    server.put = fail_once
    await sweep(bench)
    assert depth(bench, f"{QUEUE}:node:n1") == 0
    for _ in range(5):  # on a busy machine, a call of the next pass may take too long as well
        await bench.jump(2)
        await sweep(bench)
    assert depth(bench, f"{QUEUE}:node:n1") == 2_999


async def test_a_generation_that_was_not_committed_is_not_used(store_url: str, redis_url: str) -> None:
    bench = await open_bench(store_url)
    lanes = bench.over(bench.database)
    lanes.lanes_url = redis_url
    lanes.__post_init__()

    async def cut_off(tx: Tx) -> None:
        await lanes.lanes._repairs.run_once(tx)
        raise BackendUnavailable("the store", "it failed", "try again")

    with pytest.raises(BackendUnavailable):
        await bench.database.run(cut_off)
    assert ask_redis(redis_url, "EXISTS", "{shoal}:queue:tasks:generation") == "0"
    await begin_lanes(lanes.queue)
    job = await lanes.enqueue()
    assert depth(lanes) == 1
    assert await take(lanes) == [job]
    await bench.close()


async def test_thousands_of_popped_jobs_are_given_back(bench: Bench) -> None:
    await bench.queue.enqueue([NewJob(JobId(new_id("job")), "page", None) for _ in range(4_500)])

    async def failing(tx: Tx) -> None:
        await bench.lanes.pop(tx, LeaseRequest("w1", ["page"]), 4_500, SECOND)
        raise BackendUnavailable("the store", "it failed", "try again")

    with pytest.raises(BackendUnavailable):
        await bench.database.run(failing)
    assert depth(bench) == 4_500


async def test_nothing_stays_of_the_lanes_of_nodes_that_left(bench: Bench) -> None:
    for name in "abc":
        await at_host(bench, name, lane=node_lane("n1"))
    await bench.queue.recovery.hand_back(node_lane("n1"))
    assert len(await take_by_host(bench)) == 3
    await sweep(bench)
    client = LoopRedis(RedisSettings(url=bench.lanes_url))
    assert list(await client.command("KEYS", "*node*")) == []
    await client.close()


async def test_rows_of_hosts_that_were_leased_through_redis_do_not_stay(bench: Bench) -> None:
    for number in range(20):
        await at_host(bench, f"h{number}")
    assert len(await take_by_host(bench, 50)) == 20
    waiting = await at_host(bench, "waiting")
    await sweep(bench)
    assert await bench.number("SELECT count(*) FROM job_host") == 1
    assert await take_by_host(bench) == [waiting]


@pytest.fixture
async def postgres_lanes(postgres_url: str, redis_url: str) -> AsyncIterator[Bench]:
    bench = await open_bench(postgres_url, lanes_url=redis_url)
    yield bench
    await bench.close()


async def test_a_host_whose_job_is_stored_during_the_repair_keeps_its_row(postgres_lanes: Bench) -> None:
    bench = postgres_lanes
    await sweep(bench)
    await at_host(bench, "a")
    assert len(await take_by_host(bench)) == 1
    key = "hashtextextended(current_schema(), 1)"
    # A deletion of rows stops when it has taken its snapshot, before it looks for rows and locks them.
    await bench.sql(
        "CREATE FUNCTION stop_here() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_advisory_xact_lock({key}); RETURN NULL; END $$"
    )
    await bench.sql("CREATE TRIGGER stop BEFORE DELETE ON job_host FOR EACH STATEMENT EXECUTE FUNCTION stop_here()")
    await bench.sql(f"SELECT pg_advisory_lock({key})")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
    stopped = f"{waiting} AND objid::bigint = {key} & {(1 << 32) - 1}"

    async def store(tx: Tx) -> asyncio.Task[Any]:
        await bench.queue.enqueue_in(tx, [new_at_host("a")])
        repair = asyncio.create_task(bench.lanes.repair(bench.database))
        async with asyncio.timeout(60):
            while not repair.done() and not await bench.number(stopped):
                await SystemClock().sleep(0.01)
        return repair

    repair = await bench.database.run(store)
    await bench.sql(f"SELECT pg_advisory_unlock({key})")
    await repair
    request = LeaseRequest("w1", ["page"], rate_limiter=places(bench, 0.0))
    found = await bench.database.run(lambda tx: bench.jobs.lanes.pop(tx, request, 5, SECOND))
    assert len(found.leases) == 1, "a lease past Redis finds the job by the row of its host"


async def test_requests_of_one_kind_do_not_keep_others_from_looking(bench: Bench) -> None:
    lost = await bench.enqueue(capability="js")
    call(bench, "DEL", "{shoal}:queue:tasks:page:js")
    await bench.jump(1)
    assert await take(bench) == []
    leases = await bench.queue.lease("w1", ["page"], ["shared"], 1, ["js"])
    assert [lease.fence.job_id for lease in leases] == [lost]


async def test_a_request_with_a_rate_limit_is_never_popped_by_rank(bench: Bench) -> None:
    await bench.queue.enqueue([new_at_host("a") for _ in range(20)])
    request = LeaseRequest("w1", ["page"], rate_limiter=places(bench, 10.0))
    assert len((await bench.queue.finish_and_lease([], request, 20)).leases) == 1


def new_at_host(name: str, **more: Any) -> NewJob:
    host = f"https://{name}.example"
    return NewJob(JobId(new_id("job")), "page", None, f'{{"url": "{host}/"}}', host=host, **more)


async def at_host(bench: Bench, name: str, **more: Any) -> str:
    [made] = await bench.queue.enqueue([new_at_host(name, **more)])
    return made.id


async def take_by_host(bench: Bench, limit: int = 10, delay_seconds: float = 1.0) -> list[str]:
    request = LeaseRequest("w1", ["page"], rate_limiter=places(bench, delay_seconds))
    turned = await bench.queue.finish_and_lease([], request, limit)
    return [lease.fence.job_id for lease in turned.leases]


# When the server is away


async def test_a_server_that_answers_slowly_is_left_alone(mortal: Bench, own_redis: RedisServer) -> None:
    await mortal.enqueue()
    server = server_of(mortal)
    script = server._client.script

    async def slow(*arguments: Any) -> Any:
        mortal.clock.jump(0.3)
        return await script(*arguments)

    server._client.script = slow
    assert len(await take(mortal)) == 1
    await mortal.enqueue()
    assert len(await take(mortal)) == 1, "from the database"
    [degraded] = [signal for signal in mortal.signals_seen if isinstance(signal, LanesDegraded)]
    assert "slowly" in degraded.why


async def test_an_outage_of_redis_stops_nothing(mortal: Bench, own_redis: RedisServer) -> None:
    before = await mortal.enqueue()
    own_redis.kill()
    during = await mortal.enqueue()
    assert await take(mortal) == [before, during]
    [degraded] = [signal for signal in mortal.signals_seen if isinstance(signal, LanesDegraded)]
    assert str(own_redis.port) in degraded.why
    own_redis.start()
    waiting = await mortal.enqueue()
    await mortal.jump(2)
    assert "put 1 jobs back" in await sweep(mortal)
    assert depth(mortal) == 1
    assert await take(mortal) == [waiting]
    await mortal.enqueue()
    assert any(isinstance(signal, LanesRestored) for signal in mortal.signals_seen)


async def test_a_server_that_is_away_is_not_asked_for_every_job(mortal: Bench, own_redis: RedisServer) -> None:
    own_redis.kill()
    calls = 0
    client = server_of(mortal)._client
    script = client.script

    async def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return await script(*arguments)

    client.script = counted
    for _ in range(20):
        await mortal.enqueue()
    assert len(await take(mortal)) == 20
    assert calls == 1


async def test_leases_by_host_go_on_without_redis(mortal: Bench, own_redis: RedisServer) -> None:
    job = await mortal.enqueue(host="https://a.example", payload='{"url": "https://a.example/"}')
    own_redis.kill()
    request = LeaseRequest("w1", ["page"], rate_limiter=places(mortal))
    turned = await mortal.queue.finish_and_lease([], request, 5)
    assert [lease.fence.job_id for lease in turned.leases] == [job]


async def test_the_lanes_of_another_store_are_left_alone(bench: Bench, tmp_path: Path, new_file: Path) -> None:
    mine = await bench.enqueue()
    shutil.copy(new_file, tmp_path / "other.db")
    other = await open_bench(f"sqlite:///{tmp_path}/other.db", lanes_url=bench.lanes_url)
    theirs = await other.enqueue()
    assert await take(other) == [theirs], "from its own table"
    assert depth(bench) == 1
    assert await take(bench) == [mine]
    await other.enqueue()
    [degraded] = [signal for signal in other.signals_seen if isinstance(signal, LanesDegraded)]
    assert "another store" in degraded.why
    await other.close()


# Names


@pytest.mark.parametrize("name", ["a:b", "{x}", "*", "[a-z]", "a b", "å", "x" * 65, "x" * 512, "", "a\nb", "a\tb"])
async def test_names_that_could_mean_something_never_become_part_of_a_key(bench: Bench, name: str) -> None:
    """F40, B77: such a job waits in the database, and is found there."""
    for lane, kind, capability in (
        ("shared", name, "http"),
        ("shared", "page", name),
        (f"node/{name}", "page", "http"),
    ):
        assert queue_name(lane, kind, capability) is None
    if name:
        job = await bench.enqueue(capability=name)
        assert int(call(bench, "HLEN", "{shoal}:queue:tasks:pending")) == 0
        leases = await bench.queue.lease("w1", ["page"], ["shared"], 5, [name])
        assert [lease.fence.job_id for lease in leases] == [job]


@on_every_redis
async def test_hosts_are_text_whatever_they_contain(bench: Bench) -> None:
    hosts = [
        "https://a.example",
        "https://a.example:8443",
        "https://*.example",
        "https://[::1]:80",
        "https://å.example",
    ]
    for host in hosts:
        await bench.enqueue(host=host, payload=f'{{"url": "{host}/"}}')
    request = LeaseRequest("w1", ["page"], rate_limiter=places(bench))
    turned = await bench.queue.finish_and_lease([], request, 9)
    assert len(turned.leases) == len(hosts)


# Wake-ups


@on_every_redis
async def test_a_hint_that_came_while_the_connection_was_cut_is_not_lost(mortal: Bench, own_redis: RedisServer) -> None:
    other = mortal.over(mortal.database)
    wake = RedisWake(LoopRedis(RedisSettings(url=own_redis.url)), 1.0, SystemClock(), Signals())
    subscriber = Subscriber()
    wake.subscribe(subscriber, lambda: True)
    await subscriber.hint()  # it is connected
    call(mortal, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await other.enqueue()
    await subscriber.hint()
    await wake.close()


async def test_a_lease_tells_how_long_its_job_waited_and_how_long_it_lasts(bench: Bench) -> None:
    await bench.enqueue()
    await bench.jump(3)
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 1)
    assert isinstance(lease, Lease)
    assert (round(lease.waited_seconds), lease.ttl_seconds) == (3, bench.settings.lease.total_seconds())


# A store whose lanes are in the database again


@on_every_redis
async def test_jobs_are_leased_while_some_processes_have_lanes_in_redis_and_others_in_the_database(
    store_url: str, redis_url: str
) -> None:
    before = await open_bench(store_url, lanes_url=redis_url)
    after = before.over(before.database)
    after.lanes_url = ""
    after.__post_init__()
    jobs = [await bench.enqueue() for bench in (before, after, before, after)]
    assert await take(after, 1) == jobs[:1], "leased past Redis, which still has it"
    await before.clock.advance(1)
    assert sorted([*await take(before), *await take(before), *await take(after)]) == sorted(jobs[1:])
    await before.close()


@on_every_redis
async def test_lanes_that_nobody_uses_any_more_are_removed_from_redis(
    store_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await open_bench(store_url, lanes_url=redis_url)
    await before.enqueue(host="https://a.example")
    after = before.over(before.database)
    after.defaults = replace(after.defaults, redis=RedisSettings(url=redis_url))
    after.lanes_url = ""
    after.__post_init__()
    pruner = after.app.chores.pruner
    assert await idle_seconds(redis_url, at_least=1)
    await pruner.run_once()
    assert depth(before) == 1, "a process used them a moment ago"
    assert await idle_seconds(redis_url), "a pass that removes nothing is no use of them, or none ever would"
    monkeypatch.setattr(lane_repair.AbandonedLanes, "keep", timedelta(0))
    assert (await pruner.run_once()).did == "removed 1 lanes in Redis"
    assert ask_redis(redis_url, "DBSIZE") == "0", "no key is left"
    assert (await pruner.run_once()).did == ""
    assert len(await take(after)) == 1
    await before.close()


async def idle_seconds(redis_url: str, at_least: int = 0) -> int:
    """Return for how long nobody has used the lanes, after waiting for that if necessary."""
    for _ in range(100):
        if (idle := int(ask_redis(redis_url, "OBJECT", "IDLETIME", GENERATION))) >= at_least:
            return idle
        await SystemClock().sleep(0.1)
    raise AssertionError("the lanes are in use")


@on_every_redis
async def test_lanes_stay_in_a_redis_that_does_not_know_idle_times(store_url: str, own_redis: RedisServer) -> None:
    bench = await open_bench(store_url, lanes_url=own_redis.url)
    await bench.enqueue()
    ask_redis(own_redis.url, "CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    assert await bench.app.stores.abandoned_lanes.prune(bench.database, 0, 1) == (0, False)
    assert depth(bench) == 1
    assert not [signal for signal in bench.signals_seen if isinstance(signal, LanesDegraded)]
    await bench.close()
