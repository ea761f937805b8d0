"""What this machine is called, and whether an address is its own: asks the kernel, and for a name the resolver."""

import contextlib
import socket

from shoal.egress.address import Address


def is_local(address: Address) -> bool:
    """True when a socket of this machine could have this address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return True
    return False


def machine() -> str:
    """The name of this machine, or of this container, which has a loopback of its own."""
    return socket.gethostname()


def known_addresses() -> list[str]:
    """The addresses that the name of this machine stands for: those by which others may know it."""
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(machine(), None)
        return sorted({str(info[4][0]).partition("%")[0] for info in found})
    return []
