"""The hosts with waiting jobs, in lanes on Redis."""

from collections.abc import Collection, Sequence
from functools import partial

from shoal.base.database import Tx
from shoal.drivers.redis.connection import Value
from shoal.drivers.redis.lane_entries import queue_name, read_place
from shoal.drivers.redis.lane_server import LaneServer
from shoal.hosts.rate import LONGEST_LOOK_SECONDS, HostState
from shoal.hosts.store import host_state
from shoal.queue.job import LeaseRequest
from shoal.queue.job_hosts import Key, TakenHost, queues_of

TAKEN_FOR = 5_000_000  # microseconds: a host whose taker died is ready again after that


class RedisHostQueue:
    """Implements `HostQueue` for one lease. `now` is the database's clock. A call that fails finds nothing."""

    def __init__(self, server: LaneServer, now: int) -> None:
        self._server = server
        self._now = now
        self._ahead = 0
        self._ready_at_once = 0
        self.leased: Sequence[str] = ()

    async def make_ready(self, tx: Tx, request: LeaseRequest, ahead_seconds: float, limit: int) -> None:
        # The script that takes hosts does it.
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
