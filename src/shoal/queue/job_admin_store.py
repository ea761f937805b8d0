"""What people ask of jobs: lists, dead letters, quotas; the values, and the contract with the store."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.job import Job
from shoal.queue.states import TERMINAL, JobState

DEAD = frozenset({JobState.FAILED, JobState.EXPIRED})


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs: of a state, kind, run or lane; dead letters or all but these. What is not said does not matter."""

    state: JobState | None = None
    kind: str | None = None
    run_id: str | None = None
    lane: str | None = None
    dead: bool | None = None

    @property
    def is_dead(self) -> bool:
        """Whether only dead letters can match."""
        return bool(self.dead) or self.state in DEAD

    @property
    def ended_states(self) -> list[str]:
        """The final states that match."""
        states = TERMINAL if self.state is None else TERMINAL & {self.state}
        if self.dead is None:
            return sorted(states)
        return sorted(states & DEAD if self.dead else states - DEAD)


@dataclass(frozen=True, slots=True)
class Quota:
    """How many jobs of a scope may be locked at once, how many are, and how many wait for room."""

    scope: str
    most: int
    locked: int = 0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """What is around a job that waits: how many stand before it, and what of its like is worked on. Of a job that is
    leased by host, how many of its host do, and for how many seconds that host is not to be asked."""

    now: int
    ahead: int
    locked: int
    last_granted_at: int | None
    host: str | None = None
    host_busy_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Purged:
    """How many jobs one commit removed, and the time after which to go on; None: that was all."""

    count: int
    after: int | None


class JobAdminStore(Protocol):
    async def page_of(self, tx: Tx, which: JobFilter, before: str | None, limit: int) -> tuple[list[Job], str | None]:
        """Jobs that match, newest first, older than that one; and after which to go on, None at the end. A page may be
        short, or empty, and yet not be the last: one call reads only so much."""
        ...

    async def count(self, tx: Tx) -> dict[str, dict[str, int]]:
        """How many jobs there are by kind and state. It reads every job."""
        ...

    async def retry(self, tx: Tx, job_ids: Sequence[JobId]) -> list[JobId]:
        """Dead letters wait again, with all their attempts; those that do. Not one whose dedupe key a live job has."""
        ...

    async def cancel(self, tx: Tx, job_id: JobId, reason: str) -> bool:
        """Cancel a pending job; False if it is not pending any more."""
        ...

    async def purge(
        self, tx: Tx, which: JobFilter, after: int, before: int, limit: int, spared: Collection[str] = ()
    ) -> Purged:
        """Remove ended jobs of a state and kind, or dead letters, with their history, of about so many that ended first
        between these times. Never one that lives, is of the kinds that are spared, or has a group that is not over; nor
        one that somebody else is just about to change."""
        ...

    async def set_quota(self, tx: Tx, scope: str, most: int) -> None:
        """Limit a scope from now on: what is locked counts and stays; parked jobs that have room now stand in line."""
        ...

    async def remove_quota(self, tx: Tx, scope: str) -> bool:
        """Limit a scope no more; False if it had no quota."""
        ...

    async def quotas(self, tx: Tx, after: str, limit: int) -> list[Quota]:
        """Quotas by their scopes, after that one."""
        ...

    async def crowd(self, tx: Tx, scope: str) -> tuple[int, int | None]:
        """How many jobs of a scope are locked, and how many may be."""
        ...

    async def around(self, tx: Tx, job: Job) -> QueuePosition:
        """What keeps a waiting job in its line."""
        ...
