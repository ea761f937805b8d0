"""Scrapes over HTTP: the content of one page, by a worker, while the client waits."""

import asyncio
import base64
import gc
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.page_jobs import scrapes
from shoal.page_jobs.bots import Pull
from shoal.page_jobs.executor import Outcome, PageJobExecutor
from shoal.page_jobs.leasing import PageTask
from shoal.page_jobs.store import ResultRetention
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.store import JobStore
from shoal.work import page_job_loop
from tests.packages.conftest import Answer, ScriptedSite, serving
from tests.support.api import ServedApi, served_api
from tests.support.converters import LARGE, SLOW, running_converter
from tests.support.http_client import HttpAnswer
from tests.support.page_loop import page_loop
from tests.support.refused_results import refuse_results

SCRAPE = "/api/v1/scrape"
PAGE = (
    "<!doctype html><html lang=en><title>About us</title><h1>About us</h1><main><p>We make anchors of iron, and we "
    'have made them for a hundred years in the same small town.</p></main><a href="/home" rel="nofollow">Home</a>'
)
HTML = {"Content-Type": "text/html; charset=utf-8"}
QUICK = {"SHOAL_PAGE_SPEED": "max", "SHOAL_QUEUE_POLL": "50ms"}


def script(path: str) -> Answer | None:
    answers: dict[str, Answer] = {
        "/about": (200, HTML, PAGE),
        "/away": (302, {"Location": "ftp://example.com/"}, ""),
        "/old": (301, {"Location": "/about"}, ""),
        "/data.json": (200, {"Content-Type": "application/json"}, '{"price": 3.5}'),
        "/picture": (200, {"Content-Type": "image/png"}, b"\x89PNG\x00\x01"),
        "/busy": (429, {"Retry-After": "600"}, "later"),
        "/endless": (200, HTML, b"<p>" + b"a" * 50_000_000),
        "/slow": (200, HTML, SLOW),
        "/large": (200, HTML, LARGE),
        "/nul": (200, {"Content-Type": "text/plain"}, b"a\x00b"),
    }
    return answers.get(path)


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[ServedApi]:
    async with served_api(store_url, **QUICK) as api:
        yield api


@pytest.fixture
async def site() -> AsyncIterator[ScriptedSite]:
    async with serving(ScriptedSite(script)) as site:
        yield site


async def scrape(api: ServedApi, url: str, key: str | None = None, **more: Any) -> HttpAnswer:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await api.send("POST", SCRAPE, {"url": url, **more}, headers)


async def jobs(api: ServedApi) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.ask("/api/v1/jobs"))[1]["items"]
    return found


async def test_a_scrape_returns_the_record_and_the_content_in_each_format(api: ServedApi, site: ScriptedSite) -> None:
    async with page_loop(api.app):
        found = await scrape(api, f"{site.url}/old", formats=["markdown", "html", "text", "links", "json", "markdown"])
    page, content = found.json["page"], found.json["content"]
    assert (found.status, found.json["state"], found.json["explanation"]) == (200, "done", None)
    assert (page["url"], page["final_url"], page["status"]) == (f"{site.url}/old", f"{site.url}/about", 200)
    assert (page["title"], page["h1"], page["lang"], page["error"]) == ("About us", "About us", "en", None)
    assert page["redirects"] == [{"url": f"{site.url}/old", "status": 301}]
    assert list(content) == ["markdown", "html", "text", "links", "json"]
    assert "anchors of iron" in content["markdown"]
    assert "anchors of iron" in content["text"]
    assert content["html"] == PAGE
    assert content["links"] == [
        {"url": f"{site.url}/home", "text": "Home", "rel": "nofollow", "nofollow": True, "kind": "a"}
    ]
    assert content["json"] == page
    assert await api.ask(f"{SCRAPE}/{found.json['id']}") == (200, found.json)
    assert [(one["priority"], one["state"]) for one in await jobs(api)] == [(100, "done")]
    assert (await api.ask("/api/v1/events"))[1]["items"] == []  # somebody waited for it


@pytest.mark.parametrize(
    ("path", "status", "markdown"),
    [("/data.json", 200, '{"price": 3.5}'), ("/picture", 200, ""), ("/missing", 404, ""), ("/nul", 200, "a\0b")],
)
async def test_any_answer_is_a_result(
    api: ServedApi, site: ScriptedSite, path: str, status: int, markdown: str
) -> None:
    async with page_loop(api.app):
        found = (await scrape(api, site.url + path)).json
    assert (found["state"], found["page"]["status"], found["page"]["error"]) == ("done", status, None)
    assert found["content"] == {"markdown": markdown}


async def test_a_page_that_cannot_be_fetched_is_a_result_with_an_error(api: ServedApi, site: ScriptedSite) -> None:
    site.robots = (200, {}, "User-agent: *\nDisallow: /private")
    async with page_loop(api.app):
        denied = (await scrape(api, f"{site.url}/private")).json
        refused = (await scrape(api, f"{site.url}/away")).json
    assert (denied["state"], denied["page"]["error"]["code"]) == ("failed", "robots_denied")
    assert (refused["state"], refused["page"]["error"]["code"]) == ("failed", "redirect_scheme")
    assert (denied["content"], refused["content"], denied["page"]["status"]) == ({}, {}, None)
    assert [one["attempts"] for one in await jobs(api)] == [1, 1]  # the client decides whether to try again


async def test_content_that_is_too_large_is_an_error_of_the_page(store_url: str, site: ScriptedSite) -> None:
    async with served_api(store_url, SHOAL_MAX_RESULT="1KB", **QUICK) as api, page_loop(api.app):
        small = (await scrape(api, f"{site.url}/about", formats=["text"])).json
        large = (await scrape(api, f"{site.url}/about", formats=["html", "text", "markdown", "json", "links"])).json
    assert (small["page"]["error"], list(small["content"])) == (None, ["text"])
    error = large["page"]["error"]
    assert (large["state"], large["content"], error["code"]) == ("failed", {}, "content_too_large")
    assert (large["page"]["status"], "SHOAL_MAX_RESULT" in error["message"]) == (200, True)


async def test_content_whose_conversion_dies_is_an_error_of_the_page(api: ServedApi, site: ScriptedSite) -> None:
    async with page_loop(api.app):
        asked = asyncio.ensure_future(scrape(api, f"{site.url}/slow"))
        os.kill(await running_converter(), signal.SIGKILL)
        failed = (await asked).json
        large = (await scrape(api, f"{site.url}/large", formats=["links", "json"])).json
    error = failed["page"]["error"]
    assert (failed["state"], failed["content"], error["code"]) == ("failed", {}, "content_failed")
    assert "was killed by SIGKILL" in error["message"]
    assert (failed["page"]["status"], failed["page"]["title"]) == (200, "Knots")
    assert (large["state"], len(large["content"]["links"]), list(large["content"])) == (
        "done",
        4_000,
        ["links", "json"],
    )
    assert large["content"]["json"] == large["page"]


async def test_large_results_are_stored_in_commits_of_their_own(
    api: ServedApi, site: ScriptedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, settle = list[list[int]](), PageJobExecutor.settle

    async def noted(work: PageJobExecutor, results: Sequence[Outcome], holder: str, want: int) -> list[PageTask]:
        commits.append([work.size_of(one) for one in results])
        return await settle(work, results, holder, want)

    monkeypatch.setattr(PageJobExecutor, "settle", noted)
    monkeypatch.setattr(page_job_loop, "BATCH_BYTES", 2 * len(PAGE))
    asked = [scrape(api, f"{site.url}/about", formats=["html"]) for _ in range(4)]  # a client is a thread
    async with page_loop(api.app):
        found = await asyncio.gather(*asked)
    assert [one.json["content"] for one in found] == [{"html": PAGE}] * 4
    assert sum(size > len(PAGE) for sizes in commits for size in sizes) == 4
    assert max(map(len, commits)) == 1


async def test_a_result_that_the_store_refuses_costs_no_other_scrape_its_result(
    api: ServedApi, site: ScriptedSite, store_url: str
) -> None:
    """All results come in one commit at first, because all jobs are leased together."""
    wanted = [scrape(api, f"{site.url}/{path}", formats=["html"]) for path in ("about", "data.json", "missing")]
    await refuse_results(store_url, "http_status", 404)
    async with page_loop(api.app):
        found = await asyncio.gather(*wanted)
        assert (await scrape(api, f"{site.url}/about", formats=["html"])).json["state"] == "done"
    assert [one.json["state"] for one in found] == ["done", "done", "failed"]
    assert found[2].json["page"]["error"]["code"] == "unstorable_result"


async def test_a_page_that_is_too_large_is_not_read(store_url: str, site: ScriptedSite) -> None:
    async with served_api(store_url, SHOAL_MAX_BODY="1MB", **QUICK) as api, page_loop(api.app):
        found = (await scrape(api, f"{site.url}/endless", formats=["html"])).json
    assert (found["content"], found["page"]["error"]["code"]) == ({}, "body_too_large")


async def test_without_a_worker_the_error_says_how_to_start_one(
    api: ServedApi, site: ScriptedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrapes, "NO_WORKER_SECONDS", 0.05)
    [pulled] = [await api.app.page_jobs.bots.look(Pull("tok_1", "b", ("http", "js", "special"), 10))]
    for render, words in (("never", "shoal worker --store"), ("auto", "on a machine with Chromium")):
        found = await scrape(api, f"{site.url}/about", key="k" + render, render=render)
        assert (found.status, found.json["code"], pulled) == (503, "no_worker", [])
        assert words in found.json["detail"]
    assert [(one["state"], one["state_reason"]) for one in await jobs(api)] == [("cancelled", "no_worker")] * 2
    async with page_loop(api.app):  # the key is free again
        assert (await scrape(api, f"{site.url}/about", key="knever")).status == 200


async def test_without_a_worker_all_clients_with_one_key_get_the_same_error_and_then_the_key_is_free(
    api: ServedApi, site: ScriptedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrapes, "NO_WORKER_SECONDS", 0.3)
    found = await asyncio.gather(*[scrape(api, f"{site.url}/about", key="k") for _ in range(4)])
    assert [(one.status, one.json["code"]) for one in found] == [(503, "no_worker")] * 4
    assert len({one.json["detail"] for one in found}) == 1
    assert {(one["state"], one["state_reason"]) for one in await jobs(api)} == {("cancelled", "no_worker")}
    async with page_loop(api.app):
        assert (await scrape(api, f"{site.url}/about", key="k")).status == 200


async def test_a_key_outlives_a_client_that_leaves_while_another_waits(api: ServedApi, site: ScriptedSite) -> None:
    url = f"{site.url}/about"
    body = json.dumps({"url": url, "timeout_seconds": 20})
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    head = f"POST {SCRAPE} HTTP/1.1\r\nHost: 127.0.0.1:{api.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Idempotency-Key: k\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    await until_jobs(api, 1)
    waiting = asyncio.ensure_future(scrape(api, url, key="k", timeout_seconds=20))
    writer.close()
    async with page_loop(api.app):
        again, found = await scrape(api, url, key="k", timeout_seconds=20), await waiting
    assert (found.status, again.json, site.times("/about")) == (200, found.json, 1)


async def test_bots_get_no_scrapes(api: ServedApi, site: ScriptedSite) -> None:
    first = await scrape(api, f"{site.url}/about", timeout_seconds=0.01)
    assert await api.app.page_jobs.bots.look(Pull("tok_1", "b", ("http", "js", "special"), 10)) == []
    assert (await jobs(api))[0]["state"] == "pending"
    assert first.status == 202


async def test_a_scrape_that_takes_longer_is_found_later_and_the_same_key_waits_for_it(
    api: ServedApi, site: ScriptedSite
) -> None:
    url = f"{site.url}/about"
    first = await scrape(api, url, key="k", timeout_seconds=0.01)
    assert (first.status, first.json["state"], first.json["page"]) == (202, "pending", None)
    assert first.headers["location"] == f"{SCRAPE}/{first.json['id']}"
    assert "No worker" in first.json["explanation"]
    waiting = asyncio.ensure_future(scrape(api, url, key="k", timeout_seconds=0.01))
    assert (await waiting).json["id"] == first.json["id"]
    async with page_loop(api.app):
        again, also = await asyncio.gather(*[scrape(api, url, key="k", timeout_seconds=0.01) for _ in range(2)])
        await until_ended(api, first.json["id"])
    assert {again.json["id"], also.json["id"]} == {first.json["id"]}
    status, found = await api.ask(first.headers["location"])
    assert (status, found["page"]["title"], site.times("/about")) == (200, "About us", 1)
    assert (await scrape(api, url, key="k", timeout_seconds=0.01)).json == found
    assert (await scrape(api, url, key="k", timeout_seconds=1)).status == 422  # another request


async def until_ended(api: ServedApi, scrape_id: str) -> None:
    assert await api.app.page_jobs.scrapes.ends.wait(scrape_id, 60)


async def test_a_host_that_asks_to_wait_longer_than_the_client_does(api: ServedApi, site: ScriptedSite) -> None:
    async with page_loop(api.app):
        busy = (await scrape(api, f"{site.url}/busy")).json
        assert (busy["state"], busy["page"]["status"], busy["content"]) == ("done", 429, {"markdown": "later"})
        later = await scrape(api, f"{site.url}/about", timeout_seconds=0.5)
    assert (later.status, later.json["state"]) == (202, "pending")
    assert "may be requested again in" in later.json["explanation"]
    assert site.times("/about") == 0


async def test_a_client_that_leaves_without_a_key_needs_no_page(api: ServedApi, site: ScriptedSite) -> None:
    for key in ("", "Idempotency-Key: k\r\n"):
        body = json.dumps({"url": f"{site.url}/about"})
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        head = f"POST {SCRAPE} HTTP/1.1\r\nHost: 127.0.0.1:{api.port}\r\nContent-Type: application/json\r\n{key}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await until_jobs(api, 1 if not key else 2)
        writer.close()
        await until_jobs(api, 1, state="cancelled")
    assert sorted(one["state"] for one in await jobs(api)) == ["cancelled", "pending"]


async def until_jobs(api: ServedApi, count: int, **which: str) -> None:
    async def reached() -> bool:
        return sum(which.items() <= one.items() for one in await jobs(api)) >= count

    async with asyncio.timeout(60):
        while not await reached():
            await api.app.clock.sleep(0.01)


async def test_clients_are_released_when_the_server_stops(api: ServedApi, site: ScriptedSite) -> None:
    waiting = asyncio.ensure_future(scrape(api, f"{site.url}/about"))
    await until_jobs(api, 1)
    api.app.rest_api.close()
    found = await waiting
    assert (found.status, found.json["state"]) == (202, "pending")


async def test_an_unexpected_error_costs_only_those_who_waited(
    api: ServedApi, site: ScriptedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, errors = api.app.page_jobs.scrapes.ends, list[object]()

    async def broken(*_: object) -> set[str]:
        raise RuntimeError("unexpected")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "live_among", broken)
        assert not await ends.wait("job_x", 0.2)
    async with page_loop(api.app):
        assert (await scrape(api, f"{site.url}/about")).status == 200
    gc.collect()
    assert [str(error) for error in errors] == ["unexpected"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"url": "http://10.0.0.1/"}, "url", "SHOAL_ALLOW_NETWORKS"),
        ({"url": "ftp://example.com/"}, "url", "http"),
        ({"url": "https://example.com/", "formats": []}, "formats", ""),
        ({"url": "https://example.com/", "formats": ["pdf"]}, "formats", "markdown"),
        ({"url": "https://example.com/", "formats": ["screenshot"]}, "formats", "render"),
        ({"url": "https://example.com/", "render": "maybe"}, "render", "auto"),
        ({"url": "https://example.com/", "timeout_seconds": 1000}, "timeout_seconds", "120"),
        ({"formats": ["text"]}, "url", ""),
    ],
)
async def test_a_bad_request_is_refused_and_stores_nothing(
    api: ServedApi, body: dict[str, Any], field: str, words: str
) -> None:
    status, problem = await api.ask(SCRAPE, body)
    assert (status, problem["field"].partition("[")[0]) == (422, field)
    assert words in problem["detail"]
    assert await jobs(api) == []


async def test_only_scrapes_are_shown_as_scrapes(api: ServedApi) -> None:
    _, group = await api.ask("/api/v1/jobs", {"urls": ["https://a.example/"]})
    [job] = (await api.ask(f"/api/v1/jobs?run_id={group['id']}"))[1]["items"]
    for scrape_id in (job["id"], "job_x"):
        status, problem = await api.ask(f"{SCRAPE}/{scrape_id}")
        assert (status, problem["code"]) == (404, "not_found")


async def test_the_result_of_a_scrape_outlives_its_job_for_its_retention(api: ServedApi, site: ScriptedSite) -> None:
    async with page_loop(api.app):
        found = (await scrape(api, f"{site.url}/about")).json
    assert await api.app.job_admin.purge(JobFilter()) == 1
    assert await api.ask(f"{SCRAPE}/{found['id']}") == (200, found)
    later = api.app.clock.micros() + 60_000_000
    assert await ResultRetention(timedelta(0)).prune(api.app.database, later, 10) == (1, False)
    assert (await api.ask(f"{SCRAPE}/{found['id']}"))[0] == 404


async def test_a_key_whose_job_was_purged_finds_the_result_again(api: ServedApi, site: ScriptedSite) -> None:
    url = f"{site.url}/about"
    async with page_loop(api.app):
        first = await scrape(api, url, key="k")
        assert await api.app.job_admin.purge(JobFilter()) == 1
        again = await scrape(api, url, key="k")
    assert (again.status, again.json, site.times("/about")) == (200, first.json, 1)


async def test_a_scrape_is_rendered_if_its_scripts_make_its_content(tmp_path: Path, chromium: str) -> None:
    code = "app.innerHTML = '<h1>Made by a script</h1>'"
    shell = f"<!doctype html><title>Shell</title><div id=app></div><script>{code}</script>"

    def pages(path: str) -> Answer | None:
        return (200, HTML, shell) if path == "/shell" else script(path)

    store = f"sqlite:///{tmp_path / 'shoal.db'}"
    async with (
        served_api(store, SHOAL_CHROMIUM=chromium, **QUICK) as api,
        serving(ScriptedSite(pages)) as site,
        page_loop(api.app),
    ):
        shown = (await scrape(api, f"{site.url}/shell", formats=["markdown", "html"], render="auto")).json
        plain = (await scrape(api, f"{site.url}/about", formats=["html"], render="auto")).json
        pictured = (await scrape(api, f"{site.url}/about", formats=["screenshot"], render="always")).json
    assert (shown["page"]["rendered"], shown["page"]["h1"]) == (True, "Made by a script")
    assert "Made by a script" in shown["content"]["markdown"]
    assert "<h1>Made by a script</h1>" in shown["content"]["html"]
    assert (plain["page"]["rendered"], plain["content"]["html"]) == (False, PAGE)
    assert base64.b64decode(pictured["content"]["screenshot"]).startswith(b"\x89PNG")
