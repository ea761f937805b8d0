"""The outbox on SQL."""

import orjson

from shoal.base.database import Tx
from shoal.events.event import Event


class SqlOutbox:
    """Answers `events.store.OutboxStore`."""

    async def append(self, tx: Tx, event: Event) -> None:
        body = orjson.dumps(event.data).decode()
        await tx.execute("append_event", id=event.id, type=event.type, subject=event.subject, body=body)
