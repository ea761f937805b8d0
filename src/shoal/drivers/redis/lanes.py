"""Lanes on Redis: a pop takes ids out of their lanes, and the database grants those whose jobs still wait.

The jobs table stays complete, so `SqlLanes` handles everything that Redis does not know or cannot do: local lanes,
outages, and a server that lost its data. An idle worker looks into the table now and then, and a controller puts back
jobs that Redis has lost (`repair`). An entry in Redis is only a hint; the database makes sure that a job is granted
once.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.drivers.redis.connection import Value
from shoal.drivers.redis.lane_repair import LaneRepairs
from shoal.drivers.redis.lane_server import LaneServer, entries_of, queue_name, queues_by_lane, read_place
from shoal.hosts.rate import LONGEST_LOOK_SECONDS, HostState
from shoal.hosts.store import host_state
from shoal.queue.job import SHARED_LANE, Lease, LeaseRequest, NewJob, TurnResult
from shoal.queue.job_hosts import JobHosts, Key, TakenHost, queues_of
from shoal.queue.lanes import LaneRepair
from shoal.queue.sql_lanes import Candidates, SqlLanes, Turn
from shoal.queue.states import Move

TAKEN_FOR = 5_000_000  # microseconds after which a host is ready again if the process that took it died


class RedisHostQueue:
    """Implements `HostQueue` for one lease. `now` is the database's clock. If a call fails, its result is empty."""

    def __init__(self, server: LaneServer, now: int) -> None:
        self._server = server
        self._now = now
        self._ahead = 0
        self._ready_at_once = 0
        self.leased: Sequence[str] = ()

    async def make_ready(self, tx: Tx, request: LeaseRequest, ahead_seconds: float, limit: int) -> None:
        # Only remember the values: the script that `take` calls also makes hosts ready.
        self._ahead, self._ready_at_once = round(ahead_seconds * 1e6), limit

    async def take(self, tx: Tx, request: LeaseRequest, most: int, looked: Collection[Key]) -> list[TakenHost]:
        queues = queues_of(request)
        times = (self._now + self._ahead, self._now + 2 * round(LONGEST_LOOK_SECONDS * 1e6))
        asked = (*times, self._ready_at_once, self._now + TAKEN_FOR, most)
        result = await self._server.call("hosts", *asked, *[_name(*queue) for queue in queues])
        if not result or not result[0]:
            return []
        found = result[0]
        taken: list[Key] = [(*queues[found[at]], found[at + 1].decode()) for at in range(0, len(found), 2)]
        words: list[Value] = [word for key in taken for word in (_name(*key[:3]), key[3], "")]
        tx.after_rollback(partial(self._server.settle, (), words))
        rows = await tx.all("hosts_at_origins", origins=sorted({key[3] for key in taken}))
        states = {row["origin"]: host_state(row) for row in rows}
        return [TakenHost(key, states.get(key[3], HostState())) for key in taken]

    async def waiting(self, tx: Tx, asked: Sequence[tuple[Key, int]]) -> list[tuple[str, int, Key]]:
        if not asked:
            return []
        words = [word for key, count in asked for word in (_name(*key[:3]), key[3], count)]
        result = await self._server.call("at_hosts", *words)
        if result is None:
            return []
        return [
            (*read_place(place), key) for (key, _), places in zip(asked, result[0], strict=True) for place in places
        ]

    async def put_back(self, tx: Tx, waits: Sequence[tuple[TakenHost, int]], leased: Sequence[str]) -> None:
        self.leased = leased
        words: list[Value] = []
        for host, wait in waits:
            words += (_name(*host.key[:3]), host.key[3], self._now + wait if wait else "")
        if words or leased:
            tx.after_commit(partial(self._server.settle, leased, words))


def _name(lane: str, kind: str, capability: str) -> str:
    name = queue_name(lane, kind, capability)
    assert name is not None, "requests with other names do not get here"
    return name


PAGE = "page"  # the kind of job that is leased by host
ROUNDS = 5  # pops in one commit, if entries turn out to be stale
MOST_LOOKS = 1_000
LookKey = tuple[tuple[str, ...], ...]  # lanes, kinds and capabilities of a request


class LaneChanges:
    """Implements `OtherLanes`: sends the changes of SQL commits to the server."""

    def __init__(self, server: LaneServer) -> None:
        self._server = server

    async def push(self, tx: Tx, job_ids: Sequence[str]) -> None:
        if await self._server.begin(tx):
            entries = entries_of(await tx.all("lane_entries", ids=list(job_ids)))
            # Push the entries after the commit, so that no entry exists before its job. If the process is killed in
            # between, a repair adds the missing entries (0045).
            tx.after_commit(partial(self._server.push, entries))

    async def forget(self, tx: Tx, job_ids: Sequence[str]) -> None:
        if await self._server.begin(tx):
            tx.after_commit(partial(self._server.settle, list(job_ids)))


class RedisLanes:
    """Implements `queue.lanes.Lanes`. Changes by `sql` reach the server through `LaneChanges`. `look_every`: the
    interval at which a process that finds fewer jobs than it wants also looks into the jobs table."""

    def __init__(self, sql: SqlLanes, server: LaneServer, clock: Clock, look_every: timedelta) -> None:
        self._sql = sql
        self._server = server
        self._clock = clock
        self._look_every = look_every.total_seconds()
        self._began_at = clock.monotonic()
        self._look_at: dict[LookKey, float] = {}  # by request, so that each kind of request looks in time
        self._repairs = LaneRepairs(server)

    def takes_one_statement(self, jobs: Sequence[NewJob]) -> bool:
        return False

    async def push(self, tx: Tx, jobs: Sequence[NewJob]) -> None:
        await self._sql.push(tx, jobs)

    async def pop(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult:
        queues, turn = queues_by_lane(request), Turn.of(request, limit, ttl, moves)
        if limit < 1 or not all(queues) or not await self._server.begin(tx):
            return await self._sql.pop(tx, request, limit, ttl, moves)
        if request.rate_limiter is not None:
            hosts = RedisHostQueue(self._server, await tx.value("now"))
            result = await self._sql.pop_by_host(tx, turn, JobHosts(hosts))
            self._forget(tx, [lease for lease in result.leases if lease.fence.job_id not in hosts.leased])
        else:
            result = await self._pop_by_rank(tx, turn, queues)
        if len(result.leases) < limit and (self._looks(request) or not self._server.is_available):
            more = await self._sql.pop(tx, request, limit - len(result.leases), ttl)
            self._forget(tx, more.leases)
            self._looked(request, more)
            result = _both(result, more)
        return result

    async def pop_once(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult | None:
        queues, turn = queues_by_lane(request), Turn.of(request, limit, ttl, moves)
        if limit < 1 or not all(queues) or not await self._server.begin(tx):
            return await self._sql.pop_once(tx, request, limit, ttl, moves)
        if request.rate_limiter is not None or not self._sql.fits_one_statement(turn):
            return None
        for _ in range(ROUNDS):
            popped = await self._server.pop(limit, queues)
            if popped is None or (not popped and self._looks(request)):
                break
            if not popped and not moves:
                return TurnResult([], [])
            result = await self._grant_once(tx, turn, popped)
            if result is None or result.leases or moves:
                return result
        found = await self._sql.pop_once(tx, request, limit, ttl, moves)
        self._looked(request, found)
        if found is not None:
            self._forget(tx, found.leases)
        return found

    async def return_lane(self, tx: Tx, lane: str) -> int:
        return await self._sql.return_lane(tx, lane)

    async def return_offers(self, tx: Tx, limit: int) -> list[str]:
        return await self._sql.return_offers(tx, limit)

    async def count_lapses(self, tx: Tx, node_ids: Collection[str]) -> None:
        await self._sql.count_lapses(tx, node_ids)

    async def depth(self, tx: Tx, lane: str, most: int) -> int:
        return await self._sql.depth(tx, lane, most)

    async def waits(self, tx: Tx, kind: str, lanes: Sequence[str]) -> bool:
        return await self._sql.waits(tx, kind, lanes)

    async def page_backlog(self, tx: Tx, capability: str, most: int) -> int:
        queue = queue_name(SHARED_LANE, PAGE, capability)
        if queue is not None and await self._server.begin(tx):
            found = await self._server.call("backlog", most, queue)
            if found is not None:
                return int(found[0])
        return await self._sql.page_backlog(tx, capability, most)

    async def make_due(self, tx: Tx) -> int:
        return await self._sql.make_due(tx)

    async def repair(self, database: Database) -> LaneRepair:
        return await database.run(self._repairs.run_once)

    async def _pop_by_rank(self, tx: Tx, turn: Turn, queues: list[list[str]]) -> TurnResult:
        """Pop until there are enough jobs that still wait, or until the lanes are empty."""
        result, moves = TurnResult([], []), turn.moves
        for _ in range(ROUNDS):
            want = turn.limit - len(result.leases)
            popped = await self._server.pop(want, queues)
            if popped is None:
                return _both(result, await self._sql.pop(tx, turn.request, want, turn.ttl, moves))
            if not popped and not moves:
                break
            result = _both(result, await self._grant(tx, Turn(turn.request, want, turn.ttl, moves), popped))
            moves = ()
            if len(popped) < want or result.parked or len(result.leases) >= turn.limit:
                break
        return result

    async def _grant(self, tx: Tx, turn: Turn, popped: Sequence[str]) -> TurnResult:
        # The jobs left their lanes before this commit. After a rollback, they are put back immediately; if this process
        # dies, a repair puts them back after five seconds (0045).
        tx.after_rollback(partial(self._server.give_back, popped))
        # An id is only a hint: its job may meanwhile have been leased through the table, or cancelled (0045).
        result = await self._sql.pop_among(tx, turn, Candidates(named=popped))
        tx.on_commit(lambda: self._server.decide(popped))
        self._forget(tx, [lease for lease in result.leases if lease.fence.job_id not in popped])
        return result

    async def _grant_once(self, tx: Tx, turn: Turn, popped: Sequence[str]) -> TurnResult | None:
        tx.after_rollback(partial(self._server.give_back, popped))
        result = await self._sql.turn_once(tx, turn, Candidates(named=popped))
        if result is None:
            await self._server.give_back(popped)
        else:
            tx.on_commit(lambda: self._server.decide(popped))
        return result

    def _forget(self, tx: Tx, leases: Sequence[Lease]) -> None:
        """Remove from the lanes the jobs that were leased through the jobs table."""
        if leases:
            # Remove them only after the commit: after a rollback, the jobs still wait and must still be found (0045).
            tx.after_commit(partial(self._server.settle, [lease.fence.job_id for lease in leases]))

    def _looks(self, request: LeaseRequest) -> bool:
        """Return whether it is time to look into the jobs table, too."""
        now, key = self._clock.monotonic(), _look_key(request)
        if now < self._look_at.get(key, self._began_at + self._look_every):
            return False
        if len(self._look_at) >= MOST_LOOKS:  # bots may name any capabilities
            self._look_at.clear()
        self._look_at[key] = now + self._look_every
        return True

    def _looked(self, request: LeaseRequest, found: TurnResult | None) -> None:
        """If a job was found in the jobs table, or if one statement was not enough to find out, let the next request
        look there again immediately."""
        if found is None or found.leases:
            self._look_at[_look_key(request)] = 0.0


def _look_key(request: LeaseRequest) -> LookKey:
    return tuple(request.lanes), tuple(request.kinds), tuple(request.capabilities)


def _both(first: TurnResult, second: TurnResult) -> TurnResult:
    return TurnResult([*first.refused, *second.refused], first.leases + second.leases, first.parked + second.parked)
