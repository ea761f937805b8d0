"""The store contract of policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from shoal.base.database import Tx
from shoal.plan.policy import Policy


class NewPolicy(Struct, frozen=True):
    """A policy to insert, with everything that can be computed before the transaction."""

    id: str
    project: str
    backlog_queue: str
    spec: str
    enabled: bool
    planned_at: int
    next_run_at: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """The next schedule state of a policy, applied by compare-and-set on `next_run_at`."""

    id: str
    seen: int  # `next_run_at` as it was read
    planned_at: int
    next_run_at: int | None
    queued: bool
    begun: bool  # a job was created now
    crawl: str | None = None  # or the id of the crawl, for a site


@dataclass(frozen=True, slots=True)
class RunNote:
    """The outcome of a run, to be recorded on its policy."""

    id: str
    success: bool
    at: int
    hash: str | None
    frequency_now: timedelta | None  # the adapted frequency
    shift: timedelta  # how far that moves its next run


@dataclass(frozen=True, slots=True)
class PriorityBoost:
    """A temporary boost of a URL or a label: points and an expiry."""

    subject: str  # `url:https://…` or `label:team=search`
    boost: float
    until: int


@dataclass(frozen=True, slots=True)
class PolicyCounts:
    """How many policies there are, are due, and are late."""

    total: int
    due: int
    late: int


class PolicyStore(Protocol):
    async def insert(self, tx: Tx, policies: Sequence[NewPolicy]) -> None:
        """Insert policies and assign their `number`; an existing id is left unchanged."""
        ...

    async def get(self, tx: Tx, policy_id: str) -> Policy | None:
        """Return a policy with the id of its active job."""
        ...

    async def lock(self, tx: Tx, policy_id: str) -> Policy | None: ...

    async def save(self, tx: Tx, policy: Policy) -> None:
        """Store what a user may change: spec, enabled, times, adapted frequency."""
        ...

    async def remove(self, tx: Tx, policy_id: str) -> bool: ...

    async def page_of(self, tx: Tx, after: int, limit: int, project: str | None, enabled: bool | None) -> list[Policy]:
        """Return policies in order of creation, after a number."""
        ...

    async def list_due(self, tx: Tx, limit: int) -> list[Policy]:
        """Return due policies of all queues, the longest due first, without locking them. Reads by index, so policies
        that are not due cost nothing."""
        ...

    async def is_ready(self, tx: Tx, queue: str) -> bool:
        """Return whether a queue has a policy that is due or has a queued run; another scheduler may run it first."""
        ...

    async def due(self, tx: Tx, queue: str, limit: int) -> list[Policy]:
        """Return due policies of a queue, longest due first, locked against other schedulers until the transaction
        ends. Reads by index, so policies that are not due cost nothing."""
        ...

    async def owed(self, tx: Tx, queue: str, limit: int) -> list[Policy]:
        """Return policies whose queued run can start now that the previous one has ended, locked in the same way."""
        ...

    async def due_sites(self, tx: Tx, limit: int) -> tuple[int, list[Policy]]:
        """Return the store's time, and site policies that are due or have a queued run."""
        ...

    async def advance(self, tx: Tx, steps: Sequence[ScheduleStep]) -> None: ...

    async def note(self, tx: Tx, notes: Sequence[RunNote]) -> None: ...

    async def live_jobs(self, tx: Tx, keys: Sequence[str]) -> dict[str, str]:
        """Return the active jobs with these dedupe keys."""
        ...

    async def of_ids(self, tx: Tx, ids: Sequence[str]) -> dict[str, Policy]:
        """Return these policies, locked against changes until the transaction ends."""
        ...

    async def boosts(self, tx: Tx, subjects: Sequence[str]) -> dict[str, float]:
        """Return the boosts that are valid now, by subject."""
        ...

    async def put_boost(self, tx: Tx, boost: PriorityBoost) -> None: ...

    async def forget_boosts(self, tx: Tx, before: int, limit: int) -> int:
        """Remove boosts that had expired by that time; return how many."""
        ...

    async def counts(self, tx: Tx, late: int) -> PolicyCounts:
        """Count the policies, those that are due, and those that were due before `late` microseconds ago."""
        ...

    async def now(self, tx: Tx) -> int: ...
