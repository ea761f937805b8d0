"""Results of policies over HTTP and on the command line: history, differences and retention."""

import json
from datetime import timedelta
from typing import Any

import pytest

from shoal.base.ids import JobId, new_id
from shoal.page_jobs.groups import changes_of
from shoal.page_jobs.result import Result, Status
from shoal.page_jobs.store import NewResult, ResultRetention, ResultStore
from shoal.queue.job import NewJob
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.states import JobState
from tests.support.api import ServedApi


async def policy(api: ServedApi) -> str:
    _, made = await api.ask("/api/v1/policies", {"url": "https://a.example/", "frequency": "1h", "enabled": False})
    return str(made["id"])


async def ran(
    api: ServedApi, policy_id: str, data: Any, html_hash: str | None = None, status: str = "success"
) -> JobId:
    """A run of the policy that ended in this way."""
    host = f"https://{new_id('job')[-8:].lower()}.example"
    payload = json.dumps({"url": f"{host}/", "policy": policy_id})
    job = NewJob(JobId(new_id("job")), "page", None, payload, max_attempts=1, host=host)
    await api.app.queue.enqueue([job])
    await api.ask("/bot/v1/jobs/pull", {"bot_id": "b"})
    body = {"epoch": 1, "status": status, "data": data, "meta": {"html_hash": html_hash}}
    status_code, answer = await api.ask(f"/bot/v1/jobs/{job.id}/result", body)
    assert status_code == 200, answer
    return job.id


async def test_the_results_of_a_policy_are_listed_newest_first(api: ServedApi) -> None:
    ours, other = await policy(api), await policy(api)
    ids = [await ran(api, ours, {"price": price}, f"hash{price}") for price in (1, 2, 3)]
    await ran(api, other, {"price": 9})
    _, first = await api.ask(f"/api/v1/policies/{ours}/results?limit=2")
    assert [one["job_id"] for one in first["items"]] == [ids[2], ids[1]]
    assert first["items"][0]["policy"] == ours
    assert first["items"][0]["meta"]["html_hash"] == "hash3"
    _, rest = await api.ask(f"/api/v1/policies/{ours}/results?limit=2&cursor={first['next']}")
    assert ([one["data"] for one in rest["items"]], rest["next"]) == ([{"price": 1}], None)


async def test_a_page_of_large_results_has_fewer_of_them_and_none_is_missed(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.base.database.MOST_DECODED", 25)  # two and a half of these
    ours = await policy(api)
    for price in range(5):
        await ran(api, ours, {"price": price})
    pages, cursor = [], ""
    while cursor is not None:
        _, page = await api.ask(f"/api/v1/policies/{ours}/results{cursor and f'?cursor={cursor}'}")
        pages.append([one["data"]["price"] for one in page["items"]])
        cursor = page["next"]
    assert pages == [[4, 3], [2, 1], [0]]


async def test_a_difference_is_that_of_the_last_two_successes_unless_jobs_are_named(api: ServedApi) -> None:
    ours = await policy(api)
    first = await ran(api, ours, {"price": 1, "name": "Anchor"}, "a")
    await ran(api, ours, {"price": 2, "name": "Anchor", "tags": ["new"]}, "b")
    last = await ran(api, ours, {"price": 3, "name": "Anchor", "tags": ["old"]}, "b")
    await ran(api, ours, None, status="fail")
    _, told = await api.ask(f"/api/v1/policies/{ours}/diff")
    assert told["changes"] == [{"path": "price", "from": 2, "to": 3}, {"path": "tags[0]", "from": "new", "to": "old"}]
    assert (told["to"]["job_id"], told["html_changed"]) == (last, False)
    _, told = await api.ask(f"/api/v1/policies/{ours}/diff?from={first}&to={last}")
    assert told["html_changed"] is True
    assert {"path": "tags", "from": None, "to": ["old"]} in told["changes"]


async def test_however_many_failures_came_after_them_successes_are_compared(api: ServedApi) -> None:
    ours = await policy(api)
    for price in (1, 2):
        await ran(api, ours, {"price": price})
    fail = Result(Status.FAIL, "https://a.example/", 1, error_code="failed", error_message="")
    rows = [NewResult(JobId(f"job_{n}"), 1, None, ours, JobState.FAILED, "", fail) for n in range(250)]
    await api.app.database.run(lambda tx: ResultStore().insert(tx, rows))
    status, told = await api.ask(f"/api/v1/policies/{ours}/diff")
    assert (status, told["changes"]) == (200, [{"path": "price", "from": 1, "to": 2}])


async def test_a_difference_of_unknown_or_foreign_results_is_rejected(api: ServedApi) -> None:
    ours, other = await policy(api), await policy(api)
    foreign = await ran(api, other, {"price": 9})
    for path in (f"{ours}/diff", f"{ours}/diff?from={foreign}", "pol_x/diff", "pol_x/results"):
        status, problem = await api.ask(f"/api/v1/policies/{path}")
        assert (status, problem["code"]) == (404, "not_found")
    status, problem = await api.ask(f"/api/v1/policies/{ours}/diff?since=1")
    assert (status, problem["field"]) == (422, "since")


async def test_results_of_a_policy_outlive_their_jobs_and_the_last_success_outlives_all(api: ServedApi) -> None:
    ours, gone = await policy(api), await policy(api)
    for price in (1, 2):
        await ran(api, ours, {"price": price})
    await ran(api, ours, None, status="fail")
    await ran(api, gone, {"price": 7})
    await api.ask(f"/api/v1/policies/{gone}", method="DELETE")
    assert await api.app.job_admin.purge(JobFilter()) == 4
    _, page = await api.ask(f"/api/v1/policies/{ours}/results")
    assert len(page["items"]) == 3
    later = api.app.clock.micros() + 1_000_000
    retention = ResultRetention(timedelta(0))
    assert [await retention.prune(api.app.database, later, 2) for _ in range(3)] == [(1, True), (2, True), (0, False)]
    assert await retention.prune(api.app.database, later, 100) == (0, False)
    _, page = await api.ask(f"/api/v1/policies/{ours}/results")
    assert [one["data"] for one in page["items"]] == [{"price": 2}]


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        ({}, {}, []),
        ("raw", "raw", []),
        ("raw", "text", [""]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1]}}, ["a.b[1]"]),
        ({"a": None}, {}, ["a"]),
        (None, {"a": 1}, [""]),
    ],
)
def test_changes_are_named_by_their_paths(before: Any, after: Any, paths: list[str]) -> None:
    assert [change.path for change in changes_of(before, after)] == paths
