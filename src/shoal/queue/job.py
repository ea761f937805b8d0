"""What a job is, and the values that its verbs take and give."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import orjson
from msgspec import Struct

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.text import redact_url
from shoal.hosts.rate import HostRateLimit
from shoal.queue.states import GrantEnd, JobState, Move

SHARED_LANE = "shared"
LOCAL = "local/"
BOT = "bot/"
HTTP = "http"  # what a job asks of whoever takes it: to fetch
JS = "js"  # or to run a page in a browser
KEY_SCOPE = "key:"  # what begins so is a concurrency key: one job at a time, unless a quota says otherwise
RUN_KINDS = ("crawl", "analysis")  # jobs that are the work of a run: retried, stopped and removed with it


def node_of(holder: str) -> str:
    """The node, or for a crawl in a process of its own the machine, that a lease's holder names."""
    kind, _, rest = holder.partition("/")
    return rest.partition("/")[0] if kind == "local" else kind


def bot_holder(token: str, label: str) -> str:
    """The holder of a lease that a bot has: its token owns it, what it calls itself is only told."""
    return f"{BOT}{token}/{label}"


def is_bot(holder: str) -> bool:
    return holder.startswith(BOT)


def owner_of(holder: str) -> str:
    """Who owns what was leased to a holder: of a bot its token, whatever it calls itself."""
    return "/".join(holder.split("/", 2)[:2]) + "/" if is_bot(holder) else holder


def local_lane(run_id: str) -> str:
    """The lane of a run that one process works on by itself: no worker of the fleet takes from it."""
    return f"{LOCAL}{run_id}"


def is_local(lane: str) -> bool:
    return lane.startswith(LOCAL)


def quota_keys(project: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The scopes of what belongs to a project and has labels."""
    return (f"project:{project}", *(f"label:{name}={value}" for name, value in labels.items()))


def quota_limit(scope: str, quota: int | None) -> int | None:
    """How many jobs of a scope may be locked at once; None: any number."""
    return 1 if quota is None and scope.startswith(KEY_SCOPE) else quota


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored.

    `not_before`: UTC microseconds by the store's clock; None: now. `capability`: what its worker must be able to do.
    `scopes`: what it counts for while it is locked, such as `project:acme`, `label:team=a`, or `key:anything`, of which
    only one runs at a time. `lock_ttl`: how long a bot may keep it without a sign of life; such a job is lost to bots
    no more often than it may be tried again. `host`: the origin that it asks, for kinds that are leased by host.
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
    scopes: tuple[str, ...] = ()
    lock_ttl: timedelta | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of a job that was to be stored. `duplicate`: a live job has its dedupe key; `id` is that one's."""

    id: JobId
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Who leases, and what: of these kinds and capabilities, from these lanes, the first one first. `lock_ttl`: of a
    bot, how long it keeps jobs that say nothing about it; None: a node, whose leases are all as long. `waits`: for
    others who count the seats of a scope just now; who holds what such others may need must not. `pace`: lease by host:
    only jobs that name one, and of each host only as many as it may be asked for now; None: whatever ranks best."""

    holder: str
    kinds: Sequence[str]
    lanes: Sequence[str] = (SHARED_LANE,)
    capabilities: Sequence[str] = (HTTP,)
    lock_ttl: timedelta | None = None
    waits: bool = True
    pace: HostRateLimit | None = None


class Fence(Struct, frozen=True):
    """Who may change what a job owns: the job, and the number of its grant. The fence of every commit."""

    job_id: JobId
    epoch: int


class Lease(Struct):
    """The right to work on a job. It lasts one term from the grant: measure what is left by your own clock."""

    holder: Fence
    kind: str
    run_id: str | None
    payload: str
    attempts: int
    max_attempts: int
    crash_count: int
    waited_seconds: float
    priority: int = 50
    ttl_seconds: float = 0.0  # of a job leased from a line
    start_in: float = 0.0  # seconds until the slot that its host has for it


@dataclass(frozen=True, slots=True)
class Extended:
    """Of the leases that were to be extended: those that still are their holders', and of these the ones whose work is
    to be killed."""

    kept: list[Fence]
    to_kill: frozenset[Fence] = frozenset()


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a bot hears when it gives a sign of life: how long its lease lasts from now, and whether it is to drop the
    work."""

    ttl_seconds: float
    cancelled: bool


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one commit did: the moves that were refused, for somebody else was first, the jobs granted, and how many
    found no room in their scopes and left the line."""

    refused: list[Move]
    leases: list[Lease]
    parked: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its row says."""

    id: JobId
    kind: str
    capability: str
    state: JobState
    state_reason: str | None
    run_id: str | None
    payload: str
    lane: str
    dedupe_key: str | None
    scopes: tuple[str, ...]
    parked: str | None  # the scope that had no room for it
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
        """The page that the job is about, if it is about one and its payload can be read."""
        found = self._carried.get("url")
        return redact_url(found) if isinstance(found, str) else None

    @property
    def priority_parts(self) -> dict[str, float]:
        """What its priority is made of, if whoever made the job says so."""
        found = self._carried.get("priority")
        return found if isinstance(found, dict) else {}

    @property
    def _carried(self) -> dict[str, Any]:
        with suppress(orjson.JSONDecodeError):
            payload = orjson.loads(self.payload)
            return payload if isinstance(payload, dict) else {}
        return {}


@dataclass(frozen=True, slots=True)
class Grant:
    """One lease of a job: who had it, when, in which process, and how it ended."""

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


@dataclass(frozen=True, slots=True)
class LostJob:
    """A locked job whose lease ran out."""

    id: JobId
    kind: str
    run_id: str | None
    epoch: int
    crash_count: int
    lease_holder: str
    max_retry: int | None  # how often a bot may lose it, if its policy says so
    settled: bool  # something, since the grant: the deaths before it do not count any more


class RunListener(Protocol):
    """The owner of the runs of one job kind. The queue calls it in the transaction that ends or returns a job, so that
    run and job change in one commit. `lock` comes first: the lock order is run, then job. What it has to say about the
    run it says by `tx.on_commit`."""

    async def lock(self, tx: Tx, run_id: str) -> None: ...

    async def job_moved(self, tx: Tx, run_id: str, move: Move) -> None: ...

    async def was_idle(self, tx: Tx, run_id: str, lost: "LostJob") -> bool:
        """Whether a grant that lost its worker had nothing of the run's work in hand: then that death is no crash of
        the job. Run and job are locked, so nothing is taken meanwhile."""
        ...


class DeadLetterListener(Protocol):
    """Who is told, in that very commit, that jobs of a kind became dead letters without a result: their workers were
    lost, or raised."""

    async def buried(self, tx: Tx, moves: Sequence[Move]) -> None: ...
