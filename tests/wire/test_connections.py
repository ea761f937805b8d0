"""Connections of a controller: slow and excess connections are closed, and a caller with a token still gets through."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from shoal.access.limits import ConnectionsCut
from shoal.serve.connections import MOST_HEAD_BYTES
from tests.support.controller import CRAWLS, ServedController, served_controller
from tests.support.patience import PATIENCE_SECONDS, with_load
from tests.wire.test_gateway import tls_flags, trusting

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def quick() -> dict[str, str]:
    """Deadlines that end soon, but not before a busy machine has received what was sent at once."""
    deadline = f"{round(with_load(100))}ms"
    return {"SHOAL_REQUEST_HEADER_TIMEOUT": deadline, "SHOAL_REQUEST_BODY_TIMEOUT": deadline}


class Peer:
    """A client that sends arbitrary bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> bytes:
        """The head of the next answer."""
        return await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)

    async def rest(self) -> bytes:
        """Return everything received until the server closes the connection."""
        try:
            return await asyncio.wait_for(self._reader.read(), PATIENCE_SECONDS)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def connected(shop: ServedController) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


@pytest.mark.parametrize(("first", "then"), [(b"", b""), (b"", HALF), (b"", b"\r\n"), (WHOLE, HALF), (WHOLE, b"\r\n")])
async def test_headers_that_do_not_come_are_not_waited_for(sqlite_url: str, first: bytes, then: bytes) -> None:
    async with served_controller(sqlite_url, **quick()) as shop, connected(shop) as peer:
        if first:
            peer.send(first)
            assert (await peer.head()).startswith(b"HTTP/1.1 200")
        peer.send(then)
        assert b"HTTP/1.1 408 Request Timeout" in await peer.rest()


@pytest.mark.parametrize("sent", [b"", b"{", b"x" * 50])
async def test_a_body_that_trickles_is_not_waited_for(sqlite_url: str, sent: bytes) -> None:
    async with served_controller(sqlite_url, **quick()) as shop, connected(shop) as peer:
        peer.send(b"POST /api/v1/crawls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n" + sent)
        assert b"HTTP/1.1 408 Request Timeout" in await peer.rest()
        assert "Traceback" not in shop.log.getvalue()


async def test_a_refused_request_whose_body_never_ends_is_cut(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, **quick()) as shop:
        await shop.token()
        async with connected(shop) as peer:
            peer.send(b"POST /api/v1/crawls HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{")
            assert (await peer.head()).startswith(b"HTTP/1.1 401")
            await peer.rest()


async def test_headers_of_megabytes_are_refused(sqlite_url: str) -> None:
    async with served_controller(sqlite_url) as shop, connected(shop) as peer:
        peer.send(HALF + b"x" * (MOST_HEAD_BYTES - len(HALF) + 1))
        assert b"HTTP/1.1 431 " in await peer.rest()


async def test_a_long_poll_outlives_the_deadlines_and_keeps_its_connection(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, **quick()) as shop:
        token = (await shop.token("bot")).encode()
        body = b'{"bot_id": "a", "wait_seconds": 0.5}'
        request = b"POST /bot/v1/jobs/pull HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n" % token
        async with connected(shop) as peer:
            peer.send(request + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            head = await peer.head()
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" not in head


@pytest.mark.parametrize(
    "limit", [{"SHOAL_MAX_CONNECTIONS": "20"}, {"SHOAL_MAX_CONNECTIONS": "100", "SHOAL_MAX_PEER_CONNECTIONS": "10"}]
)
async def test_half_sent_requests_keep_no_caller_out_and_are_told_of_once(
    sqlite_url: str, limit: dict[str, str]
) -> None:
    async with served_controller(sqlite_url, **limit) as shop, AsyncExitStack() as stack:
        token = await shop.token()
        kept = await stack.enter_async_context(connected(shop))
        asked = f"GET {CRAWLS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        kept.send(asked)
        assert (await kept.head()).startswith(b"HTTP/1.1 200")
        slow = [await stack.enter_async_context(connected(shop)) for _ in range(40)]
        for peer in slow:
            peer.send(HALF)
        assert await slow[0].rest() == b""  # the oldest connections were closed
        assert (await shop.ask(token=token)).status == 200
        kept.send(asked)
        assert b"HTTP/1.1 200" in await kept.head()
        told = [signal for signal in shop.signals_seen if isinstance(signal, ConnectionsCut)]
        assert [signal.peer for signal in told] == ["127.0.0.1"]


async def test_a_trusted_proxy_is_many_peers(sqlite_url: str) -> None:
    limit = {"SHOAL_MAX_PEER_CONNECTIONS": "2", "SHOAL_TRUSTED_PROXIES": "127.0.0.0/8"}
    async with served_controller(sqlite_url, **limit) as shop, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(connected(shop)) for _ in range(10)]
        for peer in peers:
            peer.send(WHOLE)
        assert {(await peer.head())[:12] for peer in peers} == {b"HTTP/1.1 200"}


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_handshake_that_does_not_come_is_not_waited_for(sqlite_url: str, sent: bytes) -> None:
    async with served_controller(sqlite_url, tls=trusting(), **quick(), **tls_flags()) as shop, connected(shop) as peer:
        peer.send(sent)
        await peer.rest()
        assert (await shop.ask("/healthz")).status == 200


async def test_handshakes_that_hang_keep_no_caller_out(sqlite_url: str) -> None:
    limit = {"SHOAL_MAX_CONNECTIONS": "20"}
    async with served_controller(sqlite_url, tls=trusting(), **limit, **tls_flags()) as shop, AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(connected(shop)) for _ in range(40)]
        assert await slow[0].rest() == b""
        assert (await shop.ask("/healthz")).status == 200
        assert len([signal for signal in shop.signals_seen if isinstance(signal, ConnectionsCut)]) == 1
