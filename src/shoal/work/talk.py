"""What parent and child say to each other: one JSON object a line over the child's own pipes."""

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from shoal.base.ids import JobId
from shoal.queue.job import Holder, Lease


@dataclass(frozen=True, slots=True)
class Work:
    """Parent to child: run this job."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Renewed:
    """Parent to child: the lease was extended; it is good for its whole term from now."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Parent to child: settle, hand the job back, and come home."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Child to parent: my loop turns; and for how long my job has settled nothing although work was due."""

    stalled_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """Child to parent: the job has left my hands. `error` is set if it failed and the parent must say so."""

    ending: str
    error: str | None = None
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Child to parent: what one commit stored, by class of HTTP status."""

    pages: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """Child to parent: how many hosts one commit found held, by what decides."""

    holds: dict[str, int]


Message = Work | Renewed | Leave | Tick | Done | Stored | Held
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Work, Renewed, Leave, Tick, Done, Stored, Held)}


def encode(message: Message) -> bytes:
    return orjson.dumps({"say": type(message).__name__, **asdict(message)}) + b"\n"


def decode(line: bytes) -> Message:
    values = orjson.loads(line)
    kind = _KINDS[values.pop("say")]
    if kind is Work:
        lease = values["lease"]
        holder = Holder(JobId(lease["holder"]["job_id"]), lease["holder"]["epoch"])
        return Work(Lease(**{**lease, "holder": holder}))
    message: Message = kind(**values)
    return message
