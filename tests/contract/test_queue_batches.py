"""The queue in batches: enqueue, lease by kind and capability, ageing, and ends with the next lease in one commit."""

import asyncio
from datetime import timedelta
from typing import TypeVar

import pytest
from msgspec.structs import replace

from shoal.base.database import Database, Work
from shoal.base.errors import BackendUnavailable, InvalidInput
from shoal.base.ids import JobId, new_id
from shoal.queue import states
from shoal.queue.enqueuer import Enqueuer, JobEnqueued
from shoal.queue.job import Enqueued, Fence, Lease, LeaseRequest, NewJob
from shoal.queue.queue import Queue
from shoal.queue.states import JobState
from tests.contract.conftest import Bench, Breakpoint, BreakpointDatabase, Severed, until_blocked

T = TypeVar("T")
J = JobState
W1 = LeaseRequest("w1", ["page"])


def new(key: str | None = None, **more: object) -> NewJob:
    return NewJob(JobId(new_id("job")), "page", None, dedupe_key=key, **more)  # type: ignore[arg-type]


def finished(leases: list[Lease]) -> list[states.Move]:
    return [states.finish(lease.fence.job_id, lease.fence.epoch) for lease in leases]


async def in_line(bench: Bench, limit: int = 100, **asked: list[str]) -> list[str]:
    leases = await bench.queue.lease("w1", asked.get("kinds", ["page"]), asked.get("lanes", ["shared"]), limit)
    return [lease.fence.job_id for lease in leases]


# Enqueuing


async def test_a_batch_is_answered_in_its_order_and_waits_in_its_order(bench: Bench) -> None:
    jobs = [new() for _ in range(50)]
    jobs.sort(key=lambda job: job.id, reverse=True)  # the order of the ids does not matter
    assert await bench.queue.enqueue(jobs) == [Enqueued(job.id) for job in jobs]
    assert await in_line(bench) == [job.id for job in jobs]


async def test_duplicates_inside_a_batch_get_the_first_ones_id(bench: Bench) -> None:
    jobs = [new("a"), new("b"), new("a"), new(), new("b")]
    a, b = jobs[0].id, jobs[1].id
    expected = [Enqueued(a), Enqueued(b), Enqueued(a, True), Enqueued(jobs[3].id), Enqueued(b, True)]
    assert await bench.queue.enqueue(jobs) == expected
    assert await bench.number("SELECT count(*) FROM job") == 3


async def test_a_live_job_answers_for_its_key_whatever_it_waits_for(bench: Bench) -> None:
    """F48: pending, scheduled, locked and waiting for a retry are all live."""
    later = bench.clock.micros() + 3_600_000_000
    made = await bench.queue.enqueue([new("pending"), new("later", not_before=later), new("locked"), new("retried")])
    for lease in await bench.queue.lease("w1", ["page"], ["shared"], 3):
        if lease.fence.job_id == made[3].id:
            await bench.queue.fail(lease, "boom")
        elif lease.fence.job_id == made[0].id:
            await bench.queue.release(lease, "slice")
    again = await bench.queue.enqueue([new("retried"), new("new"), new("pending"), new("locked"), new("later")])
    assert [one.duplicate for one in again] == [True, False, True, True, True]
    assert [one.id for one in again if one.duplicate] == [made[3].id, made[0].id, made[2].id, made[1].id]
    assert await bench.number("SELECT count(*) FROM job") == 5


async def test_64_enqueues_of_one_key_at_once_are_all_answered_with_one_id(bench: Bench) -> None:
    """F48: many concurrent enqueues with one dedupe key."""
    answers = await asyncio.gather(*[bench.queue.enqueue([new("k"), new()]) for _ in range(64)])
    assert len({answer[0].id for answer in answers}) == 1
    assert sum(not answer[0].duplicate for answer in answers) == 1
    assert await bench.number("SELECT count(*) FROM job") == 65


async def test_a_key_whose_job_ends_while_another_is_enqueued_is_free(postgres_bench: Bench) -> None:
    """The insert conflicts with a live job, which ends before its owner is read."""
    bench, point = postgres_bench, Breakpoint("insert_jobs")
    [first] = await bench.queue.enqueue([new("k")])
    job = new("k")
    enqueuing = asyncio.create_task(bench.over(BreakpointDatabase(bench.database, point)).queue.enqueue([job]))
    await point.wait_until_reached(enqueuing)
    await bench.queue.finish(await bench.lease())
    point.resume()
    assert await enqueuing == [Enqueued(job.id)]
    assert first.id != job.id


async def test_two_batches_with_the_same_keys_in_any_order_do_not_wait_in_a_circle(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("insert_jobs")
    keys = [f"k{number}" for number in range(20)]
    first = asyncio.create_task(
        bench.over(BreakpointDatabase(bench.database, point)).queue.enqueue([new(key) for key in keys])
    )
    await point.wait_until_reached(first)
    second = asyncio.create_task(bench.queue.enqueue([new(key) for key in reversed(keys)]))
    await until_blocked(bench)
    point.resume()
    made, found = await asyncio.gather(first, second)
    assert [one.id for one in reversed(found)] == [one.id for one in made]
    assert all(one.duplicate for one in found)


async def test_one_bad_job_keeps_the_whole_batch_out(bench: Bench) -> None:
    """F49: all or nothing, and the answer names the place."""
    jobs = [new() for _ in range(10_000)]
    jobs[7_123] = new(priority=101)
    with pytest.raises(InvalidInput, match=r"jobs\[7123\]\.priority"):
        await bench.queue.enqueue(jobs)
    assert await bench.number("SELECT count(*) FROM job") == 0


async def test_one_signal_names_all_new_jobs_of_a_batch(bench: Bench) -> None:
    await bench.queue.enqueue([new("k")])
    jobs = [new("k"), new(), new()]
    await bench.queue.enqueue(jobs)
    told = [signal for signal in bench.signals_seen if isinstance(signal, JobEnqueued)]
    assert [signal.job_ids for signal in told[1:]] == [(jobs[1].id, jobs[2].id)]


async def test_nothing_is_enqueued_by_an_empty_batch(bench: Bench) -> None:
    assert await bench.queue.enqueue([]) == []


# Waiting for a time


async def test_a_job_is_not_granted_before_its_time(bench: Bench) -> None:
    soon = new(not_before=bench.clock.micros() + 5_000_000)
    if bench.dialect == "postgres":
        now = await bench.number("SELECT shoal_now()")
        soon = new(not_before=now + 5_000_000)
    await bench.queue.enqueue([soon])
    await bench.jump(4)
    assert await in_line(bench) == []
    await bench.jump(1.1)
    assert await in_line(bench) == [soon.id]


async def test_jobs_of_the_same_moment_are_all_granted_once(bench: Bench) -> None:
    """F43: thousands of jobs become due at the same moment."""
    at = await bench.number("SELECT shoal_now() AS now") + 1_000_000
    jobs = [new(not_before=at) for _ in range(5_000)]
    await bench.queue.enqueue(jobs)
    await bench.jump(2)
    got: list[str] = []
    while batch := await in_line(bench, 1_000):
        got += batch
    assert sorted(got) == sorted(job.id for job in jobs)


async def test_a_job_that_waits_for_its_time_holds_no_lease(bench: Bench) -> None:
    """F44: no lease is held while a job waits for a time later than any lease."""
    await bench.enqueue()
    lease = await bench.lease()
    await bench.queue.fail(lease, "boom")
    job = await bench.job(lease.fence.job_id)
    assert (job.state, job.lease_holder, job.lease_until) == (J.PENDING, None, None)
    await bench.janitor().run_once()
    assert (await bench.job(lease.fence.job_id)).lease_epoch == 1


# Who gets what


async def test_a_job_is_granted_only_to_workers_with_its_capability(bench: Bench) -> None:
    plain, browser = new(), new(capability="js")
    await bench.queue.enqueue([plain, browser])
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 9, ["js"])
    assert lease.fence.job_id == browser.id
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 9, ["js", "http"])
    assert lease.fence.job_id == plain.id


async def test_the_private_lane_goes_before_the_shared_one(bench: Bench) -> None:
    shared, private = new(priority=100), new(priority=0, lane="node:a")
    await bench.queue.enqueue([shared, private])
    assert await in_line(bench, lanes=["node:a", "shared"]) == [private.id, shared.id]


async def test_no_kind_hides_another_that_waits_longer(bench: Bench) -> None:
    first = await bench.enqueue(kind="analysis")
    await bench.jump(1)
    for _ in range(5):
        await bench.enqueue(kind="crawl")
    assert await in_line(bench, 1, kinds=["crawl", "analysis"]) == [first]


async def test_a_low_priority_overtakes_newer_high_ones_in_time(bench: Bench) -> None:
    """F46: one point of priority is worth a minute of waiting."""
    low = await bench.enqueue(priority=10)
    high = await bench.enqueue(priority=20)
    assert await in_line(bench, 1) == [high]
    await bench.jump(9 * 60)
    newer = await bench.enqueue(priority=20)
    assert await in_line(bench, 1) == [newer]
    await bench.jump(2 * 60)
    await bench.enqueue(priority=20)
    assert await in_line(bench, 1) == [low]


async def test_an_endless_flood_of_urgent_jobs_does_not_starve_a_humble_one(bench: Bench) -> None:
    """F46: the longest wait is the whole range of priorities, a hundred minutes."""
    humble = await bench.enqueue(priority=0)
    minutes = 0
    await bench.enqueue(priority=100)
    while minutes < 110 and humble not in await in_line(bench, 1):
        minutes += 1
        await bench.jump(60)
        await bench.enqueue(priority=100)
    assert 99 <= minutes <= 101


async def test_large_batches_starve_no_job(bench: Bench) -> None:
    await bench.queue.enqueue([new() for _ in range(2_000)])
    await in_line(bench, 100)
    urgent = new(priority=100)
    await bench.queue.enqueue([urgent])
    batches = [await in_line(bench, 100) for _ in range(10)]
    assert any(urgent.id in batch for batch in batches)
    rest = new(priority=99)
    await bench.queue.enqueue([rest])
    assert (await in_line(bench, 1)) == [rest.id]  # a small lease gets the best jobs


async def test_large_batches_leave_none_behind(bench: Bench) -> None:
    jobs = [new(priority=number % 7) for number in range(700)]
    await bench.queue.enqueue(jobs[:350])
    got = await in_line(bench, 100)
    await bench.queue.enqueue(jobs[350:])
    while batch := await in_line(bench, 100):
        got += batch
    assert sorted(got) == sorted(job.id for job in jobs)


async def test_never_more_than_the_limit_is_granted_however_it_is_planned(postgres_bench: Bench) -> None:
    """F25: statistics that say "one row" while there are thousands must not lead to more grants."""
    bench = postgres_bench
    await bench.sql("ANALYZE job")
    await bench.queue.enqueue([new() for _ in range(500)] + [new(lane="node/n1") for _ in range(500)])
    leases = await bench.queue.lease("w1", ["page"], ["node/n1", "shared"], 600)
    assert len(leases) == 600
    assert await bench.number("SELECT count(*) FROM job WHERE state = 'locked'") == 600


# Ending and leasing in one commit


async def test_ended_jobs_and_the_next_lease_are_one_commit(bench: Bench) -> None:
    jobs = [new() for _ in range(6)]
    await bench.queue.enqueue(jobs)
    first = (await bench.queue.finish_and_lease([], W1, 3)).leases
    done, retried, failed = first
    moves = [
        states.finish(done.fence.job_id, done.fence.epoch, "ok"),
        states.retry(retried.fence.job_id, retried.fence.epoch, "boom", timedelta(seconds=5)),
        states.fail(failed.fence.job_id, failed.fence.epoch, "for good"),
    ]
    turned = await bench.queue.finish_and_lease(moves, W1, 10)
    assert turned.refused == []
    assert [lease.fence for lease in turned.leases] == [Fence(job.id, 1) for job in jobs[3:]]
    found = [await bench.job(lease.fence.job_id) for lease in first]
    assert [(job.state, job.attempts, job.error) for job in found] == [
        (J.DONE, 0, None),
        (J.PENDING, 1, "boom"),
        (J.FAILED, 1, "for good"),
    ]
    assert found[1].priority == 40
    ends = [(await bench.grants(job.id))[0]["ended"] for job in found]
    assert ends == ["done", "retried", "failed"]


async def test_only_the_moves_that_are_too_late_are_refused(bench: Bench) -> None:
    """F4 in a batch: each job is fenced by itself."""
    await bench.queue.enqueue([new() for _ in range(4)])
    leases = (await bench.queue.finish_and_lease([], W1, 4)).leases
    stale = leases[1]
    await bench.queue.release(stale, "slice")
    await bench.lease("w2")
    await bench.queue.finish(leases[2])
    turned = await bench.queue.finish_and_lease(finished(leases), W1, 10)
    assert [move.job_id for move in turned.refused] == [stale.fence.job_id, leases[2].fence.job_id]
    assert turned.leases == []
    found = [await bench.job(lease.fence.job_id) for lease in leases]
    assert [job.state for job in found] == [J.DONE, J.LOCKED, J.DONE, J.DONE]
    assert found[1].lease_holder == "w2"
    assert [grant["ended"] for grant in await bench.grants(stale.fence.job_id)] == ["released", None]


async def test_a_worker_that_has_a_job_again_cannot_end_its_old_grant_in_the_same_batch(bench: Bench) -> None:
    """F5: the worker was suspended until its lease expired, leased the job again, and delivers both results."""
    await bench.enqueue()
    old = await bench.lease()
    await bench.lose()
    new = await bench.lease()
    moves = finished([old, new])
    assert (await bench.queue.finish_and_lease(moves, W1, 0)).refused == moves[:1]
    assert [grant["ended"] for grant in await bench.grants(old.fence.job_id)] == ["expired", "done"]


async def test_a_batch_that_is_not_committed_changes_nothing(bench: Bench) -> None:
    await bench.queue.enqueue([new() for _ in range(4)])
    leases = (await bench.queue.finish_and_lease([], W1, 2)).leases

    async def commit(tx: object) -> None:
        await bench.queue.finish_and_lease_in(tx, finished(leases), W1, 2)  # type: ignore[arg-type]
        raise RuntimeError("the result could not be stored")

    with pytest.raises(RuntimeError):
        await bench.database.run(commit)
    assert [(await bench.job(lease.fence.job_id)).state for lease in leases] == [J.LOCKED] * 2
    assert await bench.number("SELECT count(*) FROM job WHERE state = 'locked'") == 2


async def test_workers_that_finish_and_lease_in_batches_run_every_job_once(bench: Bench) -> None:
    jobs = [new() for _ in range(400)]
    await bench.queue.enqueue(jobs)
    done: list[str] = []

    async def work(name: str) -> None:
        request, leases = LeaseRequest(name, ["page"]), []
        while True:
            turned = await bench.queue.finish_and_lease(finished(leases), request, 20)
            assert turned.refused == []
            done.extend(lease.fence.job_id for lease in leases)
            leases = turned.leases
            if not leases and len(done) == len(jobs):
                return

    await asyncio.wait_for(asyncio.gather(*[work(f"w{number}") for number in range(4)]), 60)
    assert sorted(done) == sorted(job.id for job in jobs)


async def test_the_heartbeat_of_a_batch_and_its_end_do_not_wait_in_a_circle(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("turn_jobs")
    await bench.queue.enqueue([new() for _ in range(20)])
    leases = (await bench.queue.finish_and_lease([], W1, 20)).leases
    halting = bench.over(BreakpointDatabase(bench.database, point)).queue
    ending = asyncio.create_task(halting.finish_and_lease(finished(leases[::-1]), W1, 0))
    await point.wait_until_reached(ending)
    beating = asyncio.create_task(bench.queue.extend([lease.fence for lease in leases]))
    await until_blocked(bench)
    point.resume()
    turned, extended = await asyncio.gather(ending, beating)
    assert turned.refused == []
    assert extended.kept == []


async def test_a_batch_of_leases_is_extended_at_once(bench: Bench) -> None:
    await bench.queue.enqueue([new() for _ in range(3)])
    leases = (await bench.queue.finish_and_lease([], W1, 3)).leases
    await bench.queue.finish(leases[1])
    await bench.jump(9)
    holders = [lease.fence for lease in leases]
    assert (await bench.queue.extend(holders)).kept == [holders[0], holders[2]]
    await bench.lose(5)
    assert await bench.number("SELECT count(*) FROM job WHERE state = 'locked'") == 2


# History


async def test_the_history_of_a_grant_names_its_worker(bench: Bench) -> None:
    job_id = await bench.enqueue()
    lease = await bench.lease("n1/40")
    assert await bench.queue.began(lease.fence, "node/n1", 4711, '{"depth": 2}')
    await bench.settle_something(lease.fence)
    await bench.queue.finish(lease)
    [grant] = await bench.grants(job_id)
    assert (grant["node"], grant["pid"], grant["config"], grant["holder"]) == ("node/n1", 4711, '{"depth": 2}', "n1/40")
    assert (grant["ended"], grant["settled"]) == ("done", True)


async def test_a_job_that_ended_before_its_process_was_recorded_still_names_it(bench: Bench) -> None:
    job_id = await bench.enqueue()
    late = await bench.lease("w1")
    await bench.queue.release(late, "slice")
    await bench.lease("w2")
    assert not await bench.queue.began(late.fence, "node/n1", 1)
    assert not await bench.queue.began(late.fence, "node/n2", 2)
    assert [(grant["node"], grant["pid"]) for grant in await bench.grants(job_id)] == [("node/n1", 1), (None, None)]


async def test_the_grant_that_a_job_has_now_is_part_of_its_history(bench: Bench) -> None:
    job_id = await bench.enqueue()
    await bench.lease("w1")
    [grant] = await bench.grants(job_id)
    assert (grant["holder"], grant["epoch"], grant["ended"], grant["ended_at"]) == ("w1", 1, None, None)


async def test_a_death_while_thousands_are_released_loses_none_and_grants_none_twice(bench: Bench) -> None:
    """F17: jobs become due, and the process that marks them as due dies half-way, several times."""
    now = (await bench.database.read(lambda tx: tx.value("now"))) + 5_000_000
    await bench.queue.enqueue([new(not_before=now) for _ in range(2_500)])
    await bench.jump(6)
    granted: list[Fence] = []

    async def die(tx: object) -> None:
        await bench.lanes.pop(tx, W1, 700, bench.settings.lease)  # type: ignore[arg-type]
        raise RuntimeError("killed")

    while leases := await bench.queue.lease("w1", ["page"], ["shared"], 700):
        granted += [lease.fence for lease in leases]
        with pytest.raises(RuntimeError, match="killed"):
            await bench.database.run(die)
    assert len(granted) == len({holder.job_id for holder in granted}) == 2_500
    assert {holder.epoch for holder in granted} == {1}


class Single(Severed):
    """A store that accepts only commits of a single statement."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.writes = False

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.once(work, within=within)


async def test_a_small_turn_is_a_commit_of_one_statement(bench: Bench) -> None:
    queue = bench.over(Single(bench.database)).queue
    jobs = [new(quota_keys=("project:a",)) for _ in range(3)]
    # Other lanes are filled in the same commit.
    await (queue if bench.lanes.takes_one_statement(jobs) else bench.queue).enqueue(jobs)
    [first] = await queue.lease("w1", ["page"], ["shared"], 1)
    late = states.finish(first.fence.job_id, first.fence.epoch - 1)
    done = states.finish(first.fence.job_id, first.fence.epoch)
    turned = await queue.finish_and_lease([late, done], W1, 5)
    assert turned.refused == [late]
    assert [lease.fence.job_id for lease in turned.leases] == [job.id for job in jobs[1:]]
    assert (await bench.job(first.fence.job_id)).state is J.DONE


async def test_a_small_turn_that_takes_more_than_a_statement_is_still_one_commit(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await bench.job_admin.set_quota("project:a", 1)
    jobs = [new(quota_keys=("project:a",)) for _ in range(2)]
    await bench.queue.enqueue(jobs)
    with pytest.raises(BackendUnavailable):
        await bench.over(Single(bench.database)).queue.lease("w1", ["page"], ["shared"], 1)
    assert [(await bench.job(job.id)).state for job in jobs] == [J.PENDING] * 2
    [lease] = await bench.queue.lease("w1", ["page"], ["shared"], 2)
    assert lease.fence.job_id == jobs[0].id


# Lanes


async def test_a_nodes_private_lane_is_leased_from_before_the_shared_one(bench: Bench) -> None:
    shared, private = new(priority=90), new(lane="node/n1", priority=10)
    await bench.queue.enqueue([shared, private])
    leases = await bench.queue.lease("w1", ["page"], ["node/n1", "shared"], 2)
    assert [lease.fence.job_id for lease in leases] == [private.id, shared.id]


async def test_the_waiting_jobs_of_a_lane_return_to_the_shared_lane_at_once(bench: Bench) -> None:
    lanes, jobs = bench.lanes, [new(lane="node/n1"), new(lane="node/n1"), new(lane="node/n2")]
    await bench.queue.enqueue(jobs)
    assert await bench.database.read(lambda tx: lanes.depth(tx, "node/n1", 10)) == 2
    assert await bench.database.run(lambda tx: lanes.return_lane(tx, "node/n1")) == 2
    assert await bench.database.run(lambda tx: lanes.return_lane(tx, "node/n1")) == 0
    assert await bench.database.read(lambda tx: lanes.depth(tx, "node/n2", 10)) == 1
    assert await bench.database.read(lambda tx: lanes.depth(tx, "shared", 10)) == 2
    assert await bench.database.read(lambda tx: lanes.depth(tx, "shared", 1)) == 1, "counted no further"
    leases = await bench.queue.lease("w1", ["page"], ["shared"], 5)
    assert {lease.fence.job_id for lease in leases} == {job.id for job in jobs[:2]}
    assert {lease.attempts for lease in leases} == {0}


async def test_a_locked_job_stays_with_its_node_when_the_lane_returns(bench: Bench) -> None:
    await bench.queue.enqueue([new(lane="node/n1")])
    [lease] = await bench.queue.lease("w1", ["page"], ["node/n1"], 1)
    assert await bench.database.run(lambda tx: bench.lanes.return_lane(tx, "node/n1")) == 0
    await bench.queue.finish(lease)


async def test_new_jobs_wait_in_the_lanes_that_were_chosen_for_them(bench: Bench) -> None:
    queue = Queue(
        bench.database,
        Enqueuer(bench.jobs, bench.lanes, bench.signals, lambda jobs: [replace(job, lane="node/n7") for job in jobs]),
        bench.settings,
    )
    await queue.enqueue([new(), new()])
    assert await bench.database.read(lambda tx: bench.lanes.depth(tx, "node/n7", 10)) == 2
    assert [signal.lane for signal in bench.signals_seen if isinstance(signal, JobEnqueued)] == ["node/n7"]
