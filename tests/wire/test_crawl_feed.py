"""Following a crawl: its journal in pages, and server-sent events that are complete, end with the crawl and share one
poll."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from shoal.base.errors import NotFound, RateLimited
from shoal.crawl.journal_messages import JournalEntry
from shoal.process.runners import make_walker
from shoal.serve import crawl_feed as live_module
from shoal.serve.crawl_feed import CrawlFeeds
from tests.support.api import ServedApi
from tests.support.fleet import Fleet
from tests.support.site import Site

CRAWLS = "/api/v1/crawls"
PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Event:
    name: str
    data: dict[str, Any]
    number: int | None


class Viewer:
    """One open stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def part(self) -> list[str]:
        """The lines of the next event or comment; none at the end."""
        found: list[str] = []
        while line := (await asyncio.wait_for(self.reader.readline(), PATIENCE_SECONDS)).decode().rstrip("\r\n"):
            found.append(line)
        return found

    async def events(self) -> AsyncIterator[Event]:
        while True:
            head = await asyncio.wait_for(self.reader.readline(), PATIENCE_SECONDS)
            if not head.strip() or head.strip() == b"0":
                return
            chunk = (await self.reader.readexactly(int(head, 16) + 2)).decode()
            for text in chunk.strip().split("\n\n"):
                fields = dict(line.split(": ", 1) for line in text.splitlines())
                if "event" in fields:
                    number = int(fields["id"]) if "id" in fields else None
                    yield Event(fields["event"], json.loads(fields["data"]), number)


@asynccontextmanager
async def watching(api: ServedApi, crawl_id: str, query: str = "", **headers: str) -> AsyncIterator[Viewer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    sent = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(f"GET {CRAWLS}/{crawl_id}/events{query} HTTP/1.1\r\nHost: localhost\r\n{sent}\r\n".encode())
    viewer = Viewer(reader, writer)
    head = await viewer.part()
    assert head[0].split()[1] == "200", head
    assert "content-type: text/event-stream; charset=utf-8" in head
    try:
        yield viewer
    finally:
        writer.close()


async def made(api: ServedApi, **config: Any) -> str:
    return str((await api.ask(CRAWLS, {"seeds": ["http://127.0.0.1:9/"], **config}))[1]["id"])


async def say(api: ServedApi, crawl_id: str, *words: str) -> None:
    number = (await api.app.crawls.get(crawl_id)).crawl.number
    lines = [JournalEntry("told", word) for word in words]
    await api.app.database.run(lambda tx: api.app.crawls.journal.write(tx, number, lines))


async def test_the_journal_is_read_in_pages_and_goes_on(api: ServedApi) -> None:
    crawl_id = await made(api)
    await say(api, crawl_id, "one", "two", "three")
    first = (await api.ask(f"{CRAWLS}/{crawl_id}/logs?limit=2"))[1]
    assert [line["msg"] for line in first["items"]] == ["Waiting for a worker", "one"]
    rest = (await api.ask(f"{CRAWLS}/{crawl_id}/logs?cursor={first['next']}"))[1]
    assert [line["msg"] for line in rest["items"]] == ["two", "three"]
    assert (await api.ask(f"{CRAWLS}/{crawl_id}/logs?cursor={rest['next']}"))[1] == {"items": [], "next": rest["next"]}
    assert [line["msg"] for line in (await api.ask(f"{CRAWLS}/{crawl_id}/logs?tail=1"))[1]["items"]] == ["three"]
    await api.ask(f"{CRAWLS}/{crawl_id}/stop", method="POST")
    end = (await api.ask(f"{CRAWLS}/{crawl_id}/logs?cursor={rest['next']}"))[1]
    assert ([line["event"] for line in end["items"]], end["next"]) == (["crawl_stopped"], None)
    assert (await api.ask(f"{CRAWLS}/{crawl_id}/logs?tail=1&cursor={rest['next']}"))[0] == 422
    assert (await api.ask(f"{CRAWLS}/nobody/logs"))[0] == 404


async def test_a_viewer_sees_every_line_and_the_end(api: ServedApi) -> None:
    with Site(pages=3) as site:
        crawl_id = await made(api, seeds=[site.address], robots="ignore", sitemap="off", speed="max")
        async with watching(api, crawl_id) as viewer:
            [lease] = await api.app.queue.lease("test", ["crawl"], ["shared"], 1)
            crawl = (await api.app.crawls.get(crawl_id)).crawl
            await make_walker(api.app, crawl, lease.fence, lambda: True).run()
            events = [event async for event in viewer.events()]
    written = (await api.ask(f"{CRAWLS}/{crawl_id}/logs"))[1]["items"]
    assert [event.data for event in events if event.name == "log"] == written
    assert [event.number for event in events if event.name == "log"] == [line["number"] for line in written]
    states = [event.data["state"] for event in events if event.name == "state"]
    assert (states[0], states[-1], len(states)) == ("queued", "completed", len(set(states)))
    pages = (await api.ask(f"{CRAWLS}/{crawl_id}"))[1]["pages"]
    assert [event.data["pages"] for event in events if event.name == "progress"][-1] == pages
    assert events[-1].name == "end"


async def test_a_reconnecting_client_continues_after_the_last_line(api: ServedApi) -> None:
    crawl_id = await made(api)
    await say(api, crawl_id, *[f"line {n}" for n in range(10)])
    await api.ask(f"{CRAWLS}/{crawl_id}/stop", method="POST")
    async with watching(api, crawl_id, last_event_id="9") as viewer:
        again = [event.data["msg"] async for event in viewer.events() if event.name == "log"]
    assert again[:2] == ["line 8", "line 9"]
    assert len(again) == 3
    async with watching(api, crawl_id, "?after=10") as viewer:
        assert len([event async for event in viewer.events() if event.name == "log"]) == 2


async def test_a_client_that_was_away_for_long_gets_older_entries_from_the_store(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "KEPT_ENTRIES", 4)
    monkeypatch.setattr(live_module, "FIRST_LINES", 2)
    crawl_id = await made(api)
    await say(api, crawl_id, *[f"line {n}" for n in range(20)])
    await api.ask(f"{CRAWLS}/{crawl_id}/stop", method="POST")
    async with watching(api, crawl_id, "?after=1") as viewer:
        numbers = [event.number async for event in viewer.events() if event.name == "log"]
    assert numbers == list(range(2, 23))
    async with watching(api, crawl_id) as viewer:
        assert [event.number async for event in viewer.events() if event.name == "log"] == [21, 22]


async def test_an_unknown_crawl_and_a_foreign_place_are_refused(api: ServedApi) -> None:
    assert (await api.ask(f"{CRAWLS}/nobody/events"))[0] == 404
    crawl_id = await made(api)
    for number in ("x", "-1", "9" * 40):
        answered = await api.send("GET", f"{CRAWLS}/{crawl_id}/events", headers={"Last-Event-ID": number})
        assert (answered.status, answered.json["field"]) == (422, "Last-Event-ID")


async def test_fifty_viewers_cost_one_query(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    crawl_id = await made(api)
    looks, get = 0, api.app.crawls.get
    live = CrawlFeeds(api.app.crawls, api.app.clock, every_seconds=0.01)

    async def counted(asked: str) -> Any:
        nonlocal looks
        looks += 1
        return await get(asked)

    streams = [await live.watch(crawl_id, None) for _ in range(50)]
    watched = [asyncio.create_task(drained(stream)) for stream in streams]
    await until(lambda: sum(feed.viewers for feed in live._feeds.values()) == 50)
    monkeypatch.setattr(api.app.crawls, "get", counted)
    await until(lambda: looks >= 3)
    before = looks
    await api.app.crawls.stop(crawl_id)
    parts = await asyncio.wait_for(asyncio.gather(*watched), PATIENCE_SECONDS)
    assert looks - before < 50, "one look for all"
    assert all(b"event: end" in part[-1] for part in parts)
    assert not live._feeds


async def drained(stream: AsyncIterator[bytes]) -> list[bytes]:
    return [part async for part in stream]


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)


async def test_a_removed_crawl_ends_its_streams(api: ServedApi) -> None:
    crawl_id = await made(api)
    live = CrawlFeeds(api.app.crawls, api.app.clock, every_seconds=0.01)
    watched = asyncio.create_task(drained(await live.watch(crawl_id, None)))
    await until(lambda: bool(live._feeds))
    await api.app.crawls.stop(crawl_id)
    await api.app.frontier_admin.erase(crawl_id)
    assert b"event: end" in (await asyncio.wait_for(watched, PATIENCE_SECONDS))[-1]
    with pytest.raises(NotFound):
        await live.watch(crawl_id, None)


async def test_the_number_of_viewers_is_limited(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MOST_VIEWERS", 1)
    crawl_id = await made(api)
    live = CrawlFeeds(api.app.crawls, api.app.clock)
    watched = asyncio.create_task(drained(await live.watch(crawl_id, None)))
    await until(lambda: bool(live._feeds))
    with pytest.raises(RateLimited):
        await live.watch(crawl_id, None)
    live.close()
    await asyncio.wait_for(watched, PATIENCE_SECONDS)


async def test_places_of_viewers_are_taken_before_anything_is_waited_for(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MOST_VIEWERS", 3)
    crawl_id = await made(api)
    live = CrawlFeeds(api.app.crawls, api.app.clock)
    found = await asyncio.gather(*[live.watch(crawl_id, None) for _ in range(20)], return_exceptions=True)
    assert sum(isinstance(one, RateLimited) for one in found) == 17
    for one in found:  # of a client that disconnected before the response began
        if not isinstance(one, BaseException):
            await one.aclose()
    viewing = [await live.watch(crawl_id, None) for _ in range(3)]
    await viewing[0].aclose()
    with pytest.raises(NotFound):
        await live.watch("crl_nothing", None)
    viewing[0] = await live.watch(crawl_id, None)
    with pytest.raises(RateLimited):
        await live.watch(crawl_id, None)
    viewing[0] = viewing[1]  # drop the last reference
    viewing[0] = await live.watch(crawl_id, None)
    live.close()
    for one in viewing:
        await drained(one)
    await (await live.watch(crawl_id, None)).aclose()


async def test_a_quiet_stream_has_a_heartbeat(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "HEARTBEAT_SECONDS", 0.05)
    crawl_id = await made(api)
    live = CrawlFeeds(api.app.crawls, api.app.clock, every_seconds=0.01)
    stream = await live.watch(crawl_id, None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for part in stream:
            if part.startswith(b":"):
                break
    live.close()
    await stream.aclose()


def test_a_controller_that_stops_ends_its_streams_and_itself(sqlite_url: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, sqlite_url) as fleet:
        controller = fleet.controller()
        address = f"http://127.0.0.1:{fleet.port}{CRAWLS}"
        body = json.dumps({"seeds": ["http://127.0.0.1:9/"]}).encode()
        with urlopen(Request(address, body, {"Content-Type": "application/json"}), timeout=PATIENCE_SECONDS) as made:
            crawl_id = json.load(made)["id"]
        with urlopen(f"{address}/{crawl_id}/events", timeout=PATIENCE_SECONDS) as stream:
            assert stream.readline().startswith(b"retry:")
            controller.send(signal.SIGTERM)
            assert b"event: end" not in stream.read(), "the crawl goes on"
        assert controller.wait(60) == 0
        assert "Traceback" not in controller.said()
