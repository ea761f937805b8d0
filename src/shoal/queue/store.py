"""The contract of job records: states, leases and their history. Who gets a job next is the business of `queue.lanes`.
Every change is a compare-and-set; an answer of False or fewer rows means that somebody else was first, never that the
store failed."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.store_clock import StoreClock
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
        """The clock that leases run by."""
        ...

    async def insert(self, tx: Tx, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store pending jobs, all or none; what became of each, in their order. There is one live job of a dedupe key,
        also within the batch: the others are answered with its id."""
        ...

    async def lease_one(self, tx: Tx, job_id: JobId, holder: str, ttl: timedelta) -> Lease | None:
        """Grant this very job if it is pending."""
        ...

    async def fence(self, tx: Tx, holder: Fence) -> bool:
        """Whether the job is still locked with that epoch; if so, it stays so until this transaction ends."""
        ...

    async def extend(self, tx: Tx, holders: Sequence[Fence], ttl: timedelta) -> Extended:
        """Move the ends of these leases in one statement; those that were extended, and of these the ones to be killed.
        Never waits for a fence."""
        ...

    async def beat(self, tx: Tx, owner: str, holder: Fence, ttl: timedelta) -> HeartbeatAnswer | None:
        """Move the end of a bot's lease, by the job's own `lock_ttl` or else `ttl`; None if it is not that owner's. One
        whose job was cancelled is told so."""
        ...

    async def held_by_owner(self, tx: Tx, owner: str) -> int:
        """How many jobs an owner holds. Looks at every locked job: ask rarely."""
        ...

    async def note(self, tx: Tx, holder: Fence, node: str, pid: int, config: str | None) -> bool:
        """Note in the grant's history in which process it is worked on, and with which configuration; False if the job
        moved on."""
        ...

    async def history(self, tx: Tx, job_id: JobId) -> list[Grant]:
        """Every grant of the job, oldest first, the one that it has now included."""
        ...

    async def held_by(self, tx: Tx, holder: str) -> list[Lease]:
        """The locked jobs whose lease names that holder."""
        ...

    async def mark_settled(self, tx: Tx, holder: Fence) -> None:
        """Remember that this grant settled something. Call under the fence."""
        ...

    async def move(self, tx: Tx, moves: Sequence[Move]) -> list[Move]:
        """Carry out moves of locked jobs, each by compare-and-set, and close their history rows; returns the refused
        moves, whose jobs have moved on. A job that is given back waits in its lane again."""
        ...

    async def other_run_waits(self, tx: Tx, job_id: JobId, patience: timedelta) -> bool:
        """Whether a job of another run, as important as this one, has been due in the same lane for longer than that:
        then no worker was free for it."""
        ...

    async def cancel_waiting(self, tx: Tx, run_id: str, reason: str) -> int:
        """Cancel the run's pending jobs; how many."""
        ...

    async def kill_run(self, tx: Tx, run_id: str, grace: timedelta) -> int:
        """Have the run's leased jobs killed by their workers after that long, unless they have ended by then; how many.
        Workers hear of it when they extend."""
        ...

    async def set_priority(self, tx: Tx, run_id: str, priority: int) -> None:
        """Give the run's live jobs another priority."""
        ...

    async def expired(self, tx: Tx, limit: int, *, bots: bool = True) -> list[LostJob]:
        """Locked jobs whose lease ran out, oldest first, with or without those that bots hold. A candidate list: each
        must still be moved by `move`."""
        ...

    async def lost_in(self, tx: Tx, holders: Sequence[Fence], *, expired: bool) -> list[LostJob]:
        """Those of the grants that still are, as they are now, locked against any other move; with `expired`, only
        those whose lease is over."""
        ...

    async def mend_seats(self, tx: Tx) -> None:
        """Let those sit in limited scopes who are locked, and no others: a quota that is set while jobs are leased and
        end may have seen some of them too early or too late."""
        ...

    async def parked_in(self, tx: Tx, limit: int) -> list[str]:
        """Of the next so many scopes in which jobs found no room, those where there is some now. Each call continues
        where the last one ended, and begins again after the end."""
        ...

    async def unpark(self, tx: Tx, scope: str) -> int:
        """Let as many jobs of a scope stand in line as there is room; how many. In a commit of its own: it takes the
        lock of the scope, and a commit that has one may only wait for hosts."""
        ...

    async def freshest_lease(self, tx: Tx) -> timedelta | None:
        """How long the lease of a node that ends last still has; negative if it is over, None if there is none."""
        ...

    async def lost(self, tx: Tx, holder: Fence) -> LostJob | None:
        """That grant as it is now, locked against any other move; None if it is over."""
        ...

    async def still_expired(self, tx: Tx, holder: Fence) -> bool:
        """Whether that grant is still locked and its lease over, decided under the lock that `move` needs."""
        ...

    async def jobs_of_run(self, tx: Tx, run_id: str) -> list[Job]: ...

    async def get(self, tx: Tx, job_id: JobId) -> Job | None: ...

    async def live_of_run(self, tx: Tx, run_id: str) -> tuple[int, int]:
        """How many of the run's jobs are pending, and how many locked."""
        ...
