"""Job groups and analyses over HTTP."""

from typing import Any

from shoal.page_jobs.result import Result, ResultDelivery, Status
from tests.support.api import ServedApi, served_api

URL = "http://127.0.0.1:9/a"
RULES = {"fields": {"name": {"css": "h1", "required": True}}}


async def settle(api: ServedApi, **facts: Any) -> None:
    """Execute all waiting jobs."""
    leases = await api.app.queue.lease("w1", ["page"], ["shared"], 100)
    found = [ResultDelivery(lease.fence, Result(Status.SUCCESS, URL, 1, http_status=200, **facts)) for lease in leases]
    await api.app.page_jobs.ingest.settle("w1", found)


async def test_urls_become_a_group_that_can_be_followed_to_its_end(api: ServedApi) -> None:
    made = await api.send("POST", "/api/v1/jobs", {"urls": [URL], "rule_set": RULES, "labels": {"team": "a"}})
    assert made.status == 202
    group = made.json
    assert made.headers["location"] == f"/api/v1/groups/{group['id']}"
    assert (group["state"], group["total"], group["jobs"]) == ("open", 1, {"pending": 1})
    _, page = await api.ask(f"/api/v1/groups/{group['id']}/results")
    assert page["items"] == []
    assert page["next"] is not None, "something will come"
    await settle(api, data={"name": "Anchor"})
    _, page = await api.ask(f"/api/v1/groups/{group['id']}/results?cursor={page['next']}")
    assert [item["data"] for item in page["items"]] == [{"name": "Anchor"}]
    assert page["next"] is None
    _, seen = await api.ask(f"/api/v1/groups/{group['id']}")
    assert (seen["state"], seen["jobs"]) == ("completed", {"done": 1})
    _, listed = await api.ask("/api/v1/groups?state=completed")
    assert [one["id"] for one in listed["items"]] == [group["id"]]


async def test_every_attempt_at_a_job_can_be_looked_at(api: ServedApi) -> None:
    await api.ask("/api/v1/jobs", {"urls": [URL], "max_retry": 1})
    [lease] = await api.app.queue.lease("w1", ["page"], ["shared"], 1)
    lost = Result(Status.FAIL, URL, 1, error_code="connect_error", error_message="No.")
    await api.app.page_jobs.ingest.settle("w1", [ResultDelivery(lease.fence, lost)])
    _, page = await api.ask(f"/api/v1/jobs/{lease.fence.job_id}/results")
    [item] = page["items"]
    assert (item["state"], item["meta"]["error"]["code"]) == ("pending", "connect_error")


async def test_cancelling_a_group_again_changes_nothing(api: ServedApi) -> None:
    _, group = await api.ask("/api/v1/jobs", {"urls": [URL], "group": "monday"})
    for _ in range(2):
        status, seen = await api.ask("/api/v1/groups/monday/cancel", method="POST")
        assert (status, seen["state"], seen["jobs"]) == (200, "cancelled", {"cancelled": 1})
    assert group["id"] == "monday"


async def test_a_batch_is_held_back_while_too_many_jobs_wait(store_url: str) -> None:
    async with served_api(store_url, GRPC_ENABLED="true") as api:
        api.app.fleet.view.install([], api.app.settings.fleet.shared_depth_max)
        key = {"Idempotency-Key": "k1"}
        refused = await api.send("POST", "/api/v1/jobs", {"urls": [URL]}, key)
        assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (429, "back_pressure", "5")
        assert "wait in the shared lane" in refused.json["detail"]
        api.app.fleet.view.install([], 0)
        assert (await api.send("POST", "/api/v1/jobs", {"urls": [URL]}, key)).status == 202


async def test_the_same_key_makes_one_group(api: ServedApi) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await api.send("POST", "/api/v1/jobs", {"urls": [URL]}, key)
    again = await api.send("POST", "/api/v1/jobs", {"urls": [URL]}, key)
    assert (first.status, first.json["id"]) == (again.status, again.json["id"])
    assert len((await api.ask("/api/v1/groups"))[1]["items"]) == 1


async def test_an_id_that_is_taken_is_refused(api: ServedApi) -> None:
    await api.ask("/api/v1/jobs", {"urls": [URL], "group": "monday"})
    status, problem = await api.ask("/api/v1/jobs", {"urls": [URL], "group": "monday"})
    assert (status, problem["code"]) == (409, "already_exists")


async def test_unknown_groups_and_analyses_are_reported(api: ServedApi) -> None:
    for path in (
        "groups/grp_x",
        "groups/grp_x/results",
        "analyses/anl_x",
        "analyses/anl_x/findings",
        "jobs/job_x/results",
    ):
        status, problem = await api.ask(f"/api/v1/{path}")
        assert (status, problem["code"]) == (404, "not_found")


async def test_secrets_of_headers_are_not_shown(api: ServedApi) -> None:
    config = {"headers": {"Authorization": "Bearer abc"}}
    _, group = await api.ask("/api/v1/jobs", {"urls": [URL], "crawl_config": config})
    assert group["crawl_config"]["headers"] == {"Authorization": "***"}


async def test_an_analysis_is_listed_and_shown_with_its_findings(api: ServedApi) -> None:
    _, made = await api.ask("/api/v1/crawls", {"seeds": [URL], "start": False})
    crawl = (await api.app.crawls.get(made["id"])).crawl
    await api.app.database.run(lambda tx: api.app.audit.analyses.begin(tx, crawl.id))
    _, listed = await api.ask(f"/api/v1/analyses?crawl_id={crawl.id}&state=pending")
    [item] = listed["items"]
    _, seen = await api.ask(f"/api/v1/analyses/{item['id']}")
    assert (seen["state"], seen["crawl_id"], seen["findings"]) == ("pending", crawl.id, None)
    assert (await api.ask(f"/api/v1/analyses/{item['id']}/findings"))[1] == {"items": [], "next": None}
