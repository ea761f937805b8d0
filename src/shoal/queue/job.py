"""The job record, and the parameters and results of queue operations."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from msgspec import Struct

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.text import redact_url
from shoal.queue.states import GrantEnd, JobState, Move

if TYPE_CHECKING:
    from shoal.hosts.rate_limiter import RateLimiter

SHARED_LANE = "shared"
LOCAL = "local/"
NODE = "node/"  # prefix of private lanes
BOT = "bot/"
HTTP = "http"  # capability: the worker can fetch
JS = "js"  # capability: the worker can run a page in a browser
SCRAPE = "scrape"  # capability: the worker returns the content of a page, which no bot does
SCRAPE_JS = "scrape_js"  # capability: the worker returns the content of a page after a browser has run it
SCRAPES = (SCRAPE, SCRAPE_JS)
BROWSER = (JS, SCRAPE_JS)  # capabilities that need a browser
CONCURRENCY_PREFIX = "key:"  # prefix of a concurrency key: one job at a time, unless a quota sets a different limit
MAX_RETRY = "max_retry"  # field of a payload: the number of retries, if it was given with the job
RUN_KINDS = ("crawl", "analysis")  # kinds whose jobs belong to a run and are retried, stopped and removed with the run


def node_of(holder: str) -> str:
    """Return the node of a lease holder, or the machine for a crawl that runs in its own process."""
    kind, _, rest = holder.partition("/")
    return rest.partition("/")[0] if kind == "local" else kind


def bot_holder(token: str, label: str) -> str:
    """Return the lease holder for a bot. Its token owns the lease; the label is informational."""
    return f"{BOT}{token}/{label}"


def is_bot(holder: str) -> bool:
    return holder.startswith(BOT)


def bot_of(holder: str) -> tuple[str, str] | None:
    """Return the token and the label of a bot that holds a lease; None for other holders."""
    if not is_bot(holder):
        return None
    token, _, label = holder.removeprefix(BOT).partition("/")
    return token, label


def owner_of(holder: str) -> str:
    """Return the owner of a holder's leases: for a bot, its token (the label does not matter)."""
    return "/".join(holder.split("/", 2)[:2]) + "/" if is_bot(holder) else holder


def attempts_made(state: JobState, failed: int, grants: int) -> int:
    """Return how many attempts a job has had: the failed attempts, plus one if the job runs, is done, lost its workers
    too often, or was cancelled after a grant that did not fail."""
    has_run = state in (JobState.LOCKED, JobState.DONE, JobState.EXPIRED)
    return failed + (has_run or (state is JobState.CANCELLED and grants > failed))


def with_retries(max_retry: int | None, **fields: Any) -> str:
    """Return a payload with these fields, and `max_retry` if it was given, so that a worker with a different default
    keeps this number."""
    return orjson.dumps(fields if max_retry is None else {**fields, MAX_RETRY: max_retry}).decode()


def _fields_of(payload: str) -> dict[str, Any]:
    """Return the fields of a payload; none if it cannot be parsed."""
    with suppress(orjson.JSONDecodeError):
        fields = orjson.loads(payload)
        return fields if isinstance(fields, dict) else {}
    return {}


def local_lane(run_id: str) -> str:
    """Return the lane of a run that one process executes by itself; no worker of the fleet leases from it."""
    return f"{LOCAL}{run_id}"


def is_local(lane: str) -> bool:
    return lane.startswith(LOCAL)


def node_lane(node_id: str) -> str:
    """Return the private lane of a node; no other node leases from it."""
    return f"{NODE}{node_id}"


def is_private(lane: str) -> bool:
    return lane.startswith(NODE)


def quota_keys(project: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the quota keys for a project and labels."""
    return (f"project:{project}", *(f"label:{name}={value}" for name, value in labels.items()))


def quota_limit(key: str, quota: int | None) -> int | None:
    """Return how many jobs with this quota key may be locked at the same time; None: unlimited."""
    return 1 if quota is None and key.startswith(CONCURRENCY_PREFIX) else quota


class Offer(Struct, frozen=True):
    """An offer of a job to one session of a node. If the node does not take the job in time, the job goes to the shared
    lane."""

    session: str
    ttl: timedelta


class NewJob(Struct, frozen=True):
    """A job to be stored.

    `not_before`: UTC microseconds by the store's clock; None: now. `capability`: what its worker must support.
    `quota_keys`: the quota keys towards which the job counts while it is locked, such as `project:acme`,
    `label:team=a`, or `key:anything`; only one job with the same `key:` runs at a time. `lock_ttl`: how long a bot may
    hold the job without a heartbeat; the number of times that bots may lose such a job is limited by its retries.
    `host`: the origin that the job requests, for kinds that are leased by host. `offer`: for a job in a node's private
    lane, the session to which it is offered, and for how long. `dispatch`: why the job is in its lane, as JSON.
    """

    id: JobId
    kind: str
    run_id: str | None
    payload: str = "{}"
    lane: str = SHARED_LANE
    priority: int = 50
    max_attempts: int = 2
    dedupe_key: str | None = None
    capability: str = HTTP
    not_before: int | None = None
    quota_keys: tuple[str, ...] = ()
    lock_ttl: timedelta | None = None
    host: str | None = None
    offer: Offer | None = None
    dispatch: str | None = None


class JobDispatch(Struct, frozen=True):
    """The lane in which a job waits; the session to which it is offered, and until when (None: no particular session);
    and why it was dispatched there, as JSON (None: the dispatcher did not choose its lane)."""

    lane: str
    offered_session: str | None
    offered_until: int | None
    decision: str | None


class Enqueued(Struct, frozen=True):
    """The outcome of enqueuing one job. `duplicate`: a live job already has the same dedupe key; `id` is then the id of
    the live job."""

    id: JobId
    duplicate: bool = False


class LeaseRequest(Struct, frozen=True):
    """A request for leases: the holder, the kinds and capabilities of jobs, and the lanes in order of preference.
    `lock_ttl`: the lease term for jobs that do not set their own; only bots pass it. Nodes pass None: all their leases
    have the same term. `waits`: wait for other transactions that are counting the same quota key; pass False if you
    hold locks that they may need. `rate_limiter`: lease by host, which means only jobs with a host, and per host only
    as many as its rate limit allows now; None: lease by rank."""

    holder: str
    kinds: Sequence[str]
    lanes: Sequence[str] = (SHARED_LANE,)
    capabilities: Sequence[str] = (HTTP,)
    lock_ttl: timedelta | None = None
    waits: bool = True
    rate_limiter: "RateLimiter | None" = None


class Fence(Struct, frozen=True):
    """The right to change the data that a job owns: the job id and the epoch of its grant. Every commit checks it."""

    job_id: JobId
    epoch: int


class Lease(Struct):
    """The right to work on a job for one term from the grant. Measure the remaining time by your own clock."""

    fence: Fence
    kind: str
    run_id: str | None
    payload: str
    attempts: int
    max_attempts: int
    crash_count: int
    waited_seconds: float
    priority: int = 50
    ttl_seconds: float = 0.0  # only for a job that was popped from a lane
    start_in_seconds: float = 0.0  # until the time slot that the host's rate limit gives this job

    @property
    def has_own_limit(self) -> bool:
        """Return whether the number of attempts was given with the job, so that workers do not change it."""
        return MAX_RETRY in _fields_of(self.payload)


class Extended(Struct, frozen=True):
    """The outcome of a lease renewal: the leases that are still held, and those of them whose jobs have to be
    killed."""

    kept: list[Fence]
    to_kill: frozenset[Fence] = frozenset()


class HeartbeatAnswer(Struct, frozen=True):
    """The response to a bot's heartbeat: how long its lease lasts from now, and whether to abandon the work."""

    ttl_seconds: float
    cancelled: bool
    holder: str


class TurnResult(Struct, frozen=True):
    """The outcome of one commit: the moves that were refused because a different process was first, the leases granted,
    and the number of jobs parked because their quota was full."""

    refused: list[Move]
    leases: list[Lease]
    parked: int = 0


class Job(Struct, frozen=True):
    """A job as stored in its row."""

    id: JobId
    kind: str
    capability: str
    state: JobState
    state_reason: str | None
    run_id: str | None
    payload: str
    lane: str
    dedupe_key: str | None
    quota_keys: tuple[str, ...]
    parked: str | None  # the quota key that was full
    priority: int
    not_before: int
    attempts: int
    max_attempts: int
    crash_count: int
    lease_epoch: int
    lease_holder: str | None
    lease_until: int | None
    granted_at: int | None
    kill_at: int | None
    error: str | None
    created_at: int
    line_at: int
    finished_at: int | None

    @property
    def url(self) -> str | None:
        """The URL of the job, if it has one and its payload can be parsed."""
        found = _fields_of(self.payload).get("url")
        return redact_url(found) if isinstance(found, str) else None

    @property
    def priority_parts(self) -> dict[str, float]:
        """The parts its priority was computed from, if its creator recorded them."""
        found = _fields_of(self.payload).get("priority")
        return found if isinstance(found, dict) else {}

    @property
    def max_retry(self) -> int | None:
        """How many times the job may be retried, if this number was given with the job."""
        found = _fields_of(self.payload).get(MAX_RETRY)
        return found if isinstance(found, int) else None


class Grant(Struct, frozen=True):
    """One lease of a job: its holder, time and process, and how it ended."""

    epoch: int
    holder: str
    granted_at: int
    settled: bool
    ended_at: int | None
    ended: GrantEnd | None
    error: str | None
    node: str | None
    pid: int | None
    config: str | None


class LostJob(Struct, frozen=True):
    """A locked job whose lease expired."""

    id: JobId
    kind: str
    run_id: str | None
    epoch: int
    attempts: int
    max_attempts: int
    crash_count: int
    lease_holder: str
    max_retry: int | None  # how many times bots may lose the job, if its policy sets a limit
    settled: bool  # URLs were settled since the grant, so earlier crashes no longer count

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.epoch)


class RunListener(Protocol):
    """The owner of the runs of one job kind. The queue calls it in the transaction that ends or returns jobs, so that
    runs and jobs change in one commit. `lock` is called first: the lock order is run, then job. The listener emits
    signals about runs through `tx.on_commit`."""

    async def lock(self, tx: Tx, run_id: str) -> None: ...

    async def jobs_moved(self, tx: Tx, moves: Sequence[tuple[Move, str | None]]) -> None:
        """Update runs after moves of their jobs. Each move comes with the id of its run, or None. The runs are
        locked."""
        ...

    async def was_idle(self, tx: Tx, run_id: str, lost: "LostJob") -> bool:
        """Return whether a grant that lost its worker had none of the run's work in flight; if so, the loss does not
        count as a crash of the job. Run and job are locked, so no work is taken meanwhile."""
        ...


class EndedRun(Struct, frozen=True, kw_only=True):
    """A run that has completed or failed: a crawl, or a page job of a policy. `html_hash`: the hash of the page, if
    there is one. `analyze`: the run is a crawl that workers shall analyze now. `at`: when the run ended, by the store's
    clock, if it did not end just now."""

    id: str
    is_success: bool
    policy_id: str | None = None
    html_hash: str | None = None
    analyze: bool = False
    at: int | None = None


class RunEndHook(Protocol):
    """A hook for higher packages that follow up on the end of runs."""

    async def ended(self, tx: Tx, runs: Sequence[EndedRun]) -> None:
        """Follow up in the commit that ends the runs. This must be the commit's last step that locks rows: rows of
        policies come last in the lock order."""
        ...
