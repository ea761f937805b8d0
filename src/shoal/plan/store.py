"""The contracts of the policies' store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from shoal.base.database import Tx
from shoal.plan.policy import Policy


class NewPolicy(Struct, frozen=True):
    """A policy as it is stored first: all that can be said before a store is asked to keep it."""

    id: str
    project: str
    line: str
    spec: str
    enabled: bool
    planned_at: int
    next_run_at: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """How a policy goes on after one of its times has come: compare-and-set on the time that was seen."""

    id: str
    seen: int  # `next_run_at` as it was read
    planned_at: int
    next_run_at: int | None
    queued: bool
    begun: bool  # a job was made now
    crawl: str | None = None  # or the crawl of a site


@dataclass(frozen=True, slots=True)
class RunNote:
    """What the end of a run says about a policy."""

    id: str
    success: bool
    at: int
    hash: str | None
    frequency_now: int | None  # where it adapts to
    shift: int  # by which its next time moves for that


@dataclass(frozen=True, slots=True)
class PriorityBoost:
    """What a business says about a URL or a label: points, for a while."""

    subject: str  # `url:https://…` or `label:team=search`
    boost: float
    until: int


class PolicyStore(Protocol):
    async def insert(self, tx: Tx, policies: Sequence[NewPolicy]) -> None:
        """Store policies; one whose id is stored already stays as it is. `number` is given here."""
        ...

    async def get(self, tx: Tx, policy_id: str) -> Policy | None:
        """With the id of its live job."""
        ...

    async def lock(self, tx: Tx, policy_id: str) -> Policy | None: ...

    async def save(self, tx: Tx, policy: Policy) -> None:
        """What a person may change: spec, enabled, times, adapted frequency."""
        ...

    async def remove(self, tx: Tx, policy_id: str) -> bool: ...

    async def page_of(self, tx: Tx, after: int, limit: int, project: str | None, enabled: bool | None) -> list[Policy]:
        """Policies in the order in which they were made, after a number."""
        ...

    async def is_ready(self, tx: Tx, line: str) -> bool:
        """Whether there is anything in a line that is due, or owed a run; somebody else may run it before you."""
        ...

    async def due(self, tx: Tx, line: str, limit: int) -> list[Policy]:
        """Policies of a line whose time has come, the longest due first, each kept from other schedulers until this
        transaction ends. Read by index: a million that are not due cost nothing."""
        ...

    async def owed(self, tx: Tx, line: str, limit: int) -> list[Policy]:
        """Policies of a line with a run that waits for the one before, kept from others likewise."""
        ...

    async def due_sites(self, tx: Tx, limit: int) -> tuple[int, list[Policy]]:
        """The store's time, and policies of sites whose time has come or that are owed a run."""
        ...

    async def advance(self, tx: Tx, steps: Sequence[ScheduleStep]) -> None: ...

    async def note(self, tx: Tx, notes: Sequence[RunNote]) -> None: ...

    async def live_jobs(self, tx: Tx, keys: Sequence[str]) -> dict[str, str]:
        """The live jobs with these dedupe keys."""
        ...

    async def of_ids(self, tx: Tx, ids: Sequence[str]) -> dict[str, Policy]:
        """These policies, kept from others who would change them until this transaction ends."""
        ...

    async def signals(self, tx: Tx, subjects: Sequence[str]) -> dict[str, float]:
        """The points that are valid now, by subject."""
        ...

    async def put_signal(self, tx: Tx, signal: PriorityBoost) -> None: ...

    async def forget_signals(self, tx: Tx, before: int, limit: int) -> int:
        """Remove signals that counted no longer at that time; how many."""
        ...

    async def waiting(self, tx: Tx, capability: str, most: int) -> int:
        """How many page jobs that ask for a capability wait in the shared lane; counted no further than `most`."""
        ...

    async def now(self, tx: Tx) -> int: ...
