"""Requests that read much of a crawl: they end when their client leaves, wait in a bounded queue, and have a time
budget."""

import asyncio
import socket
from collections.abc import AsyncIterator

import orjson
import pytest
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.base.clock import SystemClock
from shoal.base.ids import CrawlId
from shoal.base.signals import Signal, Signals
from shoal.crawl.crawl import CrawlConfig
from shoal.serve import connections
from shoal.serve.application import CLIENT_GONE, RequestServed, application
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint, routes_of
from shoal.serve.expensive_reads import AT_ONCE, WAITING, ExpensiveReads
from tests.support.api import answering
from tests.support.controller import CRAWLS, ServedController, served_controller
from tests.support.http_client import request
from tests.support.requests_at_limits import PAGES, ended

LIMIT_SECONDS = 20.0
PLACES = AT_ONCE + WAITING
DIFF = f"{CRAWLS}/later/diff"


@pytest.fixture
async def shop(sqlite_url: str) -> AsyncIterator[ServedController]:
    """Serve two crawls that have ended."""
    async with served_controller(sqlite_url) as shop:
        for crawl_id in ("earlier", "later"):
            config = CrawlConfig.read({"seeds": ["https://example.com/"], "start": False})
            await shop.app.crawls.submit(config, crawl_id=CrawlId(crawl_id))
            await shop.app.crawls.stop(crawl_id)
        yield shop


async def send(port: int, path: str, token: str) -> asyncio.StreamWriter:
    """Send a request and return its connection; the response is not read."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return writer


async def served(shop: ServedController, status: int, count: int) -> None:
    """Wait until that many requests ended with a status."""
    enough = asyncio.Event()

    def look(signal: Signal | None) -> None:
        seen = sum(isinstance(one, RequestServed) and one.status == status for one in shop.signals_seen)
        if seen >= count:
            enough.set()

    shop.app.signals.subscribe(look)
    look(None)
    await asyncio.wait_for(enough.wait(), LIMIT_SECONDS)


async def test_diffs_of_clients_that_left_are_not_computed_and_others_get_theirs(shop: ServedController) -> None:
    viewer, other = await shop.token(), await shop.token()
    reading = shop.app.audit.diffs._reading
    await reading.acquire()  # as a diff that takes long does
    clients = [await send(shop.port, f"{DIFF}?against=earlier", viewer) for _ in range(PLACES + 30)]
    await served(shop, 429, 30)
    theirs = asyncio.create_task(shop.ask(f"{DIFF}?against=earlier", other))
    for client in clients:
        client.close()
    await served(shop, CLIENT_GONE, PLACES)
    reading.release()
    async with asyncio.timeout(LIMIT_SECONDS):
        assert (await theirs).status == 200
        assert (await shop.ask(f"{DIFF}?against=earlier", viewer)).status == 200


async def test_an_import_of_policies_ends_when_its_client_leaves(shop: ServedController) -> None:
    token = await shop.token("operator")
    body = b'{"url": "http://example.org/a", "frequency": "6h"}\n' * 30_000
    _, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    head = f"POST /api/v1/policies/import HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    writer.write(f"{head}Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(LIMIT_SECONDS):
        await writer.drain()
    writer.close()
    await served(shop, CLIENT_GONE, 1)
    assert orjson.loads((await shop.ask("/api/v1/policies", token)).body)["items"] == []


async def test_a_caller_with_a_full_queue_is_told_when_to_try_again(shop: ServedController) -> None:
    viewer = await shop.token()
    async with shop.app.audit.diffs._reading:
        clients = [await send(shop.port, f"{DIFF}?against=earlier", viewer) for _ in range(PLACES + 1)]
        await served(shop, 429, 1)
        answer = await shop.ask(f"{DIFF}?against=earlier", viewer)
        assert (answer.status, answer.json["code"]) == (429, "rate_limited")
        assert int(answer.headers["retry-after"]) > 0
        listed = await shop.ask(CRAWLS, viewer)
        assert listed.status == 200, "other requests of the caller are not limited"
    for client in clients:
        client.close()


async def test_pages_of_the_console_that_read_much_of_a_crawl_are_limited_too(shop: ServedController) -> None:
    viewer = await shop.token()
    url = "https%3A%2F%2Fexample.com%2F"
    tab = "/crawls/later"
    limited = (
        f"{tab}/frontier?url={url}",
        f"{tab}/pages?text=none",
        f"{tab}/pages?status=404",
        f"{tab}/pages?sort=size",
        "/pages/later~1",
    )
    async with shop.app.audit.diffs._reading:
        clients = [await send(shop.port, f"{DIFF}?against=earlier", viewer) for _ in range(PLACES + 1)]
        await served(shop, 429, 1)
        assert [(await shop.ask(path, viewer)).status for path in limited] == [429] * len(limited)
        small = (f"{tab}/frontier", f"{tab}/frontier?url=", f"{tab}/pages", f"{tab}/pages?text=+&after=7")
        assert [(await shop.ask(path, viewer)).status for path in small] == [200] * len(small)
    for client in clients:
        client.close()


def begin_to_read(shop: ServedController, path: str, token: str) -> socket.socket:
    """Send a request and read the status of the response; the rest does not fit into the buffers of the connection."""
    client = socket.socket()
    client.settimeout(LIMIT_SECONDS)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", shop.port))
    client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    assert client.recv(15) == b"HTTP/1.1 200 OK"
    return client


async def test_readers_that_read_nothing_lose_their_places(
    shop: ServedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.2)
    viewer = await shop.token()
    await ended(shop, "large", "title")
    export = "/crawls/large/export/jsonl"
    clients = [await asyncio.to_thread(begin_to_read, shop, export, viewer) for _ in range(AT_ONCE)]
    async with asyncio.timeout(LIMIT_SECONDS):
        answer = await shop.ask(export, viewer)
    assert (answer.status, len(answer.text.splitlines())) == (200, PAGES)
    for client in clients:
        client.close()


@pytest.mark.exhaustive
async def test_a_reader_that_is_only_slow_gets_everything(
    shop: ServedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 1.0)
    viewer = await shop.token()
    await ended(shop, "large", "title")
    client = await asyncio.to_thread(begin_to_read, shop, "/crawls/large/export/jsonl", viewer)

    client.setblocking(False)
    read, loop = bytearray(), asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT_SECONDS):
        while not read.endswith(b"0\r\n\r\n") and (piece := await loop.sock_recv(client, 20_000)):
            read += piece
            await SystemClock().sleep(0.001)
    assert read.count(b'"url":') == PAGES
    client.close()


class SlowApi:
    """Expensive reads that never end, or that stream."""

    @endpoint("GET", "/api/v1/endless", scope=TokenScope.READ, summary="Never respond.", expensive=always)
    async def endless(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    @endpoint("GET", "/api/v1/stream", scope=TokenScope.READ, summary="Stream.", expensive=always)
    async def stream(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"a line\n"

        return StreamingResponse(pieces())


@pytest.fixture
async def port() -> AsyncIterator[int]:
    routes = routes_of([SlowApi()], 1_000, ExpensiveReads(seconds=0.05))
    listener = socket.create_server(("127.0.0.1", 0))
    async with answering(application(routes, SystemClock(), Signals()), listener):
        yield listener.getsockname()[1]


async def test_a_read_that_uses_up_its_time_is_stopped_with_503(port: int) -> None:
    for _ in range(PLACES + 1):  # a place is free again after each
        answer = await asyncio.to_thread(request, port, "GET", "/api/v1/endless", None, {})
        assert (answer.status, answer.json["code"]) == (503, "took_too_long")
        assert int(answer.headers["retry-after"]) > 0


async def test_a_stream_holds_its_place_until_it_has_been_sent(port: int) -> None:
    for _ in range(PLACES + 1):
        answer = await asyncio.to_thread(request, port, "GET", "/api/v1/stream", None, {})
        assert (answer.status, answer.text) == (200, "a line\n")
