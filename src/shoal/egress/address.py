"""The address rule: which address and port may be dialled. Pure; names are resolved and dialled elsewhere."""

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

from msgspec import Struct

from shoal.base.url import Url, authority, hostname

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Endpoint = tuple[str, int]
"""A host as canonical URLs write it (IPv6 in brackets) and a port."""

# What `is_global` calls public although nobody on the internet answers there, or although an IPv4 address
# hides inside. What it says differs between Python versions, so the list repeats the plain cases too.
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

# Where clouds answer with the credentials of the machine. A range that an operator allowed does not open
# them.
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
    """Why an address is not dialled. The detail names the address and is for operators only."""

    code: str
    operator_detail: str


def nowhere(_address: Address) -> bool:
    """Says of every address that it is not this machine's."""
    return False


class AddressRule(Struct, frozen=True):
    """What one user of the network may reach.

    `allow`: ranges that the operator opened, every port. `named`: endpoints that a person or a setting named;
    they may lead to addresses that are not public. `own`: where this process listens; 0.0.0.0 and :: mean
    every address for which `is_local` is true. `others`: the same of controllers elsewhere, as far as they are known
    now.
    """

    allow: tuple[Network, ...] = ()
    named: frozenset[Endpoint] = frozenset()
    own: frozenset[tuple[Address, int]] = frozenset()
    is_local: Callable[[Address], bool] = nowhere
    others: Callable[[], frozenset[tuple[Address, int]]] = frozenset

    def judge(self, ip: str | Address, port: int, host: str) -> AddressRefusal | None:
        """None when `host`, found at this address, may be dialled."""
        address = plain_address(ip)
        if self._is_one_of(self.own, address, port):
            return AddressRefusal("self_connection", f"{address} port {port} is this process")
        if self._is_one_of(self.others(), address, port):
            return AddressRefusal("self_connection", f"{address} port {port} is a controller")
        if self._is_opened(address, port, host):
            return None
        if not is_public(address):
            return AddressRefusal("address_not_public", f"{host} is at {address}, which is not public")
        if port not in WEB_PORTS and port < FIRST_FREE_PORT:
            return AddressRefusal("port_not_allowed", f"port {port} of {host} is below {FIRST_FREE_PORT}")
        return None

    def judge_url(self, url: Url) -> AddressRefusal | None:
        """What is known against a URL before it is fetched: its host spells an address out. Names are judged when
        they are resolved."""
        host, port = endpoint(url)
        address = literal(host)
        return None if address is None else self.judge(address, port, host)

    def _is_one_of(self, doors: frozenset[tuple[Address, int]], address: Address, port: int) -> bool:
        return any(
            port == own_port and (address == own or address.is_unspecified or self._is_covered(address, own))
            for own, own_port in doors
        )

    def _is_covered(self, address: Address, own: Address) -> bool:
        return own.is_unspecified and (address.is_loopback or self.is_local(address))

    def _is_opened(self, address: Address, port: int, host: str) -> bool:
        if (host, port) in self.named:
            # A name that somebody typed may lead anywhere but there: the address itself must have been typed.
            return address not in METADATA or literal(host) == address
        return any(
            address in network and (address not in METADATA or network.num_addresses == 1)
            for network in self.allow
            if network.version == address.version
        )


def is_public(address: Address) -> bool:
    """Whether the address belongs to the public internet."""
    if address in METADATA or not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in NOT_PUBLIC if network.version == address.version)


def plain_address(ip: str | Address) -> Address:
    """The address that is really meant: IPv4 inside IPv6 is IPv4, and the zone is no part of it."""
    address = ip_address(ip) if isinstance(ip, str) else ip
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))


def literal(host: str) -> Address | None:
    """The address that a host spells out; None when it is a name."""
    try:
        return plain_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def endpoint(url: Url) -> Endpoint:
    """Host and port of a canonical URL."""
    _, colon, port = authority(url).rpartition(":")
    if colon and port.isdigit():
        return hostname(url), int(port)
    return hostname(url), 443 if url.startswith("https:") else 80


def listening(sockets: Iterable[Endpoint]) -> frozenset[tuple[Address, int]]:
    """`own` from the addresses and ports that a server listens on; a name, or none, means every address here."""
    return frozenset((literal(host) or IPv4Address(0), port) for host, port in sockets)
