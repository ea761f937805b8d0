"""Jobs that are leased by host: which hosts have waiting jobs, and which of these hosts may be requested now.

A lease takes hosts out of a `HostQueue`, those with the best-ranked jobs first. It asks each host's rate limit how many
jobs the host may have, and puts back each host that still has waiting jobs: ready immediately, or ready when the host
may be requested again. So hosts that are not due yet cost nothing. Hosts that are free now come first; if these do not
fill the lease request, hosts that will be free soon follow.

On SQL, a commit that makes jobs available ensures a row for each of their hosts (`note_hosts`). On PostgreSQL, a lease
takes a host by locking its row, and writes the row only if something has changed (decision 0051).
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

from msgspec import Struct

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.hosts.rate import LONGEST_LOOK_SECONDS, HostSlots, HostState
from shoal.hosts.store import host_state
from shoal.queue.job import LeaseRequest

ROUNDS: Final = 5  # searches for hosts in one commit: hosts that yield no job must not hide other hosts
ROWS_OF_HOST: Final = 1_000  # rows of one host that are taken in one step
READY_AT_ONCE: Final = 1_000
SAME_TIME_SECONDS: Final = 0.25  # jobs that start within this time are ordered by rank
SPARE: Final = 4  # jobs that are read for each wanted job
Key = tuple[str, str, str, str]  # lane, kind, capability, host


class TakenHost(Struct):
    """A host that a lease has taken."""

    key: Key
    state: HostState
    row: int = 0  # the host's number in the database table of hosts


class ExaminedHost(Struct):
    """A host that a lease has examined, the jobs that were chosen for its slots, and how many of the chosen jobs still
    waited."""

    taken: TakenHost
    free: HostSlots
    jobs: list[str] = []
    granted: int = 0

    @property
    def again_in(self) -> int:
        """The microseconds after which to examine this host again."""
        return round(self.free.again_in_seconds(self.granted) * 1e6)


class _Candidate(Struct):
    """A waiting job, and when its host has a slot for it."""

    start_in_seconds: float
    lane: int
    rank: int
    job_id: str
    key: Key

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Sort key: by rank among jobs that start at about the same time, because waiting for a later slot must not
        keep a worker from a host that is free now."""
        return (int(self.start_in_seconds / SAME_TIME_SECONDS), self.lane, self.rank, self.job_id)


async def note_hosts(tx: Tx, job_ids: Sequence[str]) -> None:
    """Record the hosts at which these jobs wait. Every commit that makes jobs available calls it; jobs that name no
    host, or do not wait, are ignored."""
    if job_ids:
        # An existing row stays locked until our commit, so a lease that takes the row afterwards sees these jobs
        # (0030).
        await tx.execute("add_job_hosts", ids=list(job_ids))


class HostQueue(Protocol):
    """The hosts with waiting jobs, by lane, kind and capability. The commit that takes a host also puts it back,
    whether or not the host got a job; if that commit fails, the host is ready again."""

    async def make_ready(self, tx: Tx, request: LeaseRequest, ahead_seconds: float, limit: int) -> None:
        """Mark as ready the hosts that may be requested now or within `ahead_seconds`."""
        ...

    async def take(self, tx: Tx, request: LeaseRequest, most: int, looked: Collection[Key]) -> list[TakenHost]:
        """Take the ready hosts whose best jobs rank best, up to `most` for each lane, kind and capability of the
        request. `looked`: hosts that this commit has taken before."""
        ...

    async def waiting(self, tx: Tx, asked: Sequence[tuple[Key, int]]) -> list[tuple[str, int, Key]]:
        """Return the best waiting jobs of these hosts, up to a number per host: id, rank and host of each. The jobs are
        only candidates: some may no longer wait."""
        ...

    async def put_back(self, tx: Tx, waits: Sequence[tuple[TakenHost, int]], leased: Sequence[str]) -> None:
        """Put back those hosts that still have waiting jobs. `waits`: each host, and the microseconds after which it is
        ready (0: immediately). `leased`: jobs that no longer wait there."""
        ...


class JobHosts:
    """The hosts that have waiting jobs."""

    def __init__(self, hosts: HostQueue) -> None:
        self._hosts = hosts

    async def lease(
        self, tx: Tx, request: LeaseRequest, want: int, ttl: timedelta
    ) -> tuple[list[Any], dict[Key, ExaminedHost]]:
        """Grant up to `want` jobs; also return the hosts that were examined. Pass these to `put_back` in the same
        commit."""
        assert request.rate_limiter is not None, "leasing by host needs a rate limit"
        looked: dict[Key, ExaminedHost] = {}
        found = await self._find(tx, request, want, 0.0, looked)
        if request.rate_limiter.ahead_seconds and sum(one.start_in_seconds < SAME_TIME_SECONDS for one in found) < want:
            found += await self._find(tx, request, want, request.rate_limiter.ahead_seconds, looked)
        chosen = sorted(found, key=lambda one: one.order)[:want]
        for one in chosen:
            looked[one.key].jobs.append(one.job_id)
        # The candidates were read without locks, so only candidates that still wait are granted (0030).
        rows = await self._grant(tx, request, [one.job_id for one in chosen], ttl)
        granted = {row[0] for row in rows}
        for one in chosen:
            looked[one.key].granted += one.job_id in granted
        return rows, looked

    async def _find(
        self, tx: Tx, request: LeaseRequest, want: int, ahead_seconds: float, looked: dict[Key, ExaminedHost]
    ) -> list[_Candidate]:
        """Return jobs of hosts that may be requested within `ahead_seconds`, the best ranks first, until there are
        enough jobs."""
        assert request.rate_limiter is not None, "leasing by host needs a rate limit"
        found: list[_Candidate] = []
        # Hosts that are due later are made ready only for this search.
        await self._hosts.make_ready(tx, request, ahead_seconds, want if ahead_seconds else READY_AT_ONCE)
        for _ in range(ROUNDS):
            taken = await self._hosts.take(tx, request, want - len(found), looked.keys())
            hosts = {one.key: ExaminedHost(one, request.rate_limiter.slots_now(one.state)) for one in taken}
            found += await self._waiting(tx, request, hosts, want)
            looked |= hosts
            if not hosts or len(found) >= want:
                break
        return found

    async def put_back(self, tx: Tx, looked: dict[Key, ExaminedHost]) -> None:
        """Put back the examined hosts that still have waiting jobs."""
        leased = [job_id for one in looked.values() for job_id in one.jobs]
        waits = [(looked[key].taken, looked[key].again_in) for key in sorted(looked)]
        await self._hosts.put_back(tx, waits, leased)

    async def _waiting(
        self, tx: Tx, request: LeaseRequest, hosts: dict[Key, ExaminedHost], want: int
    ) -> list[_Candidate]:
        """Return the best jobs of these hosts. The hosts are in the order of their best jobs: once the first hosts can
        yield more than enough jobs, only one job is read for each of the other hosts."""
        asked, left = [], SPARE * want
        for key, host in hosts.items():
            count = min(host.free.slots, want, max(left, 1))
            left -= count
            if count > 0:
                asked.append((key, count))
        lanes = {lane: place for place, lane in enumerate(request.lanes)}
        seen: dict[Key, int] = {}
        found = []
        for job_id, rank, key in sorted(await self._hosts.waiting(tx, asked), key=lambda row: (row[1], row[0])):
            place = seen[key] = seen.get(key, -1) + 1
            found.append(_Candidate(hosts[key].free.start_in_seconds(place), lanes[key[0]], rank, job_id, key))
        return found

    async def _grant(self, tx: Tx, request: LeaseRequest, job_ids: list[str], ttl: timedelta) -> list[Any]:
        if not job_ids:
            return []
        by_job = int(request.lock_ttl is not None)
        granted: list[Any] = await tx.all(
            "lease_these_jobs", ids=sorted(job_ids), holder=request.holder, ttl=span(ttl), by_job=by_job
        )
        return granted


class SqlHostQueue:
    """Implements `HostQueue` as a table."""

    def __init__(self, dialect: str) -> None:
        self._in_one_statement = dialect == "postgres"

    async def make_ready(self, tx: Tx, request: LeaseRequest, ahead_seconds: float, limit: int) -> None:
        longest = 2 * round(LONGEST_LOOK_SECONDS * 1e6)
        await tx.execute("make_hosts_ready", ahead=round(ahead_seconds * 1e6), limit=limit, longest=longest)

    async def take(self, tx: Tx, request: LeaseRequest, most: int, looked: Collection[Key]) -> list[TakenHost]:
        taken: list[TakenHost] = []
        for queue in queues_of(request):
            asked = dict(zip(("lane", "kind", "capability"), queue, strict=True))
            if self._in_one_statement:
                known = [key[3] for key in looked if key[:3] == queue]
                rows = await tx.all("take_ready_hosts", **asked, looked=known, limit=most, most=ROWS_OF_HOST)
            else:
                rows = await tx.all("take_ready_hosts", **asked, limit=most)
                await tx.many("drop_job_hosts", [(*queue, row["host"], ROWS_OF_HOST) for row in rows])
            for row in rows:
                state = HostState() if row["next_at"] is None else host_state(row)
                taken.append(TakenHost((*queue, row["host"]), state, row["number"]))
        return taken

    async def waiting(self, tx: Tx, asked: Sequence[tuple[Key, int]]) -> list[tuple[str, int, Key]]:
        rows = await tx.batch("waiting_at_hosts", [(*key, count) for key, count in asked])
        return [(row[0], row[1], (row[2], row[3], row[4], row[5])) for row in rows]

    async def put_back(self, tx: Tx, waits: Sequence[tuple[TakenHost, int]], leased: Sequence[str]) -> None:
        await tx.many("put_back_hosts", [(host.row, *host.key, int(wait == 0), wait) for host, wait in waits])


def queues_of(request: LeaseRequest) -> list[tuple[str, str, str]]:
    """Return the lane, kind and capability of every queue that a request may lease from, in the order of its lanes."""
    return [(lane, kind, can) for lane in request.lanes for kind in request.kinds for can in request.capabilities]
