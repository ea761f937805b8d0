"""The store contracts of page job results and job groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from shoal.base.database import Tx
from shoal.base.ids import GroupId, JobId
from shoal.page_jobs.group import Group, GroupState
from shoal.page_jobs.result import Result, StoredResult
from shoal.page_jobs.spec import PageSpec
from shoal.queue.job import Fence
from shoal.queue.states import JobState

Place = tuple[int, int]
"""The position of a result in order of age: fetch time and number."""


class HeldJob(Struct, frozen=True):
    """A leased job as needed to ingest its result. Its spec is its own or that of its group."""

    id: JobId
    kind: str
    run_id: str | None
    epoch: int
    owner: str
    attempts: int
    max_attempts: int
    url: str
    rule_set: dict[str, Any] | None
    policy: str | None
    labels: dict[str, str]


class NewResult(Struct, frozen=True):
    """A result to insert."""

    job_id: JobId
    epoch: int
    group_id: str | None
    policy: str | None
    state: JobState
    digest: str
    result: Result


class ResultStore(Protocol):
    async def runs_of(self, tx: Tx, job_ids: list[JobId]) -> list[str | None]:
        """Return the groups of these jobs. Takes no locks: a job never changes its group."""
        ...

    async def lock(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        """Return and lock those of the jobs that are leased now; they stay leased until this transaction ends or moves
        them. Locked in order of id, after their groups."""
        ...

    async def ended(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        """Return jobs that have just lost their last lease, as they were then; nobody holds them now."""
        ...

    async def answers(self, tx: Tx, owner: str, fences: list[Fence]) -> dict[Fence, tuple[str, JobState]]:
        """For each of these grants that belonged to this owner and has a result, return its digest and the job state it
        led to."""
        ...

    async def holders(self, tx: Tx, fences: Sequence[Fence]) -> dict[Fence, str]:
        """Return who held each of these grants, as far as they are known."""
        ...

    async def insert(self, tx: Tx, results: Sequence[NewResult]) -> None:
        """Insert results, at most one for each grant."""
        ...

    async def of_group(self, tx: Tx, group_id: str, after: int, limit: int) -> list[StoredResult]:
        """Return the final result of each ended job of a group, in storage order, after that number; jobs that will be
        retried have none. Fewer than `limit` if they are large; empty only at the end."""
        ...

    async def of_policy(self, tx: Tx, policy: str, before: int | None, limit: int) -> list[StoredResult]:
        """Return the final result of each ended job of a policy, newest first, before that number, including jobs
        already pruned. Fewer than `limit` if they are large; empty only at the end."""
        ...

    async def success_of_policy(self, tx: Tx, policy: str, before: int | None) -> StoredResult | None:
        """Return the last success of a policy, optionally before that number, however many failures came after it."""
        ...

    async def one_of_policy(self, tx: Tx, policy: str, job_id: str) -> StoredResult | None:
        """Return the final result of one of its jobs."""
        ...

    async def forget(self, tx: Tx, before: int, after: Place, limit: int) -> tuple[int, Place | None]:
        """Read the next `limit` results of policies older than `before`, in order of age after a position, and remove
        all but the last success of each policy. Return how many, and the position of the last one read, or None at the
        end."""
        ...

    async def of_job(self, tx: Tx, job_id: JobId) -> list[StoredResult]:
        """Return every result of a job, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to insert."""

    id: GroupId
    project: str
    labels: dict[str, str]
    priority: int
    total: int
    spec: PageSpec


class GroupStore(Protocol):
    async def insert(self, tx: Tx, group: NewGroup) -> Group | None:
        """Insert an open group; None if its id is taken."""
        ...

    async def get(self, tx: Tx, group_id: str) -> Group | None:
        """Return the group with the number of its jobs by state: current, or as of its end."""
        ...

    async def page_of(self, tx: Tx, after: int | None, limit: int, state: str | None) -> list[Group]:
        """Return groups, newest first, that come after the one with the number `after`; optionally only those in one
        state."""
        ...

    async def lock(self, tx: Tx, group_id: str) -> Group | None:
        """Return the group without its jobs, locked; the lock order is group, then jobs."""
        ...

    async def specs(self, tx: Tx, group_ids: list[str]) -> dict[str, PageSpec | None]:
        """Return the page specs of these groups; None where this version cannot read one."""
        ...

    async def has_live_jobs(self, tx: Tx, group_id: str) -> bool:
        """Return whether a job of the group is waiting or running. Call it under the group's lock."""
        ...

    async def held(self, tx: Tx, group_id: str) -> list[Fence]:
        """Return the grants under which jobs of the group are running, by id."""
        ...

    async def prune(self, tx: Tx, before: int, limit: int) -> int:
        """Remove groups that ended before that time and have no jobs left; return how many."""
        ...

    async def end(self, tx: Tx, group_id: str, state: GroupState, reason: str | None) -> dict[str, int]:
        """End an open group and store the number of its jobs by final state; return these numbers."""
        ...
