"""Contract of the ingest of results: one accepted result per grant, the job's new state and the event in the same
commit, the same receipt for a repeated result, and nothing stored for a late or foreign one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from shoal.base.errors import LeaseLost
from shoal.base.ids import JobId
from shoal.page_jobs.ingest import ResultRefused
from shoal.page_jobs.result import Receipt, Result, ResultDelivery, Status, StoredResult
from shoal.page_jobs.spec import PageWork
from shoal.queue.job import Fence, Lease, LeaseRequest
from shoal.queue.recovery import ExpiryFailed
from shoal.queue.states import JobState
from tests.contract.conftest import SITE, Bench, database_at, settle_one
from tests.support.refused_results import accept_results, refuse_all_results, refuse_results

J = JobState
URL = f"{SITE}/product"
RULES = {"fields": {"name": {"css": "h1", "required": True}, "price": {"css": ".price"}}}


def work(**more: Any) -> str:
    return PageWork.read({"url": URL, **more}).text()


def good(**facts: Any) -> Result:
    return Result(Status.SUCCESS, URL, 1_000_000, **{"http_status": 200, "data": {"name": "Anchor"}, **facts})


def bad(code: str = "connect_error", **facts: Any) -> Result:
    return Result(Status.FAIL, URL, 1_000_000, error_code=code, error_message="It did not answer.", **facts)


def of(lease: Lease, result: Result) -> ResultDelivery:
    return ResultDelivery(lease.fence, result)


async def results(bench: Bench, job_id: JobId) -> list[StoredResult]:
    return await bench.database.read(lambda tx: bench.results.of_job(tx, job_id))


async def image(bench: Bench) -> list[Any]:
    """Return all rows that a result could change."""
    tables = ("job", "job_grant", "result", "outbox")
    return [sorted(map(str, await bench.sql(f"SELECT * FROM {table}"))) for table in tables]


async def test_a_success_ends_the_job_stores_its_result_and_reports_it_in_one_commit(bench: Bench) -> None:
    job_id = await bench.enqueue(payload=work())
    lease = await bench.lease("w1")
    told = good(final_url=f"{URL}/2", duration_seconds=0.25, html_hash="abc")
    assert await settle_one(bench.ingest, "w1", of(lease, told)) is J.DONE
    assert (await bench.job(job_id)).state is J.DONE
    [stored] = await results(bench, job_id)
    assert stored.result == told
    assert (stored.epoch, stored.state) == (1, J.DONE)
    [(kind, body)] = await bench.events()
    assert (kind, body["job_id"], body["data"]) == ("crawl.job.completed", job_id, {"name": "Anchor"})
    assert body["meta"] == {"crawl_duration": 0.25, "error": None, "html_hash": "abc"}
    assert [grant["ended"] for grant in await bench.grants(job_id)] == ["done"]


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
async def test_a_result_with_text_that_cannot_be_stored_does_not_fail_its_batch(bench: Bench, text: str) -> None:
    jobs = [await bench.enqueue(payload=work(), max_attempts=attempts) for attempts in (1, 2, 1)]
    leases = [await bench.lease("w1") for _ in jobs]
    hostile = Result(
        Status.FAIL, f"{URL}{text}", 1, final_url=text, html_hash=text, error_code=text, error_message=text, data=[text]
    )
    deliveries = [of(lease, hostile if place < 2 else good()) for place, lease in enumerate(leases)]
    settled = await bench.ingest.settle("w1", deliveries)
    assert {one.fence.job_id: one.state for one in settled.receipts} == dict(
        zip(jobs, [J.FAILED, J.PENDING, J.DONE], strict=True)
    )


async def test_a_result_that_the_store_refuses_fails_only_its_own_job(bench: Bench) -> None:
    jobs = [await bench.enqueue(payload=work(), max_attempts=1) for _ in range(3)]
    leases = [await bench.lease("w1") for _ in jobs]
    refused = good(http_status=10**30)
    settled = await bench.ingest.settle("w1", [of(leases[0], good()), of(leases[1], refused), of(leases[2], good())])
    assert [one.state for one in settled.receipts] == [J.DONE, J.FAILED, J.DONE]
    assert [one.job.id for one in settled.accepted] == jobs
    [stored] = await results(bench, jobs[1])
    assert (stored.result.error_code, stored.result.url, stored.result.data) == ("unstorable_result", URL, None)
    [told] = [one for one in bench.signals_seen if isinstance(one, ResultRefused)]
    assert (told.job_id, bool(told.error)) == (jobs[1], True)
    assert [kind for kind, _ in await bench.events()] == [
        "crawl.job.completed",
        "crawl.job.failed",
        "crawl.job.completed",
    ]


async def test_a_refused_result_that_is_sent_again_gets_the_same_answer(bench: Bench) -> None:
    await refuse_results(bench.url, "http_status", 404)
    for attempts, state in ((2, J.PENDING), (1, J.FAILED)):
        await bench.enqueue(payload=work(), max_attempts=attempts, priority=90)
        delivery = of(await bench.lease("w1"), good(http_status=404))
        assert [one.state for one in (await bench.ingest.settle("w1", [delivery] * 2)).receipts] == [state] * 2
        again = replace(delivery, result=replace(delivery.result, fetched_at=2_000_000))
        assert await settle_one(bench.ingest, "w1", again) is state
        with pytest.raises(LeaseLost):
            await settle_one(bench.ingest, "w1", replace(delivery, result=good(http_status=500)))


async def test_a_job_that_the_store_refuses_altogether_is_left_to_its_lease(bench: Bench) -> None:
    await refuse_results(bench.url, "url", "https://refused.example/")
    jobs = [await bench.enqueue(payload=work(url=url)) for url in (URL, "https://refused.example/", URL)]
    leases = [await bench.lease("w1") for _ in jobs]
    deliveries = [of(lease, replace(good(), url="")) for lease in leases]
    for _ in range(2):
        with pytest.raises(Exception, match="refused"):
            await bench.ingest.settle("w1", deliveries)
        assert [(await bench.job(job)).state for job in jobs] == [J.DONE, J.LOCKED, J.DONE]
    await bench.lose()
    settled = await bench.ingest.settle("w1", deliveries)
    assert [one.state for one in settled.receipts] == [J.DONE, None, J.DONE]


async def test_results_are_not_discarded_while_the_store_refuses_all_of_them(bench: Bench) -> None:
    await refuse_all_results(bench.url)
    jobs = [await bench.enqueue(payload=work()) for _ in range(2)]
    leases = [await bench.lease("w1") for _ in jobs]
    for deliveries in ([of(lease, good()) for lease in leases], [of(leases[0], good())]):
        with pytest.raises(Exception, match="refused"):
            await bench.ingest.settle("w1", deliveries)
    await accept_results(bench.url)
    settled = await bench.ingest.settle("w1", [of(lease, good()) for lease in leases])
    assert [one.state for one in settled.receipts] == [J.DONE, J.DONE]


async def test_a_dead_letter_that_the_store_refuses_holds_up_no_other(bench: Bench) -> None:
    await refuse_results(bench.url, "url", "https://refused.example/")
    jobs = [await bench.enqueue(payload=work(url=url)) for url in (URL, "https://refused.example/", URL)]
    for _ in range(bench.settings.poison_limit):
        for _ in jobs:
            await bench.lease("w1")
        await bench.lose()
    for _ in jobs:
        await bench.lease("w1")
    await bench.jump(bench.settings.lease.total_seconds() + 1)
    await bench.janitor().run_once()
    [report] = [signal for signal in bench.signals_seen if isinstance(signal, ExpiryFailed)]
    assert (report.job_id, report.count) == (jobs[1], 1)
    assert "refused" in report.error
    assert [(await bench.job(job)).state for job in jobs] == [J.EXPIRED, J.LOCKED, J.EXPIRED]


async def test_a_result_replaces_that_of_an_earlier_job_with_its_id(bench: Bench) -> None:
    job_id = await bench.enqueue(payload=work())
    await settle_one(bench.ingest, "w1", of(await bench.lease("w1"), good()))
    await bench.sql(f"UPDATE job SET state = 'pending', finished_at = NULL, lease_epoch = 0 WHERE id = '{job_id}'")
    await bench.sql(f"DELETE FROM job_grant WHERE job_id = '{job_id}'")
    assert await settle_one(bench.ingest, "w1", of(await bench.lease("w1"), good(data={"name": "Buoy"}))) is J.DONE
    assert [one.result.data for one in await results(bench, job_id)] == [{"name": "Buoy"}]


async def test_a_failure_is_tried_again_later_and_reported_only_after_the_last_attempt(bench: Bench) -> None:
    job_id = await bench.enqueue(payload=work(), max_attempts=2)
    assert await settle_one(bench.ingest, "w1", of(await bench.lease("w1"), bad())) is J.PENDING
    assert await bench.events() == []
    assert await bench.queue.lease("w1", ["page"], ["shared"], 1) == [], "there is a pause first"
    await bench.jump(6)
    assert await settle_one(bench.ingest, "w1", of(await bench.lease("w1"), bad())) is J.FAILED
    [(kind, body)] = await bench.events()
    assert (kind, body["attempt"]) == ("crawl.job.failed", 2)
    assert body["meta"]["error"] == {"code": "connect_error", "message": "It did not answer."}
    assert [stored.state for stored in await results(bench, job_id)] == [J.PENDING, J.FAILED]
    assert (await bench.job(job_id)).attempts == 2


async def test_an_attempt_that_brought_no_result_is_reported_by_its_number(bench: Bench) -> None:
    await bench.enqueue(payload=work(), max_attempts=1)
    assert await bench.queue.fail(await bench.lease("w1"), "it raised") is J.FAILED
    [(_, body)] = await bench.events()
    assert body["attempt"] == 1


async def test_a_permanent_failure_is_not_retried(bench: Bench) -> None:
    job_id = await bench.enqueue(payload=work(), max_attempts=5)
    refused = bad("address_not_public", retryable=False)
    assert await settle_one(bench.ingest, "w1", of(await bench.lease("w1"), refused)) is J.FAILED
    job = await bench.job(job_id)
    assert (job.attempts, job.state_reason) == (1, "address_not_public")


async def test_the_same_result_sent_again_gets_the_same_answer_and_changes_nothing(bench: Bench) -> None:
    for result, state in ((good(), J.DONE), (bad(), J.PENDING), (bad(retryable=False), J.FAILED)):
        await bench.enqueue(payload=work(), priority=90)
        delivery = of(await bench.lease("w1"), result)
        assert await settle_one(bench.ingest, "w1", delivery) is state
        before = await image(bench)
        again = replace(delivery, result=replace(result, fetched_at=2_000_000))
        for _ in range(2):
            assert await settle_one(bench.ingest, "w1", again) is state
        assert await image(bench) == before


async def test_a_repeat_is_known_while_the_job_is_leased_again(bench: Bench) -> None:
    await bench.enqueue(payload=work())
    delivery = of(await bench.lease("w1"), bad())
    await settle_one(bench.ingest, "w1", delivery)
    await bench.jump(6)
    second = await bench.lease("w1")
    settlement = await bench.ingest.settle("w1", [delivery, of(second, good())])
    assert settlement.receipts == [Receipt(delivery.fence, J.PENDING), Receipt(second.fence, J.DONE)]


async def test_twice_in_one_batch_is_once(bench: Bench) -> None:
    job_id = await bench.enqueue(payload=work())
    delivery = of(await bench.lease("w1"), good())
    other = replace(delivery, result=good(data={"name": "Buoy"}))
    receipts = (await bench.ingest.settle("w1", [delivery, delivery, other])).receipts
    assert [receipt.state for receipt in receipts] == [J.DONE, J.DONE, None]
    assert len(await results(bench, job_id)) == len(await bench.events()) == 1


async def _foreign(bench: Bench, lease: Lease) -> tuple[str, ResultDelivery]:
    return "w2", of(lease, good())


async def _wrong_epoch(bench: Bench, lease: Lease) -> tuple[str, ResultDelivery]:
    return "w1", ResultDelivery(Fence(lease.fence.job_id, lease.fence.epoch + 1), good())


async def _unknown(bench: Bench, lease: Lease) -> tuple[str, ResultDelivery]:
    return "w1", ResultDelivery(Fence(JobId("job_none"), 1), good())


async def _late(bench: Bench, lease: Lease) -> tuple[str, ResultDelivery]:
    await bench.lose()
    return "w1", of(lease, good())


async def _leased_to_another(bench: Bench, lease: Lease) -> tuple[str, ResultDelivery]:
    await bench.lose()
    await bench.lease("w2")
    return "w1", of(lease, good())


async def _another_word(bench: Bench, lease: Lease) -> tuple[str, ResultDelivery]:
    await settle_one(bench.ingest, "w1", of(lease, good()))
    return "w1", of(lease, good(data={"name": "Buoy"}))


async def _repeated_by_another(bench: Bench, lease: Lease) -> tuple[str, ResultDelivery]:
    await settle_one(bench.ingest, "w1", of(lease, good()))
    return "w2", of(lease, good())


@pytest.mark.parametrize(
    "arrange", [_foreign, _wrong_epoch, _unknown, _late, _leased_to_another, _another_word, _repeated_by_another]
)
async def test_a_late_or_foreign_result_is_refused_and_changes_nothing(
    bench: Bench, arrange: Callable[[Bench, Lease], Awaitable[tuple[str, ResultDelivery]]]
) -> None:
    await bench.enqueue(payload=work())
    owner, delivery = await arrange(bench, await bench.lease("w1"))
    before = await image(bench)
    with pytest.raises(LeaseLost):
        await settle_one(bench.ingest, owner, delivery)
    assert await image(bench) == before


async def test_in_a_batch_what_is_lost_does_not_take_the_rest_with_it(bench: Bench) -> None:
    for _ in range(3):
        await bench.enqueue(payload=work())
    first, second, third = await bench.queue.lease("w1", ["page"], ["shared"], 3)
    await bench.queue.release(second, "asked")
    results = [of(first, good()), of(second, good()), of(third, bad())]
    receipts = (await bench.ingest.settle("w1", results)).receipts
    assert [receipt.state for receipt in receipts] == [J.DONE, None, J.PENDING]
    assert receipts[1].is_lost


@pytest.mark.parametrize("data", [None, {}, {"name": None}, {"name": ""}, {"price": "3"}, "<html>", []])
async def test_a_success_without_a_required_field_counts_as_a_failure(bench: Bench, data: Any) -> None:
    job_id = await bench.enqueue(payload=work(rule_set=RULES), max_attempts=1)
    delivery = of(await bench.lease("w1"), good(data=data))
    assert await settle_one(bench.ingest, "w1", delivery) is J.FAILED
    [stored] = await results(bench, job_id)
    assert (stored.result.status, stored.result.error_code) == (Status.FAIL, "invalid_data")
    [(kind, _)] = await bench.events()
    assert kind == "crawl.job.failed"
    assert await settle_one(bench.ingest, "w1", delivery) is J.FAILED, "and sent again it is the same"


async def test_a_success_with_all_required_fields_is_accepted(bench: Bench) -> None:
    await bench.enqueue(payload=work(rule_set=RULES))
    assert await settle_one(bench.ingest, "w1", of(await bench.lease("w1"), good())) is J.DONE


@pytest.mark.parametrize(
    "data", [{"name": "a\x00b"}, {"name": "half \ud83d"}, "raw text", [1, 2], {"a": {"b": [None]}}]
)
async def test_the_data_of_a_result_may_be_any_json(bench: Bench, data: Any) -> None:
    job_id = await bench.enqueue(payload=work())
    told = good(data=data, error_message=None, html_hash="\ud83d\x00x")
    await settle_one(bench.ingest, "w1", of(await bench.lease("w1"), told))
    [stored] = await results(bench, job_id)
    assert stored.result.html_hash == "?x"
    assert orjson.dumps(stored.result.data)


async def test_two_processes_with_the_same_result_store_it_once(bench: Bench) -> None:
    job_id = await bench.enqueue(payload=work())
    delivery = of(await bench.lease("w1"), good())
    other = database_at(bench.url, bench.clock)
    await other.open()
    try:
        twin = bench.over(other)
        answers = await asyncio.gather(*[settle_one(b.ingest, "w1", delivery) for b in [bench, twin] * 3])
    finally:
        await other.close()
    assert set(answers) == {J.DONE}
    assert len(await results(bench, job_id)) == len(await bench.events()) == 1


@pytest.mark.parametrize(
    ("more", "theirs", "state", "shown"),
    [
        ({}, 1, J.FAILED, 1),
        ({}, 3, J.PENDING, 3),
        ({}, None, J.PENDING, 2),
        ({"policy": "p"}, 1, J.PENDING, 2),
        ({"max_retry": 1}, 1, J.PENDING, 2),
    ],
    ids=["fewer", "more", "not set", "of a policy", "given"],
)
async def test_the_worker_of_an_attempt_decides_unless_a_number_was_given(
    bench: Bench, more: dict[str, Any], theirs: int | None, state: JobState, shown: int
) -> None:
    payload = orjson.dumps(orjson.loads(work()) | more).decode()
    job_id = await bench.enqueue(payload=payload, max_attempts=2)
    lease = await bench.lease("w1")
    request = LeaseRequest("w1", ["page"])
    await bench.database.run(lambda tx: bench.ingest.settle_in(tx, request, [of(lease, bad())], attempts=theirs))
    job = await bench.job(job_id)
    assert (job.state, job.attempts, job.max_attempts) == (state, 1, shown)
