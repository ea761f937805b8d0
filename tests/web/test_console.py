"""The console over a real store and a real server: the content of the page, and the data its script receives."""

import asyncio
import os
import re
import socket
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.app import App, opened
from shoal.base.database import Tx
from shoal.base.ids import CrawlId
from shoal.crawl import states
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.serve import console
from shoal.serve.application import application
from shoal.serve.console import BADGES, NOTHING, ConsoleApi, ago, duration, files, size
from shoal.serve.endpoint import routes_of
from shoal.settings_loader import load
from tests.support.api import answering

SITE = "https://example.com/"
SCRIPT_SEED = "https://example.com/?q=\"><script>alert('x')</script>&b=<b>"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Served:
    """The console of one store, listening."""

    app: App
    port: int
    refresh_asked: asyncio.Event = field(default_factory=asyncio.Event)
    refresh_allowed: asyncio.Event = field(default_factory=asyncio.Event)

    async def get(self, path: str) -> Answer:
        return await asyncio.to_thread(self._get, path)

    async def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = orjson.loads((await self.get("/console/crawls")).text)["rows"]
        return rows

    async def crawl(self, *seeds: str, crawl_id: str | None = None) -> str:
        config = CrawlConfig(seeds=list(seeds or (SITE,)))
        return (await self.app.crawls.submit(config, crawl_id=CrawlId(crawl_id) if crawl_id else None)).id

    async def move(self, crawl_id: str, *moves: CrawlMove) -> None:
        async def commit(tx: Tx) -> None:
            for move in moves:
                assert await self.app.crawls.store.move(tx, crawl_id, move)

        await self.app.database.run(commit)

    def hold_refresh(self) -> None:
        """The script's next question waits until `refresh_allowed`."""
        self.refresh_allowed.clear()

    def watching(self, app: ASGIApp) -> ASGIApp:
        self.refresh_allowed.set()

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/console/crawls":
                self.refresh_asked.set()
                await self.refresh_allowed.wait()
            await app(scope, receive, send)

        return watched

    def _get(self, path: str) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read().decode())
        finally:
            connection.close()


@asynccontextmanager
async def served(store_url: str) -> AsyncIterator[Served]:
    settings = load({"DATABASE_URL": store_url}, env={}).settings
    async with opened(settings) as app:
        routes = [*routes_of([*app.rest_api.endpoint_groups, ConsoleApi(app.crawls)], 1_000_000), files()]
        door = socket.create_server(("127.0.0.1", 0))
        shop = Served(app, door.getsockname()[1])
        inner = application(routes, app.clock, app.signals)
        async with answering(shop.watching(inner), door):
            yield shop


@pytest.fixture
async def shop(sqlite_url: str) -> AsyncIterator[Served]:
    async with served(sqlite_url) as shop:
        yield shop


async def test_an_empty_console_says_what_to_do_next(shop: Served) -> None:
    page = (await shop.get("/")).text
    assert "No crawls yet" in page
    assert "./shoal crawl https://" in page
    assert f"curl http://127.0.0.1:{shop.port}/api/v1/crawls" in page
    assert '<table id="crawls" role="table" hidden>' in page


async def test_a_queued_crawl_is_in_queue_and_says_what_it_waits_for(shop: Served) -> None:
    crawl_id = await shop.crawl()
    page = (await shop.get("/")).text
    assert "No crawls yet" not in visible_part(page)
    assert f'data-id="{crawl_id}"' in page
    assert re.search(r'class="badge"[^>]*data-state="queued">In queue<', page)
    assert "waiting for a worker" in page
    assert f'href="{SITE}" rel="noopener noreferrer nofollow"' in page


async def test_the_script_is_reported_the_same_words_as_the_page(shop: Served) -> None:
    await shop.crawl(SITE, "https://example.org/")
    page = (await shop.get("/")).text
    (row,) = await shop.rows()
    cells = dict(re.findall(r'data-cell="(\w+)"[^>]*>([^<]*)<', page.partition("<template")[0]))
    assert cells == {name: row[name] for name in cells}
    assert row["more"] == "and 1 more"


async def test_a_finished_crawl_shows_how_it_ended(shop: Served) -> None:
    done, failed, stopped = [await shop.crawl() for _ in range(3)]
    await shop.move(done, states.run(), states.complete("max_pages"))
    await shop.move(failed, states.run(), states.fail("no_seed_gave_a_page"))
    await shop.move(stopped, states.stop())
    rows = {row["id"]: row for row in await shop.rows()}
    assert (rows[done]["badge"], rows[done]["reason"]) == ("Completed", "the page limit was reached")
    assert (rows[failed]["badge"], rows[failed]["reason"]) == ("Failed", "no seed returned a page")
    assert (rows[stopped]["badge"], rows[stopped]["reason"]) == ("Stopped", "")
    assert rows[done]["started"] == "just now"
    assert rows[done]["started_exact"].endswith(" UTC")
    assert rows[stopped]["started"] == rows[stopped]["took"] == NOTHING
    page = (await shop.get("/")).text
    assert 'role="status">1 stopped, 1 completed, 1 failed</p>' in page


async def test_foreign_markup_stays_text(shop: Served) -> None:
    await shop.crawl(SCRIPT_SEED)
    page = (await shop.get("/")).text
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert page.count("<script") == 1
    assert "&lt;script&gt;alert" in page


async def test_characters_that_fool_a_reader_are_written_out(shop: Served) -> None:
    await shop.crawl("https://example.com/\u202egnp.exe")
    (row,) = await shop.rows()
    assert "\u202e" not in row["seed"]
    assert "<U+202E>" in row["seed"]


async def test_nothing_on_the_page_needs_more_than_its_own_files(shop: Served) -> None:
    answer = await shop.get("/")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)", answer.text)
    assets = re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)
    assert len(set(assets)) == 3
    for address in assets:
        assert (await shop.get(address)).status == 200


def test_the_script_never_writes_markup() -> None:
    script = (console.STATIC / "console.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


async def test_the_page_refreshes_itself_without_a_script(shop: Served) -> None:
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in (await shop.get("/")).text


async def test_older_crawls_are_on_further_pages(shop: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "ROWS", 2)
    ids = [await shop.crawl() for _ in range(3)]
    first = (await shop.get("/")).text
    older = re.search(r'href="(/\?after=\d+)">Older', first)
    assert older
    assert ids[0] not in first
    second = (await shop.get(older[1])).text
    assert ids[0] in second
    assert ids[1] not in second
    assert '<a href="/" rel="prev">Newest</a>' in second


@pytest.mark.parametrize("after", ["", "x", "-1", "1e9", "2147483648", "9" * 5000, "%D9%A1"])
async def test_a_page_that_cannot_be_is_refused_by_name(shop: Served, after: str) -> None:
    answer = await shop.get(f"/?after={after}")
    assert answer.status == 422
    assert orjson.loads(answer.text)["code"] == "invalid_input"


async def test_a_file_outside_of_the_console_is_not_served(shop: Served) -> None:
    for path in ("/static/../console.py", "/static/%2e%2e/console.py", "/static//etc/passwd"):
        assert (await shop.get(path)).status == 404


def test_every_state_has_a_badge() -> None:
    assert set(BADGES) == set(CrawlState)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0.0 s"),
        (0.25, "0.2 s"),
        (9.99, "10.0 s"),
        (59.9, "59 s"),
        (61, "1 min 01 s"),
        (7260, "2 h 01 min"),
        (200_000, "2 days"),
    ],
)
def test_durations_are_worded_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-2, "just now"), (9.9, "just now"), (25, "20 s ago"), (119, "1 min ago"), (7200, "2 h ago"), (86400, "1 d ago")],
)
def test_how_long_ago_is_worded_coarsely(seconds: float, words: str) -> None:
    assert ago(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_340_000, "2.3 MB"), (10**12, "1.0 TB"), (10**16, "10,000.0 TB")],
)
def test_sizes_are_worded_for_people(count: int, words: str) -> None:
    assert size(count) == words


async def test_a_browser_shows_what_changed_after_the_page_was_served(
    shop: Served, chromium: str, tmp_path: Path
) -> None:
    await shop.crawl(SCRIPT_SEED, crawl_id="first")
    shop.hold_refresh()
    browsing = asyncio.create_task(dump_dom(chromium, f"http://127.0.0.1:{shop.port}/", tmp_path))
    await asyncio.wait_for(shop.refresh_asked.wait(), 60)
    await shop.crawl(crawl_id="second")
    await shop.move("first", states.run(), states.complete("drained"))
    shop.refresh_allowed.set()
    seen = await browsing
    rows = re.findall(
        r'<tr role="row" data-id="(\w+)">.*?data-state="(\w+)"', seen.partition("<template")[0], re.DOTALL
    )
    assert rows == [("second", "queued"), ("first", "completed")]
    assert "<script>alert" not in seen
    assert 'id="live" data-state="fresh"' in seen


async def dump_dom(chromium: str, address: str, folder: Path) -> str:
    """The page as the browser has it after three of its seconds."""
    words = [
        *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", f"--user-data-dir={folder}/profile"),
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        *("--virtual-time-budget=3000", "--dump-dom", address),
    ]
    process = await asyncio.create_subprocess_exec(chromium, *words, stdout=PIPE, stderr=DEVNULL)
    seen, _ = await asyncio.wait_for(process.communicate(), 60)
    return seen.decode()


def visible_part(page: str) -> str:
    return re.sub(r'<section id="empty" hidden>.*?</section>', "", page, flags=re.DOTALL)
