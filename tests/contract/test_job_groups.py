"""Contract of job groups: all of their jobs are created or none, and the end is reported once, even if several jobs
finish at the same time."""

import asyncio
from datetime import timedelta
from typing import Any

import orjson
import pytest

from shoal.base.errors import AlreadyExists, InvalidInput, LeaseLost, NotFound
from shoal.base.settings import QueueSettings
from shoal.page_jobs.groups import GroupEnded
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.page_jobs.spec import GroupConfig, GroupState
from shoal.page_jobs.store import GroupRetention
from shoal.queue.job import Lease, LeaseRequest
from shoal.queue.job_admin import JobAdmin
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.pruner import Pruner, job_retention
from shoal.queue.states import JobState
from tests.contract.conftest import SITE, Bench, database_at, settle_one

J = JobState
G = GroupState
COMPLETED = "crawl.group.completed"
RULES = {"fields": {"name": {"css": "h1", "required": True}}}


def config(count: int = 3, **more: Any) -> GroupConfig:
    urls = [f"http://www{place}.example.org/" for place in range(count)]
    return GroupConfig.read({"urls": urls, **more})


def done(lease: Lease, **facts: Any) -> ResultDelivery:
    return ResultDelivery(lease.fence, Result(Status.SUCCESS, SITE, 1, http_status=200, **facts))


def failed(lease: Lease) -> ResultDelivery:
    result = Result(Status.FAIL, SITE, 1, error_code="dns_error", error_message="No such name.", retryable=False)
    return ResultDelivery(lease.fence, result)


async def take(bench: Bench, count: int = 100, owner: str = "w1") -> list[Lease]:
    return await bench.queue.lease(owner, ["page"], ["shared"], count)


async def test_a_group_is_made_with_a_job_for_each_url(bench: Bench) -> None:
    group = await bench.groups.make(config(3, priority=70, labels={"team": "a"}))
    assert (group.state, group.total, group.jobs) == (G.OPEN, 3, {"pending": 3})
    leases = await take(bench)
    assert {lease.run_id for lease in leases} == {group.id}
    assert sorted(orjson.loads(lease.payload)["url"] for lease in leases) == config(3).urls
    assert (await bench.groups.get(group.id)).jobs == {"locked": 3}


@pytest.mark.exhaustive
async def test_ten_thousand_urls_are_one_commit(bench: Bench) -> None:
    group = await bench.groups.make(config(10_000))
    assert group.jobs == {"pending": 10_000}
    assert len(await take(bench, 50)) == 50


async def test_the_same_url_twice_is_one_job(bench: Bench) -> None:
    group = await bench.groups.make(GroupConfig.read({"urls": [f"{SITE}/a", f"{SITE}/a#top", f"{SITE}/b"]}))
    assert group.total == 2


async def test_all_jobs_of_a_group_wait_at_once_by_their_hosts(bench: Bench) -> None:
    await bench.groups.make(GroupConfig.read({"urls": [f"{SITE}/{place}" for place in range(5)]}))
    rows = await bench.sql("SELECT host, count(*) AS count FROM job WHERE state = 'pending' AND due = 1 GROUP BY host")
    assert rows == [{"host": SITE, "count": 5}]


async def test_bad_urls_are_named_by_their_places_and_nothing_is_stored(bench: Bench) -> None:
    urls = [SITE, "ftp://example.org/", SITE, "http://127.0.0.1/", "nothing"]
    with pytest.raises(InvalidInput) as caught:
        await bench.groups.make(GroupConfig.read({"urls": urls}))
    assert caught.value.facts["field"] == "urls[1]"
    assert "urls[3], urls[4] cannot be fetched either" in caught.value.message
    assert await bench.number("SELECT count(*) FROM job_group") == 0
    assert await bench.number("SELECT count(*) FROM job") == 0


async def test_an_id_that_is_taken_is_refused_and_nothing_is_added(bench: Bench) -> None:
    await bench.groups.make(config(2, group="monday"))
    with pytest.raises(AlreadyExists):
        await bench.groups.make(config(3, group="monday"))
    assert (await bench.groups.get("monday")).jobs == {"pending": 2}


async def test_the_last_job_ends_the_group_and_that_is_reported_once(bench: Bench) -> None:
    group = await bench.groups.make(config(3, labels={"team": "a"}))
    first, second, third = await take(bench)
    await bench.ingest.settle("w1", [done(first), failed(second)])
    assert (await bench.groups.get(group.id)).state is G.OPEN
    assert await bench.events(COMPLETED) == []
    await bench.ingest.settle("w1", [done(third)])
    over = await bench.groups.get(group.id)
    assert (over.state, over.jobs) == (G.COMPLETED, {"done": 2, "failed": 1})
    await bench.ingest.settle("w1", [done(third)])
    [(_, event)] = await bench.events(COMPLETED)
    assert event["jobs"] == {"done": 2, "failed": 1}
    assert (event["group"], event["total"], event["labels"]) == (group.id, 3, {"team": "a"})
    assert [one.group_id for one in bench.signals_seen if isinstance(one, GroupEnded)] == [group.id]


async def test_the_end_of_a_group_is_reported_after_the_ends_of_its_jobs(bench: Bench) -> None:
    await bench.groups.make(config(2))
    first, second = await take(bench)
    await bench.ingest.settle("w1", [done(first), failed(second)])
    kinds = [kind for kind, _ in await bench.events()]
    assert sorted(kinds[:2]) == ["crawl.job.completed", "crawl.job.failed"]
    assert kinds[2:] == ["crawl.group.completed"]


async def test_a_job_that_is_tried_again_keeps_the_group_open(bench: Bench) -> None:
    group = await bench.groups.make(config(1, max_retry=1))
    [lease] = await take(bench)
    again = Result(Status.FAIL, SITE, 1, error_code="connect_error", error_message="No.")
    await bench.ingest.settle("w1", [ResultDelivery(lease.fence, again)])
    assert (await bench.groups.get(group.id)).state is G.OPEN
    assert await bench.groups.results(group.id) == [], "it is not the last word"
    await bench.jump(6)
    [lease] = await take(bench)
    await bench.ingest.settle("w1", [done(lease)])
    assert (await bench.groups.get(group.id)).state is G.COMPLETED


async def test_a_job_that_kills_its_workers_ends_the_group_too(bench: Bench) -> None:
    group = await bench.groups.make(config(1))
    for _ in range(4):
        [lease] = await take(bench)
        await bench.queue.recovery.lose(lease, "the child died")
    over = await bench.groups.get(group.id)
    assert (over.state, over.jobs) == (G.COMPLETED, {"expired": 1})
    assert len(await bench.events(COMPLETED)) == 1


async def test_results_are_given_in_the_order_in_which_jobs_ended(bench: Bench) -> None:
    group = await bench.groups.make(config(3))
    first, second, third = await take(bench)
    await bench.ingest.settle("w1", [done(third, data={"n": 3})])
    await bench.ingest.settle("w1", [done(first, data={"n": 1}), failed(second)])
    found = await bench.groups.results(group.id, limit=2)
    assert [one.result.data for one in found] == [{"n": 3}, {"n": 1}]
    [last] = await bench.groups.results(group.id, after=found[-1].number)
    assert last.result.error_code == "dns_error"


async def test_the_rule_set_of_the_group_holds_for_its_jobs(bench: Bench) -> None:
    group = await bench.groups.make(config(1, rule_set=RULES, max_retry=0))
    [lease] = await take(bench)
    await bench.ingest.settle("w1", [done(lease, data={})])
    [stored] = await bench.groups.results(group.id)
    assert stored.result.error_code == "invalid_data"


async def test_cancelling_ends_what_waits_and_what_is_leased(bench: Bench) -> None:
    group = await bench.groups.make(config(3))
    first, second = await take(bench, 2)
    await bench.ingest.settle("w1", [done(first)])
    over = await bench.groups.cancel(group.id)
    assert (over.state, over.jobs) == (G.CANCELLED, {"cancelled": 2, "done": 1})
    with pytest.raises(LeaseLost):
        await settle_one(bench.ingest, "w1", done(second))
    assert [grant["ended"] for grant in await bench.grants(second.fence.job_id)] == ["cancelled"]
    assert (await bench.groups.cancel(group.id)).jobs == over.jobs
    [(_, event)] = await bench.events(COMPLETED)
    assert event["state"] == "cancelled"


async def test_a_group_that_is_over_is_not_cancelled(bench: Bench) -> None:
    group = await bench.groups.make(config(1))
    await bench.ingest.settle("w1", [done(lease) for lease in await take(bench)])
    assert (await bench.groups.cancel(group.id)).state is G.COMPLETED


async def test_an_unknown_group_is_reported(bench: Bench) -> None:
    for verb in (bench.groups.get, bench.groups.cancel, bench.groups.results):
        with pytest.raises(NotFound):
            await verb("grp_none")


async def test_groups_are_listed_newest_first(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        await bench.groups.make(config(1, group=name))
    await bench.groups.cancel("b")
    newest = await bench.groups.newest(limit=2)
    assert [group.id for group in newest] == ["c", "b"]
    assert [group.id for group in await bench.groups.newest(after=newest[-1].number)] == ["a"]
    assert [group.id for group in await bench.groups.newest(state="cancelled")] == ["b"]


async def test_pages_that_need_a_browser_wait_for_a_worker_with_one(bench: Bench) -> None:
    await bench.groups.make(config(2, crawl_config={"js_required": True}))
    assert await take(bench) == []
    [job_id] = [row["id"] for row in await bench.sql("SELECT id FROM job LIMIT 1")]
    jobs = JobAdmin(bench.database, bench.queue, bench.job_admin_store)
    said = await jobs.explain(job_id)
    assert (said.reason, str(said.sentence)) == (
        "no_renderer",
        "It needs a browser, no connected node has one, and nobody runs such jobs: start a worker on a machine with "
        "Chromium or with RENDERER_URL, or a bot with `js`.",
    )
    assert len(await bench.queue.lease("w1", ["page"], ["shared"], 5, ["js"])) == 2


async def test_the_last_two_finishing_at_once_end_the_group_exactly_once(bench: Bench) -> None:
    for round_ in range(5):
        group = await bench.groups.make(config(2, group=f"g{round_}"))
        [first] = await take(bench, 1, "w1")
        [second] = await take(bench, 1, "w2")
        other = database_at(bench.url, bench.clock)
        await other.open()
        try:
            twin = bench.over(other)
            await asyncio.gather(bench.ingest.settle("w1", [done(first)]), twin.ingest.settle("w2", [done(second)]))
        finally:
            await other.close()
        assert (await bench.groups.get(group.id)).state is G.COMPLETED
        assert len(await bench.events(COMPLETED)) == round_ + 1


async def test_results_and_the_next_lease_are_one_commit(bench: Bench) -> None:
    await bench.groups.make(config(4))
    first, second = await take(bench, 2)
    results, request = [done(first), done(second)], LeaseRequest("w1", ["page"])
    settlement = await bench.database.run(lambda tx: bench.ingest.settle_in(tx, request, results, want=5))
    assert [receipt.state for receipt in settlement.receipts] == [J.DONE, J.DONE]
    assert len(settlement.leases) == 2


async def test_old_groups_go_when_their_jobs_are_gone(bench: Bench) -> None:
    for name in ("old", "young", "open"):
        await bench.groups.make(config(1, group=name))
    await bench.groups.cancel("old")
    await bench.jump(100)
    await bench.groups.cancel("young")
    now = await bench.database.read(lambda tx: tx.value("now"))
    retention = GroupRetention(timedelta(seconds=50))
    assert await retention.prune(bench.database, now - 50_000_000, 10) == (0, False), "its jobs are there"
    await bench.sql("DELETE FROM job WHERE state = 'cancelled'")
    assert await retention.prune(bench.database, now - 50_000_000, 10) == (1, False)
    assert [group.id for group in await bench.groups.newest()] == ["open", "young"]


async def test_results_of_a_group_are_kept_until_the_group_ends(bench: Bench) -> None:
    group = await bench.groups.make(config(3))
    first, second, third = await take(bench)
    await bench.ingest.settle("w1", [done(first), failed(second)])
    shelves = job_retention(bench.job_admin_store, QueueSettings(keep_finished=timedelta(0), keep_dead=timedelta(0)))
    await bench.jump(5)
    for _ in range(2):
        await Pruner(bench.database, shelves).run_once()
        assert await bench.job_admin.purge(JobFilter()) == 0
    assert len(await bench.groups.results(group.id)) == 2
    await bench.queue.extend([third.fence])
    await bench.ingest.settle("w1", [done(third)])
    assert (await bench.groups.get(group.id)).jobs == {"done": 2, "failed": 1}
    await bench.jump(1)
    await Pruner(bench.database, shelves).run_once()
    assert await bench.number("SELECT count(*) FROM job") == 0
