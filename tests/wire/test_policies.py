"""Policies over HTTP: created, shown, changed, run and removed; import and export of files."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import ServedApi, served_api

HERE = "/api/v1/policies"
KEY = "Idempotency-Key"
CSV = {"Content-Type": "text/csv"}


async def test_a_policy_is_made_looked_at_changed_run_and_removed(api: ServedApi) -> None:
    status, made = await api.ask(HERE, {"url": "http://example.org/", "frequency": "6h", "labels": {"team": "a"}})
    assert (status, made["enabled"], made["freshness"]) == (201, True, {"age_seconds": None, "stale": False})
    path = f"{HERE}/{made['id']}"
    _, listed = await api.ask(f"{HERE}?project=default&enabled=true")
    assert [one["id"] for one in listed["items"]] == [made["id"]]
    _, changed = await api.ask(path, {"url": "http://example.org/", "frequency": "1h"}, method="PUT")
    assert (changed["frequency"], changed["labels"]) == ("1h", {})
    _, first = await api.ask(f"{path}/run", method="POST")
    _, again = await api.ask(f"{path}/run", method="POST")
    assert (first["duplicate"], again) == (False, first | {"duplicate": True})
    assert (await api.ask(path))[1]["live_job_id"] == first["job_id"]
    _, off = await api.ask(f"{path}/disable", method="POST")
    assert (off["enabled"], off["next_run_at"]) == (False, None)
    assert (await api.ask(f"{path}/enable", method="POST"))[1]["next_run_at"] is not None
    assert (await api.send("DELETE", path)).status == 204
    assert (await api.ask(path))[0] == 404


async def test_secrets_of_a_policy_are_not_shown_and_stay_when_something_else_is_changed(api: ServedApi) -> None:
    config = {"headers": {"Authorization": "Bearer sesame", "Accept-Language": "de"}}
    _, made = await api.ask(HERE, {"url": "http://example.org/", "frequency": "6h", "crawl_config": config})
    assert "sesame" not in str(made)
    assert made["crawl_config"]["headers"]["Accept-Language"] == "de"
    change = {"cron": "30 6 * * *", "priority_base": 70, "labels": {"team": "b"}, "not_after": "2200-01-01T00:00:00Z"}
    status, changed = await api.ask(f"{HERE}/{made['id']}", change, method="PATCH")
    assert (status, changed["frequency"]) == (200, None)
    assert {name: changed[name] for name in change} == change
    assert (await api.app.plan.policies.get(made["id"])).form.crawl_config == config


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"frequency": None}, "frequency"),
        ({"frequency": "0"}, "frequency"),
        ({"frequency": "1h", "cron": "0 * * * *"}, "frequency"),
        ({"url": "http://10.0.0.1/"}, "url"),
        ({"crawl_config": {"headers": {"A": "***"}}}, "crawl_config.headers"),
        ({"lock_ttl": "1s"}, "lock_ttl"),
        ({"priority_base": 101}, "priority_base"),
        ({"next_run_at": None}, "next_run_at"),
    ],
)
async def test_a_change_that_cannot_be_taken_is_refused_and_changes_nothing(
    api: ServedApi, body: dict[str, Any], field: str
) -> None:
    _, made = await api.ask(HERE, {"url": "http://example.org/", "frequency": "6h"})
    status, problem = await api.ask(f"{HERE}/{made['id']}", body, method="PATCH")
    assert (status, problem.get("field")) == (422, field)
    assert (await api.ask(f"{HERE}/{made['id']}"))[1]["frequency"] == "6h"


@pytest.mark.parametrize(
    ("url", "field"), [("http://example.org/", "crawl_config.headers"), ("http://example.org/?api_key=sesame", "url")]
)
async def test_a_masked_secret_is_not_taken_for_the_secret(api: ServedApi, url: str, field: str) -> None:
    form = {"url": url, "frequency": "6h", "crawl_config": {"headers": {"Authorization": "Bearer sesame"}}}
    _, made = await api.ask(HERE, form)
    status, problem = await api.ask(f"{HERE}/{made['id']}", {name: made[name] for name in form}, method="PUT")
    assert (status, problem["field"]) == (422, field)


async def test_a_signal_is_taken(api: ServedApi) -> None:
    status, told = await api.ask("/api/v1/signals", {"label": "team=a", "boost": 20.0})
    assert (status, told["subject"]) == (200, "label:team=a")
    for body in ({"boost": 1.0}, {"label": "team", "boost": 1.0}, {"label": "a=b", "boost": 1e9}):
        assert (await api.ask("/api/v1/signals", body))[0] == 422


async def test_the_label_of_a_proxy_and_the_rules_of_priorities_are_the_operators(
    sqlite_url: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"importance": {"per": 0.5, "most": 60}}')
    given = {"SHOAL_PROXIES": "eu=http://me:hunter2@10.0.0.1:3128", "SHOAL_PRIORITY_RULES": str(rules)}
    async with served_api(sqlite_url, **given) as api:
        body = {"url": "http://example.org/", "frequency": "6h", "crawl_config": {"proxy": "eu"}, "priority_base": 80}
        status, policy = await api.ask(HERE, body)
        assert (status, policy["crawl_config"]) == (201, {"proxy": "eu"})
        assert (await api.ask("/api/v1/priority-rules"))[1] == {
            "items": [{"fact": "importance", "per": 0.5, "limit": 60, "most": 60}]
        }
        job_id = (await api.ask(f"{HERE}/{policy['id']}/run", {}))[1]["job_id"]
        explained = (await api.ask(f"/api/v1/jobs/{job_id}/explain"))[1]
        assert (explained["priority"], explained["priority_parts"]) == (40, {"importance": 40.0})


async def test_a_file_goes_in_and_out(api: ServedApi) -> None:
    lines = b"url,frequency,labels\r\nhttp://example.org/a,6h,team=a\r\nhttp://example.org/b,1d,\r\n"
    taken = await api.send("POST", f"{HERE}/import", headers=CSV, raw=lines)
    assert taken.json == {"made": 2, "bad": 0, "problems": []}
    out = await api.send("GET", f"{HERE}/export?format=csv")
    assert out.headers["content-type"].startswith("text/csv")
    again = await api.send("POST", f"{HERE}/import", headers=CSV, raw=out.body)
    assert again.json["made"] == 2
    rows = (await api.send("GET", f"{HERE}/export")).body.splitlines()
    assert len(rows) == 4


async def test_a_file_that_is_sent_again_with_its_key_is_kept_once(api: ServedApi) -> None:
    lines, headers = b"url,frequency\r\nhttp://example.org/a,6h\r\nhttp://example.org/b,1d\r\n", CSV | {KEY: "k"}
    first = await api.send("POST", f"{HERE}/import", headers=headers, raw=lines)
    again = await api.send("POST", f"{HERE}/import", headers=headers, raw=lines)
    assert (again.status, again.body, again.json["made"]) == (200, first.body, 2)
    assert len((await api.ask(HERE))[1]["items"]) == 2
    other = await api.send("POST", f"{HERE}/import", headers=headers, raw=lines + b"http://example.org/c,1d\r\n")
    assert (other.status, other.json["field"]) == (422, KEY)


async def test_a_bad_line_is_named_and_nothing_is_kept_unless_it_is_skipped(api: ServedApi) -> None:
    lines = b"url,frequency\r\nhttp://example.org/a,6h\r\nftp://example.org/b,6h\r\n"
    refused = await api.send("POST", f"{HERE}/import", headers=CSV, raw=lines)
    assert (refused.status, refused.json["field"], refused.json["made"]) == (422, "line 3", 0)
    assert (await api.ask(HERE))[1]["items"] == []
    taken = await api.send("POST", f"{HERE}/import?bad=skip", headers=CSV, raw=lines)
    assert (taken.json["made"], [bad["line"] for bad in taken.json["problems"]]) == (1, [3])


async def test_a_file_of_another_kind_is_refused(api: ServedApi) -> None:
    answered = await api.send("POST", f"{HERE}/import", headers={"Content-Type": "application/zip"}, raw=b"PK")
    assert answered.status == 415


async def test_a_file_over_the_limit_is_refused_with_the_setting_to_raise(sqlite_url: str) -> None:
    head, line = b"url,frequency\r\n", b"http://example.org/a,6h\r\n"
    async with served_api(sqlite_url, SHOAL_MAX_IMPORT="1KB") as api:
        refused = await api.send("POST", f"{HERE}/import", headers=CSV, raw=head + line * 50)
        assert (refused.status, refused.json["code"]) == (413, "too_large")
        assert "larger than 1000 bytes; split it, or raise SHOAL_MAX_IMPORT" in refused.json["detail"]
        assert (await api.ask(HERE))[1]["items"] == []
        taken = await api.send("POST", f"{HERE}/import", headers=CSV, raw=head + line)
        assert taken.json["made"] == 1


async def test_a_policy_that_is_asked_for_again_with_its_key_is_made_once(api: ServedApi) -> None:
    body, key = {"url": "http://example.org/", "frequency": "6h"}, {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*[api.send("POST", HERE, body, key) for _ in range(5)])
    assert {(one.status, one.body) for one in answers} == {(201, answers[0].body)}
    assert len((await api.ask(HERE))[1]["items"]) == 1


async def test_the_gate_of_a_policy_must_exist(api: ServedApi) -> None:
    body = {"seeds": ["http://example.org/"], "frequency": "6h", "crawl_config": {"analyze": True, "gate": "none"}}
    status, problem = await api.ask(HERE, body)
    assert (status, problem["field"]) == (422, "crawl_config.gate")
    assert "which does not exist; create it with POST /api/v1/gates first" in problem["detail"]
    assert (await api.ask(HERE))[1]["items"] == []
    await api.ask("/api/v1/gates", {"name": "none", "fail": ["broken_link"]})
    status, made = await api.ask(HERE, body)
    assert (status, made["crawl_config"]["gate"]) == (201, "none")
    await api.ask("/api/v1/gates/none", method="DELETE")
    for method, change in (("PUT", body), ("PATCH", {"crawl_config": body["crawl_config"]})):
        status, problem = await api.ask(f"{HERE}/{made['id']}", change, method=method)
        assert (status, problem["field"]) == (422, "crawl_config.gate")
    assert (await api.ask(f"{HERE}/{made['id']}", {"priority_base": 9}, method="PATCH"))[0] == 200


async def test_a_site_is_run_now_by_a_crawl(api: ServedApi) -> None:
    _, made = await api.ask(HERE, {"seeds": ["http://example.org/"], "frequency": "6h"})
    _, run = await api.ask(f"{HERE}/{made['id']}/run", method="POST")
    assert (run["job_id"], run["duplicate"]) == (None, False)
    assert (await api.ask(f"/api/v1/crawls/{run['crawl_id']}"))[1]["seeds"] == ["http://example.org/"]
