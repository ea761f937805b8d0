"""Leases of bots: their duration, their owner, and what happens when a bot stops sending heartbeats."""

from datetime import timedelta

import pytest

from shoal.base.errors import LeaseLost
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.queue.job import Fence, Lease, LeaseRequest, bot_holder, owner_of
from shoal.queue.states import JobState
from tests.contract.conftest import Bench, settle_one

HOUR, HALF_HOUR, TEN_MINUTES = timedelta(hours=1), timedelta(minutes=30), timedelta(minutes=10)
OURS = bot_holder("tok_a", "spider-1")
PAYLOAD = '{"url": "http://example.org/a", "policy": "pol_1", "labels": {"team": "a"}}'


async def lease(bench: Bench, holder: str = OURS) -> Lease:
    request = LeaseRequest(holder, ["page"], lock_ttl=TEN_MINUTES)
    turned = await bench.queue.finish_and_lease([], request, 1)
    [lease] = turned.leases
    return lease


async def lose(bench: Bench, seconds: float = 601.0) -> None:
    await bench.jump(seconds)
    await bench.janitor().run_once()


async def test_a_bot_keeps_a_job_as_long_as_its_policy_says_or_else_the_setting(bench: Bench) -> None:
    await bench.enqueue(priority=60, lock_ttl=HALF_HOUR)
    await bench.enqueue(priority=40)
    first, second = await lease(bench), await lease(bench)
    assert (first.ttl_seconds, second.ttl_seconds) == (1800.0, 600.0)
    assert (first.priority, second.priority) == (60, 40)


async def test_a_node_keeps_a_job_for_its_own_term_whatever_its_policy_says(bench: Bench) -> None:
    job_id = await bench.enqueue(lock_ttl=HALF_HOUR)
    await bench.lease("w1")
    await bench.lose()
    assert (await bench.job(job_id)).state is JobState.PENDING


async def test_a_heartbeat_extends_by_the_jobs_own_term(bench: Bench) -> None:
    job_id = await bench.enqueue(lock_ttl=HALF_HOUR)
    leased = await lease(bench)
    await bench.jump(1700)
    beat = await bench.queue.beat(owner_of(OURS), leased.fence, TEN_MINUTES, HOUR)
    assert (beat.ttl_seconds, beat.cancelled) == (1800.0, False)
    await lose(bench, 1700)
    assert (await bench.job(job_id)).state is JobState.LOCKED


async def test_heartbeats_keep_a_job_only_so_long(bench: Bench) -> None:
    job_id = await bench.enqueue()
    leased = await lease(bench)
    for _ in range(6):
        await bench.jump(550)
        beat = await bench.queue.beat(owner_of(OURS), leased.fence, TEN_MINUTES, HOUR)
    assert 290 < beat.ttl_seconds <= 300
    await bench.jump(301)
    with pytest.raises(LeaseLost):
        await bench.queue.beat(owner_of(OURS), leased.fence, TEN_MINUTES, HOUR)
    await lose(bench, 0)
    assert (await bench.job(job_id)).state is JobState.PENDING


async def test_a_policys_term_that_is_longer_than_the_maximum_counts(bench: Bench) -> None:
    job_id = await bench.enqueue(lock_ttl=2 * HOUR)
    leased = await lease(bench)
    await bench.jump(4000)
    beat = await bench.queue.beat(owner_of(OURS), leased.fence, TEN_MINUTES, HOUR)
    assert 3190 < beat.ttl_seconds <= 3200
    await lose(bench, 3100)
    assert (await bench.job(job_id)).state is JobState.LOCKED


async def test_any_bot_of_a_token_may_speak_for_its_jobs_and_no_other_token(bench: Bench) -> None:
    await bench.enqueue()
    leased = await lease(bench)
    assert (await bench.queue.beat(owner_of(bot_holder("tok_a", "other")), leased.fence, TEN_MINUTES, HOUR)).ttl_seconds
    for stranger in ("tok_b", "tok_"):
        with pytest.raises(LeaseLost):
            await bench.queue.beat(owner_of(bot_holder(stranger, "spider-1")), leased.fence, TEN_MINUTES, HOUR)


@pytest.mark.parametrize("epoch", [0, -1, 2, 2**62])
async def test_a_heartbeat_with_another_epoch_is_refused_and_changes_nothing(bench: Bench, epoch: int) -> None:
    job_id = await bench.enqueue()
    leased = await lease(bench)
    before = await bench.job(job_id)
    await bench.jump(5)
    with pytest.raises(LeaseLost):
        await bench.queue.beat(owner_of(OURS), Fence(leased.fence.job_id, epoch), TEN_MINUTES, HOUR)
    assert await bench.job(job_id) == before


async def test_a_bot_hears_from_its_heartbeat_that_its_job_was_cancelled(bench: Bench) -> None:
    job_id = await bench.enqueue()
    leased = await lease(bench)
    await bench.job_admin.cancel(job_id)
    beat = await bench.queue.beat(owner_of(OURS), leased.fence, TEN_MINUTES, HOUR)
    assert beat.cancelled
    with pytest.raises(LeaseLost):
        await bench.queue.beat(owner_of(bot_holder("tok_b", "x")), leased.fence, TEN_MINUTES, HOUR)


async def test_a_job_that_a_bot_lost_comes_back_later_with_a_lower_priority(bench: Bench) -> None:
    job_id = await bench.enqueue(lock_ttl=TEN_MINUTES, max_attempts=4)
    for crashes, priority in ((1, 40), (2, 30)):
        await lease(bench)
        await lose(bench)
        job = await bench.job(job_id)
        assert (job.state, job.crash_count, job.priority, job.attempts) == (JobState.PENDING, crashes, priority, 0)
        wait = bench.settings.backoff.total_seconds() * 2 ** (crashes - 1)
        assert not await bench.queue.lease("w1", ["page"], ["shared"], 1)
        await bench.jump(wait * 1.1 + 1)


async def test_a_job_that_bots_lose_more_often_than_its_policy_allows_is_a_dead_letter_and_reported(
    bench: Bench,
) -> None:
    job_id = await bench.enqueue(lock_ttl=TEN_MINUTES, max_attempts=2, payload=PAYLOAD)
    for _ in range(2):
        await lease(bench)
        await lose(bench)
        await bench.jump(60)
    job = await bench.job(job_id)
    assert (job.state, job.state_reason, job.attempts) == (JobState.EXPIRED, "poison", 0)
    [(kind, event)] = await bench.events()
    assert (kind, event["url"], event["policy"]) == ("crawl.job.failed", "http://example.org/a", "pol_1")
    assert (event["status"], event["labels"]) == ("fail", {"team": "a"})
    [stored] = await bench.database.read(lambda tx: bench.results.of_policy(tx, "pol_1", None, 10))
    assert (stored.job_id, stored.state, stored.result.error_code) == (job_id, JobState.EXPIRED, "poison")


async def test_a_job_without_a_policy_is_lost_to_bots_as_often_as_to_nodes(bench: Bench) -> None:
    job_id = await bench.enqueue(max_attempts=1)
    for _ in range(bench.settings.poison_limit):
        await lease(bench)
        await lose(bench)
        await bench.jump(120)
    assert (await bench.job(job_id)).state is JobState.PENDING


async def test_a_result_after_the_time_is_taken_until_the_job_is_taken_from_its_bot(bench: Bench) -> None:
    first, second = await bench.enqueue(payload=PAYLOAD, priority=60), await bench.enqueue(payload=PAYLOAD)
    leases = [await lease(bench), await lease(bench)]
    deliveries = [ResultDelivery(one.fence, Result(Status.SUCCESS, "", 1, data={"a": 1})) for one in leases]
    await bench.jump(700)
    assert await settle_one(bench.ingest, OURS, deliveries[0]) is JobState.DONE
    await bench.janitor().run_once()
    with pytest.raises(LeaseLost):
        await settle_one(bench.ingest, OURS, deliveries[1])
    assert [(await bench.job(one)).state for one in (first, second)] == [JobState.DONE, JobState.PENDING]


async def test_a_page_job_of_no_group_that_nodes_lost_too_often_is_reported(bench: Bench) -> None:
    job_id = await bench.enqueue(payload=PAYLOAD)
    for _ in range(bench.settings.poison_limit + 1):
        await bench.lease()
        await bench.lose()
    assert (await bench.job(job_id)).state is JobState.EXPIRED
    [(_, event)] = await bench.events()
    assert (event["job_id"], event["policy"]) == (job_id, "pol_1")


async def test_a_page_job_whose_child_died_too_often_is_reported(bench: Bench) -> None:
    await bench.enqueue(payload=PAYLOAD)
    for _ in range(bench.settings.poison_limit + 1):
        await bench.queue.recovery.lose_all([await bench.lease()], "killed by signal 9")
    assert [kind for kind, _ in await bench.events()] == ["crawl.job.failed"]


async def test_after_a_controllers_start_bots_get_time_to_speak_and_nodes_do_not(bench: Bench) -> None:
    bots, nodes, _ = await bench.enqueue(priority=60), await bench.enqueue(), await bench.enqueue(priority=40)
    await lease(bench)
    await bench.lease("w1")
    await bench.jump(700)
    await bench.lease("w2")  # a sign of life: there was no outage
    janitor = bench.app.chores.janitor
    await janitor.run_once()
    assert (await bench.job(bots)).state is JobState.LOCKED
    assert (await bench.job(nodes)).state is JobState.PENDING
    for _ in range(4):  # each jump is shorter than a lease, otherwise it would count as an outage
        await bench.jump(9)
        await janitor.run_once()
    assert (await bench.job(bots)).state is JobState.PENDING
