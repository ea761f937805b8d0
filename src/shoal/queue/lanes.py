"""The contract of lanes: where pending jobs wait until somebody pops them.

A job record (`queue.store.JobStore`) is the truth about a job; a lane only decides who gets it next. On SQL the jobs
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
"""Choose the lanes of new jobs: return the same jobs in the same order, each with its lane. Called inside the
transaction that stores them, so it decides by what it already knows and does no I/O."""


def lanes_as_given(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Leave every job in the lane it names: the shared one, unless one process executes the run by itself."""
    return jobs


def lane_of_run(run_id: str, *, local: bool) -> str:
    """Return the lane for the jobs of a new run: a local one if this process executes it by itself, else the shared
    one."""
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
        """Make stored jobs available in the lanes they name. Nobody can pop them before `tx` has committed, and a
        rollback leaves nothing behind. It may be repeated: a job is granted once, however often it was pushed."""
        ...

    async def pop(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult:
        """Carry out `moves` of locked jobs, then grant up to `limit` due jobs, both in `tx` and in one statement if the
        store can.

        Ordered: the lanes of the request in their order, a node's private lane before the shared one; within a lane the
        best rank first. A point of priority equals a certain waiting time, so that no job waits for ever.

        Atomic: each move is a compare-and-set; a refused one changes nothing, the others are done, and jobs that they
        return wait in their lanes again, those of a private lane in the shared one. Each grant raises the epoch of its
        job and opens a history row. Jobs over their quota are parked and counted. Jobs that fit into a quota again
        because of the moves are unparked in a following commit.

        An empty result does not mean that no job waits: another process may be locking it at this moment.

        A request with a `rate_limiter` gets only jobs with a host, and per host only as many as it has slots now: first
        those that can start within a second, by rank, then those of the second after that. A host that must not be
        requested uses up no grant, is not examined again before it is due, and does not keep jobs of other hosts from
        being granted. Slots are not reserved: the caller does that in the same commit, and takes back the jobs that got
        none."""
        ...

    async def pop_once(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult | None:
        """Do the same as a single statement. None: it takes more than that and nothing was done, so call `pop`."""
        ...

    async def return_lane(self, tx: Tx, lane: str) -> int:
        """Move the waiting jobs of a node's private lane to the shared one, in one batch and without counting an
        attempt; returns how many. Jobs that are being popped at this moment are left to their node, and jobs that are
        parked or not due yet keep their lane, so repeat it while the node is away. Zero does not mean that the lane
        is empty."""
        ...

    async def return_offers(self, tx: Tx, limit: int) -> list[str]:
        """Move up to `limit` jobs whose offer to a node has expired to the shared lane, the longest expired first;
        returns for each job the id of its node, empty if that is not recorded. May be repeated."""
        ...

    async def count_lapses(self, tx: Tx, node_ids: Collection[str]) -> None:
        """Count for each of these nodes that it did not take what was offered to it. Locks the nodes, and no commit may
        wait for a node after it has locked a host: call it in a separate commit."""
        ...

    async def depth(self, tx: Tx, lane: str, most: int) -> int:
        """Return how many due jobs wait in a lane now, up to `most`."""
        ...

    async def waits(self, tx: Tx, kind: str, lanes: Sequence[str]) -> bool:
        """Return whether a job of that kind could be popped from one of these lanes. Another process may pop it
        first."""
        ...

    async def page_backlog(self, tx: Tx, capability: str, most: int) -> int:
        """Return how many page jobs of a capability wait in the shared lane, up to `most`. Jobs that wait for the rate
        limits of their hosts do not count, because a slow host must not hold up the others."""
        ...

    async def make_due(self, tx: Tx) -> int:
        """Make jobs available whose time has come, a batch at a time; returns how many. A pop does it too, but
        nobody pops while all workers are busy, and `waits` and `depth` count only jobs that are due."""
        ...

    async def repair(self, database: Database) -> LaneRepair:
        """Put back what lanes outside the database have lost, and remove what no longer waits, a bounded step at a
        time. May be repeated, and run by several processes. Lanes in the database lose nothing."""
        ...


class OtherLanes(Protocol):
    """Lanes that are kept outside the database. What they are told takes effect once the transaction has committed."""

    async def push(self, tx: Tx, job_ids: Sequence[str]) -> None:
        """Put those of these jobs that wait and are due into their lanes."""
        ...

    async def forget(self, tx: Tx, job_ids: Sequence[str]) -> None:
        """Remove jobs that do not wait any more."""
        ...


class Availability:
    """Every commit that makes jobs available calls `note`: new jobs, returned ones, those whose time has come or whose
    quota has room again. A commit that takes waiting jobs away, but does not lease them, calls `forget`."""

    def __init__(self, lanes: OtherLanes | None = None) -> None:
        """`lanes`: None if the jobs table is the only lane."""
        self._lanes = lanes

    async def note(self, tx: Tx, job_ids: Sequence[str], at_hosts: Sequence[str]) -> None:
        """Follow up on jobs that have become available. `at_hosts`: those of them whose hosts have to be recorded."""
        await note_hosts(tx, at_hosts)
        if self._lanes is not None and job_ids:
            await self._lanes.push(tx, job_ids)

    async def forget(self, tx: Tx, job_ids: Sequence[str]) -> None:
        if self._lanes is not None and job_ids:
            await self._lanes.forget(tx, job_ids)
