"""Gates and analyses over HTTP."""

import sys
from pathlib import Path
from typing import Any

from shoal.audit.analyses import KIND
from shoal.crawl.crawl import CrawlConfig
from shoal.process.runners import analysis_runner, make_walker
from tests.support.api import ServedApi, served_api

RULES: dict[str, Any] = {"rules": [{"metric": "failed_pages", "op": "<=", "threshold": 0}], "ignore": ["thin_content"]}


async def test_a_gate_is_made_shown_replaced_and_removed(api: ServedApi) -> None:
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


async def test_a_bad_gate_is_refused_by_its_field(api: ServedApi) -> None:
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


async def test_a_crawl_that_has_ended_is_analyzed_on_request(api: ServedApi) -> None:
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


BAD = {
    "garbage": ("print('what?')", "Line 1 of its output is not a finding: "),
    "endless": ("while True: pass", "It was stopped after 5s."),
    "greedy": ("held = bytearray(2_000_000_000)", "It ended with exit code 1: MemoryError."),
    "killed": ("import sys; sys.exit(137)", "It was killed, probably because it used too much memory."),
}


async def test_bad_analyzers_are_named_with_the_reason_and_the_findings_of_the_others_are_kept(
    store_url: str, tmp_path: Path
) -> None:
    programs = {name: program for name, (program, _) in BAD.items()} | {"good": """print('{"code": "seen"}')"""}
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program)
    commands = ", ".join(f"{name}='{sys.executable}' -S {tmp_path}/{name}.py" for name in programs)
    limits = {"SHOAL_ANALYZER_TIMEOUT": "5s", "SHOAL_ANALYZER_MEMORY": "500MB", "WORKER_JOB_ATTEMPTS": "1"}
    async with served_api(store_url, SHOAL_ANALYZERS=commands, **limits) as api:
        analysis_id, _ = await analyzed(api)
        _, shown = await api.ask(f"/api/v1/analyses/{analysis_id}")
        report = await api.send("GET", f"/api/v1/analyses/{analysis_id}/report?format=markdown")
    assert shown["state"] == "failed"
    assert shown["error"]["message"].startswith('Analyzer "')
    errors = {one["analyzer"]: one["error"] or "" for one in shown["analyzers"]}
    for name, (_, says) in BAD.items():
        assert errors[name].startswith(says), errors[name]
        assert f"Analyzer `{name}` failed: " in report.body.decode()
    assert errors["good"] == errors["responses"] == ""
    assert {"good.seen", "page_unreachable"} <= {code["code"] for code in shown["codes"]}


LEAVING = """
import os
for name in ("raw.html", "..html", "bad name.txt"):
    with open(os.path.join(os.environ["SHOAL_ARTIFACTS_DIR"], name), "w") as file:
        file.write("<script>alert(1)</script>")
"""


async def test_files_of_an_analyzer_are_downloaded_and_go_with_their_crawl(store_url: str, tmp_path: Path) -> None:
    program, folder = tmp_path / "leaving.py", tmp_path / "artifacts"
    program.write_text(LEAVING)
    settings = {"SHOAL_ANALYZERS": f"mine='{sys.executable}' {program}", "SHOAL_ARTIFACTS": str(folder)}
    async with served_api(store_url, **settings) as api:
        analysis_id, crawl_id = await analyzed(api)
        _, shown = await api.ask(f"/api/v1/analyses/{analysis_id}")
        [mine] = [one for one in shown["analyzers"] if one["analyzer"] == "mine"]
        assert (mine["error"], mine["artifacts"]) == (None, [{"name": "mine-raw.html", "bytes": 25}])
        assert {tuple(one["artifacts"]) for one in shown["analyzers"] if one["analyzer"] != "mine"} == {()}
        here = f"/api/v1/analyses/{analysis_id}/artifacts"
        found = await api.send("GET", f"{here}/mine-raw.html")
        assert (found.status, found.body) == (200, b"<script>alert(1)</script>")
        assert found.headers["content-type"] == "application/octet-stream"
        assert found.headers["content-disposition"] == 'attachment; filename="mine-raw.html"'
        assert found.headers["content-security-policy"] == "sandbox"
        assert found.headers["x-content-type-options"] == "nosniff"
        (folder / analysis_id / "unlisted").write_text("of an earlier attempt")
        for path in (f"{here}/unlisted", f"{here}/..%2F..%2Fshoal.db", "/api/v1/analyses/none/artifacts/mine-raw.html"):
            assert (await api.send("GET", path)).status == 404
        assert (await api.ask(f"/api/v1/crawls/{crawl_id}", method="DELETE"))[0] == 204
        assert list(folder.iterdir()) == []


async def analyzed(api: ServedApi) -> tuple[str, str]:
    """Crawl and analyze a host that does not exist; return the ids of the analysis and the crawl."""
    app = api.app
    crawl = await app.crawls.submit(CrawlConfig(seeds=["https://a.invalid/"]))
    [lease] = await app.queue.lease("test", ["crawl"], ["shared"], 1)
    await make_walker(app, crawl, lease.fence, lambda: True).run()
    _, made = await api.ask("/api/v1/analyses", {"crawl_id": crawl.id})
    [lease] = await app.queue.lease("test", [KIND], ["shared"], 1)
    await (await analysis_runner(app, lease, lambda: True)).run()
    return made["id"], crawl.id
