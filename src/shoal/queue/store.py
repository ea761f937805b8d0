"""The queue's store contract. Every change is a compare-and-set; an answer of False or fewer rows means that somebody
else was first, never that the store failed."""

from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.job import Holder, Job, Lease, LostJob, NewJob
from shoal.queue.states import Move


class JobStore(Protocol):
    async def insert(self, tx: Tx, job: NewJob) -> bool:
        """Store a pending job; False if a live job has its dedupe key."""
        ...

    async def lease(
        self, tx: Tx, holder: str, kinds: list[str], lanes: list[str], limit: int, ttl: timedelta
    ) -> list[Lease]:
        """Grant up to `limit` due jobs, higher priority first, then those longer in line; each grant raises the job's
        epoch and opens a history row. An empty answer does not mean that no job waits: others may have the lock on it
        just now."""
        ...

    async def lease_one(self, tx: Tx, job_id: JobId, holder: str, ttl: timedelta) -> Lease | None:
        """Grant this very job if it is pending."""
        ...

    async def fence(self, tx: Tx, holder: Holder) -> bool:
        """Whether the job is still locked with that epoch; if so, it stays so until this transaction ends."""
        ...

    async def extend(self, tx: Tx, holders: list[Holder], ttl: timedelta) -> list[Holder]:
        """Move the ends of these leases; those that were extended. Never waits for a fence."""
        ...

    async def mark_settled(self, tx: Tx, holder: Holder) -> None:
        """Remember that this grant settled something. Call under the fence."""
        ...

    async def apply(self, tx: Tx, move: Move) -> bool:
        """Carry out one move of a locked job and close its history row; False if the job moved on."""
        ...

    async def other_run_waits(self, tx: Tx, job_id: JobId, patience: timedelta) -> bool:
        """Whether a job of another run, as important as this one, has been due in the same lane for longer than that:
        then no worker was free for it."""
        ...

    async def cancel_waiting(self, tx: Tx, run_id: str, reason: str) -> int:
        """Cancel the run's pending jobs; how many."""
        ...

    async def set_priority(self, tx: Tx, run_id: str, priority: int) -> None:
        """Give the run's live jobs another priority."""
        ...

    async def expired(self, tx: Tx, limit: int) -> list[LostJob]:
        """Locked jobs whose lease ran out, oldest first. A candidate list: each must still be moved by `apply`."""
        ...

    async def freshest_lease(self, tx: Tx) -> timedelta | None:
        """How long the lease that ends last still has; negative if it is over, None if there is none."""
        ...

    async def lost(self, tx: Tx, holder: Holder) -> LostJob | None:
        """That grant as it is now, locked against any other move; None if it is over."""
        ...

    async def still_expired(self, tx: Tx, holder: Holder) -> bool:
        """Whether that grant is still locked and its lease over, decided under the lock that `apply` needs."""
        ...

    async def jobs_of_run(self, tx: Tx, run_id: str) -> list[Job]: ...

    async def get(self, tx: Tx, job_id: JobId) -> Job | None: ...

    async def live_of_run(self, tx: Tx, run_id: str) -> tuple[int, int]:
        """How many of the run's jobs are pending, and how many locked."""
        ...
