"""The life of a crawl: every move of the state machine, and that run and job always end in one commit."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from shoal.base.database import Database, Tx, Work
from shoal.base.errors import AlreadyExists, InvalidInput, LeaseLost, NotFound, ShoalError, StateConflict
from shoal.base.ids import CrawlId
from shoal.crawl import states
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import Control, Turn, WalkerBatch
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawls import KIND
from shoal.crawl.lifecycle.transitions import CrawlMoved
from shoal.crawl.states import TERMINAL, WALKED, CrawlState
from shoal.queue import states as job_states
from shoal.queue.states import JobState
from tests.contract.conftest import SITE, Bench, Breakpoint, BreakpointDatabase, Walker, failed, fetched, later
from tests.contract.random_turns import RandomTurns

S = CrawlState
T = TypeVar("T")


async def only_job(bench: Bench, crawl: Crawl) -> str:
    [row] = await bench.sql(f"SELECT id FROM job WHERE run_id = '{crawl.id}'")
    return str(row["id"])


async def events(bench: Bench, crawl: Crawl) -> list[str]:
    return [kind for kind, _ in await bench.events(subject=crawl.id)]


async def check_ledger(bench: Bench, crawl: Crawl) -> None:
    """Check the invariants that hold after every commit."""
    state = await bench.state(crawl)
    pending, locked = await bench.live(crawl)
    if state in WALKED or state is S.QUEUED:
        assert pending + locked, f"{state} without a live job"
    if state in (S.PAUSING, S.STOPPING):
        assert locked, f"{state} although no worker holds it"
    if state in (S.PAUSED, S.STOPPED, S.PENDING):
        assert not locked, f"{state} with a walker"
    if state in TERMINAL or state is S.PAUSED:
        assert not pending, f"{state} with a job that waits for a worker"
    if not crawl.settles_apart:
        await check_counters(bench, crawl)
    await check_grants(bench, crawl)


async def check_counters(bench: Bench, crawl: Crawl) -> None:
    counts, where = await bench.counts(crawl), f"WHERE crawl = {crawl.number}"
    assert counts.queued == await bench.number(f"SELECT count(*) FROM frontier_open {where}")
    assert counts.queued == await bench.number(f"SELECT count(*) FROM fate {where} AND fate = {Fate.OPEN:d}")
    pages = f"SELECT count(*) FROM page {where}"
    assert counts.pages == await bench.number(f"{pages} AND status IS NOT NULL")
    assert counts.errors == await bench.number(f"{pages} AND error_code IS NOT NULL")
    assert counts.bytes == await bench.number(f"SELECT coalesce(sum(bytes), 0) FROM page {where}")
    assert sum(counts.skipped.values()) == await bench.number(
        f"SELECT count(*) FROM fate {where} AND fate >= {Fate.SKIPPED_DEPTH:d}"
    )


async def check_grants(bench: Bench, crawl: Crawl) -> None:
    rows = await bench.sql(f"SELECT * FROM job WHERE run_id = '{crawl.id}'")
    for job in rows:
        grants = await bench.grants(job["id"])
        assert [grant["epoch"] for grant in grants] == list(range(1, job["lease_epoch"] + 1))
        still_open = [grant["epoch"] for grant in grants if grant["ended"] is None]
        assert still_open == ([job["lease_epoch"]] if job["state"] == "locked" else [])
        assert job["attempts"] == sum(grant["ended"] in ("retried", "failed") for grant in grants)


# Beginning


async def test_a_submitted_crawl_is_queued_with_its_job(bench: Bench) -> None:
    crawl = await bench.submit()
    assert await bench.state(crawl) is S.QUEUED
    assert await bench.live(crawl) == (1, 0)
    assert (await bench.counts(crawl)).queued == 1


async def test_a_crawl_that_is_only_stored_is_pending_and_has_no_job(bench: Bench) -> None:
    crawl = await bench.submit(start=False)
    assert await bench.state(crawl) is S.PENDING
    assert await bench.live(crawl) == (0, 0)


async def test_a_stored_crawl_can_be_started_once(bench: Bench) -> None:
    crawl = await bench.submit(start=False, workers=2)
    assert await bench.crawls.start(crawl.id) is S.QUEUED
    assert await bench.live(crawl) == (2, 0)
    with pytest.raises(StateConflict):
        await bench.crawls.start(crawl.id)
    assert await bench.live(crawl) == (2, 0)


async def test_a_taken_id_stores_nothing(bench: Bench) -> None:
    config = CrawlConfig(seeds=[f"{SITE}/"])
    first = await bench.crawls.submit(config, crawl_id=CrawlId("mine"))
    with pytest.raises(AlreadyExists, match="mine"):
        await bench.crawls.submit(config, crawl_id=CrawlId("mine"))
    assert await bench.live(first) == (1, 0)
    assert await bench.number("SELECT count(*) FROM crawl") == 1


async def test_two_submits_of_one_id_at_once_make_one_crawl(bench: Bench) -> None:
    config = CrawlConfig(seeds=[f"{SITE}/"])
    answers = await asyncio.gather(
        *[bench.crawls.submit(config, crawl_id=CrawlId("mine")) for _ in range(8)], return_exceptions=True
    )
    assert sum(isinstance(answer, Crawl) for answer in answers) == 1
    assert sum(isinstance(answer, AlreadyExists) for answer in answers) == 7
    assert await bench.number("SELECT count(*) FROM job") == 1


async def test_a_bad_seed_is_refused_by_name_and_stores_nothing(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match=r"seeds\[1\]"):
        await bench.submit(f"{SITE}/", "ftp://example.org/")
    assert await bench.number("SELECT count(*) FROM crawl") == 0


async def test_an_unknown_crawl_is_not_found(bench: Bench) -> None:
    verbs: list[Callable[[str], Awaitable[object]]] = [
        bench.crawls.get,
        bench.crawls.start,
        bench.crawls.pause,
        bench.crawls.resume,
        bench.crawls.stop,
    ]
    for verb in verbs:
        with pytest.raises(NotFound, match="crl_none"):
            await verb("crl_none")


# Running and ending


async def test_a_walker_makes_the_crawl_running(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.walker(crawl)
    seen = (await bench.crawls.get(crawl.id)).crawl
    assert seen.state is S.RUNNING
    assert seen.started_at is not None


async def test_the_commit_that_drains_the_frontier_ends_job_and_run(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await walker.take()
    turn = await walker.fetch_all()
    assert turn.drained
    assert await bench.state(crawl) is S.COMPLETED
    assert (await bench.job(await only_job(bench, crawl))).state is JobState.DONE
    assert (await bench.crawls.get(crawl.id)).crawl.finished_at is not None
    await check_ledger(bench, crawl)


async def test_an_ended_run_is_reported_once_in_the_commit_that_ended_it(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await walker.take()
    await walker.fetch_all()
    assert await events(bench, crawl) == ["crawl.started", "crawl.completed"]


async def test_no_seed_that_gave_a_page_is_a_failure(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    turn = await walker.turn(failed(task))
    assert turn.drained
    assert await bench.state(crawl) is S.FAILED
    assert (await bench.job(await only_job(bench, crawl))).state is JobState.DONE
    await check_ledger(bench, crawl)


async def test_a_failed_page_among_others_does_not_fail_the_crawl(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, second = await walker.take()
    assert (await walker.turn(fetched(first), failed(second))).drained
    assert await bench.state(crawl) is S.COMPLETED


async def test_a_reached_budget_completes_with_its_name_and_leaves_the_rest(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", max_pages=1)
    walker = await bench.walker(crawl)
    [first] = await walker.take()
    await walker.commits.close(WalkerBatch([fetched(first)]), "max_pages")
    assert await bench.state(crawl) is S.COMPLETED
    assert await bench.reason(crawl) == "max_pages"
    assert (await bench.counts(crawl)).queued == 1
    await check_ledger(bench, crawl)


async def test_a_budget_ends_the_jobs_that_still_wait(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", workers=3, max_pages=1)
    walker = await bench.walker(crawl)
    [first] = await walker.take()
    await walker.commits.close(WalkerBatch([fetched(first)]), "max_pages")
    assert await bench.state(crawl) is S.COMPLETED
    await check_ledger(bench, crawl)


async def turn_after_its_slice(walker: Walker) -> Turn:
    return await walker.commits.turn(WalkerBatch(), TurnRequest(10, len(walker.held), slice_over=True))


async def test_after_its_slice_a_walker_leaves_its_worker_to_another_run(bench: Bench) -> None:
    long, short = await bench.submit(f"{SITE}/a", f"{SITE}/b"), await bench.submit(f"{SITE}/c")
    walker = await bench.walker(long)
    await walker.take(1)
    await bench.jump(5)
    turn = await turn_after_its_slice(walker)
    assert (turn.others_wait, turn.work) == (True, [])
    await walker.commits.step_back(WalkerBatch([fetched(walker.held[0])]))
    assert await bench.state(long) is S.RUNNING
    assert (await bench.counts(long)).pages == 1
    await bench.jump(1)
    assert [(await bench.lease(kind=KIND)).run_id for _ in range(2)] == [short.id, long.id]


async def test_a_walker_that_can_only_wait_leaves_its_worker_after_its_slice_too(bench: Bench) -> None:
    crawl, _ = await bench.submit(f"{SITE}/a"), await bench.submit(f"{SITE}/b")
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await bench.jump(5)
    await walker.turn(later(task, 60))
    turn = await turn_after_its_slice(walker)
    assert (turn.others_wait, turn.drained) == (True, False)


async def test_a_walker_that_brings_the_last_page_after_its_slice_ends_the_crawl(bench: Bench) -> None:
    crawl, _ = await bench.submit(f"{SITE}/a"), await bench.submit(f"{SITE}/b")
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await bench.jump(5)
    turn = await walker.commits.turn(WalkerBatch([fetched(task)]), TurnRequest(10, 0, slice_over=True))
    assert (turn.drained, turn.others_wait) == (True, False)
    assert await bench.state(crawl) is S.COMPLETED


async def test_a_walker_goes_on_after_its_slice_when_nobody_has_to_wait(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", workers=2)
    walker = await bench.walker(crawl)
    await bench.submit(f"{SITE}/less", priority=49)
    await bench.jump(5)
    await bench.submit(f"{SITE}/new")  # a free worker may be about to take it
    turn = await turn_after_its_slice(walker)
    assert (turn.others_wait, len(turn.work)) == (False, 2)


async def test_the_end_of_a_crawl_is_reported_once_however_many_walkers_it_has(bench: Bench) -> None:
    crawl = await bench.submit(workers=3)
    first, second, third = [await bench.walker(crawl, f"w{number}") for number in (1, 2, 3)]
    await second.commits.close(WalkerBatch(), "leaves")
    await bench.jump(5)
    assert (await first.turn(*[fetched(task) for task in await first.take()])).drained
    await third.commits.close(WalkerBatch(), "stop")
    told = [(signal.state, signal.seconds) for signal in bench.signals_seen if isinstance(signal, CrawlMoved)]
    assert [state for state, _ in told] == [S.QUEUED, S.RUNNING, S.COMPLETED]
    assert round(told[-1][1] or 0) == 5


async def test_a_completed_crawl_tells_its_other_walkers_to_stop(bench: Bench) -> None:
    crawl = await bench.submit(workers=2)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    await first.take()
    assert (await second.turn()).work == []
    assert (await first.fetch_all()).drained
    assert (await second.turn()).control is Control.STOP
    await second.commits.close(WalkerBatch(), "stop")
    assert await bench.state(crawl) is S.COMPLETED
    jobs = await bench.database.read(lambda tx: bench.queue.jobs.jobs_of_run(tx, crawl.id))
    assert {job.state_reason for job in jobs} == {"completed", "drained"}  # nobody stopped the crawl
    await check_ledger(bench, crawl)


async def test_a_walker_lost_after_its_run_was_over_is_not_queued_again(bench: Bench) -> None:
    """Run and job end together: nothing of a completed crawl waits for a worker."""
    crawl = await bench.submit(workers=2)
    first, _ = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    await first.take()
    assert (await first.fetch_all()).drained
    await bench.lose()
    assert await bench.state(crawl) is S.COMPLETED
    await check_ledger(bench, crawl)


# Deaths and failures


async def test_a_workers_death_leaves_the_crawl_running(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.walker(crawl)
    await bench.lose()
    assert await bench.state(crawl) is S.RUNNING
    assert await bench.live(crawl) == (1, 0)
    await check_ledger(bench, crawl)


async def test_the_next_worker_goes_on_where_the_dead_one_was(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    dead = await bench.walker(crawl, "w1")
    first, second = await dead.take()
    await dead.turn(fetched(first))
    await bench.lose()
    alive = await bench.walker(crawl, "w2")
    assert [task.url for task in await alive.take()] == [second.url]
    assert (await alive.fetch_all()).drained
    assert await bench.state(crawl) is S.COMPLETED
    assert (await bench.counts(crawl)).pages == 2
    await check_ledger(bench, crawl)


async def test_a_retried_job_does_not_show_in_the_run(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    assert await bench.queue.fail(walker.lease, "boom") is JobState.PENDING
    assert await bench.state(crawl) is S.RUNNING
    await check_ledger(bench, crawl)


async def test_a_dead_letter_fails_the_run_in_the_same_commit(bench: Bench) -> None:
    crawl = await bench.submit()
    for _ in range(2):
        await bench.jump(3600)
        walker = await bench.walker(crawl)
        await bench.queue.fail(walker.lease, "boom")
    assert (await bench.job(await only_job(bench, crawl))).state is JobState.FAILED
    assert await bench.state(crawl) is S.FAILED
    assert "crawl.failed" in await events(bench, crawl)
    await check_ledger(bench, crawl)


async def test_a_poisoned_job_fails_the_run(bench: Bench) -> None:
    crawl = await bench.submit()
    for _ in range(4):
        assert await (await bench.walker(crawl)).take()
        await bench.lose()
        await bench.sql("UPDATE frontier_touched SET crashes = 0")  # as if each crash had hit another page
    assert (await bench.job(await only_job(bench, crawl))).state is JobState.EXPIRED
    assert await bench.state(crawl) is S.FAILED
    await check_ledger(bench, crawl)


async def test_a_dead_letter_does_not_end_a_run_that_has_other_walkers(bench: Bench) -> None:
    crawl = await bench.submit(workers=2)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    await bench.database.run(
        lambda tx: bench.queue.moves.move_in(
            tx, job_states.fail(first.fence.job_id, first.fence.epoch, "boom"), KIND, crawl.id
        )
    )
    assert await bench.state(crawl) is S.RUNNING
    await second.take()
    assert (await second.fetch_all()).drained
    assert await bench.state(crawl) is S.COMPLETED
    await check_ledger(bench, crawl)


async def test_a_failed_crawl_can_be_tried_again(bench: Bench) -> None:
    crawl = await bench.submit(hooks=["deadly"])
    for _ in range(4):
        await bench.lease(kind=KIND)  # whose child dies while it loads the hook
        await bench.lose()
    assert await bench.crawls.retry(crawl.id) is S.QUEUED  # type: ignore[attr-defined]
    assert (await bench.crawls.get(crawl.id)).crawl.finished_at is None
    walker = await bench.walker(crawl)
    await walker.take()
    assert (await walker.fetch_all()).drained
    assert await bench.state(crawl) is S.COMPLETED


async def test_only_a_failed_crawl_can_be_tried_again(bench: Bench) -> None:
    crawl = await bench.submit()
    with pytest.raises(StateConflict):
        await bench.crawls.retry(crawl.id)  # type: ignore[attr-defined]
    assert await bench.live(crawl) == (1, 0)


async def test_a_crawl_whose_own_process_is_gone_says_so(bench: Bench) -> None:
    """Report that it is paused because the storage is full. It continues only when somebody resumes it."""
    config = CrawlConfig(seeds=[f"{SITE}/"], sitemap="off")
    crawl = await bench.crawls.submit(config, crawl_id=CrawlId("here"), named=[], local=True)
    lease = await bench.lease(kind=KIND, lane="local/here")
    await Walker(bench, crawl, lease).attach()
    assert await bench.reason(crawl) is None
    await bench.jump(10.5)
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.RUNNING, "process_gone")
    await bench.queue.extend([lease.fence])
    assert await bench.reason(crawl) is None
    await bench.lose()
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.RUNNING, "process_gone")
    again = await bench.lease(kind=KIND, lane="local/here")
    assert await bench.reason(crawl) is None
    assert again.run_id == crawl.id


async def test_a_running_crawl_that_no_worker_has_says_so(bench: Bench) -> None:
    crawl = await bench.submit(workers=2)
    walker = await bench.walker(crawl)
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.RUNNING, None)
    await bench.jump(3600)  # the worker was killed, and nobody has noticed
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.RUNNING, "unattended")
    await bench.queue.extend([walker.lease.fence])
    assert await bench.reason(crawl) is None
    await walker.commits.hand_back(WalkerBatch(), "shutdown")
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.RUNNING, "unattended")
    await bench.walker(crawl)
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.RUNNING, None)


# Pause and resume


async def test_pause_of_a_queued_crawl_happens_in_one_commit(bench: Bench) -> None:
    crawl = await bench.submit()
    assert await bench.crawls.pause(crawl.id) is S.PAUSED
    assert await bench.live(crawl) == (0, 0)
    assert await bench.queue.lease("w1", [KIND], ["shared"], 1) == []
    await check_ledger(bench, crawl)


async def test_pause_of_a_running_crawl_that_nobody_holds_happens_in_one_commit(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.walker(crawl)
    await bench.lose()
    assert await bench.crawls.pause(crawl.id) is S.PAUSED
    await check_ledger(bench, crawl)


async def test_pause_asks_the_walker_and_is_done_when_it_left(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, _ = await walker.take()
    assert await bench.crawls.pause(crawl.id) is S.PAUSING
    turn = await walker.turn(fetched(first))
    assert turn.control is Control.PAUSE
    assert turn.work == []
    await walker.commits.close(WalkerBatch(), "pause")
    assert await bench.state(crawl) is S.PAUSED
    assert (await bench.counts(crawl)).pages == 1
    assert await bench.number("SELECT count(*) FROM frontier_open WHERE job_id <> ''") == 0
    await check_ledger(bench, crawl)


async def test_a_crawl_that_is_resumed_and_paused_before_its_walker_begins_has_one_start_event(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await bench.crawls.pause(crawl.id)
    await walker.commits.close(WalkerBatch(), "pause")
    await bench.crawls.resume(crawl.id)
    assert len(await bench.queue.lease("w1", [KIND], ["shared"], 1)) == 1
    assert await bench.crawls.pause(crawl.id) is S.PAUSING
    assert await events(bench, crawl) == ["crawl.started"]


async def test_pause_keeps_its_reason(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await bench.crawls.pause(crawl.id, "interrupted")
    await walker.commits.close(WalkerBatch(), "pause")
    assert await bench.reason(crawl) == "interrupted"


async def test_a_pause_ends_when_its_walker_dies(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.walker(crawl)
    await bench.crawls.pause(crawl.id)
    await bench.lose()
    assert await bench.state(crawl) is S.PAUSED
    await check_ledger(bench, crawl)


async def test_a_pause_waits_for_the_last_walker(bench: Bench) -> None:
    crawl = await bench.submit(workers=3)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    await bench.crawls.pause(crawl.id)
    await first.commits.close(WalkerBatch(), "pause")
    assert await bench.state(crawl) is S.PAUSING
    await second.commits.close(WalkerBatch(), "pause")
    assert await bench.state(crawl) is S.PAUSED
    await check_ledger(bench, crawl)


async def test_a_pausing_crawl_whose_last_page_is_settled_completes(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await bench.crawls.pause(crawl.id)
    await walker.commits.close(WalkerBatch([fetched(task)]), "pause")
    assert await bench.state(crawl) is S.COMPLETED
    await check_ledger(bench, crawl)


async def test_pause_twice_is_one_pause(bench: Bench) -> None:
    crawl = await bench.submit()
    assert await bench.crawls.pause(crawl.id) is S.PAUSED
    assert await bench.crawls.pause(crawl.id) is S.PAUSED
    resumed = await bench.submit()
    await bench.walker(resumed)
    assert await bench.crawls.pause(resumed.id) is S.PAUSING
    assert await bench.crawls.pause(resumed.id) is S.PAUSING


async def test_resume_makes_a_new_job_and_goes_on(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", workers=2)
    walker = await bench.walker(crawl)
    first, second = await walker.take()
    await bench.crawls.pause(crawl.id)
    await walker.commits.close(WalkerBatch([fetched(first)]), "pause")
    assert await bench.crawls.resume(crawl.id) is S.QUEUED
    assert await bench.live(crawl) == (2, 0)
    again = await bench.walker(crawl)
    assert await bench.state(crawl) is S.RUNNING
    assert [task.url for task in await again.take()] == [second.url]
    assert (await again.fetch_all()).drained
    assert (await bench.counts(crawl)).pages == 2
    await check_ledger(bench, crawl)


async def test_resume_keeps_the_first_start(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    began = (await bench.crawls.get(crawl.id)).crawl.started_at
    await bench.crawls.pause(crawl.id)
    await walker.commits.close(WalkerBatch(), "pause")
    await bench.jump(100)
    await bench.crawls.resume(crawl.id)
    await bench.walker(crawl)
    assert (await bench.crawls.get(crawl.id)).crawl.started_at == began
    assert await events(bench, crawl) == ["crawl.started"]


@pytest.mark.parametrize("state", [S.QUEUED, S.RUNNING, S.PAUSING, S.STOPPED, S.COMPLETED])
async def test_only_a_paused_crawl_can_be_resumed(bench: Bench, state: CrawlState) -> None:
    crawl = await bring_to(bench, state)
    before = await bench.live(crawl)
    with pytest.raises(StateConflict, match=str(state)):
        await bench.crawls.resume(crawl.id)
    assert await bench.state(crawl) is state
    assert await bench.live(crawl) == before


async def test_two_resumes_at_once_make_one_set_of_jobs(bench: Bench) -> None:
    crawl = await bring_to(bench, S.PAUSED)
    answers = await asyncio.gather(*[bench.crawls.resume(crawl.id) for _ in range(4)], return_exceptions=True)
    assert sum(isinstance(answer, StateConflict) for answer in answers) == 3
    assert await bench.live(crawl) == (1, 0)


async def test_pause_between_a_lease_and_the_walkers_first_commit_is_obeyed(bench: Bench) -> None:
    """The run is still `queued`, its job is locked: a child takes a moment to start."""
    crawl = await bench.submit()
    lease = await bench.lease("w1", KIND)
    assert await bench.crawls.pause(crawl.id) in (S.PAUSING, S.PAUSED)
    await obey(Walker(bench, crawl, lease))
    assert await bench.state(crawl) is S.PAUSED
    await check_ledger(bench, crawl)


# Stop


async def test_stop_of_what_nobody_holds_happens_in_one_commit(bench: Bench) -> None:
    for state in (S.QUEUED, S.PAUSED):
        crawl = await bring_to(bench, state)
        assert await bench.crawls.stop(crawl.id) is S.STOPPED
        assert await bench.live(crawl) == (0, 0)
        assert (await bench.crawls.get(crawl.id)).crawl.finished_at is not None
        await check_ledger(bench, crawl)


async def test_stop_of_a_running_crawl_that_nobody_holds_happens_in_one_commit(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.walker(crawl)
    await bench.lose()
    assert await bench.crawls.stop(crawl.id) is S.STOPPED
    await check_ledger(bench, crawl)


async def test_stop_asks_the_walker_and_is_done_when_it_left(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, _ = await walker.take()
    assert await bench.crawls.stop(crawl.id) is S.STOPPING
    assert (await walker.turn(fetched(first))).control is Control.STOP
    await walker.commits.close(WalkerBatch(), "stop")
    assert await bench.state(crawl) is S.STOPPED
    assert (await bench.counts(crawl)).pages == 1
    await check_ledger(bench, crawl)


async def test_stop_of_a_pausing_crawl_wins(bench: Bench) -> None:
    crawl = await bring_to(bench, S.PAUSING)
    assert await bench.crawls.stop(crawl.id) is S.STOPPING
    await bench.lose()
    assert await bench.state(crawl) is S.STOPPED
    await check_ledger(bench, crawl)


async def test_a_stopping_crawl_whose_last_page_is_settled_is_stopped(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await bench.crawls.stop(crawl.id)
    await walker.commits.close(WalkerBatch([fetched(task)]), "stop")
    assert await bench.state(crawl) is S.STOPPED
    await check_ledger(bench, crawl)


async def test_stop_twice_is_one_stop(bench: Bench) -> None:
    crawl = await bring_to(bench, S.RUNNING)
    assert await bench.crawls.stop(crawl.id) is S.STOPPING
    assert await bench.crawls.stop(crawl.id) is S.STOPPING
    await bench.lose()
    assert await bench.crawls.stop(crawl.id) is S.STOPPED
    assert (await events(bench, crawl)).count("crawl.stopped") == 1


@pytest.mark.parametrize("state", [S.COMPLETED, S.FAILED])
async def test_a_finished_crawl_is_not_stopped_nor_paused(bench: Bench, state: CrawlState) -> None:
    crawl = await bring_to(bench, state)
    for verb in (bench.crawls.stop, bench.crawls.pause):
        with pytest.raises(StateConflict, match=str(state)):
            await verb(crawl.id)
    assert await bench.state(crawl) is state


async def test_a_stopping_crawl_is_not_paused(bench: Bench) -> None:
    crawl = await bring_to(bench, S.RUNNING)
    await bench.crawls.stop(crawl.id)
    with pytest.raises(StateConflict):
        await bench.crawls.pause(crawl.id)
    assert await bench.state(crawl) is S.STOPPING


async def test_a_stop_by_force_has_walkers_killed_after_a_grace(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    assert await bench.crawls.stop(crawl.id, force=True) is S.STOPPING
    assert (await bench.queue.extend([walker.fence])).to_kill == frozenset()
    await bench.jump(10.1)
    assert (await bench.queue.extend([walker.fence])).to_kill == {walker.fence}
    await bench.queue.recovery.lose(walker.lease, "killed by force")
    assert await bench.state(crawl) is S.STOPPED
    await check_ledger(bench, crawl)


async def test_a_stopping_crawl_can_be_forced_and_keeps_its_first_grace_period(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await bench.crawls.stop(crawl.id)
    await bench.jump(60)
    assert (await bench.queue.extend([walker.fence])).to_kill == frozenset()
    assert await bench.crawls.stop(crawl.id, force=True) is S.STOPPING
    await bench.jump(6)
    assert await bench.crawls.stop(crawl.id, force=True) is S.STOPPING
    await bench.jump(5)
    assert (await bench.queue.extend([walker.fence])).to_kill == {walker.fence}


async def test_a_stop_by_force_of_what_nobody_holds_happens_in_one_commit(bench: Bench) -> None:
    crawl = await bench.submit()
    assert await bench.crawls.stop(crawl.id, force=True) is S.STOPPED
    assert await bench.crawls.stop(crawl.id, force=True) is S.STOPPED
    await check_ledger(bench, crawl)


async def test_a_completed_crawl_is_not_stopped_by_force_and_nobody_is_killed(bench: Bench) -> None:
    crawl = await bench.submit(workers=2)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    await first.take()
    assert (await first.fetch_all()).drained
    with pytest.raises(StateConflict, match="is completed, so it cannot be stopped"):
        await bench.crawls.stop(crawl.id, force=True)
    await bench.jump(11)
    assert (await bench.queue.extend([second.fence])).to_kill == frozenset()


async def test_stop_between_a_lease_and_the_walkers_first_commit_is_obeyed(bench: Bench) -> None:
    """The run is still `queued`, its job is locked: `queued → stopping` is a move of the design."""
    crawl = await bench.submit()
    lease = await bench.lease("w1", KIND)
    assert await bench.crawls.stop(crawl.id) in (S.STOPPING, S.STOPPED)
    await obey(Walker(bench, crawl, lease))
    assert await bench.state(crawl) is S.STOPPED
    await check_ledger(bench, crawl)


async def test_a_walker_that_hands_itself_back_leaves_the_run_running(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, second = await walker.take()
    await walker.commits.hand_back(WalkerBatch([fetched(first)]), "slice")
    assert await bench.state(crawl) is S.RUNNING
    job = await bench.job(walker.fence.job_id)
    assert (job.state, job.attempts, job.crash_count) == (JobState.PENDING, 0, 0)
    again = await bench.walker(crawl, "w2")
    [task] = await again.take()
    assert (task.url, task.attempts, task.crashes) == (second.url, 0, 0)
    await check_ledger(bench, crawl)


# Races between commits: PostgreSQL only, SQLite runs them one after the other


async def test_a_pause_that_races_a_lease_never_leaves_a_walker_on_a_paused_crawl(postgres_bench: Bench) -> None:
    """F8: when the pause checked, nobody held the job; the lease commits before the pause cancels the job."""
    bench, point = postgres_bench, Breakpoint("live_jobs_of_run")
    crawl = await bench.submit()
    pausing = asyncio.create_task(bench.over(BreakpointDatabase(bench.database, point)).crawls.pause(crawl.id))
    await point.wait_until_reached(pausing)
    leases = await bench.queue.lease("w1", [KIND], ["shared"], 1)
    point.resume()
    assert await pausing in (S.PAUSING, S.PAUSED)
    for lease in leases:
        await obey(Walker(bench, crawl, lease))
    assert await bench.state(crawl) is S.PAUSED
    await check_ledger(bench, crawl)


async def test_a_pause_that_races_a_lease_takes_no_more_urls(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("live_jobs_of_run")
    crawl = await bench.submit()
    pausing = asyncio.create_task(bench.over(BreakpointDatabase(bench.database, point)).crawls.pause(crawl.id))
    await point.wait_until_reached(pausing)
    leases = await bench.queue.lease("w1", [KIND], ["shared"], 1)
    point.resume()
    await pausing
    for lease in leases:
        with contextlib.suppress(LeaseLost):
            assert (await Walker(bench, crawl, lease).turn()).work == []


async def test_a_walker_leased_while_the_last_one_leaves_a_pausing_crawl_is_not_lost(postgres_bench: Bench) -> None:
    bench, point = postgres_bench, Breakpoint("live_jobs_of_run")
    crawl = await bench.submit(workers=2)
    first = await bench.walker(crawl)
    await bench.crawls.pause(crawl.id)
    halting = Walker(bench.over(BreakpointDatabase(bench.database, point)), crawl, first.lease)
    leaving = asyncio.create_task(halting.commits.close(WalkerBatch(), "pause"))
    await point.wait_until_reached(leaving)
    leases = await bench.queue.lease("w2", [KIND], ["shared"], 1)
    point.resume()
    await leaving
    for lease in leases:
        await obey(Walker(bench, crawl, lease))
    assert await bench.state(crawl) is S.PAUSED
    await check_ledger(bench, crawl)


async def test_two_walkers_that_end_at_once_end_the_run_once(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", workers=2)
    walkers = [await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")]
    await walkers[0].take()
    await walkers[0].fetch_all(want=0)
    await asyncio.gather(*[walker.turn() for walker in walkers], return_exceptions=True)
    assert await bench.state(crawl) is S.COMPLETED
    assert (await events(bench, crawl)).count("crawl.completed") == 1


# Random order of operations


@pytest.mark.parametrize("seed", range(8))
async def test_run_and_jobs_agree_after_any_sequence_of_operations(bench: Bench, seed: int) -> None:
    """Random lifecycles: leases, turns, deaths, zombies, failures, pauses, stops and resumes, in any order."""
    life = Life(bench, random.Random(seed))
    await life.begin()
    for _ in range(30):
        await life.step()
        await check_ledger(bench, life.crawl)
    await life.end()
    await check_ledger(bench, life.crawl)
    assert await bench.state(life.crawl) in TERMINAL


class Life:
    """A random sequence of operations on a crawl with up to three walkers. Operations may be refused, but the resulting
    rows must be consistent."""

    def __init__(self, bench: Bench, dice: random.Random) -> None:
        self.bench = bench
        self.dice = dice
        self.walkers: list[Walker] = []
        self.turns = RandomTurns(dice)

    async def begin(self) -> None:
        self.crawl = await self.bench.submit(f"{SITE}/a", f"{SITE}/b", workers=self.dice.randint(1, 3))

    async def step(self) -> None:
        often = [self.lease, self.turn, self.turn, self.turn]
        seldom = [self.expire, self.lose, self.fail, self.hand_back, self.pause, self.resume, self.leave]
        rare = [self.stop] if self.dice.random() < 0.2 else []
        with contextlib.suppress(StateConflict, LeaseLost):
            await self.dice.choice([*often, *seldom, *rare])()

    async def end(self) -> None:
        """Run it to completion."""
        for _ in range(200):
            if await self.bench.state(self.crawl) in TERMINAL:
                return
            with contextlib.suppress(ShoalError):
                await self.resume()
            await self.bench.jump(30)
            await self.bench.janitor().run_once()
            await self.lease()
            for walker in list(self.walkers):
                with contextlib.suppress(LeaseLost):
                    await self._advance(walker, grow=False)

    async def lease(self) -> None:
        for lease in await self.bench.queue.lease("w", [KIND], ["shared"], self.dice.randint(1, 2)):
            walker = Walker(self.bench, self.crawl, lease)
            self.walkers.append(walker)
            if self.dice.random() < 0.8:
                await walker.attach()

    async def turn(self) -> None:
        if self.walkers:
            await self._advance(self.dice.choice(self.walkers), grow=True)

    async def _advance(self, walker: Walker, *, grow: bool) -> None:
        """A walker of any age, perhaps long lost, commits a batch and follows the returned instruction."""
        if not walker.attached:
            await walker.attach()
        turn = await self.turns.run(walker, grow=grow)
        if turn.control is not Control.GO and self.dice.random() < 0.7:
            await walker.commits.close(WalkerBatch(), turn.control.value)

    async def expire(self) -> None:
        await self.bench.lose()

    async def lose(self) -> None:
        if self.walkers:
            await self.bench.queue.recovery.lose(self.dice.choice(self.walkers).lease, "the child died")

    async def fail(self) -> None:
        if self.walkers and self.dice.random() < 0.3:
            await self.bench.queue.fail(self.dice.choice(self.walkers).lease, "boom")

    async def hand_back(self) -> None:
        if self.walkers:
            await self.dice.choice(self.walkers).commits.hand_back(WalkerBatch(), "slice")

    async def leave(self) -> None:
        """A walker that was told to pause or stop, or whose budget is spent."""
        if self.walkers:
            walker = self.dice.choice(self.walkers)
            state = await self.bench.state(self.crawl)
            if state in (S.PAUSING, S.STOPPING):
                await walker.commits.close(WalkerBatch(), state.removesuffix("ing"))

    async def pause(self) -> None:
        await self.bench.crawls.pause(self.crawl.id)

    async def resume(self) -> None:
        await self.bench.crawls.resume(self.crawl.id)

    async def stop(self) -> None:
        await self.bench.crawls.stop(self.crawl.id)


async def obey(walker: Walker) -> None:
    """A walker that starts late: it attaches, makes a turn, and ends if the result says so; or it learns that it lost
    its job."""
    with contextlib.suppress(LeaseLost):
        await walker.attach()
        turn = await walker.turn()
        assert turn.work == []
        await walker.commits.close(WalkerBatch(), turn.control.value)


async def bring_to(bench: Bench, state: CrawlState) -> Crawl:
    """A crawl in that state."""
    crawl = await bench.submit(start=state is not S.PENDING)
    if state in (S.PENDING, S.QUEUED):
        return crawl
    if state in (S.PAUSED, S.STOPPED):
        await (bench.crawls.pause if state is S.PAUSED else bench.crawls.stop)(crawl.id)
        return crawl
    walker = await bench.walker(crawl)
    if state in (S.PAUSING, S.STOPPING):
        await (bench.crawls.pause if state is S.PAUSING else bench.crawls.stop)(crawl.id)
    if state in (S.COMPLETED, S.FAILED):
        [task] = await walker.take()
        await walker.turn(fetched(task) if state is S.COMPLETED else failed(task))
    assert await bench.state(crawl) is state
    return crawl


# Every verb in every state


VERBS: dict[str, Callable[[Bench, str], Awaitable[object]]] = {
    "start": lambda bench, crawl_id: bench.crawls.start(crawl_id),
    "pause": lambda bench, crawl_id: bench.crawls.pause(crawl_id),
    "resume": lambda bench, crawl_id: bench.crawls.resume(crawl_id),
    "stop": lambda bench, crawl_id: bench.crawls.stop(crawl_id),
    "retry": lambda bench, crawl_id: bench.crawls.retry(crawl_id),
    "change": lambda bench, crawl_id: bench.crawls.change(crawl_id, CrawlChange(max_pages=7)),
}
LEADS_TO: dict[str, dict[CrawlState, CrawlState]] = {
    "start": {S.PENDING: S.QUEUED},
    "pause": {S.QUEUED: S.PAUSED, S.RUNNING: S.PAUSING, S.PAUSING: S.PAUSING, S.PAUSED: S.PAUSED},
    "resume": {S.PAUSED: S.QUEUED},
    "stop": {
        S.PENDING: S.STOPPED,
        S.QUEUED: S.STOPPED,
        S.RUNNING: S.STOPPING,
        S.PAUSING: S.STOPPING,
        S.PAUSED: S.STOPPED,
        S.STOPPING: S.STOPPING,
        S.STOPPED: S.STOPPED,
    },
    "retry": {S.FAILED: S.QUEUED},
    "change": {state: state for state in (S.PENDING, S.QUEUED, S.RUNNING, S.PAUSING, S.PAUSED)},
}


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("verb", VERBS)
async def test_every_operation_reaches_its_state_or_changes_nothing(bench: Bench, verb: str, state: CrawlState) -> None:
    crawl = await bring_to(bench, state)
    before, jobs = await bench.crawls.get(crawl.id), await bench.live(crawl)
    if state in LEADS_TO[verb]:
        await VERBS[verb](bench, crawl.id)
        assert await bench.state(crawl) is LEADS_TO[verb][state]
    else:
        with pytest.raises(StateConflict, match=f'crawl "{crawl.id}" is {state}, so it cannot'):
            await VERBS[verb](bench, crawl.id)
        assert await bench.crawls.get(crawl.id) == before
        assert await bench.live(crawl) == jobs
    await check_ledger(bench, crawl)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_on_an_unknown_crawl_says_that_there_is_none(bench: Bench, verb: str) -> None:
    with pytest.raises(NotFound, match='crawl "none" does not exist'):
        await VERBS[verb](bench, "none")


@pytest.mark.parametrize(
    ("first", "second"), [("stop", "stop"), ("pause", "stop"), ("stop", "retry"), ("pause", "change")]
)
async def test_two_verbs_at_once_are_one_after_the_other(bench: Bench, first: str, second: str) -> None:
    crawl = await bring_to(bench, S.RUNNING)
    done = await asyncio.gather(*[VERBS[verb](bench, crawl.id) for verb in (first, second)], return_exceptions=True)
    assert all(isinstance(answer, StateConflict) for answer in done if isinstance(answer, BaseException))
    refused = len([answer for answer in done if isinstance(answer, BaseException)])
    assert refused <= (first != second), "at most whoever came second"
    assert await bench.state(crawl) is (S.STOPPING if "stop" in (first, second) else S.PAUSING)
    await check_ledger(bench, crawl)


class Noted:
    """A store that records the names of the queries it runs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.names: list[str] = []

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.run(lambda tx: work(NotedTx(tx, self.names)))

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._database.read(work)

    async def close(self) -> None:
        await self._database.close()


class NotedTx:
    def __init__(self, tx: Tx, names: list[str]) -> None:
        self._tx = tx
        self._names = names

    def __getattr__(self, verb: str) -> Any:
        asked = getattr(self._tx, verb)

        def ask(query: str, *rows: Any, **values: Any) -> Any:
            self._names.append(query)
            return asked(query, *rows, **values)

        return ask


async def test_a_commit_without_journal_entries_runs_no_statement_for_them(bench: Bench) -> None:
    """It queries neither the journal nor the options: the control query shows whether the options have changed."""
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", f"{SITE}/c")
    noted = Noted(bench.database)
    walker = await bench.over(noted).walker(crawl)
    [first, *_] = await walker.take()
    noted.names.clear()
    await walker.turn(fetched(first), found=[walker.link("/d")])
    assert noted.names.count("crawl_control") == 1
    assert not {"crawl", "reserve_journal_entries", "insert_journal_entries", "shallowest_open", "finish_depth"} & set(
        noted.names
    )


async def test_an_ended_crawl_that_shall_stop_is_not_told_to_go_on(bench: Bench) -> None:
    crawl = await bench.submit()
    for move in (states.run(), states.complete("drained")):
        assert await bench.database.run(lambda tx: bench.crawls.store.move(tx, crawl.id, move))  # noqa: B023
    with pytest.raises(StateConflict, match=r"is completed, so it cannot be stopped; it has ended\.$"):
        await bench.crawls.stop(crawl.id)
    for act in (bench.crawls.resume, bench.crawls.start, bench.crawls.retry):
        with pytest.raises(StateConflict, match=f"retry its failed URLs with `shoal crawls retry {crawl.id} --all`"):
            await act(crawl.id)


async def test_seeds_are_added_to_a_crawl_that_has_not_started(bench: Bench) -> None:
    """Only the first seed of each host is kept among the options; the others are only in the frontier."""
    config = CrawlConfig(seeds=["https://a.example/"], sitemap="off", start=False)
    crawl = await bench.crawls.submit(config)
    more = [f"https://{host}.example/{number}" for number in range(3000) for host in "ab"]
    crawl = await bench.crawls.add_seeds(crawl.id, more)
    assert crawl.config.seeds == ["https://a.example/", "https://b.example/0"]
    assert crawl.config.more_seeds == 5999
    again = await bench.crawls.add_seeds(crawl.id, more[:100])
    assert again.config == crawl.config
    status = await bench.crawls.get(crawl.id)
    assert (status.counts.opened, status.crawl.state) == (6001, S.PENDING)
    with pytest.raises(InvalidInput, match=r"seeds\[1\] 'ftp://x/' has a scheme other than"):
        await bench.crawls.add_seeds(crawl.id, ["https://a.example/new", "ftp://x/"])
    with pytest.raises(InvalidInput, match=r"seeds\[0\] has an address or port that is not allowed"):
        await bench.crawls.add_seeds(crawl.id, ["http://127.0.0.1/"])
    assert (await bench.crawls.get(crawl.id)).counts.opened == 6001
    await bench.crawls.start(crawl.id)
    with pytest.raises(StateConflict, match="queued, so it cannot get more seeds"):
        await bench.crawls.add_seeds(crawl.id, ["https://a.example/new"])


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 3),
        ({"scope": "domain"}, 1),
        ({"scope": "domain", "headers": {"X-Key": "1"}}, 3),
        ({"scope": "prefix"}, 4),
        ({"scope": "any"}, 0),
        ({"scope": "page"}, 0),
        ({"depth": 0}, 0),
        ({"depth": 0, "headers": {"X-Key": "1"}}, 3),
    ],
)
async def test_the_seeds_that_the_scope_needs_are_kept(bench: Bench, options: dict[str, Any], kept: int) -> None:
    config = CrawlConfig(seeds=["https://a.example/x"], sitemap="off", start=False, **options)
    crawl = await bench.crawls.submit(config)
    more = [
        "https://a.example/y",
        "https://a.example/z/1",
        "https://b.a.example/",
        "http://a.example/",
        "https://c.test/",
    ]
    added = (await bench.crawls.add_seeds(crawl.id, more)).config
    assert (len(added.seeds) - 1, added.more_seeds) == (kept, len(more) - kept)


async def test_seeds_on_too_many_hosts_are_refused_unless_nothing_depends_on_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.crawl.scope.MOST_SEEDS", 10)
    hosts = [f"https://{number}.example/" for number in range(20)]
    for depth in (0, 1):
        config = CrawlConfig(seeds=["https://a.example/"], depth=depth, sitemap="off", start=False)
        crawl = await bench.crawls.submit(config)
        if depth:
            with pytest.raises(
                InvalidInput, match=r"seeds are on more than 10 hosts, .*; use depth 0 or the scope any"
            ):
                await bench.crawls.add_seeds(crawl.id, hosts)
        else:
            assert (await bench.crawls.add_seeds(crawl.id, hosts)).config.more_seeds == 20
