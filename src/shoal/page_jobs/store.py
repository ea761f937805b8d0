"""The contracts of what page jobs leave in the store: their results, and their groups."""

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
"""Where a result stands among the others by its age: when it was fetched, and its number."""


class HeldJob(Struct, frozen=True):
    """A locked job, as whoever takes its result must see it. What it says of itself is its own or its group's."""

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
    """A result to be stored."""

    job_id: JobId
    epoch: int
    group_id: str | None
    policy: str | None
    state: JobState
    digest: str
    result: Result


class ResultStore(Protocol):
    async def runs_of(self, tx: Tx, job_ids: list[JobId]) -> list[str | None]:
        """The groups of these jobs. Nothing is locked: a job never changes its group."""
        ...

    async def lock(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        """Those of the jobs that are leased just now; they stay so until this transaction ends or moves them. They are
        locked in the order of their ids, after their runs."""
        ...

    async def ended(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        """Jobs that have just lost their last lease, as they were; nobody holds them any more."""
        ...

    async def answers(self, tx: Tx, owner: str, holders: list[Fence]) -> dict[Fence, tuple[str, JobState]]:
        """For each of these grants that was this owner's and had a result: the digest of that, and where it sent the
        job."""
        ...

    async def insert(self, tx: Tx, results: Sequence[NewResult]) -> None:
        """Keep these results. There is at most one for each grant."""
        ...

    async def of_group(self, tx: Tx, group_id: str, after: int, limit: int) -> list[StoredResult]:
        """The last word on each ended job of a group, in the order in which they were stored, after that number: none
        of a job that will be tried again. Fewer than `limit` if they are large; none only if there is none."""
        ...

    async def of_policy(self, tx: Tx, policy: str, before: int | None, limit: int) -> list[StoredResult]:
        """The last word on each ended job of a policy, newest first, before that number; also of jobs that are gone.
        Fewer than `limit` if they are large; none only if there is none."""
        ...

    async def success_of_policy(self, tx: Tx, policy: str, before: int | None) -> StoredResult | None:
        """The last success of a policy, or the last before that number, however many failures came after it."""
        ...

    async def one_of_policy(self, tx: Tx, policy: str, job_id: str) -> StoredResult | None:
        """The last word on one of its jobs."""
        ...

    async def forget(self, tx: Tx, before: int, after: Place, limit: int) -> tuple[int, Place | None]:
        """Of the next `limit` results of policies that are older than that, by their age and after a place, remove all
        but the last success of each policy; how many, and the place of the last one, None at the end."""
        ...

    async def of_job(self, tx: Tx, job_id: JobId) -> list[StoredResult]:
        """Every result of a job, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to be stored."""

    id: GroupId
    project: str
    labels: dict[str, str]
    priority: int
    total: int
    spec: PageSpec


class GroupStore(Protocol):
    async def insert(self, tx: Tx, group: NewGroup) -> Group | None:
        """Store an open group; None if its id is taken."""
        ...

    async def get(self, tx: Tx, group_id: str) -> Group | None:
        """The group with the states of its jobs: as they are now, or, once it is over, as they were at its end."""
        ...

    async def page_of(self, tx: Tx, after: int | None, limit: int, state: str | None) -> list[Group]:
        """Groups, newest first, older than the one with that number; those in that state, if one is named."""
        ...

    async def lock(self, tx: Tx, group_id: str) -> Group | None:
        """The group, without its jobs, locked against any other change; the lock order is group, then jobs."""
        ...

    async def specs(self, tx: Tx, group_ids: list[str]) -> dict[str, PageSpec | None]:
        """How the pages of these groups are fetched; None where this version cannot read it."""
        ...

    async def has_live_jobs(self, tx: Tx, group_id: str) -> bool:
        """Whether a job of the group waits or is worked on. Call it under the group's lock."""
        ...

    async def held(self, tx: Tx, group_id: str) -> list[Fence]:
        """The grants under which jobs of the group are worked on just now, by id."""
        ...

    async def prune(self, tx: Tx, before: int, limit: int) -> int:
        """Remove groups that were over before that time and have no jobs any more; how many."""
        ...

    async def end(self, tx: Tx, group_id: str, state: GroupState, reason: str | None) -> dict[str, int]:
        """End an open group, and keep how many of its jobs ended in each state; these numbers."""
        ...
