"""Jobs that are leased by host, on both stores: which jobs are leased when, and the cost of hosts on hold."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest

from shoal.base.database import Tx
from shoal.base.ids import JobId, new_id
from shoal.hosts.rate import HostDelay
from shoal.hosts.rate_limiter import RateLimiter
from shoal.hosts.robots import RobotsRecord, RobotsState
from shoal.hosts.throttle import HostUpdate
from shoal.page_jobs.leasing import PageLeases
from shoal.page_jobs.spec import host_of
from shoal.queue import states
from shoal.queue.job import Lease, LeaseRequest, NewJob
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.job_hosts import SqlHostQueue
from shoal.queue.states import JobState, Move
from tests.contract.conftest import Bench
from tests.support.servers import ask_redis

SHORT_SECONDS, LONG_SECONDS = 1.0, 600.0  # between two requests to a host
HOSTS = SqlHostQueue("postgres")
ANY_PAGE = LeaseRequest("w1", ["page"])


def url(host: str) -> str:
    return f"http://{host}.example"


async def known(bench: Bench, *hosts: str) -> None:
    """Hosts whose robots.txt was read: else each gets one request at a time."""
    record = RobotsRecord(RobotsState.ABSENT, "")

    async def commit(tx: Tx) -> None:
        for host in hosts:
            await bench.hosts.keep_robots(tx, url(host), record, timedelta(0))

    await bench.database.run(commit)


async def add(bench: Bench, host: str, count: int = 1, **more: Any) -> list[JobId]:
    jobs = [
        NewJob(JobId(new_id("job")), "page", None, f'{{"url": "{url(host)}/{place}"}}', host=url(host), **more)
        for place in range(count)
    ]
    return [one.id for one in await bench.queue.enqueue(jobs)]


def places(bench: Bench, delay_seconds: float = SHORT_SECONDS, *, at_once: bool = False) -> RateLimiter:
    return RateLimiter(HostDelay(delay_seconds), at_once=at_once)


async def take(
    bench: Bench,
    want: int,
    delay_seconds: float = SHORT_SECONDS,
    *,
    at_once: bool = False,
    moves: Sequence[states.Move] = (),
) -> list[Lease]:
    """Lease as a page child does, or with `at_once` as a bot does: a turn, and a slot for each job, in one commit."""
    slots = PageLeases(bench.queue, places(bench, delay_seconds, at_once=at_once))
    request = slots.by_host(LeaseRequest("w1", ["page"], capabilities=["http", "js"]))

    async def commit(tx: Tx) -> list[Lease]:
        turned = await bench.queue.finish_and_lease_in(tx, moves, request, want)
        return [task.lease for task in await slots.reserve(tx, turned.leases)]

    return await bench.database.run(commit)


async def hosts_queued(bench: Bench) -> int:
    """Return how many entries the queue of hosts with waiting jobs has."""
    if not bench.lanes_url:
        return await bench.number("SELECT count(*) FROM job_host")
    line = "{shoal}:queue:tasks:page:http:hosts"
    return sum(int(ask_redis(bench.lanes_url, "ZCARD", key)) for key in (line, f"{line}:later"))


async def backlog(bench: Bench) -> int:
    return await bench.database.read(lambda tx: bench.queue.lanes.page_backlog(tx, "http", 20))


def hosts_of(leases: Sequence[Lease]) -> list[str]:
    """The hosts of jobs, in the order in which they were leased."""
    return [lease.payload.split("//")[1].split(".")[0] for lease in leases]


async def test_of_hosts_that_are_free_the_priority_decides_and_a_busy_one_hides_no_other(bench: Bench) -> None:
    await known(bench, "a", "b", "c")
    for host, priority in (("a", 90), ("b", 50), ("c", 10)):
        await add(bench, host, 20, priority=priority)
    assert hosts_of(await take(bench, 2, LONG_SECONDS)) == ["a", "b"], "one each, not two of the best"
    assert hosts_of(await take(bench, 1, LONG_SECONDS)) == ["c"], "the others are busy"
    await bench.jump(600)
    assert hosts_of(await take(bench, 2, LONG_SECONDS)) == ["a", "b"]


async def test_a_leaser_with_free_capacity_gets_the_slots_of_the_next_two_seconds(bench: Bench) -> None:
    await known(bench, "a")
    await add(bench, "a", 20)
    leases = await take(bench, 10)
    assert [round(lease.start_in_seconds) for lease in leases] == [0, 1, 2]
    await bench.jump(2)
    assert await take(bench, 10), "the next one is due in a second"


async def test_a_job_whose_host_is_busy_is_not_leased_and_has_no_history(bench: Bench) -> None:
    ids = await add(bench, "a", 30)
    granted = []
    for _ in range(40):
        granted += [lease.fence for lease in await take(bench, 10, LONG_SECONDS, at_once=True)]
        await bench.jump(LONG_SECONDS / 4)
    assert len(granted) == 10, "each fourth time"
    assert {holder.epoch for holder in granted} == {1}
    grants = [await bench.grants(job_id) for job_id in ids]
    assert sum(map(len, grants)) == 10


async def test_a_host_that_is_held_is_left_alone_until_its_hold_ends(bench: Bench) -> None:
    await known(bench, "a", "b")
    await add(bench, "a", 3, priority=90)
    await add(bench, "b", 3)
    held = HostUpdate(
        url("a"), status=503, hold_seconds=600.0, shortest_backoff_seconds=1e-6, longest_backoff_seconds=1e-6
    )
    numbers = await bench.database.run(lambda tx: bench.hosts.numbers(tx, [url("a")]))
    await bench.database.run(lambda tx: bench.hosts.record(tx, {numbers[url("a")]: held}))
    assert set(hosts_of(await take(bench, 2))) == {"b"}
    await bench.jump(500)
    assert hosts_of(await take(bench, 5)) == ["b"]
    await bench.jump(130)
    assert hosts_of(await take(bench, 5)) == ["a"], "one, for it was held"


async def test_a_job_whose_host_is_busy_is_explained_by_its_host(bench: Bench) -> None:
    await known(bench, "a")
    ids = await add(bench, "a", 3)
    assert len(await take(bench, 3, LONG_SECONDS)) == 1
    said = await bench.job_admin.explain(ids[2])
    assert (said.reason, said.facts["host"], said.facts["ahead"]) == ("host_busy", url("a"), 1)
    assert said.facts["host_busy_seconds"] == pytest.approx(600, abs=60)
    assert str(said.sentence).startswith("http://a.example may be requested again in ")


async def test_a_job_without_a_slot_is_returned_as_if_it_had_not_been_leased(bench: Bench) -> None:
    await known(bench, "a")
    [job_id] = await add(bench, "a", quota_keys=("key:one",))
    request = PageLeases(bench.queue, places(bench)).by_host(LeaseRequest("w1", ["page"]))

    async def commit(tx: Tx) -> list[Move]:
        [lease] = (await bench.queue.finish_and_lease_in(tx, [], request, 1)).leases
        assert lease.fence.epoch == 1
        return await bench.queue.jobs.move(tx, [states.take_back(job_id, 1, "host_busy")])

    assert not await bench.database.run(commit)
    job = await bench.job(job_id)
    assert (job.state, job.lease_epoch, await bench.grants(job_id)) == (JobState.PENDING, 0, [])
    [again] = await take(bench, 1)
    assert again.fence.epoch == 1


async def test_a_job_that_waits_again_is_had_again_whatever_let_it_wait(bench: Bench) -> None:
    await known(bench, "a")
    later = await bench.number("SELECT shoal_now()") + 600_000_000
    [job_id] = await add(bench, "a", max_attempts=1, not_before=later, quota_keys=("project:p",))
    assert await take(bench, 1) == []
    await bench.jump(601)
    [lease] = await take(bench, 1)

    await bench.queue.release(lease, "shutdown")
    await bench.jump(6)
    [lease] = await take(bench, 1)

    put_off = states.put_off(job_id, lease.fence.epoch, timedelta(seconds=3), "host_busy")
    assert await take(bench, 1, moves=[put_off]) == []
    await bench.jump(6)
    await bench.janitor().run_once()
    [lease] = await take(bench, 1)

    await bench.lose(15)
    [lease] = await take(bench, 1)
    await bench.queue.fail(lease, "no")
    await bench.jump(6)
    assert await bench.job_admin.retry_dead(JobFilter(kind="page")) == 1
    await bench.job_admin.set_quota("project:p", 0)
    assert await take(bench, 1) == [], "it is parked"
    await bench.job_admin.set_quota("project:p", 1)
    [lease] = await take(bench, 1)
    assert lease.fence.job_id == job_id
    await bench.queue.finish(lease)
    assert await hosts_queued(bench) == 0, "nothing is looked for any more"


async def test_a_full_quota_hides_no_other_project(bench: Bench) -> None:
    hosts = [f"h{place}" for place in range(40)]
    await known(bench, *hosts)
    await bench.job_admin.set_quota("project:full", 0)
    for host in hosts:
        await add(bench, host, 2, priority=90, quota_keys=("project:full",))
    await add(bench, "h39", quota_keys=("project:other",))
    found = [hosts_of(await take(bench, 10)) for _ in range(2)]
    assert ["h39"] in found


async def test_a_host_is_noted_once_for_jobs_that_come_one_after_the_other(bench: Bench) -> None:
    for _ in range(5):
        await add(bench, "a")
    assert await hosts_queued(bench) == 1


async def test_many_rows_of_one_host_hide_no_other_host_and_become_one(bench: Bench) -> None:
    await known(bench, "a", "b")
    await add(bench, "b")
    for priority in range(51, 91):
        await add(bench, "a", priority=priority)
    if not bench.lanes_url:
        assert await hosts_queued(bench) == 41, "each is before all others"
    assert hosts_of(await take(bench, 2)) == ["a", "b"]
    assert await hosts_queued(bench) == 1


async def test_after_a_clock_was_set_back_hosts_are_looked_at_again(bench: Bench) -> None:
    await known(bench, "a")
    await add(bench, "a", 9)
    assert len(await take(bench, 9)) == 3
    await bench.sql("UPDATE job_host SET ready_at = ready_at + 3600000000")
    await bench.jump(3)
    assert len(await take(bench, 9)) == 3


async def test_kinds_and_lanes_that_are_leased_otherwise_are_not_concerned(bench: Bench) -> None:
    await bench.enqueue(kind="audit")
    await add(bench, "a", 3)
    assert await hosts_queued(bench) == 1
    assert len(await bench.queue.lease("w1", ["audit"], ["shared"], 9)) == 1
    assert len(await bench.queue.lease("w1", ["page"], ["shared"], 9)) == 3, (
        "without a rate limiter the rank alone decides"
    )


async def test_takers_at_the_same_time_get_each_job_once_and_lose_none(bench: Bench) -> None:
    hosts = [f"h{place}" for place in range(20)]
    await known(bench, *hosts)
    ids: list[JobId] = []
    found: list[Lease] = []

    async def feed(host: str) -> None:
        for _ in range(3):
            ids.extend(await add(bench, host, 2))

    async def work() -> None:
        for _ in range(20):
            found.extend(await take(bench, 5, 0.0))

    await asyncio.gather(*(feed(host) for host in hosts), work(), work(), work())
    while more := await take(bench, 50, 0.0):
        found += more
    assert sorted(lease.fence.job_id for lease in found) == sorted(ids)


async def rows_of_hosts(bench: Bench) -> list[tuple[int, str]]:
    """Return the number of each row of a host, and the transaction that wrote it."""
    rows = await bench.sql("SELECT number, xmin::text AS written_by FROM job_host ORDER BY number")
    return [(row["number"], row["written_by"]) for row in rows]


async def test_a_host_keeps_its_row_while_jobs_wait_there(postgres_bench: Bench) -> None:
    await add(postgres_bench, "a", 3)
    [(number, _)] = await rows_of_hosts(postgres_bench)

    async def look(wait: int) -> None:
        async def commit(tx: Tx) -> None:
            [host] = await HOSTS.take(tx, ANY_PAGE, 5, ())
            assert await HOSTS.take(tx, ANY_PAGE, 5, [host.key]) == [], "it has been taken"
            await HOSTS.put_back(tx, [(host, wait)], [])

        await postgres_bench.database.run(commit)

    before = await rows_of_hosts(postgres_bench)
    await look(wait=0)
    assert await rows_of_hosts(postgres_bench) == before, "nothing has changed, and nothing is written"
    await look(wait=30_000_000)
    assert [row[0] for row in await rows_of_hosts(postgres_bench)] == [number]


async def test_a_host_that_is_taken_by_a_commit_that_fails_is_ready_again(postgres_bench: Bench) -> None:
    await add(postgres_bench, "a")

    async def commit(tx: Tx) -> None:
        [host] = await HOSTS.take(tx, ANY_PAGE, 5, ())
        await HOSTS.put_back(tx, [(host, 30_000_000)], [])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await postgres_bench.database.run(commit)
    assert len(await postgres_bench.database.run(lambda tx: HOSTS.take(tx, ANY_PAGE, 5, ()))) == 1


@pytest.mark.parametrize("waits", [True, False], ids=["a job waits", "no job waits"])
async def test_a_job_that_is_stored_while_its_host_is_taken_is_found(postgres_bench: Bench, waits: bool) -> None:
    bench = postgres_bench
    await add(bench, "a", priority=90)

    async def commit(tx: Tx) -> None:
        [host] = await HOSTS.take(tx, ANY_PAGE, 5, ())
        assert await bench.database.run(lambda other: HOSTS.take(other, ANY_PAGE, 5, ())) == [], "another commit has it"
        if not waits:
            await bench.queue.finish_and_lease_in(tx, [], ANY_PAGE, 1)
        await HOSTS.put_back(tx, [(host, 30_000_000)], [])
        await add(bench, "a")

    await bench.database.run(commit)
    [host] = await bench.database.run(lambda tx: HOSTS.take(tx, ANY_PAGE, 5, ()))
    assert host.key[3] == url("a")
    assert len(await rows_of_hosts(bench)) == 1, "rows that are not needed any more are deleted"


async def test_the_jobs_of_a_slow_host_are_not_backlog_to_other_policies(bench: Bench) -> None:
    await known(bench, "slow")
    await add(bench, "slow", 30)
    assert await backlog(bench) == 20, "nobody has looked yet"
    await take(bench, 10)
    assert await backlog(bench) == 0
    await add(bench, "slow", 30)
    await add(bench, "other", 2)
    assert await backlog(bench) == 2


async def test_a_large_group_of_one_host_is_had_in_its_turn(bench: Bench) -> None:
    await known(bench, "a")
    await add(bench, "a", 5)
    turns = []
    for _ in range(6):
        turns.append(len(await take(bench, 5, LONG_SECONDS)))
        await bench.jump(300)
    assert [count for count, _ in groupby(turns)] == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("delay_seconds", [0.0, SHORT_SECONDS])
async def test_a_host_whose_robots_are_unknown_gets_one_job_at_a_time(bench: Bench, delay_seconds: float) -> None:
    await add(bench, "a", 5)
    assert len(await take(bench, 5, delay_seconds)) == 1


@pytest.mark.parametrize("page", ["http://a.example", "HTTP://A.example:80/x"])
async def test_a_url_that_was_not_written_canonically_keeps_the_pace_of_its_host(bench: Bench, page: str) -> None:
    await known(bench, "a")
    await add(bench, "a", 5)
    job = NewJob(JobId(new_id("job")), "page", None, f'{{"url": "{page}"}}', priority=90, host=host_of(page))
    await bench.queue.enqueue([job])
    [lease] = await take(bench, 5, LONG_SECONDS)
    assert lease.fence.job_id == job.id
