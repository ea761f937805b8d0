"""Contract of the queue: who gets a job, who may finish it, and what happens when a worker is lost."""

import asyncio
from datetime import timedelta

import pytest

from shoal.base.errors import BackendUnavailable, LeaseLost
from shoal.base.settings import QueueSettings
from shoal.crawl.lifecycle.crawls import KIND
from shoal.queue import janitor as janitor_module
from shoal.queue import states
from shoal.queue.enqueuer import Enqueuer
from shoal.queue.job import Fence, LostJob
from shoal.queue.queue import Queue
from shoal.queue.recovery import ExpiryFailed, Recovery
from shoal.queue.states import MOVES, STALLED, TERMINAL, GrantEnd, JobState
from tests.contract.conftest import PATIENCE, Bench, Breakpoint, BreakpointDatabase, Severed, database_at, until_blocked

J = JobState


# Granting


async def test_higher_priority_first_then_older(bench: Bench) -> None:
    made = {}
    for name, priority in (("old", 50), ("urgent", 90), ("young", 50), ("late", 10)):
        made[await bench.enqueue(priority=priority)] = name
        await bench.jump(1)
    leases = await bench.queue.lease("w1", ["page"], ["shared"], 10)
    assert [made[lease.fence.job_id] for lease in leases] == ["urgent", "old", "young", "late"]


async def test_no_more_than_asked_for_are_granted(bench: Bench) -> None:
    for _ in range(5):
        await bench.enqueue()
    assert len(await bench.queue.lease("w1", ["page"], ["shared"], 2)) == 2
    assert len(await bench.queue.lease("w1", ["page"], ["shared"], 9)) == 3
    assert await bench.queue.lease("w1", ["page"], ["shared"], 9) == []


async def test_only_the_kinds_and_lanes_that_were_asked_for_are_granted(bench: Bench) -> None:
    wanted = await bench.enqueue(kind="page", lane="node:a")
    await bench.enqueue(kind="analysis", lane="node:a")
    await bench.enqueue(kind="page", lane="shared")
    [lease] = await bench.queue.lease("w1", ["page"], ["node:a"], 10)
    assert lease.fence.job_id == wanted
    assert len(await bench.queue.lease("w1", ["page", "analysis"], ["shared", "node:a"], 10)) == 2


async def test_a_grant_locks_the_job_and_opens_its_history(bench: Bench) -> None:
    job_id = await bench.enqueue()
    lease = await bench.lease("w1")
    job = await bench.job(job_id)
    assert (job.state, job.lease_holder, job.lease_epoch) == (J.LOCKED, "w1", 1)
    [grant] = await bench.grants(job_id)
    assert (grant["holder"], grant["epoch"], grant["ended"]) == ("w1", lease.fence.epoch, None)


async def test_the_epoch_rises_on_every_grant_whatever_ended_the_last_one(bench: Bench) -> None:
    job_id = await bench.enqueue(max_attempts=5)
    epochs = []
    for end in ("release", "fail", "lose", "expire", "finish"):
        lease = await bench.lease()
        epochs.append(lease.fence.epoch)
        if end == "release":
            await bench.queue.release(lease, "slice")
        elif end == "fail":
            await bench.queue.fail(lease, "boom")
            await bench.jump(60)
        elif end == "lose":
            await bench.queue.recovery.lose(lease, "the child died")
        elif end == "expire":
            await bench.lose()
        else:
            await bench.queue.finish(lease)
    assert epochs == [1, 2, 3, 4, 5]
    ends = [(grant["epoch"], grant["ended"]) for grant in await bench.grants(job_id)]
    assert ends == [(1, "released"), (2, "retried"), (3, "crashed"), (4, "expired"), (5, "done")]


async def test_concurrent_takers_never_share_a_job(bench: Bench) -> None:
    made = {await bench.enqueue() for _ in range(30)}
    batches = await asyncio.gather(*[bench.queue.lease(f"w{i}", ["page"], ["shared"], 5) for i in range(12)])
    got = [lease.fence.job_id for batch in batches for lease in batch]
    # SKIP LOCKED may leave a few for the next poll; none may be granted twice.
    got += [lease.fence.job_id for lease in await bench.queue.lease("last", ["page"], ["shared"], 30)]
    assert len(got) == len(set(got))
    assert set(got) == made


async def test_takers_in_two_processes_never_share_a_job(bench: Bench) -> None:
    made = {await bench.enqueue() for _ in range(20)}
    other = database_at(bench.url, bench.clock)
    await other.open()
    try:
        benches = [bench, bench.over(other)]
        batches = await asyncio.gather(*[b.queue.lease("w", ["page"], ["shared"], 3) for b in benches * 5])
    finally:
        await other.close()
    got = [lease.fence.job_id for batch in batches for lease in batch]
    assert len(got) == len(set(got))
    assert set(got) <= made


async def test_one_job_by_its_id_is_granted_once(bench: Bench) -> None:
    job_id = await bench.enqueue(lane="local")
    answers = await asyncio.gather(*[bench.queue.lease_one(job_id, f"w{i}") for i in range(6)])
    assert sum(answer is not None for answer in answers) == 1


# Extending


async def test_an_extended_lease_does_not_expire(bench: Bench) -> None:
    job_id = await bench.enqueue()
    lease = await bench.lease()
    for _ in range(4):
        await bench.jump(8)
        assert (await bench.queue.extend([lease.fence])).kept == [lease.fence]
        await bench.janitor().run_once()
    assert (await bench.job(job_id)).state is J.LOCKED


async def test_only_the_live_epoch_is_extended(bench: Bench) -> None:
    first, second = await bench.enqueue(), await bench.enqueue()
    lost, kept = await bench.queue.lease("w1", ["page"], ["shared"], 2)
    assert {lost.fence.job_id, kept.fence.job_id} == {first, second}
    await bench.queue.release(lost, "slice")
    again = await bench.lease("w2")
    until = (await bench.job(again.fence.job_id)).lease_until
    await bench.jump(3)
    assert (await bench.queue.extend([lost.fence, kept.fence])).kept == [kept.fence]
    assert (await bench.job(again.fence.job_id)).lease_until == until


async def test_a_finished_job_is_not_extended(bench: Bench) -> None:
    await bench.enqueue()
    lease = await bench.lease()
    await bench.queue.finish(lease)
    assert (await bench.queue.extend([lease.fence])).kept == []


# Fencing


async def test_the_fence_knows_a_live_grant_from_any_other(bench: Bench) -> None:
    job_id = await bench.enqueue()
    lease = await bench.lease()
    epoch = lease.fence.epoch

    async def holds(at: int) -> bool:
        return await bench.database.run(lambda tx: bench.jobs.fence(tx, Fence(job_id, at)))

    assert await holds(epoch)
    assert not await holds(epoch - 1)
    assert not await holds(epoch + 1)
    await bench.queue.release(lease, "slice")
    assert not await holds(epoch)


async def test_a_fenced_commit_holds_back_the_end_of_its_job_but_not_its_heartbeat(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("fence_job")
    await bench.enqueue()
    lease = await bench.lease()
    halting = BreakpointDatabase(bench.database, point)
    fenced = asyncio.create_task(halting.run(lambda tx: bench.jobs.fence(tx, lease.fence)))
    await point.wait_until_reached(fenced)
    assert (await asyncio.wait_for(bench.queue.extend([lease.fence]), PATIENCE)).kept == [lease.fence]
    finishing = asyncio.create_task(bench.queue.finish(lease))
    await until_blocked(bench)
    assert not finishing.done()
    point.resume()
    assert await fenced
    assert await finishing is J.DONE


async def test_a_commit_that_settles_does_not_hold_back_the_heartbeat(postgres_bench: Bench) -> None:
    """This includes the first commit of a grant, which records that the job made progress."""
    bench, point = postgres_bench, Breakpoint("mark_grant_settled")
    await bench.enqueue()
    lease = await bench.lease()

    async def settle(tx: object) -> None:
        await bench.jobs.fence(tx, lease.fence)  # type: ignore[arg-type]
        await bench.jobs.mark_settled(tx, lease.fence)  # type: ignore[arg-type]

    settling = asyncio.create_task(BreakpointDatabase(bench.database, point).run(settle))
    await point.wait_until_reached(settling)
    extending = asyncio.create_task(bench.queue.extend([lease.fence]))
    blocked = asyncio.create_task(until_blocked(bench))
    await asyncio.wait({extending, blocked}, return_when=asyncio.FIRST_COMPLETED)
    free = extending.done()
    blocked.cancel()
    point.resume()
    await asyncio.gather(settling, extending)
    assert free, "the heartbeat waited for a commit that settles"


async def test_a_sweep_waits_for_a_fenced_commit_and_then_looks_again(postgres_bench: Bench) -> None:
    """F7: the worker was late but alive; its commit and its heartbeat were first."""
    bench, point = postgres_bench, Breakpoint("fence_job")
    job_id = await bench.enqueue()
    lease = await bench.lease()
    await bench.jump(11)
    halting = BreakpointDatabase(bench.database, point)
    fenced = asyncio.create_task(halting.run(lambda tx: bench.jobs.fence(tx, lease.fence)))
    await point.wait_until_reached(fenced)
    sweeping = asyncio.create_task(bench.janitor().run_once())
    await until_blocked(bench)
    await bench.queue.extend([lease.fence])
    point.resume()
    await asyncio.gather(fenced, sweeping)
    assert (await bench.job(job_id)).state is J.LOCKED


# Making room


async def test_a_run_yields_to_other_waiting_runs_but_not_to_page_jobs(bench: Bench) -> None:
    """An analysis must not wait until a crawl of a week has ended; pages have slots of their own."""
    await bench.enqueue(kind="crawl", run_id="long")
    mine = (await bench.lease(kind="crawl")).fence.job_id

    async def others_wait() -> bool:
        await bench.jump(2)
        return await bench.database.read(lambda tx: bench.jobs.other_run_waits(tx, mine, timedelta(seconds=1)))

    await bench.enqueue(run_id="grp_1")
    assert not await others_wait()
    await bench.enqueue(kind="analysis", run_id="anl_1")
    assert await others_wait()


# Late, stale and doubled ends


async def assert_refused(bench: Bench, lease: object) -> None:
    """Every verb of a stale lease is refused and changes nothing."""
    job_id = lease.fence.job_id  # type: ignore[attr-defined]
    before = (await bench.job(job_id), await bench.grants(job_id))
    for verb in (bench.queue.finish, bench.queue.release, bench.queue.fail, bench.queue.recovery.lose):
        with pytest.raises(LeaseLost):
            await verb(lease, "late")  # type: ignore[arg-type]
    assert (await bench.queue.extend([lease.fence])).kept == []  # type: ignore[attr-defined]
    assert (await bench.job(job_id), await bench.grants(job_id)) == before


async def test_a_lease_that_expired_is_not_finished(bench: Bench) -> None:
    """F4: the worker was suspended until its lease expired, and the job waits again."""
    await bench.enqueue()
    lease = await bench.lease()
    await bench.lose()
    await assert_refused(bench, lease)


async def test_a_late_finish_is_refused_while_another_worker_has_the_job(bench: Bench) -> None:
    """F4: the second worker's lease is not touched by the first one's late answers."""
    await bench.enqueue()
    late = await bench.lease("w1")
    await bench.lose()
    current = await bench.lease("w2")
    await assert_refused(bench, late)
    assert await bench.queue.finish(current) is J.DONE


async def test_a_late_finish_is_refused_although_the_same_worker_has_the_job_again(bench: Bench) -> None:
    """F5: the fence is the grant, not the worker."""
    await bench.enqueue()
    late = await bench.lease("w1")
    await bench.lose()
    await bench.lease("w1")
    await assert_refused(bench, late)


async def test_a_late_finish_is_refused_although_no_attempt_was_counted(bench: Bench) -> None:
    """F6: granted, handed back, granted: the attempts are the same, the epoch is not."""
    await bench.enqueue()
    late = await bench.lease("w1")
    await bench.queue.release(late, "slice")
    current = await bench.lease("w2")
    assert late.attempts == current.attempts
    await assert_refused(bench, late)


async def test_an_ended_job_is_not_ended_again(bench: Bench) -> None:
    """F3: at most one accepted finish per lease."""
    job_id = await bench.enqueue()
    lease = await bench.lease()
    await bench.queue.finish(lease, "first")
    with pytest.raises(LeaseLost):
        await bench.queue.fail(lease, "second")
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.attempts) == (J.DONE, "first", 0)
    assert [grant["ended"] for grant in await bench.grants(job_id)] == ["done"]


async def test_of_many_ends_at_once_one_wins(bench: Bench) -> None:
    """F8: finish, fail, release, loss and cancel race."""
    job_id = await bench.enqueue()
    lease = await bench.lease()
    cancel = states.cancel(job_id, lease.fence.epoch, "asked")
    answers = await asyncio.gather(
        bench.queue.finish(lease),
        bench.queue.fail(lease, "boom"),
        bench.queue.release(lease, "slice"),
        bench.queue.recovery.lose(lease, "died"),
        bench.database.run(lambda tx: bench.queue.moves.move_in(tx, cancel, "page", None)),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, LeaseLost) for answer in answers) == 4
    assert len([grant for grant in await bench.grants(job_id) if grant["ended"]]) == 1


async def test_a_cancel_that_races_a_lease_has_one_winner(bench: Bench) -> None:
    """F8: a waiting job is cancelled or granted, never both."""
    for _ in range(10):
        await bench.enqueue(run_id="run")
    leases, cancelled = await asyncio.gather(
        bench.queue.lease("w1", ["page"], ["shared"], 5),
        bench.database.run(lambda tx: bench.jobs.cancel_waiting(tx, "run", "stopped")),
    )
    assert len(leases) + cancelled + len(await bench.queue.lease("w2", ["page"], ["shared"], 10)) == 10
    assert await bench.number("SELECT count(*) FROM job WHERE state = 'cancelled' AND lease_epoch > 0") == 0


async def test_cancel_spares_what_is_locked_and_what_has_ended(bench: Bench) -> None:
    ended = await bench.enqueue(run_id="run")
    await bench.queue.finish(await bench.lease())
    locked = await bench.enqueue(run_id="run")
    await bench.lease()
    waiting, other = await bench.enqueue(run_id="run"), await bench.enqueue(run_id="another")
    assert await bench.database.run(lambda tx: bench.jobs.cancel_waiting(tx, "run", "stopped")) == 1
    found = [(await bench.job(job)).state for job in (ended, locked, waiting, other)]
    assert found == [J.DONE, J.LOCKED, J.CANCELLED, J.PENDING]


# Losing


async def test_a_lease_that_ran_out_goes_back_without_an_attempt(bench: Bench) -> None:
    """F1: a worker leases a job and then falls silent."""
    job_id = await bench.enqueue(priority=70)
    await bench.lease("w1")
    await bench.lose()
    job = await bench.job(job_id)
    assert (job.state, job.attempts, job.crash_count, job.priority) == (J.PENDING, 0, 1, 70)
    assert job.lease_holder is None
    assert job.lease_until is None
    [grant] = await bench.grants(job_id)
    assert grant["ended"] == "expired"
    assert "w1" in grant["error"]
    assert (await bench.lease("w2")).fence == Fence(job_id, 2)


async def test_a_lease_that_has_not_run_out_is_not_swept(bench: Bench) -> None:
    job_id = await bench.enqueue()
    await bench.lease()
    await bench.lose(9)
    assert (await bench.job(job_id)).state is J.LOCKED


async def test_a_job_that_steps_back_goes_behind_its_equals_without_penalty(bench: Bench) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(await bench.enqueue())
        await bench.jump(1)
    first = await bench.lease()
    move = states.step_back(first.fence.job_id, first.fence.epoch)
    await bench.database.run(lambda tx: bench.queue.moves.move_in(tx, move, "page", None))
    await bench.jump(1)
    order = [(await bench.lease()).fence.job_id for _ in range(3)]
    assert order == [*jobs[1:], jobs[0]]
    job = await bench.job(jobs[0])
    assert (job.attempts, job.crash_count, job.priority) == (0, 0, 50)
    assert [grant["ended"] for grant in await bench.grants(jobs[0])] == ["released", None]


async def test_a_job_that_was_handed_back_keeps_its_place(bench: Bench) -> None:
    first = await bench.enqueue()
    await bench.jump(1)
    await bench.enqueue()
    lease = await bench.lease()
    await bench.queue.release(lease, "shutdown")
    assert (await bench.lease()).fence.job_id == first


async def test_a_job_that_stalled_counts_a_crash_and_says_so_to_the_end(bench: Bench) -> None:
    job_id = await bench.enqueue()
    for crashes in range(1, 4):
        assert (
            await bench.queue.recovery.lose(await bench.lease(), "its child settled nothing", STALLED)
            is JobState.PENDING
        )
        job = await bench.job(job_id)
        assert (job.state_reason, job.crash_count, job.attempts) == ("stalled", crashes, 0)
    assert (
        await bench.queue.recovery.lose(await bench.lease(), "its child settled nothing", STALLED) is JobState.EXPIRED
    )
    assert (await bench.job(job_id)).state_reason == "stalled"
    assert [grant["ended"] for grant in await bench.grants(job_id)] == ["crashed"] * 4


async def test_past_the_poison_limit_a_job_stays_expired(bench: Bench) -> None:
    job_id = await bench.enqueue()
    for death in range(1, 4):
        await bench.lease()
        await bench.lose()
        job = await bench.job(job_id)
        assert (job.state, job.crash_count) == (J.PENDING, death)
    await bench.lease()
    await bench.lose()
    job = await bench.job(job_id)
    assert (job.state, job.attempts) == (J.EXPIRED, 0)
    assert job.finished_at is not None
    assert await bench.queue.lease("w1", ["page"], ["shared"], 1) == []
    assert [grant["ended"] for grant in await bench.grants(job_id)] == ["expired"] * 4


async def test_a_crash_seen_by_the_worker_counts_like_a_lost_one(bench: Bench) -> None:
    job_id = await bench.enqueue()
    for _ in range(3):
        assert await bench.queue.recovery.lose(await bench.lease(), "signal 9") is J.PENDING
    assert await bench.queue.recovery.lose(await bench.lease(), "signal 9") is J.EXPIRED
    assert (await bench.job(job_id)).attempts == 0
    assert {grant["ended"] for grant in await bench.grants(job_id)} == {"crashed"}


async def test_a_job_that_makes_progress_survives_any_number_of_deaths(bench: Bench) -> None:
    job_id = await bench.enqueue()
    for _ in range(12):
        lease = await bench.lease()
        await bench.settle_something(lease.fence)
        await bench.lose()
    job = await bench.job(job_id)
    assert job.state is J.PENDING
    assert job.crash_count <= 1


async def test_progress_of_an_earlier_grant_does_not_excuse_a_later_one(bench: Bench) -> None:
    await bench.enqueue()
    lease = await bench.lease()
    await bench.settle_something(lease.fence)
    await bench.lose()
    for _ in range(5):
        leases = await bench.queue.lease("w1", ["page"], ["shared"], 1)
        await bench.lose()
    assert leases == []


async def test_progress_resets_the_crash_count(bench: Bench) -> None:
    job_id = await bench.enqueue()
    for _ in range(3):
        await bench.lease()
        await bench.lose()
    lease = await bench.lease()
    await bench.settle_something(lease.fence)
    await bench.queue.release(lease, "slice")
    assert (await bench.job(job_id)).crash_count == 0


async def test_progress_between_the_sweeps_look_and_its_move_counts(bench: Bench) -> None:
    """F7: the sweep finds a job past its limit, but its worker, late but alive, settles it before the sweep moves
    it."""
    job_id = await bench.enqueue()
    for _ in range(3):
        await bench.lease()
        await bench.lose()
    lease = await bench.lease()
    await bench.jump(10.5)
    [seen] = await bench.queue.recovery.expired(10, bots=True)
    await bench.settle_something(lease.fence)
    await bench.queue.recovery.expire([seen])
    assert (await bench.job(job_id)).state is J.PENDING


async def test_a_finish_between_the_sweeps_look_and_its_move_wins(bench: Bench) -> None:
    """F7: the sweep finds an expired lease, but its worker, late but alive, finishes the job before the sweep moves
    it."""
    job_id = await bench.enqueue()
    lease = await bench.lease("w1")
    await bench.jump(10.5)
    [seen] = await bench.queue.recovery.expired(10, bots=True)
    await bench.queue.finish(lease)
    assert not await bench.queue.recovery.expire([seen])
    assert (await bench.job(job_id)).state is J.DONE


async def test_a_heartbeat_between_the_sweeps_look_and_its_move_wins(bench: Bench) -> None:
    job_id = await bench.enqueue()
    lease = await bench.lease("w1")
    await bench.jump(10.5)
    [seen] = await bench.queue.recovery.expired(10, bots=True)
    assert (await bench.queue.extend([lease.fence])).kept == [lease.fence]
    assert not await bench.queue.recovery.expire([seen])
    assert (await bench.job(job_id)).state is J.LOCKED


async def test_a_new_grant_between_the_sweeps_look_and_its_move_is_not_touched(bench: Bench) -> None:
    job_id = await bench.enqueue()
    lease = await bench.lease("w1")
    await bench.jump(10.5)
    [seen] = await bench.queue.recovery.expired(10, bots=True)
    await bench.queue.release(lease, "slice")
    await bench.lease("w2")
    assert not await bench.queue.recovery.expire([seen])
    assert (await bench.job(job_id)).lease_holder == "w2"


async def test_two_janitors_at_once_count_a_death_once(bench: Bench) -> None:
    made = [await bench.enqueue() for _ in range(8)]
    await bench.queue.lease("w1", ["page"], ["shared"], 8)
    await bench.jump(11)
    await asyncio.gather(*[bench.janitor().run_once() for _ in range(4)])
    for job_id in made:
        job = await bench.job(job_id)
        assert (job.state, job.crash_count) == (J.PENDING, 1)
        assert len(await bench.grants(job_id)) == 1


async def test_the_janitor_sweeps_more_than_one_batch(bench: Bench) -> None:
    for _ in range(105):
        await bench.enqueue()
    await bench.queue.lease("w1", ["page"], ["shared"], 200)
    await bench.jump(11)
    janitor = bench.janitor()
    first = await janitor.run_once()
    assert first.again_in == timedelta(0)
    await janitor.run_once()
    assert await bench.number("SELECT count(*) FROM job WHERE state = 'locked'") == 0


async def test_a_job_that_cannot_be_swept_does_not_keep_the_others(bench: Bench) -> None:
    """For example because its run cannot be read: the janitor must not fail on it again and again."""
    await lost_forever(bench)
    await bench.jump(1)
    innocent = await bench.enqueue()
    await bench.lease("w1")
    await bench.jump(11)
    janitor = bench.janitor()
    assert "1 of 2" in (await janitor.run_once()).did
    assert (await bench.job(innocent)).state is J.PENDING
    for _ in range(100):
        await bench.jump(3)
        await janitor.run_once()
    reports = [signal for signal in bench.signals_seen if isinstance(signal, ExpiryFailed)]
    assert 5 < len(reports) < 10, "it is tried less and less often"
    assert {(one.job_id, one.count) for one in reports} == {(reports[0].job_id, 1)}
    await bench.enqueue()
    await bench.lease("w1")
    for _ in range(4):
        await bench.jump(3)
        did = (await janitor.run_once()).did
    assert "1 of " in did


async def lost_forever(bench: Bench) -> None:
    """Make a job that cannot be expired."""
    crawl = await bench.submit()
    await bench.lease("w1", KIND)
    await bench.sql(f"UPDATE crawl SET config = 'nonsense' WHERE id = '{crawl.id}'")


async def test_jobs_that_cannot_be_swept_do_not_fill_the_batch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor_module, "BATCH", 2)
    for _ in range(3):
        await lost_forever(bench)
    await bench.jump(1)
    innocent = await bench.enqueue()
    await bench.lease("w1")
    await bench.jump(11)
    janitor = bench.janitor()
    for _ in range(2):
        await janitor.run_once()
    assert (await bench.job(innocent)).state is J.PENDING


async def test_the_pause_after_a_pass_that_failed_is_no_outage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers could renew their leases during this pause, unlike during an outage of the store."""
    janitor = bench.janitor()
    job_id = await bench.enqueue()
    await bench.lease()
    await janitor.run_once()
    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "unpark", broken)
        with pytest.raises(ZeroDivisionError):
            await janitor.run_once()
    await bench.jump(30)
    await janitor.run_once()
    assert (await bench.job(job_id)).state is J.PENDING


async def broken(*_: object) -> int:
    raise ZeroDivisionError


# Outages


async def test_an_outage_expires_nothing_within_one_lease_of_its_end(bench: Bench) -> None:
    severed = Severed(bench.database)
    janitor = bench.over(severed).janitor()
    job_id = await bench.enqueue()
    await bench.lease()
    await janitor.run_once()
    severed.reads = severed.writes = False
    for _ in range(3):
        await bench.jump(4)
        with pytest.raises(BackendUnavailable):
            await janitor.run_once()
    severed.reads = severed.writes = True
    for _ in range(3):  # the outage ended between the last failed pass and now
        await bench.jump(3)
        await janitor.run_once()
        assert (await bench.job(job_id)).state is J.LOCKED
    await bench.jump(4.5)
    await janitor.run_once()
    assert (await bench.job(job_id)).state is J.PENDING


async def test_a_janitor_that_came_after_an_outage_gives_everybody_time_to_extend(bench: Bench) -> None:
    janitor = bench.app.chores.janitor
    kept, lost = await bench.enqueue(), await bench.enqueue()
    leases = [await bench.lease(), await bench.lease()]
    await bench.jump(30)  # leases could not be extended, and the controller was restarted meanwhile
    await janitor.run_once()
    assert (await bench.queue.extend([leases[0].fence])).kept == [leases[0].fence]
    for _ in range(2):
        await bench.jump(5.5)
        await bench.queue.extend([leases[0].fence])
        await janitor.run_once()
    assert [(await bench.job(job)).state for job in (kept, lost)] == [J.LOCKED, J.PENDING]


async def test_a_janitor_that_came_while_others_extend_their_leases_sweeps_at_once(bench: Bench) -> None:
    janitor = bench.app.chores.janitor
    lost, _ = await bench.enqueue(), await bench.enqueue()
    await bench.lease()
    await bench.jump(11)
    await bench.lease("w2")
    await janitor.run_once()
    assert (await bench.job(lost)).state is J.PENDING


async def test_the_grace_counts_from_the_end_of_an_outage_not_from_its_last_notice(bench: Bench) -> None:
    severed = Severed(bench.database)
    janitor = bench.over(severed).janitor()
    job_id = await bench.enqueue()
    await bench.lease()
    await janitor.run_once()
    severed.reads = severed.writes = False
    await bench.jump(4)
    with pytest.raises(BackendUnavailable):
        await janitor.run_once()
    await bench.jump(5)  # backing off; the store comes back just before the next pass
    severed.reads = severed.writes = True
    await janitor.run_once()
    await bench.jump(9)
    await janitor.run_once()
    assert (await bench.job(job_id)).state is J.LOCKED


async def test_an_outage_that_begins_during_a_sweep_is_an_outage(bench: Bench) -> None:
    severed = Severed(bench.database)
    janitor = bench.over(severed).janitor()
    await bench.enqueue()
    await bench.lease("dead")
    await bench.jump(6)
    innocent = await bench.enqueue()
    await bench.lease("alive")
    await bench.jump(5)
    severed.writes = False
    with pytest.raises(BackendUnavailable):
        await janitor.run_once()
    await bench.jump(8)  # "alive" could not extend in all that time
    severed.writes = True
    await janitor.run_once()
    assert (await bench.job(innocent)).state is J.LOCKED


async def test_a_janitor_that_was_away_for_long_gives_everybody_a_lease_of_grace(bench: Bench) -> None:
    """The machine was suspended: the store's clock continued, and leases could not be extended."""
    janitor = bench.janitor()
    job_id = await bench.enqueue()
    await bench.lease()
    await janitor.run_once()
    await bench.jump(3600)
    await janitor.run_once()
    assert (await bench.job(job_id)).state is J.LOCKED


async def test_a_janitor_that_has_just_started_needs_no_grace(bench: Bench) -> None:
    job_id = await bench.enqueue()
    await bench.lease()
    await bench.jump(11)
    await bench.janitor().run_once()
    assert (await bench.job(job_id)).state is J.PENDING


# Failing


async def test_a_failure_waits_and_lowers_the_priority(bench: Bench) -> None:
    job_id = await bench.enqueue(priority=50)
    assert await bench.queue.fail(await bench.lease(), "boom") is J.PENDING
    job = await bench.job(job_id)
    assert (job.attempts, job.crash_count, job.error) == (1, 0, "boom")
    assert job.priority < 50
    assert await bench.queue.lease("w1", ["page"], ["shared"], 1) == []
    await bench.jump(4.5)
    assert await bench.queue.lease("w1", ["page"], ["shared"], 1) == []
    await bench.jump(1.1)
    assert len(await bench.queue.lease("w1", ["page"], ["shared"], 1)) == 1


async def test_priority_never_falls_below_zero(bench: Bench) -> None:
    job_id = await bench.enqueue(priority=3)
    await bench.queue.fail(await bench.lease(), "boom")
    assert (await bench.job(job_id)).priority == 0


async def test_the_last_attempt_fails_for_good(bench: Bench) -> None:
    job_id = await bench.enqueue(max_attempts=3)
    found = []
    for _ in range(3):
        found.append(await bench.queue.fail(await bench.lease(), "boom"))
        await bench.jump(3600)
    assert found == [J.PENDING, J.PENDING, J.FAILED]
    job = await bench.job(job_id)
    assert (job.attempts, job.crash_count) == (3, 0)
    assert job.finished_at is not None


async def test_crashes_and_failures_are_counted_separately(bench: Bench) -> None:
    job_id = await bench.enqueue(max_attempts=3)
    await bench.lease()
    await bench.lose()
    await bench.queue.fail(await bench.lease(), "boom")
    await bench.jump(60)
    await bench.lease()
    await bench.lose()
    job = await bench.job(job_id)
    assert (job.attempts, job.crash_count, job.lease_epoch) == (1, 2, 3)


async def test_a_handed_back_job_costs_nothing_and_is_due_at_once(bench: Bench) -> None:
    job_id = await bench.enqueue(priority=40)
    assert await bench.queue.release(await bench.lease(), "slice") is J.PENDING
    job = await bench.job(job_id)
    assert (job.attempts, job.crash_count, job.priority) == (0, 0, 40)
    assert (await bench.lease()).fence == Fence(job_id, 2)


@pytest.mark.parametrize("dice", [0.0, 0.5, 1.0])
async def test_the_backoff_doubles_up_to_its_cap_and_jitter_only_adds(sqlite_bench: Bench, dice: float) -> None:
    settings = QueueSettings()
    queue = Queue(
        sqlite_bench.database,
        Enqueuer(sqlite_bench.jobs, sqlite_bench.lanes, sqlite_bench.signals),
        settings,
        jitter=lambda: dice,
    )
    for attempts in range(1, 101):
        plain = min(5.0 * 2 ** (attempts - 1), 3600.0)
        assert plain <= queue.recovery.backoff(attempts).total_seconds() <= plain * 1.1


# Dedupe


async def test_an_ended_job_frees_its_dedupe_key(bench: Bench) -> None:
    await bench.enqueue(key="k")
    await bench.queue.finish(await bench.lease())
    await bench.enqueue(key="k")
    assert await bench.number("SELECT count(*) FROM job") == 2


async def test_jobs_without_a_key_never_collide(bench: Bench) -> None:
    await bench.enqueue()
    await bench.enqueue()
    assert await bench.number("SELECT count(*) FROM job") == 2


# Clocks


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_workers_clock_says_nothing_about_its_lease(postgres_bench: Bench, hours: int) -> None:
    """F9: the clock of a worker is an hour off."""
    await postgres_bench.enqueue()
    postgres_bench.clock.step(3600 * hours)
    lease = await postgres_bench.lease()
    postgres_bench.clock.step(-3600 * hours)
    await postgres_bench.queue.extend([lease.fence])
    left = await postgres_bench.database.read(postgres_bench.jobs.freshest_lease)
    assert left is not None
    assert timedelta(seconds=5) < left <= timedelta(seconds=10)


async def test_the_store_decides_whether_a_lease_is_over_not_the_janitors_machine(bench: Bench) -> None:
    """F9: only PostgreSQL has a clock of its own; an embedded store is on the same machine."""
    job_id = await bench.enqueue()
    await bench.lease()
    if bench.dialect == "postgres":
        bench.clock.step(3600)
        await bench.janitor().run_once()
        assert (await bench.job(job_id)).state is J.LOCKED
    await bench.jump(11)
    await bench.janitor().run_once()
    assert (await bench.job(job_id)).state is J.PENDING


# The table of moves


def test_every_named_move_is_in_the_table() -> None:
    job_id, lost = "job_x", LostJob("job_x", "page", None, 1, 0, 2, 0, "w", None, False)  # type: ignore[arg-type]
    moves = [
        states.finish(job_id, 1),  # type: ignore[arg-type]
        states.retry(job_id, 1, "e", timedelta(1)),  # type: ignore[arg-type]
        states.fail(job_id, 1, "e"),  # type: ignore[arg-type]
        states.release(job_id, 1, "r"),  # type: ignore[arg-type]
        states.give_back(lost.id, 1, GrantEnd.EXPIRED, "e"),
        states.bury(lost.id, 1, GrantEnd.EXPIRED, "e"),
        states.cancel(lost.id, 1, "r"),
    ]
    assert {move.to for move in moves} == MOVES[J.LOCKED]


def test_a_terminal_state_is_left_only_by_a_retry() -> None:
    assert {state for state in TERMINAL if MOVES[state] - {J.PENDING}} == set()
    assert MOVES[J.DONE] == MOVES[J.CANCELLED] == frozenset()
