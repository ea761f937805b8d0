"""The outbox on SQL."""

import orjson

from shoal.base.database import Tx
from shoal.base.text import json_of
from shoal.events.event import Event


class SqlOutbox:
    """Implements `events.store.OutboxStore`."""

    async def append(self, tx: Tx, *events: Event) -> None:
        rows = [(one.id, one.type, one.subject, json_of(one.data, orjson.OPT_UTC_Z).decode()) for one in events]
        await tx.many("append_events", rows)
