"""What an event is, and how others are told of it."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from shoal.base.clock import from_micros
from shoal.base.ids import EventId, new_id

SOURCE = "shoal"

TYPES = {
    "crawl.started": "a crawl's first walker began",
    "crawl.completed": "a crawl ended by itself, or by a budget",
    "crawl.failed": "a crawl cannot go on",
    "crawl.stopped": "a crawl was stopped",
    "crawl.job.completed": "a page job has its result",
    "crawl.job.failed": "a page job failed for the last time, or its workers were lost too often",
    "crawl.group.completed": "every job of a group has ended",
    "analysis.completed": "an analysis ended, well or not",
    "node.lost": "a node fell silent",
}
"""Every type, and what has happened then."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as others will be told. Its sequence number comes later, from the forwarder."""

    type: str
    subject: str
    data: dict[str, Any]
    id: EventId = field(default_factory=lambda: EventId(new_id("evt")))


@dataclass(frozen=True, slots=True)
class Told:
    """An event with its place in the sequence, as it is read from the outbox."""

    sequence: int
    id: EventId
    type: str
    subject: str
    body: str
    created_at: int

    def answer(self) -> dict[str, Any]:
        """The event in the words of CloudEvents 1.0."""
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": SOURCE,
            "type": self.type,
            "subject": self.subject,
            "time": from_micros(self.created_at),
            "datacontenttype": "application/json",
            "sequence": str(self.sequence),  # an extension of the specification: text that sorts is up to the reader
            "data": orjson.loads(self.body),
        }

    def line(self) -> bytes:
        """The event as one JSON object."""
        return orjson.dumps(self.answer(), option=orjson.OPT_UTC_Z)
