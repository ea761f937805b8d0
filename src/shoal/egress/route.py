"""The route to one origin: its allowed addresses, and the check that no other address is connected to."""

from msgspec import Struct, field

from shoal.egress.address import AddressRefusal, AddressRule, plain_address


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
    """Format an entry for libcurl's DNS cache; the plus lets it expire, so that the cache does not grow for ever."""
    listed = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
    return f"+{host}:{port}:{listed}"
