"""The pinning proxy behind the proxy of a crawl: HTTP and SOCKS5 (B18)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shoal.base.clock import SystemClock
from shoal.egress import AddressRule, Proxy, Resolver
from shoal.egress.pinning_proxy import PinningProxy, ProxyAccount
from tests.support.bad_http_server import Asked, BadServer, Line, bad_server, own_authority, reply
from tests.support.proxy_client import client

NAMES = {"site.test": ("8.8.8.8",), "inside.test": ("10.0.0.1",), "proxy.test": ("127.0.0.1",)}
LOGIN = "Basic bWU6c2VjcmV0"


@pytest.fixture
async def upstream() -> AsyncIterator[BadServer]:
    async with bad_server() as server:
        server.answer("*", reply(200, b"through"))
        yield server


@pytest.fixture
async def pinning() -> AsyncIterator[PinningProxy]:
    proxy = PinningProxy(resolver=Resolver(SystemClock(), lookup=lambda host: NAMES.get(host, ())))
    await proxy.start()
    yield proxy
    await proxy.aclose()


def behind(pinning: PinningProxy, scheme: str, port: int, login: str = "me:secret@") -> ProxyAccount:
    named = AddressRule(named=frozenset({("proxy.test", port)}))
    return pinning.open_account(AddressRule(), proxy=Proxy.parse(f"{scheme}://{login}proxy.test:{port}", named))


async def test_plain_requests_go_to_the_proxy_with_its_own_login(pinning: PinningProxy, upstream: BadServer) -> None:
    async with client(pinning, behind(pinning, "http", upstream.port)) as browser:
        assert (await browser.get("http://site.test/page?a")).body == b"through"
        assert (await browser.get("http://site.test/other")).body == b"through"
    assert [each.target for each in upstream.asked] == ["http://site.test/page?a", "http://site.test/other"]
    assert upstream.asked[0].headers == {"host": "site.test", "proxy-authorization": LOGIN}


async def test_tunnels_go_through_the_proxy(pinning: PinningProxy, upstream: BadServer) -> None:
    async def script(line: Line, _asked: Asked) -> None:
        await line.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await line.send(await line.reader.read(100))

    upstream.scripts["*"] = script
    async with client(pinning, behind(pinning, "http", upstream.port)) as browser:
        assert (await browser.connect("site.test:443")).status == 200
        await browser.send(b"echo")
        assert await browser.read(4) == b"echo"
    (asked,) = upstream.asked
    assert (asked.method, asked.target) == ("CONNECT", "site.test:443")
    assert asked.headers == {"host": "site.test:443", "proxy-authorization": LOGIN}


@pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])
async def test_the_target_is_judged_although_the_proxy_would_reach_it(
    pinning: PinningProxy, upstream: BadServer, scheme: str
) -> None:
    account = behind(pinning, scheme, upstream.port)
    async with client(pinning, account) as browser:
        assert (await browser.get("http://inside.test/")).refusal == "address_not_public"
        assert (await browser.get(f"http://proxy.test:{upstream.port}/")).refusal == "address_not_public"
        assert (await browser.connect("inside.test:443")).refusal == "address_not_public"
    assert upstream.connections == 0


async def test_a_proxy_that_nobody_named_may_not_be_inside(pinning: PinningProxy, upstream: BadServer) -> None:
    proxy = Proxy.parse(f"http://proxy.test:{upstream.port}", AddressRule())
    async with client(pinning, pinning.open_account(AddressRule(), proxy=proxy)) as browser:
        assert (await browser.get("http://site.test/")).refusal == "address_not_public"
    assert upstream.connections == 0


@pytest.mark.parametrize(
    "answer", [reply(403, b"no"), reply(407, b""), b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"a" * 20_000]
)
async def test_a_proxy_that_opens_no_tunnel_is_a_failure_of_the_proxy(
    pinning: PinningProxy, upstream: BadServer, answer: bytes
) -> None:
    upstream.answer_and_close("*", answer)
    account = behind(pinning, "http", upstream.port)
    async with client(pinning, account) as browser:
        refused = await browser.connect("site.test:443")
    assert (refused.status, refused.refusal) == (502, "proxy_error")
    assert account.counts.failed == 1


async def test_the_challenge_of_the_proxy_does_not_reach_the_browser(
    pinning: PinningProxy, upstream: BadServer
) -> None:
    upstream.answer("*", reply(407, b""))
    async with client(pinning, behind(pinning, "http", upstream.port)) as browser:
        answer = await browser.get("http://site.test/")
    assert (answer.status, answer.refusal) == (502, "proxy_error")


@pytest.mark.parametrize(("certificate", "status"), [("good", 200), ("other", 502), ("self_signed", 502)])
async def test_a_proxy_behind_tls_must_prove_its_name(certificate: str, status: int) -> None:
    names = {"site.test": ("127.0.0.1",), "far.test": ("8.8.8.8",)}
    resolver = Resolver(SystemClock(), lookup=lambda host: names.get(host, ()))
    pinning = PinningProxy(resolver=resolver)
    await pinning.start()
    async with bad_server(certificate) as upstream:
        upstream.answer("*", reply(200, b"through"))
        named = AddressRule(named=frozenset({("site.test", upstream.port)}))
        proxy = Proxy.parse(f"https://me:secret@site.test:{upstream.port}", named)
        with own_authority():
            account = pinning.open_account(AddressRule(), proxy=proxy)
        async with client(pinning, account) as browser:
            answer = await browser.get("http://far.test/page")
    await pinning.aclose()
    assert answer.status == status
    assert [asked.headers["proxy-authorization"] for asked in upstream.asked] == ([LOGIN] if status == 200 else [])


# SOCKS5


@asynccontextmanager
async def socks5_server(status: int = 0, method: int = 2) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A SOCKS5 proxy that records logins and targets, and then echoes."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version, count = await reader.readexactly(2)
        seen.append(bytes([version]) + await reader.readexactly(count))
        writer.write(bytes([5, method]))
        if method == 2:
            _, length = await reader.readexactly(2)
            username = await reader.readexactly(length)
            (length,) = await reader.readexactly(1)
            seen.append(username + b":" + await reader.readexactly(length))
            writer.write(b"\1\0")
        if method != 255:
            head = await reader.readexactly(4)
            size = {1: 4, 4: 16}.get(head[3]) or (await reader.readexactly(1))[0]
            seen.append(head[3:] + await reader.readexactly(size + 2))
            writer.write(bytes([5, status, 0, 3, 4]) + b"name\0\0")
            if not status:
                writer.write(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


@pytest.mark.parametrize(
    ("scheme", "target"), [("socks5", b"\1\x08\x08\x08\x08\x01\xbb"), ("socks5h", b"\3site.test\x01\xbb")]
)
async def test_a_socks_proxy_gets_the_checked_address_or_the_name(
    pinning: PinningProxy, scheme: str, target: bytes
) -> None:
    async with socks5_server() as (port, seen), client(pinning, behind(pinning, scheme, port)) as browser:
        assert (await browser.connect("site.test:443")).status == 200
        await browser.send(b"echo")
        assert await browser.read(4) == b"echo"
    assert seen == [b"\5\0\2", b"me:secret", target]


async def test_plain_requests_go_through_a_socks_proxy(pinning: PinningProxy) -> None:
    async with socks5_server(method=0) as (port, seen), client(pinning, behind(pinning, "socks5", port, "")) as browser:
        await browser.get("http://site.test/page")  # the echoed request is not a valid response
    assert seen == [b"\5\0", b"\1\x08\x08\x08\x08\x00\x50"]


@pytest.mark.parametrize(("status", "method"), [(2, 0), (0, 255)])
async def test_a_socks_proxy_that_refuses_is_a_failure_of_the_proxy(
    pinning: PinningProxy, status: int, method: int
) -> None:
    async with (
        socks5_server(status, method) as (port, _),
        client(pinning, behind(pinning, "socks5", port)) as browser,
    ):
        refused = await browser.connect("site.test:443")
    assert (refused.status, refused.refusal) == (502, "proxy_error")
