"""What parent and child say to each other: one JSON object a line over the child's own pipes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import orjson
from msgspec import convert, to_builtins

from shoal.base.errors import StorageFull
from shoal.base.ids import JobId
from shoal.queue.job import Fence, Lease

Pair = tuple[str, int]  # a holder on the wire: job and epoch


def pairs(holders: Iterable[Fence]) -> list[Pair]:
    return [(holder.job_id, holder.epoch) for holder in holders]


def holders(told: Iterable[Pair]) -> list[Fence]:
    return [Fence(JobId(job_id), epoch) for job_id, epoch in told]


@dataclass(frozen=True, slots=True)
class Work:
    """Parent to child: run this job."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Renewed:
    """Parent to child: the lease was extended; it is good for its whole term from now."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Parent to child: settle, hand back what is in hand, and come home. A patient parent lets it be finished."""

    reason: str
    patient: bool = False


@dataclass(frozen=True, slots=True)
class Nudge:
    """Parent to page child: a job may wait."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Parent to page child: these leases are no longer ours; let go of their jobs."""

    leases: list[Pair]


@dataclass(frozen=True, slots=True)
class Tick:
    """Child to parent: my loop turns; and for how long my job has settled nothing although work was due."""

    stalled_seconds: float = 0.0


STORE_AWAY = "store_away"
STORAGE_FULL = StorageFull.code
LEASE_LOST = "lease_lost"


@dataclass(frozen=True, slots=True)
class Done:
    """Child to parent: the job has left my hands. `error` is set if it failed and the parent must say so; one that
    ended as `STORE_AWAY`, or as `STORAGE_FULL` with the name of that storage, did not fail, and is handed back; so is
    one that ended as `LEASE_LOST`, which may only mean that nobody told the child in time that it still has its
    lease."""

    ending: str
    error: str | None = None
    memory: int = 0
    storage: str = ""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Child to parent: what one commit stored, by class of HTTP status."""

    pages: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """Child to parent: how many hosts one commit found held, by what decides."""

    holds: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """Child to parent: a crawl ended so, after so many seconds."""

    state: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Child to parent: so many jobs of a kind ended, or went back, in the same way."""

    kind: str
    how: str
    count: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Page child to parent: so many results were taken; the fetches of `timed` of them took so many seconds in all."""

    kind: str
    count: int
    timed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Leased:
    """Page child to parent: so many jobs of a kind were leased; the longest had waited so long."""

    kind: str
    count: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class Holding:
    """Page child to parent: what I hold now, to be extended. What comes and goes between two of these is not told."""

    leases: list[Pair]
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Full:
    """Page child to parent: this storage has no room. What I have waits for it; take nothing that needs it."""

    storage: str
    error: str


@dataclass(frozen=True, slots=True)
class Alone:
    """Page child to parent: this job, which lost a worker before, runs now with nothing beside it; None: it is over."""

    lease: Pair | None = None


Message = (
    Work
    | Renewed
    | Leave
    | Nudge
    | Drop
    | Tick
    | Done
    | StoredMessage
    | Held
    | Ended
    | Moved
    | Taken
    | Leased
    | Holding
    | Full
    | Alone
)
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    if isinstance(message, Work):
        values = {"lease": to_builtins(message.lease)}
    else:  # flat, and often long
        values = {name: getattr(message, name) for name in message.__slots__}
    return orjson.dumps({"say": type(message).__name__, **values}) + b"\n"


def decode(line: bytes) -> Message:
    values = orjson.loads(line)
    kind = _KINDS[values.pop("say")]
    if kind is Work:
        return Work(convert(values["lease"], Lease))
    message: Message = kind(**values)
    return message
