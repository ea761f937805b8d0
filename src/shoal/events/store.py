"""The outbox contract."""

from collections.abc import Sequence
from typing import Protocol

from shoal.base.database import Tx
from shoal.events.event import Event


class OutboxStore(Protocol):
    async def append(self, tx: Tx, event: Event) -> None:
        """Keep the event, in the commit of the change that it tells of."""
        ...

    async def append_all(self, tx: Tx, events: Sequence[Event]) -> None:
        """Keep many events."""
        ...
