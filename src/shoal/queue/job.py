"""What a job is, and the values that its verbs take and give."""

from dataclasses import dataclass
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.states import JobState, Move

SHARED_LANE = "shared"
LOCAL = "local/"


def node_of(holder: str) -> str:
    """The node, or for a crawl in a process of its own the machine, that a lease's holder names."""
    kind, _, rest = holder.partition("/")
    return rest.partition("/")[0] if kind == "local" else kind


def local_lane(run_id: str) -> str:
    """The lane of a run that one process works on by itself: no worker of the fleet takes from it."""
    return f"{LOCAL}{run_id}"


def is_local(lane: str) -> bool:
    return lane.startswith(LOCAL)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored."""

    id: JobId
    kind: str
    run_id: str | None
    payload: str = "{}"
    lane: str = SHARED_LANE
    priority: int = 50
    max_attempts: int = 2
    dedupe_key: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who may change what a job owns: the job, and the number of its grant. The fence of every commit."""

    job_id: JobId
    epoch: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job. It lasts one term from the grant: measure what is left by your own clock."""

    holder: Holder
    kind: str
    run_id: str | None
    payload: str
    attempts: int
    max_attempts: int
    crash_count: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its row says."""

    id: JobId
    kind: str
    state: JobState
    state_reason: str | None
    run_id: str | None
    lane: str
    priority: int
    attempts: int
    max_attempts: int
    crash_count: int
    lease_epoch: int
    lease_holder: str | None
    lease_until: int | None
    error: str | None
    created_at: int
    finished_at: int | None


@dataclass(frozen=True, slots=True)
class LostJob:
    """A locked job whose lease ran out."""

    id: JobId
    kind: str
    run_id: str | None
    epoch: int
    crash_count: int
    lease_holder: str
    settled: bool  # something, since the grant: the deaths before it do not count any more


class RunKeeper(Protocol):
    """Who owns the runs of one job kind. The queue calls it in the transaction that ends or returns a job, so that
    run and job change in one commit; `lock` comes first, for the lock order is run, then job."""

    async def lock(self, tx: Tx, run_id: str) -> None: ...

    async def job_moved(self, tx: Tx, run_id: str, move: Move) -> None: ...

    async def told(self, run_id: str) -> None:
        """The commit is through: say what became of the run."""
        ...
