"""The address rule on the addresses of B1-B10 and B20-B21, and on good ones."""

from ipaddress import ip_address, ip_network

import pytest

from shoal.base.url import Url, UrlRefusal, canonical
from shoal.egress.address import AddressRule, endpoint, is_public, listening, literal
from shoal.egress.resolver import is_local

PUBLIC_ONLY = AddressRule()

NOT_PUBLIC = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "fd00:ec2::254",
    "100.100.100.200",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "100.64.0.1",
    "100.127.255.254",
    "198.18.0.1",
    "198.19.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.51.100.7",
    "203.0.113.9",
    "240.0.0.1",
    "255.255.255.255",
    "224.0.0.1",
    "239.255.255.255",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fd00::1",
    "fec0::1",
    "ff02::1",
    "::ffff:169.254.169.254",
    "::ffff:7f00:1",
    "::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "2002:a9fe:a9fe::1",
    "2002:808:808::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "100::1",
    "3fff::1",
    "5f00::1",
    "168.63.129.16",
]

PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "100.63.255.254",
    "100.128.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.254",
    "::ffff:8.8.8.8",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    refusal = PUBLIC_ONLY.judge(address, 80, "site.test")
    assert refusal is not None
    assert refusal.code == "address_not_public"


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_dialled(address: str) -> None:
    assert PUBLIC_ONLY.judge(address, 443, "site.test") is None
    assert is_public(ip_address("8.8.8.8"))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://①②⑦.⓪.⓪.①/",
        "http://0/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[fd00:ec2::254]/",
        "http://[2002:a9fe:a9fe::1]/",
    ],
)
def test_an_address_in_an_odd_spelling_is_judged_by_what_it_means(url: str) -> None:
    spelled = canonical(url)
    assert not isinstance(spelled, UrlRefusal)
    host, port = endpoint(spelled)
    address = literal(host)
    assert address is not None
    assert PUBLIC_ONLY.judge(address, port, host) is not None


@pytest.mark.parametrize("port", [0, 22, 25, 81, 1023])
def test_a_low_port_is_refused(port: int) -> None:
    refusal = PUBLIC_ONLY.judge("8.8.8.8", port, "dns.test")
    assert refusal is not None
    assert refusal.code == "port_not_allowed"


@pytest.mark.parametrize("port", [80, 443, 1024, 8080, 65535])
def test_the_web_ports_and_the_high_ones_are_dialled(port: int) -> None:
    assert PUBLIC_ONLY.judge("8.8.8.8", port, "dns.test") is None


def test_an_allowed_network_is_open_on_every_port_and_no_other_network_is() -> None:
    rule = AddressRule(allow=(ip_network("10.1.0.0/16"), ip_network("fd12::/16")))
    assert rule.judge("10.1.2.3", 22, "inside.test") is None
    assert rule.judge("::ffff:10.1.2.3", 22, "inside.test") is None
    assert rule.judge("fd12::7", 81, "inside.test") is None
    assert rule.judge("10.2.0.1", 80, "inside.test") is not None


def test_a_wide_allowance_does_not_open_the_metadata_address() -> None:
    wide = AddressRule(allow=(ip_network("169.254.0.0/16"),))
    exact = AddressRule(allow=(ip_network("169.254.169.254/32"),))
    assert wide.judge("169.254.1.1", 80, "link.test") is None
    assert wide.judge("169.254.169.254", 80, "link.test") is not None
    assert exact.judge("169.254.169.254", 80, "link.test") is None


def test_a_named_endpoint_may_be_anywhere_but_only_with_its_host_and_port() -> None:
    rule = AddressRule(named=frozenset({("localhost", 8080)}))
    assert rule.judge("127.0.0.1", 8080, "localhost") is None
    assert rule.judge("127.0.0.1", 8081, "localhost") is not None
    assert rule.judge("127.0.0.1", 8080, "other.test") is not None


def test_a_named_host_does_not_lead_to_the_metadata_address() -> None:
    rule = AddressRule(named=frozenset({("site.test", 80), ("169.254.169.254", 80)}))
    assert rule.judge("169.254.169.254", 80, "site.test") is not None
    assert rule.judge("169.254.169.254", 80, "169.254.169.254") is None


def test_the_own_listening_address_is_refused_even_when_named_or_allowed() -> None:
    rule = AddressRule(
        allow=(ip_network("127.0.0.0/8"),),
        named=frozenset({("localhost", 8700)}),
        own=listening([("127.0.0.1", 8700)]),
    )
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"):
        refusal = rule.judge(address, 8700, "localhost")
        assert refusal is not None
        assert refusal.code == "self_connection"
    assert rule.judge("127.0.0.1", 8701, "localhost") is None


@pytest.mark.parametrize("written", ["0.0.0.0", "::", "", "localhost"])
def test_listening_on_every_address_covers_all_addresses_of_this_machine(written: str) -> None:
    rule = AddressRule(
        allow=(ip_network("127.0.0.0/8"), ip_network("192.0.2.0/24")),
        own=listening([(written, 8700)]),
        is_local=is_local,
    )
    refusal = rule.judge("127.0.0.2", 8700, "localhost")
    assert refusal is not None
    assert refusal.code == "self_connection"
    assert rule.judge("192.0.2.1", 8700, "elsewhere.test") is None


def test_the_error_shows_operators_the_address() -> None:
    refusal = PUBLIC_ONLY.judge("10.0.0.1", 80, "inside.test")
    assert refusal is not None
    assert "10.0.0.1" in refusal.operator_detail


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://site.test/", ("site.test", 80)),
        ("https://site.test/a:9", ("site.test", 443)),
        ("http://site.test:8080/", ("site.test", 8080)),
        ("https://[::1]/", ("[::1]", 443)),
        ("http://[::1]:81/", ("[::1]", 81)),
    ],
)
def test_the_endpoint_of_a_url_is_its_host_and_port(url: str, expected: tuple[str, int]) -> None:
    assert endpoint(Url(url)) == expected
