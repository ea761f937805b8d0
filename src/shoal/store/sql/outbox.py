"""The outbox on SQL."""

import orjson

from shoal.base.database import Tx
from shoal.base.text import json_of
from shoal.events.event import Event


class SqlOutbox:
    """Implements `events.store.OutboxStore`."""

    async def append(self, tx: Tx, *events: Event) -> None:
        await tx.many("append_events", [_row(event) for event in events])


def _row(event: Event) -> tuple[str, ...]:
    return event.id, event.type, event.subject, json_of(event.data, orjson.OPT_UTC_Z).decode()
