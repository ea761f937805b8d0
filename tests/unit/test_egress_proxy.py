"""Proxies: checked like any address, and no way around the address rule for the target (B18)."""

from collections.abc import AsyncIterator
from ipaddress import ip_network

import pytest

from shoal.base.clock import SystemClock
from shoal.base.errors import BadConfig
from shoal.crawl.credentials import check_proxy
from shoal.egress import AddressRule, Egress, Failure, Proxy, Request, Resolver, Response
from tests.support.bad_http_server import BadServer, bad_server, reply

PAGE = b"<p>through the proxy</p>"
NAMES = {"site.test": ("8.8.8.8",), "proxy.test": ("127.0.0.1",), "inside.test": ("10.0.0.1",)}


@pytest.fixture
async def proxy() -> AsyncIterator[BadServer]:
    async with bad_server() as server:
        server.answer("*", reply(200, PAGE))
        yield server


def through(proxy: str, rule: AddressRule) -> Egress:
    resolver = Resolver(SystemClock(), lookup=lambda host: NAMES.get(host, ()))
    return Egress(AddressRule(), resolver=resolver, proxy=Proxy.parse(proxy, rule))


async def test_a_request_goes_to_the_proxy_with_its_login(proxy: BadServer) -> None:
    rule = AddressRule(named=frozenset({("proxy.test", proxy.port)}))
    egress = through(f"http://me:se%40cret@proxy.test:{proxy.port}", rule)
    outcome = await egress.fetch(Request("http://site.test/page"))
    assert isinstance(outcome, Response)
    assert outcome.raw == PAGE
    assert outcome.address == ""  # the address of the proxy would look like that of the site
    assert proxy.asked[0].target == "http://site.test/page"
    assert proxy.asked[0].headers["host"] == "site.test"
    assert proxy.asked[0].headers["proxy-authorization"] == "Basic bWU6c2VAY3JldA=="
    egress.close()


async def test_a_proxy_that_nobody_named_may_not_be_inside(proxy: BadServer) -> None:
    egress = through(f"http://proxy.test:{proxy.port}", AddressRule())
    outcome = await egress.fetch(Request("http://site.test/"))
    assert isinstance(outcome, Failure)
    assert outcome.code == "address_not_public"
    assert proxy.connections == 0
    egress.close()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://inside.test/", "address_not_public"),
        ("http://127.0.0.1/", "address_not_public"),
        ("http://site.test:22/", "port_not_allowed"),
        ("http://unknown.test/", "dns_error"),
    ],
)
async def test_the_target_is_judged_although_a_proxy_would_reach_it(proxy: BadServer, url: str, code: str) -> None:
    egress = through(f"http://127.0.0.1:{proxy.port}", AddressRule(allow=(ip_network("127.0.0.0/8"),)))
    outcome = await egress.fetch(Request(url))
    assert isinstance(outcome, Failure)
    assert outcome.code == code
    assert proxy.connections == 0
    egress.close()


async def test_crawled_content_does_not_reach_the_proxy_itself(proxy: BadServer) -> None:
    rule = AddressRule(named=frozenset({("proxy.test", proxy.port)}))
    egress = through(f"http://proxy.test:{proxy.port}", rule)
    outcome = await egress.fetch(Request(f"http://proxy.test:{proxy.port}/admin"))
    assert isinstance(outcome, Failure)
    assert outcome.code == "address_not_public"
    egress.close()


async def test_a_proxy_that_refuses_a_tunnel_is_a_failure_of_the_proxy(proxy: BadServer) -> None:
    proxy.answer("*", reply(403, b""))
    rule = AddressRule(named=frozenset({("proxy.test", proxy.port)}))
    egress = through(f"http://proxy.test:{proxy.port}", rule)
    outcome = await egress.fetch(Request("https://site.test/"))
    assert isinstance(outcome, Failure)
    assert outcome.code == "proxy_error"
    assert proxy.asked[0].method == "CONNECT"
    egress.close()


@pytest.mark.parametrize("text", ["", "proxy.test:3128", "ftp://proxy.test", "http://", "http://[bad", "http://a:b:c"])
def test_an_invalid_proxy_address_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(BadConfig, match="http://host:port"):
        Proxy.parse(text, AddressRule())


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "0x7f000001",
        "127.1",
        "127.0.0.01",
        "127.0.0.1.",
        "10.0.0.256",
        "\uff11\uff12\uff17.1",
    ],
)
def test_a_proxy_at_an_address_in_an_unusual_notation_is_refused(host: str) -> None:
    with pytest.raises(BadConfig, match="unusual notation"):
        Proxy.parse(f"http://me:secret@{host}:3128", AddressRule())
    with pytest.raises(ValueError, match="is not a proxy URL"):
        check_proxy(f"socks5://{host}")


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "[2001:db8:0::1]", "proxy", "my_proxy-1.example.com", "4proxies.example"]
)
def test_a_proxy_has_an_address_or_a_name(host: str) -> None:
    assert check_proxy(f"http://{host}:3128") == f"http://{host}:3128"


def test_a_proxy_address_has_a_default_port_and_keeps_its_login_apart() -> None:
    proxy = Proxy.parse("socks5h://me:pw@[::1]", AddressRule())
    assert (proxy.url, proxy.host, proxy.port, proxy.login) == ("socks5h://[::1]:1080", "[::1]", 1080, "me:pw")
    assert "pw" not in proxy.url
