"""Gates and analyses over HTTP."""

from typing import Any

from shoal.audit.analyses import KIND
from shoal.crawl.crawl import CrawlConfig
from shoal.runners import analysis_runner, make_walker
from tests.support.api import Served

RULES: dict[str, Any] = {"rules": [{"metric": "failed_pages", "op": "<=", "threshold": 0}], "ignore": ["thin_content"]}


async def test_a_gate_is_made_shown_replaced_and_removed(api: Served) -> None:
    status, made = await api.ask("/api/v1/gates", {"name": "release", **RULES})
    assert (status, made["name"], made["ignore"], made["min_pages"]) == (201, "release", ["thin_content"], 1)
    assert made["rules"][0]["metric"] == "failed_pages"
    status, problem = await api.ask("/api/v1/gates", {"name": "release", **RULES})
    assert (status, problem["code"]) == (409, "already_exists")
    status, replaced = await api.ask("/api/v1/gates/release", {"fail": ["broken_link"]}, method="PUT")
    assert (status, replaced["rules"], replaced["fail"]) == (200, [], ["broken_link"])
    assert (await api.ask("/api/v1/gates"))[1]["items"] == [replaced]
    assert (await api.ask("/api/v1/gates/release"))[1] == replaced
    assert (await api.ask("/api/v1/gates/release", method="DELETE"))[0] == 204
    assert (await api.ask("/api/v1/gates/release"))[0] == 404


async def test_a_bad_gate_is_refused_by_its_field(api: Served) -> None:
    for rule, field in (
        ({"metric": "broken_linkz", "op": "<=", "threshold": 0}, "rules[0].metric"),
        ({"metric": "pages", "op": "<=", "threshold": "many"}, "rules[0].threshold"),
        ({"metric": "pages", "op": "<="}, "rules[0].threshold"),
    ):
        status, problem = await api.ask("/api/v1/gates", {"name": "bad", "rules": [rule]})
        assert (status, problem["field"]) == (422, field)
    status, problem = await api.ask("/api/v1/crawls", {"seeds": ["https://a.test/"], "analyze": True, "gate": "none"})
    assert (status, problem["field"]) == (422, "gate")
    assert (await api.ask("/api/v1/crawls"))[1]["items"] == []


async def test_a_crawl_that_has_ended_is_analyzed_on_request(api: Served) -> None:
    app = api.app
    crawl = await app.crawls.submit(CrawlConfig(seeds=["https://a.invalid/"]))
    status, problem = await api.ask("/api/v1/analyses", {"crawl_id": crawl.id})
    assert (status, problem["code"]) == (409, "state_conflict")
    [lease] = await app.queue.lease("test", ["crawl"], ["shared"], 1)
    await make_walker(app, crawl, lease.fence, lambda: True).run()

    await api.ask("/api/v1/gates", {"name": "release", **RULES})
    status, problem = await api.ask("/api/v1/analyses", {"crawl_id": crawl.id, "gate": "release", "rules": RULES})
    assert (status, problem["field"]) == (422, "gate")
    status, made = await api.ask("/api/v1/analyses", {"crawl_id": crawl.id, "gate": "release", "baseline": "previous"})
    assert (status, made["state"], made["gate"], made["site"]) == (202, "pending", "release", "https://a.invalid/")
    [lease] = await app.queue.lease("test", [KIND], ["shared"], 1)
    await (await analysis_runner(app, lease, lambda: True)).run()

    _, shown = await api.ask(f"/api/v1/analyses/{made['id']}")
    assert (shown["state"], shown["verdict"]["outcome"]) == ("success", "inconclusive")
    assert shown["verdict"]["reasons"] == ["The crawl has 0 pages; the gate needs 1."]
    assert shown["verdict"]["rules"][0]["value"] == 1
    assert [code["code"] for code in shown["codes"]] == ["page_unreachable"]
    assert shown["metrics"]["failed_pages"] == 1
    _, listed = await api.ask(f"/api/v1/analyses/{made['id']}/findings?limit=1&severity=error")
    [finding] = listed["items"]
    assert (finding["code"], finding["page"], listed["next"]) == ("page_unreachable", "https://a.invalid/", None)
    assert (await api.ask(f"/api/v1/analyses/{made['id']}/findings?code=thin_content"))[1]["items"] == []
    assert (await api.ask(f"/api/v1/analyses/{made['id']}/findings?cursor=MTI"))[0] == 422
