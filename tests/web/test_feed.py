"""The live stream of the console: what is sent when something changed, and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.frontier.admin import FrontierAdmin
from shoal.crawl.frontier.explain import UrlExplanation
from shoal.crawl.journal_messages import JournalEntry
from shoal.serve.console.feed import MOST_VIEWERS, Region
from shoal.serve.console.shell import region_hash
from tests.support.controller import ServedController

PATIENCE = 30.0


@dataclass
class Stream:
    """An open stream of events."""

    reader: asyncio.StreamReader
    head: str

    async def next(self, *names: str) -> tuple[str, dict[str, Any], str]:
        """Return the name, the data and the id of the next event with one of these names."""
        async with asyncio.timeout(PATIENCE):
            while True:
                fields: dict[str, str] = {}
                while line := (await self.reader.readline()).decode().strip():
                    if ":" in line:
                        name, _, value = line.partition(":")
                        fields[name] = value.strip()
                if fields.get("event") in names:
                    return fields["event"], json.loads(fields["data"]), fields.get("id", "")


@asynccontextmanager
async def watching(shop: ServedController, topic: str, headers: str = "", **query: str) -> AsyncIterator[Stream]:
    asked = "".join(f"&{name}={quote(value)}" for name, value in query.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.port, limit=10_000_000)
    head = f"GET /console/feed?topic={quote(topic)}{asked} HTTP/1.1\r\nHost: 127.0.0.1:{shop.port}\r\n{headers}\r\n"
    writer.write(head.encode())
    answered = (await reader.readuntil(b"\r\n\r\n")).decode()
    try:
        yield Stream(reader, answered)
    finally:
        writer.close()


async def submit(shop: ServedController, **options: Any) -> Crawl:
    return await shop.app.crawls.submit(CrawlConfig(seeds=["https://example.com/"], **options))


async def test_a_viewer_gets_the_regions_and_then_the_rows_that_changed(shop: ServedController) -> None:
    crawl, other = await submit(shop), await submit(shop)
    await shop.app.console.worker_watch.run_once()  # no worker is running, which the whole region says
    async with watching(shop, "/crawls") as stream:
        assert "X-Accel-Buffering: no".lower() in stream.head.lower()
        _, region, _ = await stream.next("region")
        while region["name"] != "crawl_rows":
            _, region, _ = await stream.next("region")
        assert region["hash"] == region_hash(region["html"])
        await shop.app.crawls.stop(crawl.id)
        _, rows, _ = await stream.next("rows")
        assert list(rows["rows"]) == [crawl.id]
        assert 'data-state="stopped"' in rows["rows"][crawl.id]
        assert other.id not in json.dumps(rows)


async def test_a_browser_that_has_a_region_is_not_sent_it_again(shop: ServedController) -> None:
    crawl = await submit(shop)
    async with watching(shop, f"/crawls/{crawl.id}/frontier") as stream:
        seen = {}
        for _ in range(2):
            _, region, _ = await stream.next("region")
            seen[region["name"]] = region["hash"]
    known = ",".join(f"{name}-{version}" for name, version in seen.items())
    async with watching(shop, f"/crawls/{crawl.id}/frontier", seen=known) as stream:
        await shop.app.crawls.stop(crawl.id)
        _, region, _ = await stream.next("region")
        assert region["name"] == "crawl_head"
        assert "Stopped" in region["html"]


async def test_a_url_is_explained_when_its_page_is_loaded_and_not_again_by_the_stream(
    shop: ServedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl, explained, explain = await submit(shop), list[str](), FrontierAdmin.explain

    async def explain_noted(admin: FrontierAdmin, crawl_id: str, text: str, longest: int) -> UrlExplanation:
        explained.append(text)
        return await explain(admin, crawl_id, text, longest)

    monkeypatch.setattr(FrontierAdmin, "explain", explain_noted)
    page = f"/crawls/{crawl.id}/frontier?url=https://example.com/nowhere"
    async with watching(shop, page) as stream:
        _, region, _ = await stream.next("region")
        while region["name"] != "crawl_frontier":
            _, region, _ = await stream.next("region")
    assert explained == []
    assert "has not found it" in (await shop.ask(page)).text
    assert explained == ["https://example.com/nowhere"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["header", "query"])
async def test_log_lines_continue_after_the_last_one_that_was_received(shop: ServedController, way: str) -> None:
    crawl = await submit(shop)
    entries = [JournalEntry("urls_found", f"Found {number} URLs") for number in range(3)]
    await shop.app.database.run(lambda tx: shop.app.crawls.journal.write(tx, crawl.number, entries))
    given: dict[str, Any] = {"headers": "Last-Event-ID: 2\r\n"} if way == "header" else {"line": "2"}
    async with watching(shop, f"/crawls/{crawl.id}/log", **given) as stream:
        _, line, number = await stream.next("line")
        assert (number, "Found 1 URLs" in line["html"]) == ("3", True)
        await shop.app.database.run(lambda tx: shop.app.crawls.journal.write(tx, crawl.number, entries[:1]))
        await stream.next("line")
        _, line, number = await stream.next("line")
        assert (number, "Found 0 URLs" in line["html"]) == ("5", True)


async def test_foreign_text_in_the_stream_is_text(shop: ServedController) -> None:
    bad = "<script>alert(1)</script>\u202e"
    crawl = await submit(shop, user_agent="Bot <img src=x onerror=alert(1)>")
    entry = JournalEntry("urls_found", bad)
    await shop.app.database.run(lambda tx: shop.app.crawls.journal.write(tx, crawl.number, [entry]))
    async with watching(shop, f"/crawls/{crawl.id}") as stream:
        while True:
            _, data, _ = await stream.next("region", "line")
            assert "<script>" not in data["html"]
            assert "<img" not in data["html"]
            assert "\u202e" not in data["html"]
            if "&lt;script&gt;alert(1)" in data["html"]:
                return


async def test_a_page_that_is_not_live_and_a_viewer_too_many_are_refused(shop: ServedController) -> None:
    assert (await shop.ask("/console/feed?topic=/nowhere")).status == 404
    shop.app.console.feed._viewers = MOST_VIEWERS
    answer = await shop.ask("/console/feed?topic=/crawls")
    assert (answer.status, answer.json["code"]) == (429, "rate_limited")


def test_rows_are_sent_alone_only_if_nothing_else_changed() -> None:
    def rows(**cells: str) -> str:
        return "<table>" + "".join(f'<tr data-id="{name}"><td>{text}</td></tr>' for name, text in cells.items())

    first = Region.of("list", rows(a="1", b="2"), None)
    assert first.since(None) == first.since("older") == first.event
    second = Region.of("list", rows(a="1", b="3"), first)
    assert second.delta is not None
    assert b'"b"' in second.since(first.version)
    assert b'"a"' not in second.since(first.version)
    assert second.since("older") == second.event
    assert Region.of("list", rows(b="3", a="1"), second).delta is None
    assert Region.of("list", rows(a="1"), second).delta is None
    assert Region.of("list", "<p>" + rows(a="1", b="4"), second).delta is None
