"""The addresses to which requests may go: the address rule, and the proxies."""

from collections.abc import Callable, Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from shoal.base.errors import BadConfig, InvalidInput
from shoal.base.parsing import LabelledProxy
from shoal.base.url import Url, UrlRefusal, authority, canonical, hostname

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Endpoint = tuple[str, int]
"""A host as written in canonical URLs (IPv6 in brackets) and a port."""

# Ranges that `is_global` calls public although they are not reachable on the internet, or although they embed an IPv4
# address. `is_global` differs between Python versions, so the list also repeats the obvious ranges.
NOT_PUBLIC: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)

# Metadata services of clouds, which give out the credentials of the machine. If an operator allows a wider range, these
# addresses stay closed.
METADATA: Final[frozenset[Address]] = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
    )
)

FIRST_FREE_PORT: Final = 1024
WEB_PORTS: Final = frozenset({80, 443})


class AddressRefusal(Struct, frozen=True):
    """Why an address is refused. The detail names the address and is for operators only."""

    code: str
    operator_detail: str


def nowhere(_address: Address) -> bool:
    """Return False for every address: none belongs to this machine."""
    return False


class AddressRule(Struct, frozen=True):
    """The addresses that one egress may connect to.

    `allow`: ranges that the operator opened, on every port. `named`: endpoints that a person or a setting named;
    they may resolve to addresses that are not public. `own`: the addresses on which this process listens; 0.0.0.0 and
    :: mean every address for which `is_local` is true. `others`: the addresses on which other controllers are currently
    known to listen.
    """

    allow: tuple[Network, ...] = ()
    named: frozenset[Endpoint] = frozenset()
    own: frozenset[tuple[Address, int]] = frozenset()
    is_local: Callable[[Address], bool] = nowhere
    others: Callable[[], frozenset[tuple[Address, int]]] = frozenset

    def judge(self, ip: str | Address, port: int, host: str) -> AddressRefusal | None:
        """Return why a connection to `host` at this address is refused; None if it is allowed."""
        address = plain_address(ip)
        if self._is_one_of(self.own, address, port):
            return AddressRefusal("self_connection", f"{address} port {port} is this process")
        if self._is_one_of(self.others(), address, port):
            return AddressRefusal("self_connection", f"{address} port {port} is a controller")
        if self._is_opened(address, port, host):
            return None
        if not is_public(address):
            return AddressRefusal("address_not_public", f"{host} has the address {address}, which is not public")
        if port not in WEB_PORTS and port < FIRST_FREE_PORT:
            return AddressRefusal("port_not_allowed", f"port {port} of {host} is below {FIRST_FREE_PORT}")
        return None

    def judge_url(self, url: Url) -> AddressRefusal | None:
        """Check a URL before it is fetched, if its host is a literal IP address. Names are checked when they are
        resolved."""
        host, port = endpoint(url)
        address = literal(host)
        return None if address is None else self.judge(address, port, host)

    def _is_one_of(self, endpoints: frozenset[tuple[Address, int]], address: Address, port: int) -> bool:
        return any(
            port == own_port and (address == own or address.is_unspecified or self._is_covered(address, own))
            for own, own_port in endpoints
        )

    def _is_covered(self, address: Address, own: Address) -> bool:
        return own.is_unspecified and (address.is_loopback or self.is_local(address))

    def _is_opened(self, address: Address, port: int, host: str) -> bool:
        if (host, port) in self.named:
            # A named host may resolve to any address except metadata services, whose addresses must be named literally.
            return address not in METADATA or literal(host) == address
        return any(
            address in network and (address not in METADATA or network.num_addresses == 1)
            for network in self.allow
            if network.version == address.version
        )


def is_public(address: Address) -> bool:
    """Return whether the address belongs to the public internet."""
    if address in METADATA or not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in NOT_PUBLIC if network.version == address.version)


def plain_address(ip: str | Address) -> Address:
    """Normalize an address: IPv4-mapped IPv6 becomes IPv4, and the zone is removed."""
    address = ip_address(ip) if isinstance(ip, str) else ip
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))


def literal(host: str) -> Address | None:
    """Return the IP address if a host is a literal address; None if it is a name."""
    try:
        return plain_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def endpoint(url: Url) -> Endpoint:
    """Return host and port of a canonical URL."""
    _, colon, port = authority(url).rpartition(":")
    if colon and port.isdigit():
        return hostname(url), int(port)
    return hostname(url), 443 if url.startswith("https:") else 80


def listening(sockets: Iterable[Endpoint]) -> frozenset[tuple[Address, int]]:
    """Return the value of `own` for the hosts and ports on which a server listens. A name or an empty host means every
    address of this machine."""
    return frozenset((literal(host) or IPv4Address(0), port) for host, port in sockets)


class Route(Struct, eq=False):
    """The addresses for connections to an origin, until the route expires; with a proxy, the addresses of the proxy."""

    host: str
    port: int
    addresses: tuple[str, ...]
    rule: AddressRule
    expires_at: float
    pins: list[str] = field(default_factory=list)
    """Entries for libcurl's DNS cache, so that it never queries a name server itself."""

    def refusal(self, ip: str, port: int) -> AddressRefusal | None:
        """Check the address that libcurl is about to connect to: the last check before the connection."""
        if port != self.port or (ip not in self.addresses and str(plain_address(ip)) not in self.addresses):
            return AddressRefusal("address_not_public", f"{ip} port {port} is not a checked address of {self.host}")
        return self.rule.judge(ip, port, self.host)


def pin(host: str, port: int, addresses: tuple[str, ...]) -> str:
    """Format an entry for libcurl's DNS cache; the plus lets the entry expire, so that the cache does not grow for
    ever."""
    listed = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
    return f"+{host}:{port}:{listed}"


_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class Proxy(Struct, frozen=True):
    """A proxy. `rule` decides which addresses the proxy may have: an operator's proxy may have a private address, but a
    crawl's proxy may not."""

    url: str
    host: str
    port: int
    rule: AddressRule
    login: str = ""

    @classmethod
    def parse(cls, text: str, rule: AddressRule) -> "Proxy":
        """Parse `scheme://[user:password@]host[:port]`, with scheme http, https, socks5 or socks5h."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if not host or parts.scheme not in _PORTS:
            raise BadConfig("proxy", "is not a proxy URL", "write it as http://host:port")
        if literal(host) is None and _means_address(host):
            raise BadConfig("proxy", "has an address in an unusual notation", "write it as 192.0.2.1")
        host = f"[{host}]" if ":" in host else host
        port = port or _PORTS[parts.scheme]
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return cls(f"{parts.scheme}://{host}:{port}", host, port, rule, login)


def _means_address(host: str) -> bool:
    """Return whether a host that looks like a name is parsed as an address: 2130706433, 0177.0.0.1, 0x7f.1, 127.1."""
    url = canonical(f"http://{host}/")
    if isinstance(url, UrlRefusal):  # numbers that are not a valid address
        return host.rstrip(".").rpartition(".")[2][:1].isdigit()
    return literal(hostname(url)) is not None


class Proxies:
    def __init__(self, labelled: Iterable[LabelledProxy] = ()) -> None:
        self._urls = {one.label: one.url for one in labelled}

    def check(self, label: str | None, field: str) -> None:
        """Reject a label that is not configured."""
        if label is None or label in self._urls:
            return
        known = f"use {', '.join(sorted(self._urls))}, or" if self._urls else "leave it out, or"
        raise InvalidInput(
            field, f"{label!r} is not the label of a configured proxy", f"{known} define it in SHOAL_PROXIES"
        )

    def find(self, label: str) -> Proxy | None:
        """Return the proxy with that label; it may have any address, because the operator configured it. Return None if
        only bots know its address, or if the label is unknown."""
        if not self._urls.get(label):
            return None
        proxy = Proxy.parse(self._urls[label], AddressRule())
        return replace(proxy, rule=AddressRule(named=frozenset({(proxy.host, proxy.port)})))
