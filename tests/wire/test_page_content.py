"""The content of stored pages over HTTP, in each format."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.app import App, opened
from shoal.base.settings_loader import load
from shoal.extract.converter import IDLE_SECONDS
from shoal.serve.application import application
from shoal.serve.endpoint import routes_of
from shoal.serve.expensive_reads import ExpensiveReads
from tests.packages.conftest import Answer, Crawler, ScriptedSite, serving
from tests.support.api import MAX_BODY, ServedApi, answering, listening
from tests.support.converters import LONGEST_PAUSE, SLOW, TEN_MB, longest_pause, no_converter, running_converter
from tests.support.patience import in_time

PAGE = (
    "<!doctype html><html lang=en><title>About us</title><h1>About us</h1><main><p>We make anchors of iron, and we "
    "have made them for a hundred years in the same small town.</p><script>alert(1)</script></main>"
    '<a href="/caf\xe9?q=\xe9">Caf\xe9</a>'
)
LONG = "<p>" + "word " * 1_100_000


def script(path: str) -> Answer | None:
    answers: dict[str, Answer] = {
        "/": (200, {"Content-Type": "text/html; charset=iso-8859-1"}, PAGE.encode("latin-1")),
        "/huge": (200, {"Content-Type": "text/html"}, TEN_MB),
        "/slow": (200, {"Content-Type": "text/html"}, SLOW),
        "/long": (200, {"Content-Type": "text/html"}, LONG),
    }
    return answers.get(path)


@pytest.fixture
async def app(store_url: str, tmp_path: Path) -> AsyncIterator[App]:
    env = {"SHOAL_DATA_DIR": str(tmp_path), "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
    async with opened(load({"DATABASE_URL": store_url}, env=env).settings) as app:
        yield app


@pytest.fixture
async def api(app: App) -> AsyncIterator[ServedApi]:
    async with listening(app) as api:
        yield api


async def crawled(api: ServedApi, site: ScriptedSite, path: str, **config: Any) -> str:
    """Crawl a page; return the path of its content."""
    crawler = Crawler(api.app)
    crawl = await crawler.submit(site, path, depth=0, **config)
    await crawler.walk(crawl)
    [page] = (await api.ask(f"/api/v1/crawls/{crawl.id}/pages"))[1]["items"]
    return f"/api/v1/crawls/{crawl.id}/pages/{page['number']}/content"


async def test_a_stored_page_is_returned_in_each_format_and_runs_in_no_browser(api: ServedApi) -> None:
    async with serving(ScriptedSite(script)) as site:
        content = await crawled(api, site, "/", keep_bodies=True)
        found = {form: await api.send("GET", f"{content}?format={form}") for form in ("html", "text", "links", "json")}
        markdown = await api.send("GET", content)
    for one in (markdown, found["html"], found["text"]):
        assert (one.status, one.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert one.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in one.headers["content-security-policy"]
    assert found["html"].text == PAGE
    assert "anchors of iron" in found["text"].text
    assert "anchors of iron" in markdown.text
    [link] = found["links"].json
    assert (link["text"], link["kind"], link["nofollow"]) == ("Caf\xe9", "a", False)
    assert link["url"].startswith(f"{site.url}/caf%C3%A9?q=")
    assert (found["json"].json["title"], found["json"].json["crawl_id"]) == ("About us", content.split("/")[4])
    assert "shoal-is-cut" not in markdown.headers


async def test_a_page_without_a_stored_body_says_what_to_do(api: ServedApi) -> None:
    async with serving(ScriptedSite(script)) as site:
        content = await crawled(api, site, "/")
        status, problem = await api.ask(content)
        assert (status, problem["code"]) == (404, "body_not_kept")
        assert "keep_bodies" in problem["detail"]
        assert (await api.ask(f"{content}?format=json"))[0] == 200
    crawl = content.partition("/pages/")[0]
    for path in (f"{crawl}/pages/x/content", f"{crawl}/pages/999999/content", f"{crawl}/pages/{9**19}/content"):
        status, problem = await api.ask(path)
        assert (status, problem["code"]) == (404, "not_found")
    status, problem = await api.ask(f"{content}?format=pdf")
    assert (status, problem["field"]) == (422, "format")


async def test_a_page_that_is_longer_than_what_is_read_of_it_says_so(api: ServedApi) -> None:
    async with serving(ScriptedSite(script)) as site:
        content = await crawled(api, site, "/long", keep_bodies=True)
        found = await api.send("GET", f"{content}?format=text")
    assert found.headers["shoal-is-cut"] == "true"
    assert 1_999_000 < len(found.text) <= 2_000_000


async def test_a_conversion_that_dies_is_an_error_of_its_request(api: ServedApi) -> None:
    async with serving(ScriptedSite(script)) as site:
        content = await crawled(api, site, "/slow", keep_bodies=True)
        asked = asyncio.ensure_future(api.ask(content))
        os.kill(await running_converter(), signal.SIGKILL)
        status, problem = await in_time(asked)
        assert (status, problem["code"]) == (503, "backend_unavailable")
        assert "was killed by SIGKILL" in problem["detail"]
        assert len(await api.ask(f"{content}?format=links")) == 2


async def test_a_client_that_leaves_ends_the_conversion(api: ServedApi) -> None:
    async with serving(ScriptedSite(script)) as site:
        content = await crawled(api, site, "/slow", keep_bodies=True)
    routes = routes_of(api.app.rest_api.endpoint_groups, MAX_BODY, ExpensiveReads())
    listener = socket.create_server(("127.0.0.1", 0))
    async with answering(application(routes, api.app.clock, api.app.signals), listener):
        _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        writer.write(f"GET {content} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        pid = await running_converter()
        writer.close()
        async with asyncio.timeout(IDLE_SECONDS):  # it was killed: after its work it would wait for more
            await no_converter(pid)


async def test_html_that_is_read_whole_is_not_cut(api: ServedApi) -> None:
    async with serving(ScriptedSite(script)) as site:
        content = await crawled(api, site, "/long", keep_bodies=True)
        found = await api.send("GET", f"{content}?format=html")
    assert found.text == LONG
    assert "shoal-is-cut" not in found.headers


async def test_the_content_of_a_page_of_10_mb_does_not_stop_the_controller(api: ServedApi) -> None:
    async with serving(ScriptedSite(script)) as site:
        content = await crawled(api, site, "/huge", keep_bodies=True)
    for form in ("html", "text", "markdown", "links"):
        asked = asyncio.ensure_future(api.send("GET", f"{content}?format={form}"))
        assert await longest_pause(asked) < LONGEST_PAUSE, form
        assert (asked.result().status, asked.result().headers["shoal-is-cut"]) == (200, "true")
