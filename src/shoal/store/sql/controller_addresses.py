"""The addresses of controllers on SQL."""

from collections.abc import Iterable
from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.hosts.controller_addresses import ControllerAddress


class SqlControllerAddresses:
    """Implements `hosts.controller_addresses.ControllerAddressStore`."""

    async def announce(self, tx: Tx, listeners: Iterable[ControllerAddress], ttl: timedelta) -> None:
        for one in sorted(listeners):
            await tx.execute("keep_listener", **one._asdict(), ttl=span(ttl))
        await tx.execute("prune_listeners")

    async def withdraw(self, tx: Tx, listeners: Iterable[ControllerAddress]) -> None:
        for one in sorted(listeners):
            await tx.execute("remove_listener", **one._asdict())

    async def listening(self, tx: Tx) -> list[ControllerAddress]:
        return [ControllerAddress(row["machine"], row["host"], row["port"]) for row in await tx.all("all_listeners")]
