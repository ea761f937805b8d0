"""Quotas and concurrency keys: how many jobs with a quota key run at once, and that other jobs do not wait for them."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from shoal.base.database import Database, Tx, Work
from shoal.base.ids import JobId, new_id
from shoal.crawl.lifecycle.crawls import KIND
from shoal.hosts.rate import HostDelay
from shoal.hosts.rate_limiter import RateLimiter
from shoal.queue import janitor, states
from shoal.queue.job import Lease, LeaseRequest, NewJob, TurnResult
from shoal.queue.states import JobState
from tests.contract.conftest import Bench, Breakpoint, BreakpointDatabase, Severed, until_blocked

T = TypeVar("T")
J = JobState


def new(*quota_keys: str, **more: object) -> NewJob:
    return NewJob(JobId(new_id("job")), "page", None, quota_keys=quota_keys, **more)  # type: ignore[arg-type]


async def lease(bench: Bench, limit: int = 10, holder: str = "w1") -> list[Lease]:
    return await bench.queue.lease(holder, ["page"], ["shared"], limit)


def ids(leases: list[Lease]) -> list[str]:
    return [one.fence.job_id for one in leases]


async def test_a_scope_never_has_more_than_its_quota(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 2)
    jobs = [new("project:a") for _ in range(5)]
    await bench.queue.enqueue(jobs)
    first = await lease(bench)
    assert ids(first) == [job.id for job in jobs[:2]]
    assert await lease(bench, holder="w2") == []
    await bench.queue.finish(first[0])
    assert ids(await lease(bench)) == [jobs[2].id]
    [quota] = await bench.job_admin.quotas()
    assert (quota.most, quota.locked, quota.parked) == (2, 2, 2)


async def test_blocked_jobs_at_the_head_do_not_hide_others(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 1)
    blocked = [new("project:a", priority=90) for _ in range(50)]
    free = new(priority=10)
    await bench.queue.enqueue([*blocked, free])
    assert ids(await lease(bench, 2)) == [blocked[0].id, free.id]


class CutSoon(Severed):
    """A store that is out of reach after the next commit that does anything."""

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        done = await super().run(work, within=within)
        self.writes = done is None
        return done


async def test_leases_granted_before_a_store_outage_are_kept(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 1)
    jobs = [new("project:a"), new("project:a"), new()]
    await bench.queue.enqueue(jobs)
    assert ids(await lease(bench.over(CutSoon(bench.database)), 2)) == [jobs[0].id]
    assert ids(await lease(bench, 2)) == [jobs[2].id]


async def test_many_jobs_over_quota_are_parked_by_few_statements(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a%", 0)
    free = [new("project:ab"), new()]
    await bench.queue.enqueue([*[new("project:a%", priority=90) for _ in range(2_500)], *free])
    assert ids(await lease(bench, 5)) == [job.id for job in free]
    assert await bench.number("SELECT count(*) FROM job WHERE due = 2") == 2_500


async def test_a_key_runs_one_job_at_a_time_in_the_order_of_the_line(bench: Bench) -> None:
    jobs = [new("key:host-1"), new("key:host-1"), new("key:host-2"), new("key:host-1")]
    await bench.queue.enqueue(jobs)
    got = await lease(bench)
    assert ids(got) == [jobs[0].id, jobs[2].id]
    for following in (jobs[1], jobs[3]):
        mine = next(one for one in got if one.fence.job_id != jobs[2].id)
        await bench.queue.finish(mine)
        got = await lease(bench)
        assert ids(got) == [following.id]


async def test_a_quota_may_widen_a_key(bench: Bench) -> None:
    await bench.job_admin.set_quota("key:k", 3)
    await bench.queue.enqueue([new("key:k") for _ in range(5)])
    assert len(await lease(bench)) == 3


async def test_a_job_is_granted_only_if_all_its_quotas_allow_it(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 5)
    await bench.job_admin.set_quota("label:team=x", 1)
    jobs = [new("project:a", "label:team=x"), new("project:a", "label:team=x"), new("project:a")]
    await bench.queue.enqueue(jobs)
    assert ids(await lease(bench)) == [jobs[0].id, jobs[2].id]
    assert (await bench.job(jobs[1].id)).parked == "label:team=x"


async def test_every_end_of_a_grant_frees_its_quota(bench: Bench) -> None:
    ends = ("finish", "fail", "release", "lose", "expire", "cancel")
    for end in ends:
        jobs = [new(f"key:{end}"), new(f"key:{end}")]
        await bench.queue.enqueue(jobs)
        [got] = await lease(bench)
        if end == "finish":
            await bench.queue.finish(got)
        elif end == "fail":
            await bench.queue.fail(got, "boom")
        elif end == "release":
            await bench.job_admin.cancel(jobs[1].id)
            await bench.queue.release(got, "slice")
        elif end == "lose":
            await bench.queue.recovery.lose(got, "died")
        elif end == "expire":
            await bench.lose()
        else:
            await bench.job_admin.cancel(got.fence.job_id)
        assert await bench.number("SELECT count(*) FROM job_seat") == 0, end
        for one in await lease(bench):
            await bench.queue.finish(one)
        await bench.jump(60)
        for one in await lease(bench):
            await bench.queue.finish(one)
    assert await bench.number("SELECT count(*) FROM job WHERE finished_at IS NULL") == 0


async def test_finish_and_lease_hands_the_seat_on_in_one_commit(bench: Bench) -> None:
    jobs = [new("key:k") for _ in range(3)]
    await bench.queue.enqueue(jobs)
    request, leases, order = LeaseRequest("w1", ["page"]), list[Lease](), list[str]()
    for _ in range(5):
        moves = [states.finish(one.fence.job_id, one.fence.epoch) for one in leases]
        leases = (await bench.queue.finish_and_lease(moves, request, 10)).leases
        order += ids(leases)
    assert order == [job.id for job in jobs]


async def test_a_parked_job_was_never_granted(bench: Bench) -> None:
    jobs = [new("key:k"), new("key:k")]
    await bench.queue.enqueue(jobs)
    await lease(bench)
    parked = await bench.job(jobs[1].id)
    assert (parked.state, parked.lease_epoch, parked.parked, parked.lease_holder) == (J.PENDING, 0, "key:k", None)
    assert await bench.grants(parked.id) == []
    said = await bench.job_admin.explain(parked.id)
    assert (said.reason, said.facts) == ("quota", {"scope": "key:k", "limit": 1, "most": 1, "locked": 1})


async def test_a_quota_counts_what_runs_already_and_stops_none_of_it(bench: Bench) -> None:
    await bench.queue.enqueue([new("project:a") for _ in range(6)])
    running = await lease(bench, 3)
    assert (await bench.job_admin.set_quota("project:a", 2)).locked == 3
    assert await lease(bench) == []
    await bench.queue.finish(running[0])
    assert await lease(bench) == []
    await bench.queue.finish(running[1])
    assert len(await lease(bench)) == 1


async def test_a_quota_of_none_stops_a_scope_and_its_end_lets_it_go_on(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 0)
    await bench.queue.enqueue([new("project:a") for _ in range(3)])
    assert await lease(bench) == []
    await bench.job_admin.remove_quota("project:a")
    assert len(await lease(bench)) == 3


async def test_a_raised_quota_lets_more_in_at_once(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 1)
    await bench.queue.enqueue([new("project:a") for _ in range(5)])
    assert len(await lease(bench)) == 1
    await bench.job_admin.set_quota("project:a", 3)
    assert len(await lease(bench)) == 2


async def test_the_janitor_counts_only_running_jobs_against_a_quota(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 1)
    jobs = [new("project:a") for _ in range(2)]
    await bench.queue.enqueue(jobs)
    [got] = await lease(bench)
    await bench.sql("DELETE FROM job_seat")  # as if the quota had been set while it was leased
    await bench.janitor().run_once()
    assert await lease(bench) == []
    await bench.queue.finish(got)
    await bench.sql(f"INSERT INTO job_seat (scope, job_id) VALUES ('project:a', '{got.fence.job_id}')")
    assert await lease(bench) == []  # as if it had been set while that one ended
    await bench.janitor().run_once()
    assert ids(await lease(bench)) == [jobs[1].id]


async def test_a_lease_that_must_not_wait_leaves_a_locked_quota_to_the_sweep(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await bench.job_admin.set_quota("project:a", 5)
    jobs = [new("project:a"), new("project:a"), new("project:b")]
    await bench.queue.enqueue(jobs)
    hurried = LeaseRequest("w2", ["page"], waits=False)

    async def commit(tx: Tx) -> tuple[TurnResult, TurnResult]:
        mine = await bench.queue.finish_and_lease_in(tx, (), LeaseRequest("w1", ["page"]), 1)
        return mine, await bench.database.run(lambda other: bench.queue.finish_and_lease_in(other, (), hurried, 2))

    mine, theirs = await asyncio.wait_for(bench.database.run(commit), 10)
    assert (ids(mine.leases), ids(theirs.leases), theirs.parked) == ([jobs[0].id], [jobs[2].id], 1)
    await bench.janitor().run_once()
    assert ids(await lease(bench)) == [jobs[1].id]


async def test_the_janitor_unparks_a_job_when_the_one_unparked_before_it_was_cancelled(bench: Bench) -> None:
    jobs = [new("key:k") for _ in range(3)]
    await bench.queue.enqueue(jobs)
    [got] = await lease(bench)
    await bench.queue.finish(got)
    await bench.job_admin.cancel(jobs[1].id)  # the job that was unparked is removed
    assert await lease(bench) == []
    assert (await bench.janitor().run_once()).did == "unparked 1 jobs"
    assert ids(await lease(bench)) == [jobs[2].id]


async def test_the_janitor_comes_to_every_scope_however_many_are_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "BATCH", 2)
    full = [new(f"key:{name}") for name in "aabbccdd"]
    lost = [new("key:z") for _ in range(3)]
    await bench.queue.enqueue([*full, *lost])
    got = {one.fence.job_id: one for one in await lease(bench)}
    await bench.queue.finish(got[lost[0].id])
    await bench.job_admin.cancel(lost[1].id)  # the job that was unparked is removed
    sweeper = bench.janitor()
    for _ in range(3):
        await sweeper.run_once()
    assert ids(await lease(bench)) == [lost[2].id]


async def test_workers_at_once_never_exceed_a_quota_and_lose_nothing(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:a", 3)
    await bench.queue.enqueue([new("project:a") for _ in range(40)])
    held, most, done = 0, 0, 0

    async def work(name: str) -> None:
        nonlocal held, most, done
        for _ in range(60):
            leases = await lease(bench, 2, name)
            held += len(leases)
            most = max(most, held)
            for one in leases:
                held -= 1  # before the actual change, so that the count is never too high
                await bench.queue.finish(one)
                done += 1
            if done == 40:
                return

    await asyncio.wait_for(asyncio.gather(*[work(f"w{number}") for number in range(4)]), 90)
    await bench.janitor().run_once()
    done += len(await lease(bench, 40))
    assert most <= 3
    assert done == 40


async def test_a_quota_of_a_project_or_a_label_holds_for_its_crawls(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:acme", 1)
    await bench.job_admin.set_quota("label:team=x", 1)
    first, second = await bench.submit(project="acme"), await bench.submit(project="acme")
    third = await bench.submit(project="other", labels={"team": "x"})
    fourth = await bench.submit(project="other", labels={"team": "x"})
    got = await bench.queue.lease("w1", [KIND], ["shared"], 9)
    assert [one.run_id for one in got] == [first.id, third.id]
    await bench.crawls.stop(second.id)  # parked jobs are cancelled like other waiting jobs
    await bench.queue.fail(got[1], "boom")
    assert [one.run_id for one in await bench.queue.lease("w1", [KIND], ["shared"], 9)] == [fourth.id]


async def test_a_cancelled_parked_job_leaves_nothing_behind(bench: Bench) -> None:
    jobs = [new("key:k"), new("key:k")]
    await bench.queue.enqueue(jobs)
    [got] = await lease(bench)
    await bench.job_admin.cancel(jobs[1].id)
    await bench.queue.finish(got)
    await bench.janitor().run_once()
    assert await bench.number("SELECT count(*) FROM job_seat") == 0
    assert await lease(bench) == []


class Counted:
    """A PostgreSQL that counts units of work that were run again. That is how a deadlock is resolved, after a second of
    waiting."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.repeated = 0

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        tries = 0

        async def counted(tx: Tx) -> T:
            nonlocal tries
            self.repeated += tries > 0
            tries += 1
            return await work(tx)

        return await self._database.run(counted, within=within)

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work, within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.read(work)

    async def close(self) -> None:
        """Do nothing: the caller that opened the real database closes it."""


async def blocked_or_done(bench: Bench, task: "asyncio.Task[Any]") -> None:
    """Let a task run as far as it can."""
    waiting = asyncio.create_task(until_blocked(bench))
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def cross(bench: Bench, end: Coroutine[Any, Any, T], point: Breakpoint, counted: Counted, kind: str) -> T:
    """Stop a commit that ends a job just before it deletes its seat, start a lease of the next job with the same quota
    key and let it run until it waits, then let both continue. There must be no deadlock."""
    ending = asyncio.create_task(end)
    await point.wait_until_reached(ending)
    leasing = asyncio.create_task(bench.over(counted).queue.lease("w2", [kind], ["shared"], 1))
    await blocked_or_done(bench, leasing)
    point.resume()
    ended, _ = await asyncio.gather(ending, leasing)
    assert counted.repeated == 0, "a deadlock"
    return ended


async def test_a_walker_that_cancels_its_siblings_never_waits_in_a_circle_with_a_lease(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await bench.job_admin.set_quota("project:acme", 5)
    await bench.submit(project="acme", workers=2)
    [first] = await bench.queue.lease("w1", [KIND], ["shared"], 1)
    point, counted = Breakpoint("delete_job_seats"), Counted(bench.database)
    queue = bench.over(BreakpointDatabase(counted, point)).queue
    await cross(bench, queue.finish(first, "max_pages"), point, counted, KIND)


async def test_cancelling_several_jobs_never_deadlocks_with_a_lease(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await bench.job_admin.set_quota("project:acme", 5)
    jobs = [new("project:acme"), new("project:acme")]
    await bench.queue.enqueue(jobs)
    await lease(bench, 1)
    point, counted = Breakpoint("delete_job_seats"), Counted(bench.database)
    halting = bench.over(BreakpointDatabase(counted, point))

    async def cancel_both(tx: Tx) -> None:
        for job in jobs:
            await halting.job_admin.cancel_in(tx, job.id, "replaced")

    await cross(bench, halting.database.run(cancel_both), point, counted, "page")


@pytest.mark.parametrize("by_host", [False, True])
async def test_leases_wait_for_each_other_only_at_keys_that_have_a_quota(postgres_bench: Bench, by_host: bool) -> None:
    """Every job of a project has its key, and few projects have a quota."""
    bench = postgres_bench
    await bench.job_admin.set_quota("project:a", 5)
    limiter = RateLimiter(HostDelay(0.0)) if by_host else None
    request = LeaseRequest("w1", ["page"], rate_limiter=limiter)
    free, limited = [new(f"project:{name}", host=f"http://{name}.example.org") for name in ("b", "a")]

    async def commit(tx: Tx) -> None:
        await tx.value("lock_quota_keys", keys=["project:a", "project:b"])
        await bench.queue.enqueue([free])
        leasing = bench.database.run(lambda other: bench.queue.finish_and_lease_in(other, (), request, 10))
        assert ids((await asyncio.wait_for(leasing, 10)).leases) == [free.id]
        await bench.queue.enqueue([limited])
        waiting.append(
            asyncio.create_task(
                bench.database.run(lambda other: bench.queue.finish_and_lease_in(other, (), request, 10))
            )
        )
        await until_blocked(bench)

    waiting: list[asyncio.Task[TurnResult]] = []
    await bench.database.run(commit)
    assert ids((await waiting[0]).leases) == [limited.id]


async def test_ending_a_job_does_not_wait_for_a_lease_that_counts_its_quota(postgres_bench: Bench) -> None:
    """The transaction that counts may wait for a host locked by the one that ends a job, which was a deadlock, too."""
    bench = postgres_bench
    await bench.job_admin.set_quota("project:a", 1)
    jobs = [new("project:a"), new("project:a")]
    await bench.queue.enqueue(jobs)
    [got] = await lease(bench)
    moved = asyncio.Event()

    async def count(tx: Tx) -> None:
        await tx.value("lock_quota_keys", keys=["project:a"])
        ending = asyncio.create_task(bench.database.run(end))
        await asyncio.wait_for(moved.wait(), 10)
        held.append(ending)

    async def end(tx: Tx) -> None:
        move = states.finish(got.fence.job_id, got.fence.epoch)
        await bench.queue.jobs.move(tx, [move])
        moved.set()

    held: list[asyncio.Task[None]] = []
    await bench.database.run(count)
    await held[0]
    assert ids(await lease(bench)) == [jobs[1].id]  # unparked by the commit that followed


async def test_a_seat_freed_while_a_job_is_being_parked_is_used_at_once(postgres_bench: Bench) -> None:
    """No sweep is needed: after its commit, a job that ends checks for parked jobs, including those parked
    meanwhile."""
    bench = postgres_bench
    jobs = [new("key:k"), new("key:k")]
    await bench.queue.enqueue(jobs)
    [got] = await lease(bench, 1)
    point = Breakpoint("delete_job_seats")
    ending = asyncio.create_task(bench.over(BreakpointDatabase(bench.database, point)).queue.finish(got))
    await point.wait_until_reached(ending)
    assert await lease(bench, 1) == []  # it sees the seat taken, and is parked
    point.resume()
    await ending
    assert ids(await lease(bench, 1)) == [jobs[1].id]


async def empty_seats(bench: Bench) -> int:
    """Seats of jobs that are not locked."""
    return await bench.number(
        "SELECT count(*) FROM job_seat AS s JOIN job AS j ON j.id = s.job_id WHERE j.state <> 'locked'"
    )


async def test_a_sweep_gives_no_seat_to_a_job_that_somebody_ends_just_now(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await bench.job_admin.set_quota("project:a", 1)
    await bench.queue.enqueue([new("project:a")])
    [got] = await lease(bench)
    point = Breakpoint("delete_job_seats")
    ending = asyncio.create_task(bench.over(BreakpointDatabase(bench.database, point)).queue.release(got, "shutdown"))
    await point.wait_until_reached(ending)
    mending = asyncio.create_task(bench.database.run(bench.queue.jobs.quotas.repair))
    await blocked_or_done(bench, mending)
    point.resume()
    await asyncio.gather(ending, mending)
    assert await empty_seats(bench) == 0


async def test_a_job_that_ends_while_a_sweep_gives_it_a_seat_leaves_no_seat(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await bench.queue.enqueue([new("project:a")])
    [got] = await lease(bench)
    point = Breakpoint("insert_missing_job_seats")  # it had no seat, because the quota was set only now
    mending = asyncio.create_task(
        bench.over(BreakpointDatabase(bench.database, point)).job_admin.set_quota("project:a", 1)
    )
    await point.wait_until_reached(mending)
    ending = asyncio.create_task(bench.queue.release(got, "shutdown"))
    await blocked_or_done(bench, ending)
    point.resume()
    await asyncio.gather(ending, mending)
    assert await empty_seats(bench) == 0
