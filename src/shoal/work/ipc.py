"""Messages between a worker and its children: one JSON object per line over the child's stdin and stdout."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import orjson
from msgspec import convert, to_builtins

from shoal.base.errors import StorageFull
from shoal.base.ids import JobId
from shoal.queue.job import Fence, Lease

Pair = tuple[str, int]  # a fence on the wire: job id and epoch


def pairs_of(fences: Iterable[Fence]) -> list[Pair]:
    return [(fence.job_id, fence.epoch) for fence in fences]


def fences_of(pairs: Iterable[Pair]) -> list[Fence]:
    return [Fence(JobId(job_id), epoch) for job_id, epoch in pairs]


# From the worker to a child


@dataclass(frozen=True, slots=True)
class Work:
    """Run this job."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Renewed:
    """The leases were extended; they are valid for their whole term from now on."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Hand back the job and wait for the next one. A page child settles, hands back the rest and exits; with
    `finish_first` it first finishes the jobs it holds."""

    reason: str
    finish_first: bool = False


@dataclass(frozen=True, slots=True)
class Configure:
    """For a page child: run up to `slots` jobs at once, and lease new ones only if `leasing`. A page child does nothing
    before the first of these. `version` rises with each; the child returns it in `Holding`."""

    version: int
    slots: int
    leasing: bool


@dataclass(frozen=True, slots=True)
class RestartBrowsers:
    """Replace the browsers, and answer with `BrowsersRestarted`. A page child first hands back the jobs whose pages are
    in them; the pages of a crawl start again in the new ones."""


@dataclass(frozen=True, slots=True)
class LimitRate:
    """Start at most this many fetches per second; None: unlimited. A child for runs forgets it with the next job."""

    per_second: float | None


@dataclass(frozen=True, slots=True)
class HandBack:
    """For a page child: hand back the jobs that have not started."""

    reason: str


@dataclass(frozen=True, slots=True)
class Nudge:
    """For a page child: a job may be waiting."""


@dataclass(frozen=True, slots=True)
class Drop:
    """For a page child: these leases are lost; cancel their jobs."""

    leases: list[Pair]


# From a child to its worker


@dataclass(frozen=True, slots=True)
class Tick:
    """The event loop is alive. `stalled_seconds`: how long the job has settled nothing although work was due."""

    stalled_seconds: float = 0.0


STORE_AWAY = "store_away"
STORAGE_FULL = StorageFull.code
LEASE_LOST = "lease_lost"
HANDED_BACK = "handed_back"  # the job itself hands it back, because others wait


@dataclass(frozen=True, slots=True)
class Done:
    """The job has ended in this child. With an `error`, the worker records a failed attempt.

    Three endings are not failures, and the worker hands the job back: `STORE_AWAY`; `STORAGE_FULL`, with the name of
    the storage; and `LEASE_LOST`, which may only mean that the child did not learn of a renewal in time.
    """

    ending: str
    error: str | None = None
    memory: int = 0
    storage: str = ""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """The number of pages and bytes that one commit stored, by class of HTTP status."""

    pages: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """The number of hosts that one commit put on hold, by reason."""

    holds: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A crawl reached a final state, and how long it took."""

    state: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """A number of jobs of one kind ended or went back in the same way."""

    kind: str
    how: str
    count: int


@dataclass(frozen=True, slots=True)
class ResultsStored:
    """A number of page results were stored; `timed` of them took `seconds` to fetch in total."""

    kind: str
    count: int
    timed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Leased:
    """A number of jobs of one kind were leased; the longest wait of them was `waited_seconds`."""

    kind: str
    count: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page was rendered, or could not be, with the number of its requests."""

    outcome: str
    seconds: float
    requests: int


@dataclass(frozen=True, slots=True)
class Browsers:
    """The number of browsers that a child runs now, and of the pages in them; sent when they have changed."""

    count: int
    pages: int


@dataclass(frozen=True, slots=True)
class BrowsersRestarted:
    """The browsers were replaced. With an error, no new one could be started: the old ones are gone, and the next page
    that needs a browser starts one."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """The leases a page child holds now, for the worker to extend. `version` is that of the `Configure` in effect; it
    is 0 while leases are being granted or handed back."""

    leases: list[Pair]
    memory: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Full:
    """A storage has no space left. Jobs in hand wait for it; lease no more that need it."""

    storage: str
    error: str


@dataclass(frozen=True, slots=True)
class Alone:
    """This page job lost a worker before and now runs by itself; None when it has ended."""

    lease: Pair | None = None


Message = (
    Work
    | Renewed
    | Leave
    | Configure
    | LimitRate
    | RestartBrowsers
    | HandBack
    | Nudge
    | Drop
    | Tick
    | Done
    | StoredMessage
    | Held
    | Ended
    | Moved
    | ResultsStored
    | Leased
    | Rendered
    | Browsers
    | BrowsersRestarted
    | Holding
    | Full
    | Alone
)
_TYPES: dict[str, Any] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    if isinstance(message, Work):
        values = {"lease": to_builtins(message.lease)}
    else:  # flat and sometimes long: a plain copy of its fields is the fastest
        values = {name: getattr(message, name) for name in message.__slots__}
    return orjson.dumps({"type": type(message).__name__, **values}) + b"\n"


def decode(line: bytes) -> Message:
    values = orjson.loads(line)
    kind = _TYPES[values.pop("type")]
    if kind is Work:
        return Work(convert(values["lease"], Lease))
    message: Message = kind(**values)
    return message
