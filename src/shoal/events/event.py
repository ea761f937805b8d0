"""Events: their types, their form for receivers, and how they get into the outbox."""

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct, field

from shoal.base.clock import from_micros
from shoal.base.database import Tx
from shoal.base.ids import EventId, new_id
from shoal.base.text import json_of

SOURCE = "shoal"


class EventType(Struct, frozen=True):
    """An event type: when such events are sent, and the field names in their data."""

    description: str
    data: tuple[str, ...]


_CRAWL = ("crawl_id", "reason")
_CRAWL_END = (*_CRAWL, "skipped", "message")  # the message names what the crawl left out
_JOB = (
    *("job_id", "url", "policy", "labels", "group", "attempt", "status", "final_url", "http_status", "data", "meta"),
    "fetched_at",
)

TYPES: Mapping[str, EventType] = {
    "crawl.started": EventType("a crawl was started by its first worker", _CRAWL),
    "crawl.completed": EventType("a crawl was completed, or reached a limit", _CRAWL_END),
    "crawl.failed": EventType("a crawl failed and cannot continue", _CRAWL_END),
    "crawl.stopped": EventType("a crawl was stopped", _CRAWL_END),
    "crawl.job.completed": EventType("a page job has its result", _JOB),
    "crawl.job.failed": EventType("a page job failed for the last time, or its workers were lost too often", _JOB),
    "crawl.group.completed": EventType(
        "every job of a group has ended, or the group was cancelled",
        ("group", "state", "project", "labels", "total", "jobs"),
    ),
    "analysis.completed": EventType(
        "an analysis completed or failed",
        ("analysis_id", "crawl_id", "project", "state", "reason", "findings", "verdict"),
    ),
    "node.lost": EventType(
        "a node stopped sending heartbeats, and the jobs of its lane were returned",
        ("node_id", "address", "silent_seconds", "returned_jobs", "held_leases"),
    ),
}
"""All types of events."""

TEST_TYPE = "webhook.test"
"""The type of test events. They are sent to one webhook and not stored, and a webhook cannot subscribe to this type."""


class Event(Struct, frozen=True):
    """Something that happened, in the form that receivers get. The forwarder assigns its sequence number later."""

    type: str
    subject: str
    data: dict[str, Any]
    id: EventId = field(default_factory=lambda: EventId(new_id("evt")))

    def __post_init__(self) -> None:
        assert self.type in TYPES, f"{self.type} is not an event type"


class EventReceipt(Struct, frozen=True):
    """An event with its sequence number, as read from the outbox."""

    sequence: int
    id: EventId
    type: str
    subject: str
    body: str
    created_at: int

    def line(self) -> bytes:
        """Return the event as one JSON object."""
        return orjson.dumps(self.attributes() | {"data": orjson.Fragment(self.body)}, option=orjson.OPT_UTC_Z)

    def attributes(self) -> dict[str, Any]:
        """Return the CloudEvents attributes: everything but the data."""
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": SOURCE,
            "type": self.type,
            "subject": self.subject,
            "time": from_micros(self.created_at),
            "datacontenttype": "application/json",
            "sequence": str(self.sequence),  # a CloudEvents extension; not padded with zeros, so compare it as a number
        }


async def append_events(tx: Tx, *events: Event) -> None:
    """Store events in the outbox, in the commit of the change that they describe."""
    rows = [(one.id, one.type, one.subject, json_of(one.data, orjson.OPT_UTC_Z).decode()) for one in events]
    await tx.many("append_events", rows)
