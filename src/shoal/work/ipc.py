"""The protocol between a worker and its children: one JSON object per line over the child's stdin and stdout.

Children for runs and the page child use the same protocol. Worker and child may have different versions while Shoal is
upgraded, so unknown kinds of messages and unknown fields are ignored.
"""

from typing import Generic, TypeVar, get_args

from msgspec import Struct, ValidationError, json

from shoal.base.errors import StorageFull
from shoal.crawl.lifecycle.transitions import CrawlEnded
from shoal.hosts.throttle import HoldsBegun
from shoal.pages.page import PagesSettled, ResultsTaken
from shoal.queue.job import Fence, Lease
from shoal.queue.moves import JobsMoved
from shoal.queue.queue import JobsLeased
from shoal.web.renderer import PageRendered

T = TypeVar("T")


class Message(Struct, frozen=True, tag=True):
    """A message. The field `type` names its class."""


# Orders, from the worker to a child


class Start(Message, frozen=True):
    """Run this job."""

    lease: Lease


class Configure(Message, frozen=True):
    """Run up to `slots` page jobs at the same time, and lease new ones only if `leasing`. Before the first `Configure`,
    the child leases nothing. `version` increases with each `Configure`; the child returns it in its `Status`."""

    version: int
    slots: int
    leasing: bool


class Nudge(Message, frozen=True):
    """A page job may be waiting."""


class Renewed(Message, frozen=True):
    """The leases were extended, and their whole term starts now. The `lost` leases were not extended: cancel their
    jobs."""

    lost: list[Fence] = []


class LimitRate(Message, frozen=True):
    """Start at most this many fetches per second; None: unlimited. The limit ends with the run."""

    per_second: float | None


class HandBack(Message, frozen=True):
    """Return the run, or the page jobs that have not started, to the queue."""

    reason: str


class Leave(Message, frozen=True):
    """Lease no more page jobs, and report `Done` when no job is held: running jobs have a moment to finish, and the
    rest are returned. With `finish_first`, all jobs finish."""

    finish_first: bool = False


class RestartBrowsers(Message, frozen=True):
    """Replace the browsers, and respond with `BrowsersRestarted`. Page jobs whose pages are in the browsers are
    returned first; the pages of a crawl start again in the new browsers."""


Order = Start | Configure | Nudge | Renewed | LimitRate | HandBack | Leave | RestartBrowsers


# Reports, from a child to its worker


class Status(Message, frozen=True):
    """The event loop is alive. `stalled_seconds`: how long the run has settled nothing although work was due.

    A page child also reports the leases that it holds, so that the worker extends them, and the version of the current
    `Configure` (0 while leases are being granted or returned).
    """

    memory: int = 0
    stalled_seconds: float = 0.0
    held: list[Fence] = []
    version: int = 0


class Alone(Message, frozen=True):
    """A page job is running alone, because it has lost a worker before; None when this job has ended."""

    lease: Fence | None = None


class Full(Message, frozen=True):
    """A storage has no space left. Held jobs wait for space; lease no more jobs that need this storage."""

    storage: str
    error: str


class Browsers(Message, frozen=True):
    """The number of browsers that a child runs now, and the number of pages in them; sent when a number has changed."""

    count: int
    pages: int


class BrowsersRestarted(Message, frozen=True):
    """The browsers were replaced. With an error, no new browser could be started: the old browsers are gone, and the
    next page that needs a browser starts one."""

    error: str = ""


STORE_AWAY = "store_away"
STORAGE_FULL = StorageFull.code
LEASE_LOST = "lease_lost"
HANDED_BACK = "handed_back"  # the run itself returned its job, because other jobs wait
LEFT = "left"  # the page child holds no more jobs and exits


class Done(Message, frozen=True):
    """The run has ended in this child, or its page jobs have. With an `error`, the worker records a failed attempt.
    Three endings are not failures, and the worker returns the job: `STORE_AWAY`; `STORAGE_FULL`, after a `Full`; and
    `LEASE_LOST`, which may only mean that the child did not get the message about a renewal in time.
    """

    ending: str
    error: str | None = None


# Signals of a child from which metrics are computed: the child sends them unchanged, because metrics are read in the
# worker.
Relayed = PagesSettled | ResultsTaken | HoldsBegun | JobsLeased | JobsMoved | CrawlEnded | PageRendered
Report = Status | Alone | Full | Browsers | BrowsersRestarted | Done | Relayed


def encode(message: Order | Report) -> bytes:
    return json.encode(message) + b"\n"


class _Tagged(Struct):
    type: str


class Decoder(Generic[T]):
    """Reads the messages of one side. Raises `msgspec.DecodeError` for a line that is not a message."""

    def __init__(self, union: type[T]) -> None:
        self._known = {kind.__name__ for kind in get_args(union)}
        self._decoder = json.Decoder(union)

    def decode(self, line: bytes) -> T | None:
        """Return a message, or None if its kind is unknown to this version."""
        try:
            return self._decoder.decode(line)
        except ValidationError:
            if json.decode(line, type=_Tagged).type in self._known:
                raise
            return None


orders: Decoder[Order] = Decoder(Order)  # type: ignore[arg-type]
reports: Decoder[Report] = Decoder(Report)  # type: ignore[arg-type]
