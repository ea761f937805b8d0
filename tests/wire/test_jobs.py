"""Jobs over HTTP: shown, explained, cancelled, retried, purged and limited, with the errors of each step."""

from typing import Any

from shoal.app import opened
from shoal.queue.job import LeaseRequest
from shoal.queue.states import fail
from shoal.serve.stats import SHORTEST
from tests.support.api import ServedApi, listening

JOBS = "/api/v1/jobs"
QUOTAS = "/api/v1/quotas"


async def made(api: ServedApi, count: int = 1, **config: Any) -> list[str]:
    """Page jobs; their ids, newest first."""
    urls = [f"http://127.0.0.1:{9000 + n}/" for n in range(count)]
    status, group = await api.ask(JOBS, {"urls": urls, **config})
    assert status == 202
    return [job["id"] for job in (await api.ask(f"{JOBS}?run_id={group['id']}"))[1]["items"]]


async def killed(api: ServedApi, count: int, error: str = "no route") -> None:
    """Let this many page jobs fail for good."""
    leases = await api.app.queue.lease("node-a/1", ["page"], ["shared"], count)
    assert len(leases) == count
    moves = [fail(lease.fence.job_id, lease.fence.epoch, error) for lease in leases]
    await api.app.queue.finish_and_lease(moves, LeaseRequest("node-a/1", ["page"]), 0)


async def test_jobs_are_listed_in_pages_and_by_what_they_are(api: ServedApi) -> None:
    ids = await made(api, 3)
    await api.ask("/api/v1/crawls", {"seeds": ["http://127.0.0.1:9/"]})
    first = (await api.ask(f"{JOBS}?kind=page&limit=2"))[1]
    assert [job["id"] for job in first["items"]] == ids[:2]
    rest = (await api.ask(f"{JOBS}?kind=page&limit=2&cursor={first['next']}"))[1]
    assert ([job["id"] for job in rest["items"]], rest["next"]) == (ids[2:], None)
    assert [job["kind"] for job in (await api.ask(f"{JOBS}?kind=crawl"))[1]["items"]] == ["crawl"]
    assert (await api.ask(f"{JOBS}?state=locked"))[1]["items"] == []
    assert first["items"][0]["url"].startswith("http://127.0.0.1:900")


async def test_a_job_is_shown_with_its_history_and_explained(api: ServedApi) -> None:
    [job_id] = await made(api)
    explained = (await api.ask(f"{JOBS}/{job_id}/explain"))[1]
    assert (explained["state"], explained["reason"]) == ("pending", "no_worker")
    await killed(api, 1)
    status, job = await api.ask(f"{JOBS}/{job_id}")
    assert (status, job["state"], job["error"]) == (200, "failed", "no route")
    [grant] = job["history"]
    assert (grant["holder"], grant["ended"], grant["error"]) == ("node-a/1", "failed", "no route")


async def test_a_dead_letter_runs_again_with_all_its_attempts(api: ServedApi) -> None:
    [job_id] = await made(api)
    assert (await api.ask(f"{JOBS}/{job_id}/retry", method="POST"))[0] == 409, "it lives"
    await killed(api, 1)
    assert [job["id"] for job in (await api.ask(f"{JOBS}?dead=true"))[1]["items"]] == [job_id]
    status, job = await api.ask(f"{JOBS}/{job_id}/retry", method="POST")
    assert (status, job["state"], job["attempts"]) == (200, "pending", 0)
    assert (await api.ask(f"{JOBS}?dead=true"))[1]["items"] == []


async def test_dead_letters_are_retried_and_purged_by_what_they_are(api: ServedApi) -> None:
    await made(api, 5)
    await killed(api, 5)
    assert await api.ask(f"{JOBS}/retry", {"kind": "page", "limit": 2}) == (200, {"retried": 2})
    assert await api.ask(f"{JOBS}/retry", {"kind": "crawl"}) == (200, {"retried": 0})
    assert await api.ask(f"{JOBS}/purge", {"kind": "page", "older_than_seconds": 3600}) == (200, {"purged": 0})
    assert await api.ask(f"{JOBS}/purge", {"kind": "page"}) == (200, {"purged": 0}), "their group is not over"
    [group] = (await api.ask("/api/v1/groups"))[1]["items"]
    await api.ask(f"/api/v1/groups/{group['id']}/cancel", method="POST")
    assert await api.ask(f"{JOBS}/purge", {"kind": "page"}) == (200, {"purged": 3})
    assert await api.ask(f"{JOBS}/purge", method="POST") == (200, {"purged": 0})
    states = [job["state"] for job in (await api.ask(f"{JOBS}?kind=page"))[1]["items"]]
    assert states == ["cancelled", "cancelled"]
    assert {entry.action.name for entry in await api.app.access.audit_log.newest()} == {
        "jobs.retried",
        "group.cancelled",
        "jobs.purged",
    }


async def test_a_job_is_cancelled_once(api: ServedApi) -> None:
    [job_id] = await made(api)
    status, job = await api.ask(f"{JOBS}/{job_id}/cancel", method="POST")
    assert (status, job["state"], job["state_reason"]) == (200, "cancelled", "asked")
    assert (await api.ask(f"{JOBS}/{job_id}/cancel", method="POST"))[0] == 200
    [other] = await made(api)
    await killed(api, 1)
    assert (await api.ask(f"{JOBS}/{other}/cancel", method="POST"))[0] == 409


async def test_a_job_of_a_crawl_moves_with_its_crawl(api: ServedApi) -> None:
    await api.ask("/api/v1/crawls", {"seeds": ["http://127.0.0.1:9/"]})
    [job] = (await api.ask(f"{JOBS}?kind=crawl"))[1]["items"]
    for verb in ("cancel", "retry"):
        status, problem = await api.ask(f"{JOBS}/{job['id']}/{verb}", method="POST")
        assert (status, problem["code"]) == (409, "state_conflict")
        assert "shoal crawls" in problem["detail"]
    assert (await api.ask(f"{JOBS}/{job['id']}"))[1]["state"] == "pending"


async def test_an_unknown_job_is_not_found(api: ServedApi) -> None:
    for job_id in ("job_nobody", "%00", "..%2f..%2fx"):
        for method, path in (("GET", ""), ("GET", "/explain"), ("POST", "/cancel"), ("POST", "/retry")):
            assert (await api.send(method, f"{JOBS}/{job_id}{path}")).status == 404


async def test_jobs_that_cannot_be_meant_are_refused(api: ServedApi) -> None:
    for path, body in (
        (f"{JOBS}/purge", {"state": "pending"}),
        (f"{JOBS}/purge", {"run_id": "x"}),
        (f"{JOBS}/purge", {"older_than_seconds": -1}),
        (f"{JOBS}/retry", {"limit": 0}),
        (f"{JOBS}/retry", {"state": "tired"}),
        (f"{JOBS}/retry", {"kind": "\x00"}),
    ):
        assert (await api.ask(path, body))[0] == 422, body
    for query in ("dead=maybe", "state=tired", "limit=0", "cursor=%00", "kind=%00"):
        assert (await api.ask(f"{JOBS}?{query}"))[0] == 422, query


async def test_a_quota_is_set_listed_and_removed(api: ServedApi) -> None:
    status, quota = await api.ask(f"{QUOTAS}/project:shop", {"most": 1}, method="PUT")
    assert (status, quota) == (200, {"scope": "project:shop", "limit": 1, "most": 1, "locked": 0, "parked": 0})
    await api.ask(f"{QUOTAS}/label:team=%C3%A9quipe%2Fnord", {"most": 0}, method="PUT")
    first = (await api.ask(f"{QUOTAS}?limit=1"))[1]
    rest = (await api.ask(f"{QUOTAS}?limit=1&cursor={first['next']}"))[1]
    assert [one["scope"] for one in first["items"] + rest["items"]] == ["label:team=équipe/nord", "project:shop"]
    await made(api, 2, project="shop")
    assert len(await api.app.queue.lease("node-a/1", ["page"], ["shared"], 5)) == 1
    [shop] = [one for one in (await api.ask(QUOTAS))[1]["items"] if one["scope"] == "project:shop"]
    assert (shop["locked"], shop["parked"]) == (1, 1)
    assert await api.ask(f"{QUOTAS}/project:shop", method="DELETE") == (204, None)
    assert (await api.ask(f"{QUOTAS}/project:shop", method="DELETE"))[0] == 404
    assert len(await api.app.queue.lease("node-b/1", ["page"], ["shared"], 5)) == 1


async def test_a_quota_that_cannot_be_is_refused(api: ServedApi) -> None:
    for scope, body in (
        ("everything", {"most": 1}),
        ("project:", {"most": 1}),
        ("project:shop", {"most": -1}),
        ("project:shop", {"most": 10**9}),
        ("project:shop", {"most": "5"}),
        ("project:shop", {}),
        ("project:shop", {"most": 1, "least": 0}),
    ):
        status, problem = await api.ask(f"{QUOTAS}/{scope}", body, method="PUT")
        assert (status, problem["code"]) == (422, "invalid_input"), (scope, body)
    assert (await api.ask(QUOTAS))[1]["items"] == []


async def test_crawls_and_jobs_are_counted(api: ServedApi) -> None:
    assert (await api.ask("/api/v1/stats"))[1]["jobs"] == {}
    await made(api, 3)
    await killed(api, 1)
    await api.ask("/api/v1/crawls", {"seeds": ["http://127.0.0.1:9/"], "start": False})
    assert (await api.ask("/api/v1/stats"))[1]["jobs"] == {}, "as it was a moment ago"
    async with opened(api.app.settings) as app, listening(app) as other:
        counted = (await other.ask("/api/v1/stats"))[1]
    assert (counted["crawls"], counted["jobs"]) == ({"pending": 1}, {"page": {"failed": 1, "pending": 2}})
    assert SHORTEST < 10
