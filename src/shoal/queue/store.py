"""The store contract of job records: states, leases and their history. `queue.lanes` decides who gets a job next.
Every change is a compare-and-set; a result of False or fewer rows means that another process was first, never that
the store failed."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.database.clock import StoreClock
from shoal.base.ids import JobId
from shoal.queue.job import (
    Enqueued,
    Extended,
    Fence,
    Grant,
    HeartbeatAnswer,
    Job,
    Lease,
    LostJob,
    NewJob,
)
from shoal.queue.states import Move


class JobStore(Protocol):
    @property
    def clock(self) -> StoreClock:
        """The clock that lease times are measured by."""
        ...

    async def insert(self, tx: Tx, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store pending jobs, all or none; returns the outcome of each, in their order. A dedupe key has at most one
        live job, also within the batch: duplicates are answered with its id."""
        ...

    async def lease_one(self, tx: Tx, job_id: JobId, holder: str, ttl: timedelta) -> Lease | None:
        """Grant this job if it is pending."""
        ...

    async def fence(self, tx: Tx, fence: Fence) -> bool:
        """Return whether the job is still locked with that epoch; if so, it stays locked until this transaction
        ends."""
        ...

    async def extend(self, tx: Tx, fences: Sequence[Fence], ttl: timedelta) -> Extended:
        """Renew these leases in one statement; returns those that were renewed, and which of their jobs to kill.
        Never waits for a fence."""
        ...

    async def beat(
        self, tx: Tx, owner: str, fence: Fence, ttl: timedelta, longest: timedelta
    ) -> HeartbeatAnswer | None:
        """Renew a bot's lease by the job's own `lock_ttl` or else `ttl`, but not beyond `longest` after it was granted,
        unless its term is longer; None if that time is over, or the lease does not belong to that owner. The result
        says whether the job was cancelled."""
        ...

    async def held_by_owner(self, tx: Tx, owner: str) -> int:
        """Return how many jobs an owner holds. Reads every locked job: call it rarely."""
        ...

    async def set_attempts(self, tx: Tx, fence: Fence, attempts: int) -> bool:
        """Change how often a leased job may be tried; return False if the job moved on, or has failed as often."""
        ...

    async def note(self, tx: Tx, fence: Fence, node: str, pid: int, config: str | None) -> bool:
        """Record in the grant's history which process works on it, and with which configuration; False if the job
        has moved on."""
        ...

    async def history(self, tx: Tx, job_id: JobId) -> list[Grant]:
        """Return every grant of the job, oldest first, including the current one."""
        ...

    async def held_by(self, tx: Tx, holder: str) -> list[Lease]:
        """Return the leases of that holder."""
        ...

    async def held_by_process(self, tx: Tx, holder: str) -> list[Lease]:
        """Return the leases of a process and of its children, whose names begin with its own and a slash. Reads every
        locked job: call it rarely."""
        ...

    async def mark_settled(self, tx: Tx, fence: Fence) -> None:
        """Record that this grant settled something. Call it under the fence."""
        ...

    async def move(self, tx: Tx, moves: Sequence[Move]) -> list[Move]:
        """Carry out moves of locked jobs, each by compare-and-set, and close their history rows; returns the refused
        moves, whose jobs have moved on. A returned job waits in its lane again, or in the shared one if its lane was a
        node's: every worker may have it now."""
        ...

    async def other_run_waits(self, tx: Tx, job_id: JobId, min_wait: timedelta) -> bool:
        """Return whether a job of another run, of the same priority or higher, has been due in the same lane for
        longer than `min_wait`, which means that no worker was free for it."""
        ...

    async def cancel_waiting(self, tx: Tx, run_id: str, reason: str) -> int:
        """Cancel the pending jobs of a run; returns how many."""
        ...

    async def kill_run(self, tx: Tx, run_id: str, grace: timedelta) -> int:
        """Have the leased jobs of a run killed by their workers after `grace`, unless they have ended by then;
        returns how many. Workers learn of it when they renew their leases."""
        ...

    async def set_priority(self, tx: Tx, run_id: str, priority: int) -> None:
        """Change the priority of the live jobs of a run."""
        ...

    async def expired(self, tx: Tx, limit: int, *, bots: bool = True) -> list[LostJob]:
        """Return locked jobs whose lease expired, oldest first, with or without those that bots hold. They are
        candidates: each must still be moved by `move`."""
        ...

    async def lost_in(self, tx: Tx, fences: Sequence[Fence], *, expired: bool) -> list[LostJob]:
        """Return the current state of those grants that still exist, locked against any other move; with `expired`,
        only those whose lease has expired."""
        ...

    async def repair_quota_counts(self, tx: Tx) -> None:
        """Make the counts of limited quota keys match the jobs that are locked. They can differ if a quota is set
        while jobs are being leased or ended."""
        ...

    async def parked_in(self, tx: Tx, limit: int) -> list[str]:
        """Return those of the next `limit` quota keys with parked jobs that are below their limit now. Each call
        continues where the last one stopped, and starts over at the end."""
        ...

    async def unpark(self, tx: Tx, key: str) -> int:
        """Unpark as many jobs of a quota key as its limit allows; returns how many. Call it in a separate commit: it
        locks the quota key, and after that a commit may wait only for locks on hosts."""
        ...

    async def freshest_lease(self, tx: Tx) -> timedelta | None:
        """Return the time left on the node lease that ends last; negative if it has expired, None if there is none."""
        ...

    async def lost(self, tx: Tx, fence: Fence) -> LostJob | None:
        """Return the current state of that grant, locked against any other move; None if it is over."""
        ...

    async def still_expired(self, tx: Tx, fence: Fence) -> bool:
        """Return whether that grant is still locked and its lease has expired, decided under the lock that `move`
        needs."""
        ...

    async def jobs_of_run(self, tx: Tx, run_id: str) -> list[Job]: ...

    async def get(self, tx: Tx, job_id: JobId) -> Job | None: ...

    async def live_of_run(self, tx: Tx, run_id: str) -> tuple[int, int]:
        """Return how many of the run's jobs are pending, and how many are locked."""
        ...
