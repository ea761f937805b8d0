"""The name and addresses of this machine, from the kernel and the resolver."""

import contextlib
import socket

from shoal.egress.address import Address


def is_local(address: Address) -> bool:
    """Return whether a socket on this machine can be bound to this address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return True
    return False


def machine() -> str:
    """Return the name of this machine, or of this container, which has its own loopback interface."""
    return socket.gethostname()


def known_addresses() -> list[str]:
    """Return the addresses to which the name of this machine resolves: other machines may know it by them."""
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(machine(), None)
        return sorted({str(info[4][0]).partition("%")[0] for info in found})
    return []
