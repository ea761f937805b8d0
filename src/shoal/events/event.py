"""What an event is."""

from dataclasses import dataclass, field
from typing import Any

from shoal.base.ids import EventId, new_id


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as others will be told. Its sequence number comes later, from the forwarder."""

    type: str
    subject: str
    data: dict[str, Any]
    id: EventId = field(default_factory=lambda: EventId(new_id("evt")))
