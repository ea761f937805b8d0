"""The addresses on which the controllers of a store listen. Controllers announce these addresses and workers read them,
so that no crawl can request a controller (SSRF protection)."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from ipaddress import IPv4Address
from typing import NamedTuple

from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.base.errors import ShoalError
from shoal.base.parsing import Address
from shoal.base.service import PassResult
from shoal.egress.address import Address as IpAddress
from shoal.egress.address import literal
from shoal.egress.resolver import known_addresses, machine

ANNOUNCE_EVERY = timedelta(seconds=10)
ANNOUNCED_FOR = timedelta(minutes=1)


class ControllerAddress(NamedTuple):
    """A socket on which a controller listens. A loopback address counts only on its `machine`."""

    machine: str
    host: str
    port: int


class AddressAnnouncer:
    """A chore of a controller: announce the addresses on which it listens, and remove expired addresses."""

    name = "announcer"

    def __init__(self, database: Database, listen: Address) -> None:
        self._database = database
        self._listen = listen
        self._listeners: list[ControllerAddress] = []

    async def run_once(self) -> PassResult:
        if not self._listeners:
            hosts = await asyncio.to_thread(_hosts, self._listen.host)  # the resolver may be slow
            self._listeners = sorted(ControllerAddress(machine(), host, self._listen.port) for host in hosts)
        await self._database.run(self._announce)
        return PassResult()

    async def close(self) -> None:
        with suppress(ShoalError):  # if the store cannot be reached, the entry expires soon anyway
            await self._database.run(self._withdraw)

    async def _announce(self, tx: Tx) -> None:
        for one in self._listeners:
            await tx.execute("keep_listener", **one._asdict(), ttl=span(ANNOUNCED_FOR))
        await tx.execute("prune_listeners")

    async def _withdraw(self, tx: Tx) -> None:
        for one in self._listeners:
            await tx.execute("remove_listener", **one._asdict())


class ControllerAddresses:
    """A chore of a worker's child: read the addresses of the controllers. A controller that started in the last few
    seconds may be missing."""

    name = "controller addresses"

    def __init__(self, database: Database) -> None:
        self._database = database
        self.known: frozenset[tuple[IpAddress, int]] = frozenset()

    async def run_once(self) -> PassResult:
        rows = await self._database.read(lambda tx: tx.all("all_listeners"))
        here, known = machine(), set()
        for one in [ControllerAddress(**row) for row in rows]:
            address = literal(one.host) or IPv4Address(0)
            if one.machine == here or not (address.is_loopback or address.is_unspecified):
                known.add((address, one.port))
        self.known = frozenset(known)
        return PassResult()


def _hosts(host: str) -> list[str]:
    """Return the host itself; for a wildcard address, also the addresses at which other machines reach this machine."""
    address = literal(host)
    if address is not None and not address.is_unspecified:
        return [host]
    return [str(address or IPv4Address(0)), *known_addresses()]
