"""The lanes of one Redis server: the format of jobs and queues, and the calls that change them."""

import re
from collections.abc import Sequence
from datetime import timedelta
from secrets import token_hex
from threading import Lock
from typing import Any

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.database import Tx
from shoal.base.errors import ShoalError
from shoal.base.signals import Signal, Signals
from shoal.drivers.redis.connection import BATCH, RedisClient, Value
from shoal.drivers.redis.server_check import ServerSignals
from shoal.queue.job import NODE, SHARED_LANE, LeaseRequest

GENERATION = "{shoal}:queue:tasks:generation"
"""The braces are part of all keys: they make a cluster put all these keys into one slot."""
WAKE = "{shoal}:queue:tasks:wake"
RANK_OFFSET = 1 << 62  # ranks may be negative, but their text form must sort like numbers
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def queue_name(lane: str, kind: str, capability: str) -> str | None:
    """Return the name of a queue; None if Redis does not carry the queue. Redis carries neither the lanes of local
    crawls nor names that must not become part of a key."""
    if not (NAME.fullmatch(kind) and NAME.fullmatch(capability)):
        return None
    if lane == SHARED_LANE:
        return f"{kind}:{capability}"
    node = lane.removeprefix(NODE)
    return f"{kind}:{capability}:node:{node}" if node != lane and NAME.fullmatch(node) else None


def queues_by_lane(request: LeaseRequest) -> list[list[str]]:
    """Return the names of the queues that a request may lease from, one list per lane, in the order of the lanes."""
    return [
        [
            name
            for kind in request.kinds
            for capability in request.capabilities
            if (name := queue_name(lane, kind, capability)) is not None
        ]
        for lane in request.lanes
    ]


class LaneEntry(Struct, frozen=True):
    """A waiting job, built from its row."""

    job_id: str
    text: str

    @classmethod
    def of(cls, row: Any) -> "LaneEntry | None":
        """Return the entry of a row of `lane_entries`; None if Redis does not carry its lane."""
        name = queue_name(row["lane"], row["kind"], row["capability"])
        if name is None:
            return None
        job_id, rank, host = row["id"], row["rank"], row["host"]
        place = "" if host is None else f"{host}\t{rank + RANK_OFFSET:016x}\t{job_id}"
        return cls(job_id, f"{rank}\n{name}\n{place}")


def entries_of(rows: Sequence[Any]) -> list[LaneEntry]:
    return [entry for row in rows if (entry := LaneEntry.of(row)) is not None]


def read_place(place: bytes) -> tuple[str, int]:
    """Parse a host's entry for a waiting job; return the job and its rank."""
    _, rank, job_id = place.rsplit(b"\t", 2)
    return job_id.decode(), int(rank, 16) - RANK_OFFSET


TIMEOUT = timedelta(seconds=1)  # longest time of one call
FIRST_PAUSE_SECONDS = 1.0  # seconds without calls after a failed one
LONGEST_PAUSE_SECONDS = 15.0
SLOW_SECONDS = 0.2  # a call that takes longer costs more than a lease through the database
NOT_BEGUN = "it has no lanes yet, or has lost them: a controller puts the jobs back"
SLOW = "it answers slowly"
FOREIGN = (
    "its lanes belong to another store: give each store its own database, as in redis://host:6379/1; "
    "if that store is gone, run `redis-cli DEL '{shoal}:queue:tasks:generation'`"
)


class LanesDegraded(Signal, frozen=True, kw_only=True):
    """Jobs do not go through Redis for now: workers lease them from the database."""

    server: str
    why: str


class LanesRestored(Signal, frozen=True, kw_only=True):
    """Jobs go through Redis again."""

    server: str


class LaneServer:
    """Calls to the lanes of one store. Units of work on SQLite run on a separate thread, so several threads may call
    this object."""

    def __init__(self, client: RedisClient, clock: Clock, signals: Signals) -> None:
        self._client = client
        self._clock = clock
        self._signals = ServerSignals(signals)
        self._lock = Lock()
        self._generation = ""  # empty: not read yet, or the database has none
        self._decided: list[str] = []
        self._pause_seconds = 0.0
        self._resume_at = 0.0
        self._problem: str | None = None

    async def begin(self, tx: Tx, *, create: bool = False) -> bool:
        """Prepare calls in a transaction; return False if the server must not be used for now."""
        if not self._generation:
            self._generation = await tx.value("lane_generation") or ""
        if not self._generation and create:
            # A new generation is not used before its commit: the server must never have one that the database lacks.
            await tx.value("begin_lanes", id=token_hex(8))
        return bool(self._generation) and self.is_available

    @property
    def has_generation(self) -> bool:
        """Return whether the generation of the lanes is known. It is known once it is stored and committed."""
        return bool(self._generation)

    @property
    def is_available(self) -> bool:
        """Return whether the last call succeeded, or whether it is time for the next try."""
        return self._clock.monotonic() >= self._resume_at

    async def call(self, script: str, *arguments: Value) -> list[Any] | None:
        """Run a script; return its result without the state, or None if it failed."""
        if not self.is_available or not self._generation:
            return None
        began = self._clock.monotonic()
        try:
            state, *result = await self._client.script(f"lane_{script}", [GENERATION], (self._generation, *arguments))
        except ShoalError as error:
            self._fail(error.message)
            return None
        if state == b"OK":
            if self._clock.monotonic() - began > SLOW_SECONDS:
                self._fail(f"{self._client.name}: {SLOW}")
            else:
                self._succeed()
            return list(result)
        if state == b"LOST":
            # The database may have a new generation now, because the lanes were begun again.
            self._generation = ""
            self._fail(f"{self._client.name}: {NOT_BEGUN}", pause_seconds=FIRST_PAUSE_SECONDS)
        else:
            self._fail(f"{self._client.name}: {FOREIGN}", pause_seconds=LONGEST_PAUSE_SECONDS)
        return None

    async def push(self, entries: Sequence[LaneEntry]) -> None:
        """Put jobs into their lanes. If this fails, a repair puts them there later."""
        await self.put(entries, repairs=False)

    async def put(self, entries: Sequence[LaneEntry], *, repairs: bool) -> int:
        """Put jobs into their lanes; return how many were missing. With `repairs`, the server also checks its own
        records of these jobs."""
        added = 0
        for start in range(0, len(entries), BATCH):
            batch = entries[start : start + BATCH]
            words = [*(one.job_id for one in batch), *(one.text for one in batch)]
            result = await self.call("push", int(repairs), len(batch), *words)
            if result is None:
                break
            added += result[0]
        return added

    async def pop(self, limit: int, queues: list[list[str]]) -> list[str] | None:
        """Take the best jobs of these queues out of their lanes; return None if the server cannot be used."""
        lanes = [str(word) for names in queues for word in (len(names), *names)]
        popped: list[str] = []
        while len(popped) < limit:
            decided, most = self._take_decided(), min(limit - len(popped), BATCH)
            result = await self.call("pop", most, len(decided), *decided, *lanes)
            if result is None:
                return popped or None
            popped += [job_id.decode() for job_id in result[0]]
            if len(result[0]) < most:
                break
        return popped

    def decide(self, job_ids: Sequence[str]) -> None:
        """Note that the database has decided about popped jobs. The next pop tells this to the server; if there is no
        further pop, a repair finds out."""
        with self._lock:
            self._decided += job_ids

    async def give_back(self, job_ids: Sequence[str]) -> None:
        """Put back popped jobs that nobody leased."""
        for start in range(0, len(job_ids), BATCH):
            await self.call("return", *job_ids[start : start + BATCH])

    async def settle(self, job_ids: Sequence[str], hosts: Sequence[Value] = ()) -> None:
        """Forget jobs that no longer wait, and put hosts back."""
        for start in range(0, len(job_ids) or 1, BATCH):
            ids = job_ids[start : start + BATCH]
            await self.call("settle", len(ids), *ids, *(hosts if start == 0 else ()))

    async def drop(self, unused_for: timedelta) -> bool:
        """Forget the lanes if nobody has used them for this time; return whether they are gone."""
        if await self.call("drop", unused_for.total_seconds()) != [1]:
            return False
        self._generation = ""
        return True

    async def close(self) -> None:
        await self._client.close()

    def _take_decided(self) -> list[str]:
        with self._lock:
            decided, self._decided = self._decided[:BATCH], self._decided[BATCH:]
        return decided

    def _fail(self, why: str, pause_seconds: float | None = None) -> None:
        self._pause_seconds = pause_seconds or min(
            max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds), LONGEST_PAUSE_SECONDS
        )
        self._resume_at = self._clock.monotonic() + self._pause_seconds
        if self._problem is None:
            self._signals.emit(LanesDegraded(server=self._client.name, why=why))
        self._problem = why

    def _succeed(self) -> None:
        if self._problem is not None:
            self._problem, self._pause_seconds = None, 0.0
            self._signals.emit(LanesRestored(server=self._client.name))
