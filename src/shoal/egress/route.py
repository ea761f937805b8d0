"""The way to one origin: the addresses that were judged good, and the check that no other is dialled."""

from msgspec import Struct, field

from shoal.egress.address import AddressRefusal, AddressRule, plain_address


class Route(Struct, eq=False):
    """Where the connections of an origin lead until the route expires. Behind a proxy, to the proxy."""

    host: str
    port: int
    addresses: tuple[str, ...]
    rule: AddressRule
    expires_at: float
    pins: list[str] = field(default_factory=list)
    """Answers for libcurl's cache, so that it never asks a name server itself."""

    def refusal(self, ip: str, port: int) -> AddressRefusal | None:
        """The last check, on the address that libcurl is about to dial."""
        if port != self.port or (ip not in self.addresses and str(plain_address(ip)) not in self.addresses):
            return AddressRefusal("address_not_public", f"{ip} port {port} is no judged address of {self.host}")
        return self.rule.judge(ip, port, self.host)


def pin(host: str, port: int, addresses: tuple[str, ...]) -> str:
    """libcurl's notation; the plus lets the entry age, so that the cache does not grow with every host."""
    listed = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
    return f"+{host}:{port}:{listed}"
