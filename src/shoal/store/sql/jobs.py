"""The queue's store on SQL."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.queue.job import (
    SHARED_LANE,
    Enqueued,
    Extended,
    Fence,
    Grant,
    HeartbeatAnswer,
    Job,
    Lease,
    LeaseRequest,
    LostJob,
    NewJob,
    TurnResult,
)
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.store.sql.clock import store_clock
from shoal.store.sql.job_hosts import DueHosts, JobHosts, Key, note_hosts
from shoal.store.sql.lease_start import LOWEST, LeaseStart
from shoal.store.sql.quotas import SCOPES, QuotaCounts

T = TypeVar("T")

DUE_AT_ONCE = 1000
_job_id = attrgetter("job_id")
NOBODY = LeaseRequest("", (), (), ())


@dataclass(slots=True)
class _Said:
    """What a turn did: the jobs moved, those of them that may have had seats, the jobs granted; whether the time of
    others has come, whether any scope is limited, if one was granted that has some, and whether it did anything at
    all."""

    moved: set[str]
    sat: set[str]
    rows: list[Any]
    ripe: bool
    limited: bool
    done: bool = True


class SqlJobStore:
    """Answers `queue.store.JobStore`. `ageing`: how much waiting is worth a point of priority."""

    def __init__(self, dialect: str, ageing: timedelta) -> None:
        self.clock = store_clock(dialect)
        self._in_one_statement = dialect == "postgres"
        self._ageing = span(ageing)
        self._hosts = JobHosts(dialect)
        self._seats = QuotaCounts()
        self._floors = LeaseStart()
        self._unparked = ""  # the scope that was looked at last: each has its turn, however many are full

    async def insert(self, tx: Tx, jobs: Sequence[NewJob]) -> list[Enqueued]:
        first_of = {job.dedupe_key: job.id for job in reversed(jobs) if job.dedupe_key is not None}
        asked = [job for job in jobs if job.dedupe_key is None or first_of[job.dedupe_key] == job.id]
        live: dict[str | None, JobId] = {}
        places = {job.id: place for place, job in enumerate(jobs)}
        while asked:
            made = await tx.many("insert_jobs", [self._new(job, places[job.id]) for job in asked])
            keyed = [job for job in asked if job.dedupe_key is not None]
            if made == len(asked):
                live |= {job.dedupe_key: job.id for job in keyed}
                break
            rows = await tx.all("live_by_keys", keys=[job.dedupe_key for job in keyed])
            live |= {row["dedupe_key"]: JobId(row["id"]) for row in rows}
            asked = [job for job in keyed if job.dedupe_key not in live]  # the one that was in their way has just ended
        enqueued = [_enqueued(job, live) for job in jobs]
        await note_hosts(tx, _best_of_hosts([job for job, at in zip(jobs, enqueued, strict=True) if not at.duplicate]))
        return enqueued

    async def lease(self, tx: Tx, taker: LeaseRequest, limit: int, ttl: timedelta) -> list[Lease]:
        return (await self.turn(tx, (), taker, limit, ttl)).leases

    async def turn(
        self, tx: Tx, moves: Sequence[Move], taker: LeaseRequest | None, limit: int, ttl: timedelta
    ) -> TurnResult:
        if taker is not None and taker.lock_ttl is not None:
            ttl = taker.lock_ttl
        turn = self._turn_at_once if self._in_one_statement else self._turn_by_steps
        by_host = taker is not None and taker.pace is not None
        line = replace(taker, lanes=()) if taker is not None and by_host else taker or NOBODY
        said = await turn(tx, moves, line, limit if taker else 0, ttl)
        await note_hosts(tx, [move.job_id for move in moves if _waits_again(move) and move.job_id in said.moved])
        refused = [] if len(said.moved) == len(moves) else _refused(moves, said.moved)
        if said.ripe and taker is not None:
            await self.make_due(tx)
            if len(said.rows) < limit and not by_host:
                more = await turn(tx, (), taker, limit - len(said.rows), ttl)
                said.rows += more.rows
                said.limited |= more.limited
        looked: dict[Key, DueHosts] = {}
        if taker is not None and by_host and limit:
            said.rows, looked = await self._hosts.lease(tx, taker, limit, ttl)
            said.limited = said.limited or await self._limited(tx, said.rows)
        rows, parked = _in_order(said.rows, taker or NOBODY), 0
        if said.sat or any(row[SCOPES] is not None for row in rows):
            waits = taker is None or taker.waits
            rows, parked = await self._seats.settle(tx, said.sat, rows, quotas=said.limited, waits=waits)
        await self._hosts.put_back(tx, looked)
        return TurnResult(refused, [_granted(row) for row in rows], parked)

    async def turn_once(
        self, tx: Tx, moves: Sequence[Move], taker: LeaseRequest, limit: int, ttl: timedelta
    ) -> TurnResult | None:
        if not self._in_one_statement:
            return await self.turn(tx, moves, taker, limit, ttl)
        if taker.pace is not None or any(_waits_again(move) for move in moves):
            return None
        floors = [LOWEST] * len(taker.lanes)
        said = await self._turn_from(tx, floors, moves, taker, limit, taker.lock_ttl or ttl, alone=True)
        if not said.done:
            return None
        refused = [] if len(said.moved) == len(moves) else _refused(moves, said.moved)
        return TurnResult(refused, [_granted(row) for row in _in_order(said.rows, taker)])

    async def lease_one(self, tx: Tx, job_id: JobId, holder: str, ttl: timedelta) -> Lease | None:
        row = await tx.one("lease_job", id=job_id, holder=holder, ttl=span(ttl))
        if row is None:
            return None
        return _lease(row)

    async def fence(self, tx: Tx, holder: Fence) -> bool:
        return await tx.one("fence_job", id=holder.job_id, epoch=holder.epoch) is not None

    async def extend(self, tx: Tx, holders: Sequence[Fence], ttl: timedelta) -> Extended:
        # In the order in which a turn moves them: two commits of one worker never wait for each other.
        asked = sorted((holder.job_id, holder.epoch, span(ttl)) for holder in holders)
        rows = await tx.batch("extend_leases", asked)
        to_kill = {Fence(JobId(row["id"]), row["epoch"]) for row in rows if row["kill"]}
        extended = {(row["id"], row["epoch"]) for row in rows}
        return Extended([one for one in holders if (one.job_id, one.epoch) in extended], frozenset(to_kill))

    async def beat(self, tx: Tx, owner: str, holder: Fence, ttl: timedelta) -> HeartbeatAnswer | None:
        grant = {"id": holder.job_id, "epoch": holder.epoch, "owner": owner}
        row = await tx.one("beat_job", **grant, ttl=span(ttl))
        if row is not None:
            return HeartbeatAnswer(row["ttl"] / 1e6, bool(row["cancelled"]))
        return HeartbeatAnswer(0.0, True) if await tx.one("was_cancelled", **grant) is not None else None

    async def held_by_owner(self, tx: Tx, owner: str) -> int:
        held: int = await tx.value("held_by_owner", owner=owner)
        return held

    async def note(self, tx: Tx, holder: Fence, node: str, pid: int, config: str | None) -> bool:
        values = {"job_id": holder.job_id, "epoch": holder.epoch, "node": node, "pid": pid, "config": config}
        return await tx.execute("note_grant", **values) == 1

    async def history(self, tx: Tx, job_id: JobId) -> list[Grant]:
        return [_grant(row) for row in await tx.all("grants_of_job", job_id=job_id)]

    async def waits(self, tx: Tx, kind: str, lanes: Sequence[str]) -> bool:
        return any([await tx.one("kind_waits", kind=kind, lane=lane) is not None for lane in lanes])

    async def held_by(self, tx: Tx, holder: str) -> list[Lease]:
        return [_lease(row) for row in await tx.all("jobs_of_holder", holder=holder)]

    async def mark_settled(self, tx: Tx, holder: Fence) -> None:
        await tx.execute("mark_grant_settled", job_id=holder.job_id, epoch=holder.epoch)

    async def apply(self, tx: Tx, move: Move) -> bool:
        return not (await self.turn(tx, [move], None, 0, timedelta(0))).refused

    async def other_run_waits(self, tx: Tx, job_id: JobId, patience: timedelta) -> bool:
        asked = {"id": job_id, "patience": span(patience), "ageing": self._ageing}
        return await tx.one("other_run_waits", **asked) is not None

    async def cancel_waiting(self, tx: Tx, run_id: str, reason: str) -> int:
        return await tx.execute("cancel_waiting_jobs", run_id=run_id, reason=reason)

    async def kill_run(self, tx: Tx, run_id: str, grace: timedelta) -> int:
        return await tx.execute("kill_jobs_of_run", run_id=run_id, grace=span(grace))

    async def set_priority(self, tx: Tx, run_id: str, priority: int) -> None:
        await tx.execute("set_priority_of_run", run_id=run_id, priority=priority, ageing=self._ageing)

    async def expired(self, tx: Tx, limit: int, *, bots: bool = True) -> list[LostJob]:
        rows = await tx.all("expired_jobs", limit=limit, bots=int(bots))
        return [_lost(row) for row in rows]

    async def lost_in(self, tx: Tx, holders: Sequence[Fence], *, expired: bool) -> list[LostJob]:
        # Two statements: the second sees what commits that we had to wait for have settled.
        epochs = {holder.job_id: holder.epoch for holder in holders}
        ids, known = list(epochs), list(epochs.values())
        query, more = ("lock_expired", {"epochs": known}) if expired else ("lock_jobs", {})
        locked = [row["id"] for row in await tx.all(query, ids=ids, **more)]
        rows = await tx.all("lost_jobs", ids=locked) if locked else []
        return [lost for lost in map(_lost, rows) if lost.epoch == epochs[lost.id]]

    async def give_up_offers(self, tx: Tx, limit: int) -> int:
        return await self._let_wait(tx, await tx.all("give_up_offers", lane=SHARED_LANE, limit=limit))

    async def make_due(self, tx: Tx) -> int:
        return await self._let_wait(tx, await tx.all("make_due", limit=DUE_AT_ONCE))

    async def mend_seats(self, tx: Tx) -> None:
        await self._seats.mend(tx)

    async def parked_in(self, tx: Tx, limit: int) -> list[str]:
        scopes = list[str]()
        while len(scopes) < limit:
            self._unparked = await tx.value("first_parked", after=self._unparked) or ""
            if not self._unparked:
                break
            scopes.append(self._unparked)
        return await self._seats.with_room(tx, scopes) if scopes else []

    async def unpark(self, tx: Tx, scope: str) -> int:
        return await self._seats.unpark(tx, scope)

    async def freshest_lease(self, tx: Tx) -> timedelta | None:
        left = await tx.value("freshest_lease")
        return None if left is None else timedelta(microseconds=left)

    async def lost(self, tx: Tx, holder: Fence) -> LostJob | None:
        # Two statements: the second sees what a commit that we had to wait for has settled.
        if await tx.one("lock_job", id=holder.job_id, epoch=holder.epoch) is None:
            return None
        row = await tx.one("lost_job", id=holder.job_id, epoch=holder.epoch)
        return None if row is None else _lost(row)

    async def still_expired(self, tx: Tx, holder: Fence) -> bool:
        return await tx.one("still_expired", id=holder.job_id, epoch=holder.epoch) is not None

    async def jobs_of_run(self, tx: Tx, run_id: str) -> list[Job]:
        return [job_of(row) for row in await tx.all("jobs_of_run", run_id=run_id)]

    async def get(self, tx: Tx, job_id: JobId) -> Job | None:
        row = await tx.one("job", id=job_id)
        return None if row is None else job_of(row)

    async def live_of_run(self, tx: Tx, run_id: str) -> tuple[int, int]:
        row = await tx.one("live_jobs_of_run", run_id=run_id)
        return (row["pending"], row["locked"]) if row else (0, 0)

    def _new(self, job: NewJob, place: int) -> tuple[Any, ...]:
        scopes = orjson.dumps(job.scopes).decode() if job.scopes else None
        what = (job.id, job.kind, job.capability, job.host, job.run_id, job.payload, job.lane, job.dedupe_key, scopes)
        lock_ttl = None if job.lock_ttl is None else span(job.lock_ttl)
        return (*what, job.priority, job.not_before, job.max_attempts, lock_ttl, place, self._ageing)

    async def _turn_at_once(
        self, tx: Tx, moves: Sequence[Move], taker: LeaseRequest, limit: int, ttl: timedelta
    ) -> _Said:
        floors = self._floors.of(taker, limit)
        said = await self._turn_from(tx, floors, moves, taker, limit, ttl)
        if len(said.rows) < limit and max(floors, default=LOWEST) > LOWEST:
            whole = [LOWEST] * len(floors)
            said.rows += (await self._turn_from(tx, whole, (), taker, limit - len(said.rows), ttl)).rows
        self._floors.learn(taker, limit, said.rows)
        return said

    async def _turn_from(
        self,
        tx: Tx,
        floors: list[int],
        moves: Sequence[Move],
        taker: LeaseRequest,
        limit: int,
        ttl: timedelta,
        *,
        alone: bool = False,
    ) -> _Said:
        said, *rows = await tx.all(
            "turn_jobs",
            **_by_ways(sorted(moves, key=_job_id)),
            holder=taker.holder,
            lanes=list(taker.lanes),
            floors=floors,
            kinds=list(taker.kinds),
            capabilities=list(taker.capabilities),
            limit=limit,
            ttl=span(ttl),
            by_job=int(taker.lock_ttl is not None),
            ageing=self._ageing,
            alone=int(alone),
        )
        moved, sat = set(said["moved"] or ()), set(said["sat"] or ())
        return _Said(moved, sat, rows, said["ripe"], said["limited"], said["done"])

    async def _turn_by_steps(
        self, tx: Tx, moves: Sequence[Move], taker: LeaseRequest, limit: int, ttl: timedelta
    ) -> _Said:
        moved, sat = await self._move(tx, moves) if moves else (set(), set())
        if not limit:
            return _Said(moved, sat, [], False, False)
        leased = await tx.all(
            "lease_jobs",
            holder=taker.holder,
            lanes=list(taker.lanes),
            kinds=list(taker.kinds),
            capabilities=list(taker.capabilities),
            limit=limit,
            ttl=span(ttl),
            by_job=int(taker.lock_ttl is not None),
        )
        return _Said(moved, sat, leased, await tx.one("any_ripe") is not None, await self._limited(tx, leased))

    async def _limited(self, tx: Tx, leased: list[Any]) -> bool:
        """Whether any scope is limited, if one of these jobs has some."""
        if not any(row[SCOPES] is not None for row in leased):
            return False
        return self._in_one_statement or await tx.one("any_quota") is not None

    async def _let_wait(self, tx: Tx, rows: Sequence[Any]) -> int:
        """Note at which hosts jobs wait that have just begun to; how many did."""
        await note_hosts(tx, [row["id"] for row in rows if row["host"] is not None])
        return len(rows)

    async def _move(self, tx: Tx, moves: Sequence[Move]) -> tuple[set[str], set[str]]:
        """Carry out moves where nobody can come between: look who is locked, then move them, alike ones together."""
        rows = await tx.all("held_jobs", ids=[move.job_id for move in moves])
        held = {(row[0], row[1]): row[2] for row in rows}
        made = [move for move in moves if (move.job_id, move.epoch) in held]
        now = rows[0][4] if rows else 0
        seen = [move for move in made if not move.unseen]
        for (ended, error), ids in _grouped(seen, lambda move: (move.grant_end, move.error)).items():
            await tx.execute("close_grants", ids=ids, now=now, ended=ended, error=error)
        done = [move for move in made if move.to is JobState.DONE and not held[move.job_id, move.epoch]]
        for reason, ids in _grouped(done, lambda move: move.reason).items():
            await tx.execute("end_jobs", ids=ids, now=now, reason=reason)
        if len(done) < len(made):
            ended_so = {move.job_id for move in done}
            await tx.many("move_jobs", [self._step(move, now) for move in made if move.job_id not in ended_so])
        moved: set[str] = {move.job_id for move in made}
        return moved, {row[0] for row in rows if row[3] is not None} & moved

    def _step(self, move: Move, now: int) -> tuple[Any, ...]:
        state, _, *rest = _way(move)
        return (move.job_id, state, *rest, self._ageing, now)


def _refused(moves: Sequence[Move], moved: set[str]) -> list[Move]:
    """A batch may hold an old grant of a job beside its newest: only the newest can have been the live one."""
    newest = {move.job_id: move.epoch for move in sorted(moves, key=lambda move: move.epoch)}
    return [move for move in moves if move.job_id not in moved or move.epoch != newest[move.job_id]]


WAY = ("states", "ends", "reasons", "errors", "waits", "attempts", "crashes", "drops", "backs", "unseens")


def _by_ways(moves: list[Move]) -> dict[str, list[Any]]:
    """Which jobs go which way, by its number, and what each way is: most of a batch go the same one, and every element
    of an array costs."""
    ways: dict[tuple[Any, ...], int] = {}
    numbers = [ways.setdefault(_way(move), len(ways) + 1) for move in moves]
    columns = list(map(list, zip(*ways, strict=True))) or [[] for _ in WAY]
    jobs, epochs = [move.job_id for move in moves], [move.epoch for move in moves]
    return {"ids": jobs, "epochs": epochs, "ways": numbers, **dict(zip(WAY, columns, strict=True))}


def _way(move: Move) -> tuple[Any, ...]:
    """Where a move leads, and what it costs."""
    counts = (int(move.counts_attempt), int(move.counts_crash), move.priority_drop, int(move.to_the_back))
    return (move.to.value, move.grant_end.value, move.reason, move.error, span(move.wait), *counts, int(move.unseen))


def _waits_again(move: Move) -> bool:
    """Whether a job is to be had again at once."""
    return move.to is JobState.PENDING and not move.wait


def _grouped(moves: list[Move], by: Callable[[Move], T]) -> dict[T, list[JobId]]:
    groups: dict[T, list[JobId]] = {}
    for move in moves:
        groups.setdefault(by(move), []).append(move.job_id)
    return groups


def _enqueued(job: NewJob, live: dict[str | None, JobId]) -> Enqueued:
    if job.dedupe_key is None:
        return Enqueued(job.id)
    found = live[job.dedupe_key]
    return Enqueued(found, duplicate=found != job.id)


def _best_of_hosts(jobs: Sequence[NewJob]) -> list[JobId]:
    """The job that ranks best of each host and line, of those that wait from now on."""
    best: dict[tuple[str, ...], NewJob] = {}
    for job in jobs:
        if job.host is not None and job.not_before is None:
            line = (job.lane, job.kind, job.capability, job.host)
            if line not in best or job.priority > best[line].priority:
                best[line] = job
    timed = [job.id for job in jobs if job.host is not None and job.not_before is not None]  # some may wait already
    return [*(job.id for job in best.values()), *timed]


def _in_order(rows: list[Any], taker: LeaseRequest) -> list[Any]:
    if len(rows) > 1:
        lanes = {lane: place for place, lane in enumerate(taker.lanes)}
        rows.sort(key=lambda row: (lanes[row[10]], row[11], row[0]))
    return rows


def _lease(row: Any) -> Lease:
    # By place: names cost as much as the rest, and a batch has many rows.
    job_id, epoch, kind, run_id, payload, attempts, max_attempts, crash_count, waited = row[:9]
    return Lease(Fence(job_id, epoch), kind, run_id, payload, attempts, max_attempts, crash_count, waited / 1e6)


def _granted(row: Any) -> Lease:
    """Leased from a line."""
    lease = _lease(row)
    lease.priority, lease.ttl_seconds = row[13], row[14] / 1e6
    return lease


def _lost(row: Any) -> LostJob:
    values = {name: row[name] for name in LostJob.__slots__}
    return LostJob(**(values | {"settled": bool(row["settled"])}))


def _grant(row: Any) -> Grant:
    values = {name: row[name] for name in Grant.__slots__}
    ended = None if values["ended"] is None else GrantEnd(values["ended"])
    return Grant(**(values | {"settled": bool(values["settled"]), "ended": ended}))


def job_of(row: Any) -> Job:
    values = {name: row[name] for name in Job.__slots__}
    values["state"] = JobState(values["state"])
    values["scopes"] = tuple(orjson.loads(values["scopes"] or "[]"))
    return Job(**values)
