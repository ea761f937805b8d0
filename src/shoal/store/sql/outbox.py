"""The outbox on SQL."""

from collections.abc import Sequence
from typing import Any

import orjson

from shoal.base.database import Tx
from shoal.base.text import encodable
from shoal.events.event import Event


class SqlOutbox:
    """Answers `events.store.OutboxStore`."""

    async def append(self, tx: Tx, event: Event) -> None:
        await tx.execute("append_event", **_row(event))

    async def append_all(self, tx: Tx, events: Sequence[Event]) -> None:
        await tx.many("append_events", [_row(event) for event in events])


def _row(event: Event) -> dict[str, Any]:
    body = orjson.dumps(encodable(event.data)).decode()
    return {"id": event.id, "type": event.type, "subject": event.subject, "body": body}
