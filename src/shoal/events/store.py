"""The outbox contract."""

from typing import Protocol

from shoal.base.database import Tx
from shoal.events.event import Event


class OutboxStore(Protocol):
    async def append(self, tx: Tx, event: Event) -> None:
        """Keep the event, in the commit of the change that it tells of."""
        ...
