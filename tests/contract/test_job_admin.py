"""Administration of jobs: lists, retry of dead letters, cancel, purge, and the explanation why a job waits."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from msgspec import to_builtins

from shoal.base.clock import SystemClock
from shoal.base.errors import InvalidInput, LeaseLost, NotFound, StateConflict
from shoal.base.ids import JobId, NodeId
from shoal.crawl.lifecycle.crawls import KIND
from shoal.queue import job_admin_store
from shoal.queue.job import NewJob
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.states import JobState
from shoal.serve.resources.job import Job
from tests.contract.conftest import Bench, until_blocked
from tests.support.nodes import register

J = JobState
CLOCK = SystemClock()
DEAD = JobFilter(dead=True)


async def dead_letter(bench: Bench, **asked: object) -> JobId:
    job_id = await bench.enqueue(max_attempts=1, **asked)  # type: ignore[arg-type]
    await bench.queue.fail(await bench.lease(), "boom")
    return job_id


async def ids(bench: Bench, which: JobFilter, size: int = 3) -> list[str]:
    """The whole list, page by page."""
    found: list[str] = []
    page = await bench.job_admin.newest(which, limit=size)
    found += [job.id for job in page.items]
    while page.next is not None:
        page = await bench.job_admin.newest(which, before=page.next, limit=size)
        found += [job.id for job in page.items]
    return found


# Lists


async def test_lists_are_newest_first_and_every_job_stands_on_one_page(bench: Bench) -> None:
    made = [JobId(f"job_{number:02d}") for number in range(10)]
    await bench.queue.enqueue([NewJob(job_id, "page", None) for job_id in made])
    assert await ids(bench, JobFilter()) == made[::-1]


async def test_a_list_is_cut_by_state_kind_run_and_lane(bench: Bench) -> None:
    failed = await dead_letter(bench)
    locked = await bench.enqueue()
    await bench.lease()
    ours = await bench.enqueue(run_id="grp_1")
    theirs = await bench.enqueue(run_id="grp_2", kind="audit")
    private = await bench.enqueue(lane="node:a")
    assert await ids(bench, JobFilter(J.LOCKED)) == [locked]
    assert await ids(bench, JobFilter(J.FAILED)) == [failed]
    assert await ids(bench, DEAD) == [failed]
    assert sorted(await ids(bench, JobFilter(J.PENDING))) == sorted([ours, theirs, private])
    assert await ids(bench, JobFilter(run_id="grp_1")) == [ours]
    assert await ids(bench, JobFilter(kind="audit")) == [theirs]
    assert await ids(bench, JobFilter(lane="node:a")) == [private]
    assert await ids(bench, JobFilter(J.DONE)) == []


async def test_a_short_page_of_results_has_a_cursor_to_continue(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_admin_store, "SCAN", 4)
    wanted = JobId("job_00")
    await bench.queue.enqueue([NewJob(wanted, "rare", None)])
    await bench.queue.enqueue([NewJob(JobId(f"job_{number:02d}"), "page", None) for number in range(1, 10)])
    first = await bench.job_admin.newest(JobFilter(kind="rare"), limit=5)
    assert (first.items, first.next is None) == ([], False)
    assert await ids(bench, JobFilter(kind="rare")) == [wanted]


async def test_a_response_shows_the_url_and_no_headers(bench: Bench) -> None:
    payload = '{"url": "http://joe:secret@example.org/a", "crawl_config": {"headers": {"Authorization": "hidden"}}}'
    job_id = await bench.enqueue(payload=payload, quota_keys=("project:a",))
    answer = to_builtins(Job.of(await bench.job_admin.get(job_id)))
    assert answer["url"].endswith("@example.org/a")
    assert "secret" not in str(answer)
    assert "hidden" not in str(answer)
    assert (answer["state"], answer["scopes"], answer["priority"]) == ("pending", ["project:a"], 50)


async def test_lists_begin_with_the_newest_whatever_the_collation(postgres_bench: Bench) -> None:
    """Collations may sort in another order: glibc's English one puts characters that it does not know first."""
    bench = postgres_bench
    try:
        await bench.sql("CREATE COLLATION IF NOT EXISTS odd (provider = icu, locale = 'und-u-kr-zzzz-latn')")
    except asyncpg.FeatureNotSupportedError:
        pytest.skip("this PostgreSQL knows only the collations of its machine")
    await bench.sql("ALTER TABLE job ALTER COLUMN id TYPE TEXT COLLATE odd")
    made = [await dead_letter(bench, run_id="grp_1") for _ in range(4)]
    for which in (JobFilter(), DEAD, JobFilter(run_id="grp_1")):
        assert await ids(bench, which) == made[::-1]


async def test_a_job_that_does_not_exist_is_not_found(bench: Bench) -> None:
    for verb in (
        bench.job_admin.get,
        bench.job_admin.history,
        bench.job_admin.explain,
        bench.job_admin.retry,
        bench.job_admin.cancel,
    ):
        with pytest.raises(NotFound, match="job_no"):
            await verb("job_no")


# Retry


async def test_a_dead_letter_is_retried_with_all_its_attempts(bench: Bench) -> None:
    job_id = await dead_letter(bench)
    await bench.jump(60)
    job = await bench.job_admin.retry(job_id)
    assert (job.state, job.attempts, job.crash_count, job.finished_at) == (J.PENDING, 0, 0, None)
    lease = await bench.lease()
    assert (lease.fence.job_id, lease.fence.epoch) == (job_id, 2)
    assert [grant["ended"] for grant in await bench.grants(job_id)] == ["failed", None]


async def test_a_job_that_took_too_many_workers_with_it_is_retried(bench: Bench) -> None:
    """F13: a dead letter keeps its reason; its retry starts with all its attempts."""
    job_id = await bench.enqueue()
    for _ in range(4):
        await bench.lease()
        await bench.lose()
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.attempts) == (J.EXPIRED, "poison", 0)
    assert (await bench.job_admin.retry(job_id)).crash_count == 0


async def test_only_dead_letters_are_retried(bench: Bench) -> None:
    job_id = await bench.enqueue()
    with pytest.raises(StateConflict, match="pending"):
        await bench.job_admin.retry(job_id)
    await bench.queue.finish(await bench.lease())
    with pytest.raises(StateConflict, match="done"):
        await bench.job_admin.retry(job_id)


async def test_a_dead_letter_whose_key_lives_again_is_not_retried(bench: Bench) -> None:
    job_id = await dead_letter(bench, key="k")
    await bench.enqueue(key="k")
    with pytest.raises(StateConflict, match="dedupe key"):
        await bench.job_admin.retry(job_id)
    assert (await bench.job(job_id)).state is J.FAILED


async def test_a_retry_that_races_a_new_job_of_its_key_is_reported(postgres_bench: Bench) -> None:
    bench = postgres_bench
    job_id = await dead_letter(bench, key="k")
    line = await asyncpg.connect(bench.url)
    new = "INSERT INTO job (id, kind, state, payload, lane, dedupe_key, priority, not_before, max_attempts, created_at)"
    async with line.transaction():
        await line.execute(f"{new} VALUES ('job_new', 'page', 'pending', '', 'shared', 'k', 50, 0, 1, 0)")
        retry = asyncio.create_task(bench.job_admin.retry(job_id))
        await until_blocked(bench)
    await line.close()
    with pytest.raises(StateConflict, match="dedupe key"):
        await retry
    assert (await bench.job(job_id)).state is J.FAILED


async def test_of_two_retries_at_once_one_wins(bench: Bench) -> None:
    job_id = await dead_letter(bench)
    answers = await asyncio.gather(*[bench.job_admin.retry(job_id) for _ in range(4)], return_exceptions=True)
    assert sum(not isinstance(answer, StateConflict) for answer in answers) >= 1
    assert (await bench.job(job_id)).state is J.PENDING


async def test_dead_letters_are_retried_by_filter_in_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.queue.job_admin.BATCH", 2)
    made = [await dead_letter(bench) for _ in range(5)]
    other = await bench.enqueue(kind="audit", max_attempts=1)
    await bench.queue.fail(await bench.lease(kind="audit"), "boom")
    assert await bench.job_admin.retry_dead(JobFilter(kind="page")) == 5
    assert {(await bench.job(job_id)).state for job_id in made} == {J.PENDING}
    assert (await bench.job(other)).state is J.FAILED


async def test_of_dead_letters_with_one_key_one_is_retried(bench: Bench) -> None:
    first, second = await dead_letter(bench, key="k"), await dead_letter(bench, key="k")
    assert await bench.job_admin.retry_dead(DEAD) == 1
    assert {(await bench.job(job_id)).state for job_id in (first, second)} == {J.FAILED, J.PENDING}


async def test_the_job_of_a_crawl_is_retried_and_cancelled_with_its_crawl(bench: Bench) -> None:
    crawl = await bench.submit()
    [job] = await bench.database.read(lambda tx: bench.jobs.jobs_of_run(tx, crawl.id))
    for verb in (bench.job_admin.retry, bench.job_admin.cancel):
        with pytest.raises(StateConflict, match=crawl.id):
            await verb(job.id)
    assert (await bench.job(job.id)).state is J.PENDING


# Cancel


async def test_a_waiting_job_is_cancelled_at_once(bench: Bench) -> None:
    job_id = await bench.enqueue()
    job = await bench.job_admin.cancel(job_id)
    assert (job.state, job.state_reason) == (J.CANCELLED, "asked")
    assert await bench.queue.lease("w1", ["page"], ["shared"], 1) == []
    assert (await bench.job_admin.cancel(job_id)).state is J.CANCELLED  # cancelling it again changes nothing


async def test_a_result_of_a_cancelled_grant_is_rejected(bench: Bench) -> None:
    """F8: the worker learns of it from its heartbeat, or when it finishes."""
    job_id = await bench.enqueue()
    lease = await bench.lease()
    assert (await bench.job_admin.cancel(job_id)).state is J.CANCELLED
    assert (await bench.queue.extend([lease.fence])).kept == []
    with pytest.raises(LeaseLost):
        await bench.queue.finish(lease)
    assert [grant["ended"] for grant in await bench.grants(job_id)] == ["cancelled"]


async def test_an_ended_job_is_not_cancelled(bench: Bench) -> None:
    job_id = await dead_letter(bench)
    with pytest.raises(StateConflict, match="failed"):
        await bench.job_admin.cancel(job_id)


async def test_a_cancel_that_races_a_finish_has_one_winner(bench: Bench) -> None:
    """F8: a cancel and a finish of the same job race."""
    for _ in range(5):
        job_id = await bench.enqueue()
        lease = await bench.lease()
        answers = await asyncio.gather(
            bench.job_admin.cancel(job_id), bench.queue.finish(lease), return_exceptions=True
        )
        assert sum(isinstance(answer, LeaseLost | StateConflict) for answer in answers) == 1
        assert (await bench.job(job_id)).state in (J.CANCELLED, J.DONE)


async def test_the_workers_of_a_run_are_told_to_kill_after_a_grace(bench: Bench) -> None:
    await bench.enqueue(run_id="run")
    await bench.enqueue(run_id="other")
    leases = await bench.queue.lease("w1", ["page"], ["shared"], 2)
    holders = [lease.fence for lease in leases]
    grace = timedelta(seconds=5)
    assert await bench.database.run(lambda tx: bench.jobs.kill_run(tx, "run", grace)) == 1
    assert (await bench.queue.extend(holders)).to_kill == frozenset()
    await bench.jump(6)
    extended = await bench.queue.extend(holders)
    assert extended.kept == holders
    assert extended.to_kill == {lease.fence for lease in leases if lease.run_id == "run"}


# Purge and prune


async def test_only_ended_jobs_are_purged_with_their_history(bench: Bench) -> None:
    """F59: a purge never removes a live job."""
    gone = await dead_letter(bench)
    done = await bench.enqueue()
    await bench.queue.finish(await bench.lease())
    locked = await bench.enqueue()
    await bench.lease()
    pending = await bench.enqueue()
    await bench.jump(1)
    assert await bench.job_admin.purge(DEAD) == 1
    assert await bench.job_admin.purge(JobFilter()) == 1
    assert await bench.number("SELECT count(*) FROM job") == 2
    assert await bench.number("SELECT count(*) FROM job_grant") == 0
    for job_id in (gone, done):
        with pytest.raises(NotFound):
            await bench.job_admin.get(job_id)
    assert [(await bench.job(job_id)).state for job_id in (locked, pending)] == [J.LOCKED, J.PENDING]


async def test_jobs_younger_than_asked_for_are_not_purged(bench: Bench) -> None:
    await dead_letter(bench)
    await bench.jump(3600)
    assert await bench.job_admin.purge(DEAD, timedelta(hours=2)) == 0
    assert await bench.job_admin.purge(DEAD, timedelta(minutes=30)) == 1


async def test_a_purge_spares_the_jobs_of_runs(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.crawls.stop(crawl.id)
    await bench.jump(1)
    assert await bench.job_admin.purge(JobFilter()) == 0
    assert await bench.number(f"SELECT count(*) FROM job WHERE kind = '{KIND}'") == 1


async def test_a_purge_that_races_a_retry_never_removes_a_live_job(bench: Bench) -> None:
    """F59: dead letters are purged while somebody retries them."""
    made = [await dead_letter(bench) for _ in range(10)]
    await bench.jump(1)
    purged, *_ = await asyncio.gather(
        bench.job_admin.purge(DEAD), *[bench.job_admin.retry(job_id) for job_id in made], return_exceptions=True
    )
    left = await bench.number("SELECT count(*) FROM job WHERE state = 'pending'")
    assert purged + left + await bench.number("SELECT count(*) FROM job WHERE state = 'failed'") == 10


# Why


async def test_a_waiting_job_is_explained_with_the_number_of_jobs_before_it(bench: Bench) -> None:
    await bench.enqueue()
    await bench.lease()
    for _ in range(3):
        await bench.enqueue()
        await bench.jump(1)
    said = await bench.job_admin.explain(await bench.enqueue())
    assert (said.reason, said.facts["ahead"], said.facts["running"]) == ("in_line", 3, 1)


async def test_explain_reports_a_job_that_no_worker_can_take(bench: Bench) -> None:
    said = await bench.job_admin.explain(await bench.enqueue(capability="special"))
    assert said.reason == "no_worker"
    assert "special" in str(said.sentence)


async def test_a_job_that_needs_a_browser_is_explained_by_the_nodes_that_have_one(bench: Bench) -> None:
    job_id = await bench.enqueue(capability="js")
    nodes = bench.app.fleet.nodes
    await register(nodes, "plain")
    said = await bench.job_admin.explain(job_id)
    assert (said.reason, said.facts["renderers"]) == ("no_renderer", 0)
    assert "no connected node has one" in str(said.sentence)
    begun = await register(nodes, "browser", capabilities=("http", "js"))
    said = await bench.job_admin.explain(job_id)
    assert (said.reason, said.facts["renderers"]) == ("in_line", 1)
    assert "1 connected node can render" in str(said.sentence)
    await nodes.disconnect(NodeId("browser"), begun.epoch)
    assert (await bench.job_admin.explain(job_id)).reason == "no_renderer"


async def test_a_job_that_failed_says_when_it_is_tried_again(bench: Bench) -> None:
    job_id = await bench.enqueue()
    await bench.queue.fail(await bench.lease(), "boom")
    failed_at = CLOCK.monotonic()
    said = await bench.job_admin.explain(job_id)
    assert said.reason == "not_before"
    assert "boom" in str(said.sentence)
    assert said.facts["in_seconds"] + CLOCK.monotonic() - failed_at >= 4
    assert said.facts["in_seconds"] <= 6


async def test_a_leased_job_says_who_has_it_and_whether_that_is_over(bench: Bench) -> None:
    job_id = await bench.enqueue()
    await bench.lease("node-a/17")
    said = await bench.job_admin.explain(job_id)
    assert (said.reason, said.facts["holder"]) == ("worked_on", "node-a/17")
    await bench.jump(15)
    assert (await bench.job_admin.explain(job_id)).reason == "lease_over"


async def test_a_dead_letter_says_why_and_what_to_do(bench: Bench) -> None:
    said = await bench.job_admin.explain(await dead_letter(bench))
    assert said.reason == "attempts_exhausted"
    assert "boom" in str(said.sentence)
    assert "shoal jobs retry" in str(said.sentence)


async def test_a_payload_that_nobody_can_read_is_listed_swept_and_explained(bench: Bench) -> None:
    """F61: the worker that decodes it fails the job; the queue itself does not read it."""
    job_id = await bench.enqueue(payload="\\x00 not json {", max_attempts=1)
    await bench.lease()
    await bench.lose()
    assert (await bench.job(job_id)).crash_count == 1
    assert (await bench.job_admin.get(job_id)).url is None
    await bench.queue.fail(await bench.lease(), "invalid_payload: this version cannot read it")
    assert await ids(bench, DEAD) == [job_id]
    assert "invalid_payload" in str((await bench.job_admin.explain(job_id)).sentence)


@pytest.mark.parametrize("payload", ["not json {", "[]", '{"url": 7, "labels": null}'])
async def test_a_payload_that_nobody_can_read_holds_up_no_sweep(bench: Bench, payload: str) -> None:
    """F61: it killed too many workers; the other jobs that they held are returned, and an event reports its end."""
    bad = await bench.enqueue(payload=payload)
    for _ in range(4):
        await bench.lease()
        good = [await bench.enqueue(), await bench.enqueue(run_id="grp_1")]
        for _ in good:
            await bench.lease()
        await bench.lose()
        assert [(await bench.job(job_id)).state for job_id in good] == [J.PENDING, J.PENDING]
        await bench.sql(
            f"UPDATE job SET state = 'cancelled', finished_at = 1 WHERE id <> '{bad}' AND state = 'pending'"
        )
    assert (await bench.job(bad)).state is J.EXPIRED
    assert await bench.number("SELECT count(*) FROM outbox WHERE type = 'crawl.job.failed'") == 1


async def test_a_job_whose_work_raised_to_the_last_is_reported_as_failed(bench: Bench) -> None:
    job_id = await bench.enqueue(payload='{"url": "http://example.org/a", "policy": "pol_1"}', max_attempts=2)
    await bench.queue.fail(await bench.lease(), "RuntimeError: no such thing")
    assert await bench.events() == [], "it is tried again"
    await bench.jump(60)
    await bench.queue.fail(await bench.lease(), "RuntimeError: no such thing")
    assert (await bench.job(job_id)).state is J.FAILED
    [(kind, body)] = await bench.events()
    assert (kind, body["policy"], body["url"]) == ("crawl.job.failed", "pol_1", "http://example.org/a")
    assert body["meta"]["error"] == {"code": "attempts_exhausted", "message": "RuntimeError: no such thing"}


# Quotas by hand


@pytest.mark.parametrize("key", ["", "acme", "project:", "team:a", "key:" + "x" * 1000])
async def test_an_invalid_quota_key_is_refused(bench: Bench, key: str) -> None:
    with pytest.raises(InvalidInput, match="project:NAME"):
        await bench.job_admin.set_quota(key, 1)
    assert await bench.job_admin.quotas() == []


async def test_a_quota_out_of_range_is_refused(bench: Bench) -> None:
    for most in (-1, 10**9):
        with pytest.raises(InvalidInput, match="limit"):
            await bench.job_admin.set_quota("project:a", most)


async def test_a_quota_that_is_not_there_cannot_be_removed(bench: Bench) -> None:
    with pytest.raises(NotFound, match="project:a"):
        await bench.job_admin.remove_quota("project:a")
