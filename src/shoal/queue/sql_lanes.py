"""Lanes on SQL: the jobs table itself. A pop moves, selects and locks in one statement on PostgreSQL, and in a few
on SQLite, where no other writer can interfere."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.text import storable
from shoal.queue.job import SHARED_LANE, Fence, Lease, LeaseRequest, NewJob, TurnResult
from shoal.queue.job_hosts import DueHosts, JobHosts, Key, SqlHostQueue
from shoal.queue.lanes import Availability, LaneRepair
from shoal.queue.quotas import QUOTA_KEYS, QuotaCounts
from shoal.queue.states import JobState, Move

T = TypeVar("T")

DUE_AT_ONCE = 1000
_job_id = attrgetter("job_id")
NOBODY = LeaseRequest("", (), (), ())
"""The request of a pop that only carries out moves."""


@dataclass(slots=True)
class _TurnOutcome:
    """The outcome of a turn: the jobs moved, those of them that may have counted towards a quota, and the jobs
    granted; whether other jobs became due, whether a quota may apply, and whether the turn did anything at all."""

    moved: set[str]
    counted: set[str]
    rows: list[Any]
    any_due: bool
    limited: bool
    done: bool = True


class SqlLanes:
    """Implements `queue.lanes.Lanes`. `ageing`: the waiting time that equals a point of priority."""

    is_stored = True

    def __init__(self, dialect: str, ageing: timedelta, available: Availability) -> None:
        self._in_one_statement = dialect == "postgres"
        self._ageing = span(ageing)
        self._available = available
        self._hosts = JobHosts(SqlHostQueue(dialect))
        self._quotas = QuotaCounts(available)
        self._lease_start = LeaseStart()

    async def push(self, tx: Tx, jobs: Sequence[NewJob]) -> None:
        # Their rows are in the lanes already; only the hosts at which they wait have to be recorded.
        await self._available.note(tx, [job.id for job in jobs], _best_of_hosts(jobs))

    async def pop(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult:
        return await self.pop_from(tx, request, limit, ttl, moves)

    async def pop_from(
        self,
        tx: Tx,
        request: LeaseRequest,
        limit: int,
        ttl: timedelta,
        moves: Sequence[Move] = (),
        *,
        popped: Sequence[str] | None = None,
        hosts: JobHosts | None = None,
    ) -> TurnResult:
        """Do the same with lanes that are kept elsewhere: grant those of the `popped` jobs that still wait, or lease by
        host from other `hosts`."""
        if request.lock_ttl is not None:
            ttl = request.lock_ttl
        turn = self._turn_at_once if self._in_one_statement else self._turn_by_steps
        by_host = request.rate_limiter is not None
        outcome = await turn(tx, moves, replace(request, lanes=()) if by_host else request, limit, ttl, popped)
        again = [move.job_id for move in moves if _waits_again(move) and move.job_id in outcome.moved]
        await self._available.note(tx, again, again)
        refused = [] if len(outcome.moved) == len(moves) else _refused(moves, outcome.moved)
        made_due = 0
        if outcome.any_due and request is not NOBODY:
            made_due = await self.make_due(tx)
            if len(outcome.rows) < limit and not by_host:
                more = await turn(tx, (), request, limit - len(outcome.rows), ttl, None)
                outcome.rows += more.rows
                outcome.limited |= more.limited
        sources = [] if not by_host else [self._hosts] if hosts is None else [hosts]
        if hosts is not None and made_due:
            sources.append(self._hosts)  # other lanes do not have them before the commit
        looked: list[dict[Key, DueHosts]] = []
        for source in sources if limit else ():
            rows, found = await source.lease(tx, request, limit - len(outcome.rows), ttl)
            outcome.rows += rows
            looked.append(found)
        rows, parked = _in_order(outcome.rows, request), 0
        if outcome.counted or any(row[QUOTA_KEYS] is not None for row in rows):
            rows, parked = await self._quotas.settle(
                tx, outcome.counted, rows, quotas=outcome.limited, waits=request.waits
            )
        for source, found in zip(sources, looked, strict=False):
            await source.put_back(tx, found)
        return TurnResult(refused, [_granted(row) for row in rows], parked)

    async def pop_once(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult | None:
        return await self.pop_once_from(tx, request, limit, ttl, moves, None)

    def fits_one_statement(self, request: LeaseRequest, moves: Sequence[Move]) -> bool:
        """Return whether `pop_once` can do this at all."""
        if not self._in_one_statement:
            return True
        return request.rate_limiter is None and not any(_waits_again(move) for move in moves)

    async def pop_once_from(
        self,
        tx: Tx,
        request: LeaseRequest,
        limit: int,
        ttl: timedelta,
        moves: Sequence[Move],
        popped: Sequence[str] | None,
    ) -> TurnResult | None:
        """Do the same with lanes that are kept elsewhere: grant those of the `popped` jobs that still wait."""
        if not self._in_one_statement:
            return await self.pop_from(tx, request, limit, ttl, moves, popped=popped)
        if not self.fits_one_statement(request, moves):
            return None
        floors = [LOWEST] * len(request.lanes)
        outcome = await self._turn_from(tx, floors, moves, request, limit, request.lock_ttl or ttl, popped, alone=True)
        if not outcome.done:
            return None
        refused = [] if len(outcome.moved) == len(moves) else _refused(moves, outcome.moved)
        return TurnResult(refused, [_granted(row) for row in _in_order(outcome.rows, request)])

    async def return_lane(self, tx: Tx, lane: str) -> int:
        return await self._let_wait(tx, await tx.all("return_lane", lane=lane, shared=SHARED_LANE))

    async def return_offers(self, tx: Tx, limit: int) -> list[str]:
        rows = await tx.all("give_up_offers", lane=SHARED_LANE, limit=limit)
        await self._let_wait(tx, rows)
        return [orjson.loads(row["dispatch"] or "{}").get("node_id", "") for row in rows]

    async def count_lapses(self, tx: Tx, node_ids: Collection[str]) -> None:
        for node_id in sorted(node_ids):
            await tx.execute("count_lapse", id=node_id)

    async def depth(self, tx: Tx, lane: str, most: int) -> int:
        return int(await tx.value("depth_up_to", lane=lane, most=most))

    async def waits(self, tx: Tx, kind: str, lanes: Sequence[str]) -> bool:
        return any([await tx.one("kind_waits", kind=kind, lane=lane) is not None for lane in lanes])

    async def page_backlog(self, tx: Tx, capability: str, most: int) -> int:
        return int(await tx.value("waiting_page_jobs", capability=capability, most=most))

    async def repair(self, tx: Tx) -> LaneRepair:
        return LaneRepair()

    async def make_due(self, tx: Tx) -> int:
        return await self._let_wait(tx, await tx.all("make_due", limit=DUE_AT_ONCE))

    async def _turn_at_once(
        self,
        tx: Tx,
        moves: Sequence[Move],
        request: LeaseRequest,
        limit: int,
        ttl: timedelta,
        popped: Sequence[str] | None,
    ) -> _TurnOutcome:
        if popped is not None:
            return await self._turn_from(tx, [], moves, request, limit, ttl, popped)
        floors = self._lease_start.of(request, limit)
        outcome = await self._turn_from(tx, floors, moves, request, limit, ttl, None)
        if len(outcome.rows) < limit and max(floors, default=LOWEST) > LOWEST:
            whole = [LOWEST] * len(floors)
            outcome.rows += (await self._turn_from(tx, whole, (), request, limit - len(outcome.rows), ttl, None)).rows
        self._lease_start.learn(request, limit, outcome.rows)
        return outcome

    async def _turn_from(
        self,
        tx: Tx,
        floors: list[int],
        moves: Sequence[Move],
        request: LeaseRequest,
        limit: int,
        ttl: timedelta,
        popped: Sequence[str] | None,
        *,
        alone: bool = False,
    ) -> _TurnOutcome:
        outcome, *rows = await tx.all(
            "turn_jobs",
            **_by_outcome(sorted(moves, key=_job_id)),
            holder=request.holder,
            lanes=list(request.lanes) if popped is None else [],
            floors=floors if popped is None else [],
            popped=list(popped or ()),
            kinds=list(request.kinds),
            capabilities=list(request.capabilities),
            limit=limit,
            ttl=span(ttl),
            by_job=int(request.lock_ttl is not None),
            ageing=self._ageing,
            alone=int(alone),
        )
        moved, counted = set(outcome["moved"] or ()), set(outcome["counted"] or ())
        return _TurnOutcome(moved, counted, rows, outcome["any_due"], outcome["limited"], outcome["done"])

    async def _turn_by_steps(
        self,
        tx: Tx,
        moves: Sequence[Move],
        request: LeaseRequest,
        limit: int,
        ttl: timedelta,
        popped: Sequence[str] | None,
    ) -> _TurnOutcome:
        moved, counted = await self._move(tx, moves) if moves else (set(), set())
        if not limit:
            return _TurnOutcome(moved, counted, [], False, False)
        terms = {"holder": request.holder, "ttl": span(ttl), "by_job": int(request.lock_ttl is not None)}
        if popped is None:
            leased = await tx.all(
                "lease_jobs",
                lanes=list(request.lanes),
                kinds=list(request.kinds),
                capabilities=list(request.capabilities),
                limit=limit,
                **terms,
            )
        else:
            leased = await tx.all("lease_these_jobs", ids=list(popped), **terms) if popped else []
        return _TurnOutcome(moved, counted, leased, await tx.one("any_due") is not None, True)

    async def _let_wait(self, tx: Tx, rows: Sequence[Any]) -> int:
        """Follow up on jobs that have just become available; returns how many did."""
        at_hosts = [row["id"] for row in rows if row["host"] is not None]
        await self._available.note(tx, [row["id"] for row in rows], at_hosts)
        return len(rows)

    async def _move(self, tx: Tx, moves: Sequence[Move]) -> tuple[set[str], set[str]]:
        """Carry out moves where no other writer can interfere: read which jobs are locked, then move them, grouping
        equal moves."""
        rows = await tx.all("held_jobs", ids=[move.job_id for move in moves])
        held = {(row[0], row[1]): row[2] for row in rows}
        made = [move for move in moves if (move.job_id, move.epoch) in held]
        now = rows[0][4] if rows else 0
        seen = [move for move in made if not move.unseen]
        for (ended, error), ids in _grouped(seen, lambda move: (move.grant_end, _error(move))).items():
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
        state, _, *rest = _outcome(move)
        counts = (int(move.counts_attempt), int(move.counts_crash), move.priority_drop, int(move.to_the_back))
        return (move.job_id, state, *rest, *counts, int(move.unseen), self._ageing, now)


def _refused(moves: Sequence[Move], moved: set[str]) -> list[Move]:
    """Return the refused moves. A batch may hold an old grant of a job beside its newest one, and only the newest
    can have been live."""
    newest = {move.job_id: move.epoch for move in sorted(moves, key=lambda move: move.epoch)}
    return [move for move in moves if move.job_id not in moved or move.epoch != newest[move.job_id]]


OUTCOME = ("states", "ends", "reasons", "errors", "waits", "counts")


def _by_outcome(moves: list[Move]) -> dict[str, list[Any]]:
    """Return the distinct outcomes of these moves, and the index of the outcome of each job. Most moves of a batch
    are alike, and every array element has a cost."""
    outcomes: dict[tuple[Any, ...], int] = {}
    numbers = [outcomes.setdefault((*_outcome(move), _counts(move)), len(outcomes) + 1) for move in moves]
    columns = list(map(list, zip(*outcomes, strict=True))) or [[] for _ in OUTCOME]
    jobs, epochs = [move.job_id for move in moves], [move.epoch for move in moves]
    return {"ids": jobs, "epochs": epochs, "ways": numbers, **dict(zip(OUTCOME, columns, strict=True))}


def _outcome(move: Move) -> tuple[Any, ...]:
    """Return the outcome of a move as columns: its target state and the reason."""
    return (move.to.value, move.grant_end.value, move.reason, _error(move), span(move.wait))


def _error(move: Move) -> str | None:
    """Return the error as stored: it may quote a page or a bot, and must not fail the other moves of its batch."""
    return None if move.error is None else storable(move.error)


def _counts(move: Move) -> int:
    """Return what a move counts as one number, because the driver takes longer for five arrays than for one."""
    flags = move.counts_attempt | move.counts_crash << 1 | move.to_the_back << 2 | move.unseen << 3
    return flags | move.priority_drop << 4


def _waits_again(move: Move) -> bool:
    """Return whether the job becomes available again at once."""
    return move.to is JobState.PENDING and not move.wait


def _grouped(moves: list[Move], by: Callable[[Move], T]) -> dict[T, list[JobId]]:
    groups: dict[T, list[JobId]] = {}
    for move in moves:
        groups.setdefault(by(move), []).append(move.job_id)
    return groups


def _best_of_hosts(jobs: Sequence[NewJob]) -> list[JobId]:
    """Return the best-ranked available job per host and lane, and all jobs with a start time."""
    best: dict[tuple[str, ...], NewJob] = {}
    for job in jobs:
        if job.host is not None and job.not_before is None:
            key = (job.lane, job.kind, job.capability, job.host)
            if key not in best or job.priority > best[key].priority:
                best[key] = job
    timed = [job.id for job in jobs if job.host is not None and job.not_before is not None]  # some may be due already
    return [*(job.id for job in best.values()), *timed]


def _in_order(rows: list[Any], request: LeaseRequest) -> list[Any]:
    if len(rows) > 1:
        lanes = {lane: place for place, lane in enumerate(request.lanes)}
        rows.sort(key=lambda row: (lanes[row[10]], row[11], row[0]))
    return rows


def lease_of(row: Any) -> Lease:
    # By index: access by name costs as much as the rest, and a batch has many rows.
    job_id, epoch, kind, run_id, payload, attempts, max_attempts, crash_count, waited = row[:9]
    return Lease(Fence(job_id, epoch), kind, run_id, payload, attempts, max_attempts, crash_count, waited / 1e6)


def _granted(row: Any) -> Lease:
    """Build the lease of a job that was popped from a lane."""
    lease = lease_of(row)
    lease.priority, lease.ttl_seconds = row[13], row[14] / 1e6
    return lease


LANE, RANK = 10, 11  # indexes in a granted row
LOWEST = -(1 << 62)
LARGE = 50  # jobs per batch
LOOKS = 9  # queries from there before the next from the head; until then a better-ranked job may be missed


class LeaseStart:
    """Remembers, for one process, how far large batches have advanced."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, ...], int] = {}
        self._looks = 0

    def of(self, request: LeaseRequest, limit: int) -> list[int]:
        """Return the start rank for each lane of a lease request."""
        if limit < LARGE or self._looks >= LOOKS:
            self._ranks.clear()
            self._looks = 0
        elif self._ranks:
            self._looks += 1
        return [self._ranks.get(_queue_key(request, lane), LOWEST) for lane in request.lanes]

    def learn(self, request: LeaseRequest, limit: int, granted: list[Any]) -> None:
        """Learn from a batch: a full one leaves no job before its last rank that could be leased."""
        if limit < LARGE or len(granted) < limit or len(request.kinds) * len(request.capabilities) > 1:
            self._ranks.clear()
            return
        for row in granted:
            key = _queue_key(request, row[LANE])
            self._ranks[key] = max(row[RANK], self._ranks.get(key, LOWEST))


def _queue_key(request: LeaseRequest, lane: str) -> tuple[str, ...]:
    return (lane, *request.kinds, *request.capabilities)
