"""The interface of lanes, in which pending jobs wait until a worker pops them.

The job record (`queue.store.JobStore`) is authoritative; a lane only decides who gets the job next. On SQL the jobs
table is the lane as well: a pop selects and locks in one statement. A driver that keeps lanes elsewhere, such as Redis,
pops ids first and then locks their records by compare-and-set, so an entry whose job has moved on is simply dropped.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from shoal.base.database import Database, Tx
from shoal.queue.job import SHARED_LANE, LeaseRequest, NewJob, TurnResult, local_lane
from shoal.queue.job_hosts import note_hosts
from shoal.queue.states import Move

LaneChoice = Callable[[Sequence[NewJob]], Sequence[NewJob]]
"""Choose the lanes of new jobs: return the same jobs in the same order, each with its lane. It is called inside the
transaction that stores the jobs, so it decides by what it already knows and does no I/O."""


def lanes_as_given(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Leave every job in the lane that it names: the shared lane, unless one process executes the run by itself."""
    return jobs


def lane_of_run(run_id: str, *, local: bool) -> str:
    """Return the lane for the jobs of a new run: a local lane if this process executes the run by itself, else the
    shared lane."""
    return local_lane(run_id) if local else SHARED_LANE


class LaneRepair(Struct, frozen=True):
    """The outcome of a repair: how many jobs were put back into their lanes, and whether to repeat it immediately."""

    restored: int = 0
    more: bool = False


class Lanes(Protocol):
    """One shared lane, a private lane per node, and a local lane per process that crawls by itself."""

    def takes_one_statement(self, jobs: Sequence[NewJob]) -> bool:
        """Return whether storing these jobs and pushing them takes no more than a single statement."""
        ...

    async def push(self, tx: Tx, jobs: Sequence[NewJob]) -> None:
        """Make stored jobs available in the lanes that they name. Nobody can pop them before `tx` has committed, and a
        rollback leaves nothing behind. May be repeated: a job is granted only once, however many times it was
        pushed."""
        ...

    async def pop(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult:
        """Carry out `moves` of locked jobs, then grant up to `limit` due jobs. Both happen in `tx`, and in a single
        statement if the store can do that.

        Order: first the lanes in the order of the request, with a node's private lane before the shared lane; within a
        lane, the best rank first. A point of priority equals a certain waiting time, so that no job waits for ever.

        Atomicity: each move is a compare-and-set. A refused move changes nothing; the other moves are done. Jobs that a
        move returns wait in their lanes again; jobs from a private lane wait in the shared lane. Each grant raises the
        epoch of its job and opens a history row. Jobs over their quota are parked and counted. Jobs that fit into a
        quota again because of the moves are unparked in a following commit.

        An empty result does not mean that no job waits: a different process may be locking such a job at this moment.

        A request with a `rate_limiter` gets only jobs with a host, and per host only as many as it has slots now:
        first, by rank, the jobs that can start within one second, then the jobs that can start within the following
        second. A host that must not be requested uses up no grant, is not examined again before it is due, and does not
        keep jobs of other hosts from being granted. Slots are not reserved here: the caller reserves them in the same
        commit, and takes back the jobs that got no slot."""
        ...

    async def pop_once(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult | None:
        """Do the work of `pop` in a single statement. If one statement is not enough, do nothing and return None; then
        call `pop`."""
        ...

    async def return_lane(self, tx: Tx, lane: str) -> int:
        """Move the waiting jobs of a node's private lane to the shared one, in one batch and without counting an
        attempt; return how many. Jobs that are being popped at this moment are left to their node, and jobs that are
        parked or not due yet keep their lane, so repeat the call while the node is away. Zero does not mean that the
        lane is empty."""
        ...

    async def return_offers(self, tx: Tx, limit: int) -> list[str]:
        """Return up to `limit` jobs to the shared lane because their offers to nodes have expired, the longest expired
        first. For each job, return the id of its node, or an empty text if the node is not recorded. May be
        repeated."""
        ...

    async def count_lapses(self, tx: Tx, node_ids: Collection[str]) -> None:
        """Count, for each of these nodes, that it did not take a job that was offered to it. This locks the nodes, and
        no commit may wait for a node after it has locked a host, so call it in a separate commit."""
        ...

    async def depth(self, tx: Tx, lane: str, most: int) -> int:
        """Return how many due jobs wait in a lane now, up to `most`."""
        ...

    async def waits(self, tx: Tx, kind: str, lanes: Sequence[str]) -> bool:
        """Return whether a job of that kind could be popped from one of these lanes. A different process may pop that
        job first."""
        ...

    async def page_backlog(self, tx: Tx, capability: str, most: int) -> int:
        """Return how many page jobs of a capability wait in the shared lane, up to `most`. Jobs that wait for the rate
        limits of their hosts do not count, because a slow host must not hold up other hosts."""
        ...

    async def make_due(self, tx: Tx) -> int:
        """Make jobs available once their start time has come, in one batch; return how many. A pop makes such jobs
        available, too, but nobody pops while all workers are busy, and `depth` counts only jobs that are marked as
        due."""
        ...

    async def repair(self, database: Database) -> LaneRepair:
        """Put back jobs that lanes outside the database have lost, and remove jobs that no longer wait. Each call is a
        bounded step; calls may be repeated, and several processes may call it. Lanes in the database lose no jobs."""
        ...


class OtherLanes(Protocol):
    """Lanes that are kept outside the database. Changes take effect once the transaction has committed."""

    async def push(self, tx: Tx, job_ids: Sequence[str]) -> None:
        """Put into their lanes those of the given jobs that wait and are due."""
        ...

    async def forget(self, tx: Tx, job_ids: Sequence[str]) -> None:
        """Remove jobs that no longer wait."""
        ...


class Availability:
    """Keeps lanes and hosts up to date. Every commit that makes jobs available calls `note`: for new and returned jobs,
    and for jobs whose start time has come or whose quota has room again. A commit that removes waiting jobs without
    leasing them calls `forget`."""

    def __init__(self, lanes: OtherLanes | None = None) -> None:
        """`lanes`: None if the jobs table is the only lane."""
        self._lanes = lanes

    async def note(self, tx: Tx, job_ids: Sequence[str], at_hosts: Sequence[str]) -> None:
        """Follow up on jobs that have become available. `at_hosts`: the jobs among them whose hosts have to be
        recorded."""
        await note_hosts(tx, at_hosts)
        if self._lanes is not None and job_ids:
            await self._lanes.push(tx, job_ids)

    async def forget(self, tx: Tx, job_ids: Sequence[str]) -> None:
        if self._lanes is not None and job_ids:
            await self._lanes.forget(tx, job_ids)
