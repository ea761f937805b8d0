"""Whether an address is this machine's own: asks the kernel, sends nothing."""

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
