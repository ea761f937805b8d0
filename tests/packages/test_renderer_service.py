"""The render service as a real process: its API, its queue, its token, and crawls and page jobs that use it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from shoal.base.clock import SystemClock
from shoal.base.errors import BackendUnavailable, BadConfig, RateLimited
from shoal.base.settings import RenderSettings
from shoal.crawl.engine.walker_context import RendererRefused
from shoal.crawl.states import CrawlState
from shoal.egress import AddressRule, Egress, Failure, Request, Response
from shoal.web.renderer import RemoteRenderer, RenderedPage, RenderRequest
from tests.packages.conftest import Answer, ScriptedSite, html, serving
from tests.packages.test_page_jobs import fetch, process
from tests.packages.test_rendering import crawler_with
from tests.support.fleet import Shoal, clean_environment, wait_for
from tests.support.patience import PATIENCE_SECONDS
from tests.support.script_site import script_site
from tests.support.servers import free_port

TOKEN = "a-token-for-the-renderer"


class Service:
    """A render service that can be killed and started again on the same port."""

    def __init__(self, chromium: str, folder: Path, **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        given = {
            "SHOAL_CHROMIUM": chromium,
            "SHOAL_RENDERER_TOKEN": TOKEN,
            "SHOAL_RENDERER_LISTEN": f"127.0.0.1:{self.port}",
            "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8",
            "TMPDIR": str(folder),
            **env,
        }
        self.process = Shoal("renderer", ["renderer"], clean_environment(folder) | given, folder)

    def start(self) -> None:
        self.process.start()
        wait_for(lambda: self.process.said().count("is listening") > 0, "the renderer", seen=self.process.said)

    def client(self, token: str = TOKEN) -> RemoteRenderer:
        return RemoteRenderer(RenderSettings(url=self.url, token=token), SystemClock())

    async def get(self, path: str, token: str = TOKEN) -> Response:
        egress = Egress(AddressRule(named=frozenset([("127.0.0.1", self.port)])))
        try:
            outcome = await egress.fetch(
                Request(f"{self.url}{path}", headers=(("Authorization", f"Bearer {token}"),) if token else ())
            )
        finally:
            egress.close()
        assert isinstance(outcome, Response)
        return outcome


@contextmanager
def service(chromium: str, folder: Path, **env: str) -> Iterator[Service]:
    one = Service(chromium, folder, **env)
    one.start()
    try:
        yield one
    finally:
        if one.process.alive:
            one.process.process.terminate()
            assert one.process.wait() == 0, one.process.said()
        left = list((folder / f"shoal-browsers-{os.getuid()}").glob("*"))
        assert left == []


@asynccontextmanager
async def asking(one: Service, token: str = TOKEN) -> AsyncIterator[RemoteRenderer]:
    client = one.client(token)
    try:
        yield client
    finally:
        await client.close()


async def test_idle_strangers_make_room_for_a_caller_with_the_token(chromium: str, tmp_path: Path) -> None:
    with service(chromium, tmp_path, SHOAL_MAX_CONNECTIONS="40") as one:
        strangers = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(100)]
        assert (await one.get("/metrics")).status == 200
        assert one.process.said().count("too many unauthenticated connections") == 1
        for _, writer in strangers:
            writer.close()


async def test_the_service_renders_refuses_and_tells(chromium: str, tmp_path: Path) -> None:
    def script(path: str) -> Answer | None:
        if path == "/":
            page = """<title>x</title><img src=/picture.png><img src=/private/a.png><script>
                console.error("wrong", 7); document.title = [document.cookie, navigator.userAgent].join("|")</script>"""
            return 200, {"Content-Type": "text/html", "X-Mine": "yes"}, page
        return (302, {"Location": "/"}, "") if path == "/moved" else html("x") if "png" in path else None

    robots = 200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow: /private/\n"
    with service(chromium, tmp_path) as renderer:
        async with serving(ScriptedSite(script, robots=robots)) as site, asking(renderer) as client:
            page = await client.render(
                RenderRequest(
                    url=f"{site.url}/moved",
                    wait="networkidle",
                    cookies=[{"name": "a", "value": "b"}],  # type: ignore[list-item]
                    headers={"X-Given": "1"},
                    user_agent="Somebody/1",
                    block=["images"],
                    screenshot=True,
                    pdf=True,
                )
            )
            assert isinstance(page, RenderedPage)
            assert (page.url, page.status) == (f"{site.url}/", 200)
            assert "<title>a=b|Somebody/1</title>" in page.html
            assert ("X-Mine", "yes") in page.headers
            assert page.console_errors == ["wrong 7"]
            assert (page.screenshot or b"")[:4] == b"\x89PNG"
            assert (page.pdf or b"")[:4] == b"%PDF"
            assert page.counts.blocked == 2
            assert site.told("/", "x-given") == ["1"]
            refused = {
                f"{site.url}/private/page": "robots_denied",
                "http://10.1.2.3/": "address_not_public",
                "https://169.254.169.254/latest": "address_not_public",
                f"{renderer.url}/healthz": "self_connection",
            }
            for url, code in refused.items():
                found = await client.render(RenderRequest(url=url))
                assert isinstance(found, Failure)
                assert (found.code, found.operator_detail) == (code, ""), url
        health = orjson.loads((await renderer.get("/healthz", token="")).raw)
        assert (health["status"], health["browsers"], health["pages"]) == ("ok", 1, 0)
        assert (await renderer.get("/metrics", token="")).status == 401
        metrics = (await renderer.get("/metrics")).raw.decode()
        assert 'shoal_rendered_pages_total{outcome="rendered"} 1.0' in metrics
        assert "/render" in orjson.loads((await renderer.get("/openapi.json")).raw)["paths"]
        async with asking(renderer, "wrong") as stranger:
            with pytest.raises(BadConfig, match="SHOAL_RENDERER_TOKEN"):
                await stranger.render(RenderRequest(url="http://example.com/"))


async def test_a_full_queue_is_answered_with_429_and_a_client_that_leaves_frees_its_place(
    chromium: str, tmp_path: Path
) -> None:
    """The second page finds no room, with the time after which to ask again."""
    site = ScriptedSite(lambda path: html("x"), late={"/slow.js": "/go"})
    body = b"<script src=/slow.js></script>"
    with service(chromium, tmp_path, SHOAL_RENDERER_PAGES="1", SHOAL_RENDERER_QUEUE="0") as renderer:
        async with serving(site), asking(renderer) as client:
            document = {"status": 200, "headers": [("Content-Type", "text/html")], "body": body}
            request = RenderRequest.read({"url": f"{site.url}/page", "robots": "ignore"})
            slow = RenderRequest(url=request.url, robots="ignore", document=document)  # type: ignore[arg-type]
            first = asyncio.create_task(client.render(slow))
            await site.until(lambda: "/slow.js" in site.asked, first)
            with pytest.raises(RateLimited) as refused:
                await client.render(request)
            assert refused.value.facts["retry_after_seconds"] == 2
            first.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:  # the service notices that the client has gone
                    try:
                        assert isinstance(await client.render(request), RenderedPage)
                        break
                    except RateLimited:
                        continue


@pytest.mark.exhaustive
async def test_a_killed_service_counts_no_attempt_and_loses_no_page(chromium: str, tmp_path: Path) -> None:
    site = ScriptedSite(script_site)
    with service(chromium, tmp_path) as renderer:
        env = {"RENDERER_URL": renderer.url, "SHOAL_RENDERER_TOKEN": TOKEN, "SHOAL_DATA_DIR": str(tmp_path)}
        async for crawler in crawler_with("/nowhere/chromium", tmp_path, **env):
            async with serving(site):
                crawling = asyncio.create_task(crawler.crawl(site, render="auto"))
                await site.until(lambda: "/data/page/1" in site.asked, crawling)
                await asyncio.to_thread(renderer.process.kill)
                with pytest.raises(BackendUnavailable):
                    async with asking(renderer) as client:
                        await client.render(RenderRequest(url=f"{site.url}/"))
                await asyncio.to_thread(renderer.process.start)
                seen = await crawling
                pages = await crawler.pages(seen)
            assert seen.crawl.state is CrawlState.COMPLETED
            assert {page.title for page in pages.values()} == {f"Page {number}" for number in range(15)}
            assert {page.attempt for page in pages.values()} == {1}
            assert any(isinstance(signal, RendererRefused) for signal in crawler.heard)


async def test_page_jobs_that_need_a_browser_are_rendered(chromium: str, tmp_path: Path) -> None:
    rules: dict[str, Any] = {"fields": {"name": {"css": "h1", "required": True}}}
    async with serving(ScriptedSite(script_site)) as site:
        store = f"sqlite:///{tmp_path / 'shoal.db'}"
        async with process(store, tmp_path, SHOAL_CHROMIUM=chromium) as app:
            url = f"{site.url}/page/3"
            plain = (await fetch(app, url, rule_set=rules, max_retry=0))[url]
            assert (plain.status, plain.error_code) == ("fail", "invalid_data")
            rendered = (await fetch(app, url, rule_set=rules, crawl_config={"js_required": True}))[url]
            assert (rendered.status, rendered.data) == ("success", {"name": "Page 3"})
