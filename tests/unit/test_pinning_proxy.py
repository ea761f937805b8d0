"""The forward proxy for browsers: policy, accounts, plain requests and tunnels (B18)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.clock import SystemClock
from shoal.base.url import Url
from shoal.egress import AddressRule, Resolver
from shoal.egress.pinning_proxy import PinningProxy, ProxyAccount, ProxyLimits
from shoal.egress.pinning_proxy.messages import BadMessage, parse_request, parse_response
from tests.support.bad_http_server import Asked, BadServer, Line, bad_server, reply
from tests.support.patience import in_time
from tests.support.proxy_client import ProxyClient, authorization, client

BRIEF = timedelta(milliseconds=50)
NAMES = {
    "site.test": ("127.0.0.1",),
    "other.test": ("127.0.0.1",),
    "inside.test": ("10.0.0.1",),
    "mixed.test": ("8.8.8.8", "192.168.0.1"),
    "metadata.test": ("169.254.169.254",),
}


@pytest.fixture
async def site() -> AsyncIterator[BadServer]:
    async with bad_server() as server:
        server.answer("*", reply(200, b"<p>page</p>"))
        yield server


@pytest.fixture
def looked_up() -> list[str]:
    return []


@pytest.fixture
async def proxy(looked_up: list[str]) -> AsyncIterator[PinningProxy]:
    def lookup(host: str) -> tuple[str, ...]:
        looked_up.append(host)
        return NAMES.get(host, ())

    proxy = PinningProxy(resolver=Resolver(SystemClock(), lookup=lookup))
    await proxy.start()
    yield proxy
    await proxy.aclose()


@pytest.fixture
def rule(site: BadServer) -> AddressRule:
    return AddressRule(named=frozenset({("site.test", site.port), ("other.test", site.port)}))


@pytest.fixture
def account(proxy: PinningProxy, rule: AddressRule) -> ProxyAccount:
    return proxy.open_account(rule)


@pytest.fixture
async def browser(proxy: PinningProxy, account: ProxyAccount) -> AsyncIterator[ProxyClient]:
    async with client(proxy, account) as connection:
        yield connection


# Policy


@pytest.mark.parametrize(
    ("host", "code", "status"),
    [
        ("127.0.0.1:{port}", "address_not_public", 403),
        ("[::1]:{port}", "address_not_public", 403),
        ("inside.test:80", "address_not_public", 403),
        ("mixed.test:80", "address_not_public", 403),
        ("metadata.test:80", "address_not_public", 403),
        ("site.test:22", "address_not_public", 403),
        ("8.8.8.8:22", "port_not_allowed", 403),
        ("unknown.test:80", "dns_error", 502),
        ("0x7f.1:{port}", "address_not_public", 403),
    ],
)
@pytest.mark.parametrize("is_tunnel", [False, True])
async def test_a_host_that_the_rule_refuses_is_not_dialled(
    browser: ProxyClient, account: ProxyAccount, site: BadServer, host: str, code: str, status: int, is_tunnel: bool
) -> None:
    host = host.format(port=site.port)
    answer = await (browser.connect(host) if is_tunnel else browser.get(f"http://{host}/secret"))
    assert (answer.status, answer.refusal) == (status, code)
    assert b"127.0.0.1" not in answer.body
    assert b"10.0.0.1" not in answer.body
    assert site.connections == 0
    assert account.counts.codes == {code: 1}
    assert (account.counts.refused, account.counts.failed) == ((1, 0) if status == 403 else (0, 1))
    (refusal,) = account.refusals
    assert refusal.code == code
    assert refusal.url == (host.replace("0x7f.1", "127.0.0.1") if is_tunnel else f"http://{host}/secret")


async def test_an_address_is_checked_again_when_it_is_dialled(proxy: PinningProxy, site: BadServer) -> None:
    """A controller that becomes known between the two checks."""
    known: Iterator[frozenset[tuple[object, int]]] = iter(
        [frozenset(), frozenset({(ip_address("127.0.0.1"), site.port)})]
    )
    rule = AddressRule(allow=(ip_network("127.0.0.0/8"),), others=lambda: next(known))  # type: ignore[arg-type,return-value]
    async with client(proxy, proxy.open_account(rule)) as browser:
        answer = await browser.get(f"http://127.0.0.1:{site.port}/")
    assert (answer.status, answer.refusal) == (403, "self_connection")
    assert site.connections == 0


async def test_an_address_is_checked_a_third_time_once_connected(proxy: PinningProxy, site: BadServer) -> None:
    known = iter([frozenset(), frozenset(), frozenset({(ip_address("127.0.0.1"), site.port)})])
    rule = AddressRule(allow=(ip_network("127.0.0.0/8"),), others=lambda: next(known))  # type: ignore[arg-type,return-value]
    async with client(proxy, proxy.open_account(rule)) as browser:
        answer = await browser.get(f"http://127.0.0.1:{site.port}/")
    assert answer.refusal == "self_connection"
    assert site.asked == []


async def test_a_page_does_not_reach_the_proxy_through_the_proxy(proxy: PinningProxy) -> None:
    account = proxy.open_account(AddressRule(allow=(ip_network("127.0.0.0/8"),)))
    async with client(proxy, account) as browser:
        answer = await browser.get(f"http://{proxy.address}/")
    assert (answer.status, answer.refusal) == (403, "self_connection")


async def test_a_name_is_resolved_here_and_only_once(
    browser: ProxyClient, site: BadServer, looked_up: list[str]
) -> None:
    for _ in range(3):
        assert (await browser.get(f"http://site.test:{site.port}/")).body == b"<p>page</p>"
    assert looked_up == ["site.test"]


async def test_the_owner_is_asked_for_urls_and_for_hosts_of_tunnels(
    proxy: PinningProxy, rule: AddressRule, site: BadServer
) -> None:
    asked = []

    async def allow(target: str) -> str | None:
        asked.append(target)
        return "robots.txt" if "private" in target else None

    account = proxy.open_account(rule, allow=allow)
    async with client(proxy, account) as browser:
        assert (await browser.get(f"http://site.test:{site.port}/public")).status == 200
        answer = await browser.get(f"http://site.test:{site.port}/private?a=b")
        assert (answer.status, answer.refusal) == (403, "not_allowed")
        assert b"robots.txt" in answer.body
        assert (await browser.connect(f"site.test:{site.port}")).status == 200
    base = f"site.test:{site.port}"
    assert asked == [f"http://{base}/public", f"http://{base}/private?a=b", base]
    assert [each.target for each in site.asked] == ["/public"]
    assert account.counts.refused == 1


async def test_the_refusal_of_a_page_is_told_from_those_of_its_other_requests(
    browser: ProxyClient, account: ProxyAccount, proxy: PinningProxy
) -> None:
    await browser.get("http://unknown.test/page")
    await browser.get("http://inside.test/image")
    async with client(proxy, account) as tunnel:
        await tunnel.connect("unknown.test:443")
    found = account.failure_of(Url("http://unknown.test/page"))
    assert found is not None
    assert (found.code, found.retryable) == ("dns_error", False)
    assert account.failure_of(Url("https://unknown.test/any")) is not None
    assert account.failure_of(Url("http://unknown.test/other")) is None


async def test_a_server_that_is_gone_is_a_failure_and_not_a_refusal(
    browser: ProxyClient, account: ProxyAccount, proxy: PinningProxy
) -> None:
    async with bad_server() as gone:
        port = gone.port
    async with client(proxy, proxy.open_account(AddressRule(named=frozenset({("site.test", port)})))) as visitor:
        answer = await visitor.get(f"http://site.test:{port}/")
    assert (answer.status, answer.refusal) == (502, "connect_error")


# Sessions


@pytest.mark.parametrize("is_tunnel", [False, True])
async def test_without_a_credential_nothing_is_forwarded(proxy: PinningProxy, site: BadServer, is_tunnel: bool) -> None:
    async with client(proxy, None) as stranger:
        host = f"site.test:{site.port}"
        answer = await (stranger.connect(host) if is_tunnel else stranger.get(f"http://{host}/"))
    assert answer.status == 407
    assert answer.headers["proxy-authenticate"] == 'Basic realm="shoal"'
    assert site.connections == 0


async def test_a_body_without_a_credential_is_not_taken_for_the_next_request(
    proxy: PinningProxy, site: BadServer
) -> None:
    async with client(proxy, None) as stranger:
        answer = await stranger.get(f"http://site.test:{site.port}/", "POST", "Content-Length: 2", body=b"ab")
        assert (answer.status, answer.headers["connection"]) == (407, "close")
        assert await stranger.rest() == b""


async def test_the_browser_may_send_the_credential_on_the_connection_that_asked_for_it(
    proxy: PinningProxy, account: ProxyAccount, site: BadServer
) -> None:
    async with client(proxy, None) as browser:
        url = f"http://site.test:{site.port}/"
        assert (await browser.get(url)).status == 407
        assert (await browser.get(url, "GET", authorization(account.username, account.password))).status == 200


async def test_wrong_garbled_and_old_credentials_are_refused(
    proxy: PinningProxy, account: ProxyAccount, rule: AddressRule, site: BadServer
) -> None:
    other = proxy.open_account(rule)
    fields = [
        authorization(account.username, other.password),
        authorization(account.username, account.password + "x"),
        authorization(account.username, ""),
        "Proxy-Authorization: Basic %%%",
        "Proxy-Authorization: Bearer " + account.password,
        authorization("", ""),
    ]
    async with client(proxy, None) as stranger:
        url = f"http://site.test:{site.port}/"
        for field in fields:
            assert (await stranger.get(url, "GET", field)).status == 407
        account.close()
        assert (await stranger.get(url, "GET", authorization(account.username, account.password))).status == 407
    assert site.connections == 0


async def test_sessions_of_one_proxy_have_their_own_policy_and_counts(
    proxy: PinningProxy, account: ProxyAccount, site: BadServer
) -> None:
    strict = proxy.open_account(AddressRule())
    url = f"http://site.test:{site.port}/"
    async with client(proxy, account) as browser, client(proxy, strict) as stranger:
        assert (await browser.get(url)).status == 200
        assert (await stranger.get(url)).status == 403
    assert (account.counts.refused, strict.counts.refused) == (0, 1)
    assert account.counts.bytes_received > 0 == strict.counts.bytes_received


async def test_closing_a_session_ends_its_connections(
    proxy: PinningProxy, account: ProxyAccount, site: BadServer
) -> None:
    site.fall_silent("/silent")
    async with client(proxy, account) as tunnel, client(proxy, account) as browser:
        assert (await tunnel.connect(f"site.test:{site.port}")).status == 200
        await browser.send(browser.head(f"GET http://site.test:{site.port}/silent HTTP/1.1"))
        await site.until_asked()
        account.close()
        account.close()
        assert await tunnel.rest() == b""
        await site.until_alone()


async def test_a_session_that_is_closed_while_it_decides_opens_no_tunnel(
    proxy: PinningProxy, rule: AddressRule, site: BadServer
) -> None:
    async def allow(_target: str) -> None:
        account.close()

    account = proxy.open_account(rule, allow=allow)
    async with client(proxy, account) as browser:
        await browser.send(browser.head(f"CONNECT site.test:{site.port} HTTP/1.1"))
        assert await browser.rest() == b""
    await site.until_alone()


async def test_closed_accounts_leave_nothing_behind(proxy: PinningProxy, rule: AddressRule, site: BadServer) -> None:
    for _ in range(20):
        account = proxy.open_account(rule)
        async with client(proxy, account) as browser, client(proxy, account) as tunnel:
            await browser.get(f"http://site.test:{site.port}/")
            await tunnel.connect(f"site.test:{site.port}")
            account.close()
            assert await tunnel.rest() == b""
    await site.until_alone()
    await proxy.aclose()
    assert not proxy._accounts
    assert not proxy._serving


# Plain requests


async def test_a_request_reaches_the_server_without_what_concerns_the_proxy_alone(
    browser: ProxyClient, site: BadServer
) -> None:
    fields = ("Connection: keep-alive, X-Hop", "X-Hop: a", "Keep-Alive: 5", "Upgrade: h2c", "TE: trailers", "X-Own: b")
    await browser.get(f"http://site.test:{site.port}?q=1/2", "GET", *fields, "Proxy-Connection: keep-alive")
    (asked,) = site.asked
    assert asked.target == "/?q=1/2"
    assert asked.headers == {"host": f"site.test:{site.port}", "x-own": "b"}


async def test_one_connection_of_the_browser_serves_several_hosts_and_connections_are_reused(
    browser: ProxyClient, site: BadServer
) -> None:
    for host in ("site.test", "other.test", "site.test", "other.test"):
        assert (await browser.get(f"http://{host}:{site.port}/")).status == 200
    assert [each.headers["host"].partition(":")[0] for each in site.asked] == ["site.test", "other.test"] * 2
    assert site.connections == 2


async def test_a_request_is_sent_again_if_the_server_has_closed_the_idle_connection(
    browser: ProxyClient, site: BadServer
) -> None:
    served = 0

    async def script(line: Line, _asked: Asked) -> None:
        nonlocal served
        served += 1
        if served == 2:
            line.reset()
            raise ConnectionResetError
        await line.send(reply(200, b"ok"))

    site.scripts["/"] = script
    url = f"http://site.test:{site.port}/"
    assert [(await browser.get(url)).status for _ in range(2)] == [200, 200]
    assert site.connections == 2


async def test_a_form_whose_connection_was_lost_is_not_sent_again(browser: ProxyClient, site: BadServer) -> None:
    async def script(line: Line, asked: Asked) -> None:
        if asked.method == "POST":
            line.reset()
            raise ConnectionResetError
        await line.send(reply(200, b"ok"))

    site.scripts["/"] = script
    url = f"http://site.test:{site.port}/"
    assert (await browser.get(url)).status == 200
    answer = await browser.get(url, "POST", "Content-Length: 2", body=b"ab")
    assert (answer.status, answer.refusal) == (502, "connection_lost")
    assert [asked.method for asked in site.asked] == ["GET", "POST"]


@pytest.mark.parametrize("fields", [("Content-Length: 5",), ("Transfer-Encoding: chunked",)])
async def test_a_body_reaches_the_server_and_is_not_sent_twice(
    browser: ProxyClient, site: BadServer, fields: tuple[str, ...]
) -> None:
    got = b""

    async def script(line: Line, asked: Asked) -> None:
        nonlocal got
        got = asked.body or await line.reader.readuntil(b"0\r\n\r\n")
        await line.send(reply(200, b"ok"))

    site.scripts["/form"] = script
    body = b"hello" if "5" in fields[0] else b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    assert (await browser.get(f"http://site.test:{site.port}/form", "POST", *fields, body=body)).body == b"ok"
    assert got.replace(b"\r\n", b"").replace(b"2he", b"he").replace(b"3llo0", b"llo") == b"hello"


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5\r\nhello\r\n0\r\nA: b"
            b"\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\nno colon\nX-Long: a\n b\n\nhello", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", b""),
    ],
)
async def test_responses_of_all_shapes_arrive_whole_and_the_connection_goes_on(
    browser: ProxyClient, site: BadServer, sent: bytes, body: bytes
) -> None:
    site.answer("/shape", sent)
    for _ in range(2):
        assert (await browser.get(f"http://site.test:{site.port}/shape")).body == body
    assert (await browser.get(f"http://site.test:{site.port}/")).body == b"<p>page</p>"


async def test_a_head_request_has_no_body(browser: ProxyClient, site: BadServer) -> None:
    site.answer("/head", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
    answer = await browser.get(f"http://site.test:{site.port}/head", "HEAD")
    assert answer.headers["content-length"] == "500"
    assert (await browser.get(f"http://site.test:{site.port}/")).body == b"<p>page</p>"


async def test_a_body_that_ends_with_its_connection_is_sent_in_chunks(browser: ProxyClient, site: BadServer) -> None:
    site.answer_and_close("/endless", b"HTTP/1.0 200 OK\r\n\r\n", b"part ", b"part")
    for _ in range(2):
        answer = await browser.get(f"http://site.test:{site.port}/endless")
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.body == b"part part"
    assert site.connections == 2


async def test_a_form_is_not_sent_on_a_connection_that_the_server_has_closed(
    browser: ProxyClient, site: BadServer
) -> None:
    site.answer_and_close("/", reply(200, b"ok"))
    assert (await browser.get(f"http://site.test:{site.port}/")).status == 200
    await site.until_alone()
    answer = await browser.get(f"http://site.test:{site.port}/", "POST", "Content-Length: 2", body=b"ab")
    assert answer.status == 200


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
async def test_a_server_cannot_answer_for_another_site(browser: ProxyClient, site: BadServer, first: bytes) -> None:
    """A second response right behind the first one must not become that of the browser's next request."""
    site.answer("/poison", first + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
    await browser.get(f"http://site.test:{site.port}/poison")
    assert (await browser.get(f"http://other.test:{site.port}/")).body == b"<p>page</p>"
    assert (await browser.get(f"http://site.test:{site.port}/")).body == b"<p>page</p>"
    assert site.connections == 3  # the connection of the first response is not reused


@pytest.mark.parametrize(
    ("sent", "code", "status"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "protocol_error", 502),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "protocol_error", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "protocol_error", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "protocol_error", 502),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "protocol_error", 502),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"\r\n", "protocol_error", 502),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", "headers_too_large", 502),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "proxy_error", 502),
        (b"", "connection_lost", 502),
    ],
)
async def test_a_response_that_is_not_http_is_a_failure(
    browser: ProxyClient, account: ProxyAccount, site: BadServer, sent: bytes, code: str, status: int
) -> None:
    site.answer_and_close("/bad", sent)
    answer = await browser.get(f"http://site.test:{site.port}/bad")
    assert (answer.status, answer.refusal) == (status, code)
    assert (account.counts.failed, account.counts.refused) == (1, 0)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\nnonsense\r\n",
    ],
)
async def test_the_browser_does_not_take_a_part_of_a_body_for_the_whole(
    browser: ProxyClient, account: ProxyAccount, site: BadServer, sent: bytes
) -> None:
    site.answer_and_close("/part", sent)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await browser.get(f"http://site.test:{site.port}/part")
    assert account.counts.failed == 1


async def test_a_site_cannot_pass_for_the_proxy(browser: ProxyClient, site: BadServer) -> None:
    headers = [("Shoal-Refusal", "x"), ("Proxy-Authenticate", "Basic"), ("X-Own", "b")]
    site.answer("/fake", reply(200, b"", headers))
    answer = await browser.get(f"http://site.test:{site.port}/fake")
    assert answer.headers == {"content-length": "0", "x-own": "b"}


# Tunnels


async def test_a_tunnel_carries_bytes_in_both_directions(
    browser: ProxyClient, account: ProxyAccount, site: BadServer
) -> None:
    assert (await browser.connect(f"site.test:{site.port}")).status == 200
    await browser.send(b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")
    expected = reply(200, b"<p>page</p>")
    assert await browser.read(len(expected)) == expected
    assert account.counts.bytes_received == len(expected)


async def test_the_end_of_one_side_is_the_end_of_the_tunnel(browser: ProxyClient, site: BadServer) -> None:
    site.answer_and_close("/last", b"last words")
    await browser.connect(f"site.test:{site.port}")
    await browser.send(b"GET /last HTTP/1.1\r\n\r\n")
    assert await browser.rest() == b"last words"
    await site.until_alone()


# Limits


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET https://site.test/ HTTP/1.1\r\n\r\n",
        b"GET ftp://site.test/ HTTP/1.1\r\n\r\n",
        b"GET http://user:password@site.test/ HTTP/1.1\r\n\r\n",
        b"GET http://user@site.test/ HTTP/1.1\r\n\r\n",
        b"GET http:/// HTTP/1.1\r\n\r\n",
        b"GET http://site.test:99999/ HTTP/1.1\r\n\r\n",
        b"GET http://site.test/ HTTP/1.0\r\n\r\n",
        b"GET  http://site.test/ HTTP/1.1\r\n\r\n",
        b"GET http://site.test/ HTTP/1.1\r\nA b\r\n\r\n",
        b"GET http://site.test/ HTTP/1.1\r\n A: b\r\n\r\n",
        b"GET http://site.test/ HTTP/1.1\r\nA: b\0\r\n\r\n",
        b"POST http://site.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST http://site.test/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"POST http://site.test/ HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"CONNECT site.test HTTP/1.1\r\n\r\n",
        b"CONNECT site.test:443/a HTTP/1.1\r\n\r\n",
        b"CONNECT a@site.test:443 HTTP/1.1\r\n\r\n",
        b"GET http://site.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n",
    ],
)
async def test_a_malformed_proxy_request_is_refused_and_the_connection_closed(proxy: PinningProxy, sent: bytes) -> None:
    async with client(proxy, None) as stranger:
        await stranger.send(sent)
        assert (await stranger.reply()).status == 400
        assert await stranger.rest() == b""


HEADS = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda line, fields: b"\r\n".join([line, *fields]),
        st.sampled_from([b"GET http://a.test/ HTTP/1.1", b"CONNECT a.test:443 HTTP/1.1", b"HTTP/1.1 200 OK"]),
        st.lists(
            st.one_of(
                st.binary(max_size=30),
                st.sampled_from([b"Content-Length: 1", b"Transfer-Encoding: chunked", b"Connection: a, b", b" folded"]),
                st.builds(lambda text: b"Proxy-Authorization: Basic " + text, st.binary(max_size=20)),
            ),
            max_size=4,
        ),
    ),
)


@given(HEADS)
def test_any_head_is_understood_or_refused(head: bytes) -> None:
    with suppress(BadMessage):
        request = parse_request(head + b"\r\n\r\n", 100)
        request.credential()
        assert request.is_tunnel or request.forwarded(None, absolute=False).count(b"\r\n\r\n") == 1
    with suppress(BadMessage):
        response = parse_response(head + b"\r\n\r\n", 100)
        assert response.forwarded(chunked=False, close=True).count(b"\r\n\r\n") == 1


async def test_an_oversized_head_is_refused(proxy: PinningProxy) -> None:
    async with client(proxy, None) as stranger:
        await stranger.send(b"GET http://site.test/" + b"a" * 65_000)
        assert (await stranger.reply()).status == 431
        assert await stranger.rest() == b""


async def limited(limits: ProxyLimits) -> PinningProxy:
    proxy = PinningProxy(limits, resolver=Resolver(SystemClock(), lookup=lambda host: NAMES.get(host, ())))
    await proxy.start()
    return proxy


@pytest.mark.parametrize("sent", [b"", b"GET http://site.te", b"GET http://site.test/ HTTP/1.1\r\nA: "])
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(sent: bytes) -> None:
    proxy = await limited(ProxyLimits(head_timeout=BRIEF))
    async with client(proxy, None) as stranger:
        await stranger.send(sent)
        assert await stranger.rest() == b""
    await proxy.aclose()


async def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    proxy = await limited(ProxyLimits(client_connections=1))
    async with client(proxy, None) as first:
        await first.send(b"GET http://site.test/ HTTP/1.1\r\n\r\n")
        assert (await first.reply()).status == 407
        async with client(proxy, None) as second:
            assert await second.rest() == b""
    await proxy.aclose()


async def test_a_response_larger_than_the_limit_is_cut(proxy: PinningProxy, rule: AddressRule, site: BadServer) -> None:
    site.repeat("/large", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3e8\r\n" + b"a" * 1000 + b"\r\n")
    account = proxy.open_account(rule, limits=ProxyLimits(max_message_bytes=100_000))
    async with client(proxy, account) as browser:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await browser.get(f"http://site.test:{site.port}/large")
    assert account.counts.codes == {"body_too_large": 1}
    assert account.counts.refused == 1


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (ProxyLimits(max_message_bytes=100_000), "body_too_large"),
        (ProxyLimits(max_account_bytes=100_000), "session_too_large"),
        (ProxyLimits(tunnel_timeout=BRIEF), "timeout"),
    ],
)
async def test_a_tunnel_beyond_a_limit_is_cut(
    proxy: PinningProxy, rule: AddressRule, site: BadServer, limits: ProxyLimits, code: str
) -> None:
    site.repeat("/large", b"", b"a" * 1000)
    account = proxy.open_account(rule, limits=limits)
    async with client(proxy, account) as browser:
        await browser.connect(f"site.test:{site.port}")
        await browser.send(b"GET /large HTTP/1.1\r\n\r\n")
        await browser.rest()
    await site.until_alone()
    assert account.counts.codes == {code: 1}


async def test_an_idle_tunnel_is_closed(proxy: PinningProxy, rule: AddressRule, site: BadServer) -> None:
    account = proxy.open_account(rule, limits=ProxyLimits(idle_timeout=BRIEF))
    async with client(proxy, account) as browser:
        await browser.connect(f"site.test:{site.port}")
        assert await browser.rest() == b""
    assert not account.counts.codes


@pytest.mark.parametrize("limits", [ProxyLimits(idle_timeout=BRIEF), ProxyLimits(total_timeout=BRIEF)])
async def test_a_silent_server_is_not_waited_for(
    proxy: PinningProxy, rule: AddressRule, site: BadServer, limits: ProxyLimits
) -> None:
    site.fall_silent("/silent")
    async with client(proxy, proxy.open_account(rule, limits=limits)) as browser:
        answer = await browser.get(f"http://site.test:{site.port}/silent")
    assert (answer.status, answer.refusal) == (504, "timeout")


async def test_no_more_connections_per_host_than_the_limit(
    proxy: PinningProxy, rule: AddressRule, site: BadServer
) -> None:
    release = asyncio.Event()

    async def script(line: Line, _asked: Asked) -> None:
        await release.wait()
        await line.send(reply(200, b"ok"))

    site.scripts["/"] = script
    account = proxy.open_account(rule, limits=ProxyLimits(host_connections=2))

    async def visit() -> int:
        async with client(proxy, account) as browser:
            return (await browser.get(f"http://site.test:{site.port}/")).status

    visits = [asyncio.create_task(visit()) for _ in range(6)]
    await site.until_asked(2, *visits)
    assert site.connections == 2
    release.set()
    assert await in_time(asyncio.gather(*visits)) == [200] * 6
    assert site.connections == 2


async def test_a_request_that_gets_no_connection_in_time_is_refused(
    proxy: PinningProxy, rule: AddressRule, site: BadServer
) -> None:
    site.fall_silent("/silent")
    account = proxy.open_account(rule, limits=ProxyLimits(host_connections=1, slot_timeout=BRIEF))
    async with client(proxy, account) as first, client(proxy, account) as second:
        await first.send(first.head(f"GET http://site.test:{site.port}/silent HTTP/1.1"))
        await site.until_asked()
        answer = await second.get(f"http://site.test:{site.port}/")
    assert (answer.status, answer.refusal) == (503, "too_many_connections")
    assert account.counts.refused == 1


async def test_a_page_has_a_limited_number_of_connections_in_all(
    proxy: PinningProxy, rule: AddressRule, site: BadServer
) -> None:
    account = proxy.open_account(rule, limits=ProxyLimits(account_connections=1))
    async with client(proxy, account) as first, client(proxy, account) as second:
        assert (await first.connect(f"site.test:{site.port}")).status == 200
        assert (await second.connect(f"other.test:{site.port}")).status == 503


async def test_an_idle_tunnel_makes_room_for_a_request_that_waits(
    proxy: PinningProxy, rule: AddressRule, site: BadServer
) -> None:
    account = proxy.open_account(rule, limits=ProxyLimits(host_connections=1, yield_after=BRIEF))
    async with client(proxy, account) as first, client(proxy, account) as second:
        await first.connect(f"site.test:{site.port}")
        await first.send(b"GET / HTTP/1.1\r\n\r\n")
        await first.read(len(reply(200, b"<p>page</p>")))
        assert (await second.connect(f"site.test:{site.port}")).status == 200
        assert await first.rest() == b""


async def test_a_tunnel_that_awaits_its_server_does_not_make_room(
    proxy: PinningProxy, rule: AddressRule, site: BadServer
) -> None:
    site.fall_silent("/slow")
    limits = ProxyLimits(host_connections=1, yield_after=BRIEF / 5, slot_timeout=BRIEF)
    account = proxy.open_account(rule, limits=limits)
    async with client(proxy, account) as first, client(proxy, account) as second:
        await first.connect(f"site.test:{site.port}")
        await first.send(b"GET /slow HTTP/1.1\r\n\r\n")
        await site.until_asked()
        assert (await second.connect(f"site.test:{site.port}")).status == 503
    await site.until_alone()
