"""The store contract of job administration (lists, dead letters, quotas) and its values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.job import Job, JobDispatch
from shoal.queue.states import TERMINAL, JobState

DEAD = frozenset({JobState.FAILED, JobState.EXPIRED})


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter by state, kind, run or lane, and by whether a job is a dead letter. None matches everything."""

    state: JobState | None = None
    kind: str | None = None
    run_id: str | None = None
    lane: str | None = None
    dead: bool | None = None

    @property
    def is_dead(self) -> bool:
        """Return whether only dead letters can match."""
        return bool(self.dead) or self.state in DEAD

    @property
    def ended_states(self) -> list[str]:
        """Return the final states that match."""
        states = TERMINAL if self.state is None else TERMINAL & {self.state}
        if self.dead is None:
            return sorted(states)
        return sorted(states & DEAD if self.dead else states - DEAD)


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota: how many jobs with this key may be locked at once, how many are, and how many are parked."""

    key: str
    most: int
    locked: int = 0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The position of a pending job: how many jobs are ahead of it, and how many of its kind and capability are locked.
    For a job that is leased by host, `ahead` counts only jobs of that host, and `host_busy_seconds` is the time until
    that host may be requested. For a job that needs a browser, `renderers` is the number of connected nodes that have
    one."""

    now: int
    ahead: int
    locked: int
    host: str | None = None
    host_busy_seconds: float = 0.0
    renderers: int = 0


@dataclass(frozen=True, slots=True)
class Purged:
    """The number of jobs that one commit removed, and the time after which to continue; None if nothing is left."""

    count: int
    after: int | None


class JobAdminStore(Protocol):
    async def page_of(self, tx: Tx, which: JobFilter, before: str | None, limit: int) -> tuple[list[Job], str | None]:
        """Return matching jobs that are older than `before`, newest first, and the id to continue after, None at the
        end. A short or empty page may not be the last one, because one call reads a limited number of rows."""
        ...

    async def count(self, tx: Tx) -> dict[str, dict[str, int]]:
        """Return the number of jobs by kind and state. Reads every job."""
        ...

    async def retry(self, tx: Tx, job_ids: Sequence[JobId]) -> list[JobId]:
        """Make dead letters pending again, with all their attempts, and return their ids. Skip jobs that are not dead
        letters, and jobs whose dedupe key belongs to a live job."""
        ...

    async def cancel(self, tx: Tx, job_id: JobId, reason: str) -> bool:
        """Cancel a pending job; False if it is no longer pending."""
        ...

    async def purge(
        self, tx: Tx, which: JobFilter, after: int, before: int, limit: int, spared: Collection[str] = ()
    ) -> Purged:
        """Remove jobs of a state and kind, or dead letters, with their history: about `limit` that ended first
        between these times. Never removes a job that is live, of a spared kind, in a group that has not ended, or
        locked by another transaction."""
        ...

    async def set_quota(self, tx: Tx, key: str, most: int) -> None:
        """Limit a quota key from now on: locked jobs count and stay locked; parked jobs that fit are unparked."""
        ...

    async def remove_quota(self, tx: Tx, key: str) -> bool:
        """Remove the limit of a quota key; False if it had none."""
        ...

    async def quotas(self, tx: Tx, after: str, limit: int) -> list[Quota]:
        """Return the quotas after that key, ordered by quota key."""
        ...

    async def quota_usage(self, tx: Tx, key: str) -> tuple[int, int | None]:
        """Return how many jobs with this quota key are locked, and the limit."""
        ...

    async def around(self, tx: Tx, job: Job) -> QueuePosition:
        """Return what keeps a pending job waiting in its lane."""
        ...

    async def dispatch_of(self, tx: Tx, job_id: JobId) -> JobDispatch:
        """Return where a job waits, and why it was dispatched there."""
        ...
