"""The address rule of crawls and webhooks (SSRF protection), made from the settings."""

from shoal.base.parsing import Address
from shoal.base.settings import Settings
from shoal.egress import AddressRule, Endpoint, is_local, listening
from shoal.egress.address import Address as IpAddress
from shoal.hosts.controller_addresses import ControllerAddresses


def address_rule_of(
    settings: Settings, named: frozenset[Endpoint] = frozenset(), controllers: ControllerAddresses | None = None
) -> AddressRule:
    """Return the rule that refuses private addresses, our own controllers and our own workers.

    The addresses of our own processes come from the settings and from `controllers`. The addresses in `named` were
    named by a user of this machine. They are always allowed, because a different program may be listening there.
    """
    listen = [address for address in (settings.serve.listen, settings.work.listen) if address is not None]
    own = listening([address for address in listen if not _is_named(address, named)])
    allow = settings.egress.allow_networks
    if controllers is None:
        return AddressRule(allow=allow, named=named, own=own, is_local=is_local)

    def others() -> frozenset[tuple[IpAddress, int]]:
        known = controllers.known
        if not named:
            return known
        return frozenset((ip, port) for ip, port in known if not _is_named(Address(str(ip), port), named))

    return AddressRule(allow=allow, named=named, own=own, is_local=is_local, others=others)


def _is_named(address: Address, named: frozenset[Endpoint]) -> bool:
    return any((host, address.port) in named for host in (address.host, f"[{address.host}]", "localhost"))
