"""Lanes on SQL: the jobs table itself. A pop moves, selects and locks jobs: in one statement on PostgreSQL, in a few
statements on SQLite, where no other writer can interfere."""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, TypeVar

import orjson
from msgspec import Struct

from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.base.ids import JobId
from shoal.base.text import storable
from shoal.queue.job import SHARED_LANE, Fence, Lease, LeaseRequest, NewJob, TurnResult
from shoal.queue.job_hosts import ExaminedHost, JobHosts, Key, SqlHostQueue
from shoal.queue.lanes import Availability, LaneRepair
from shoal.queue.quotas import QUOTA_KEYS, QuotaCounts
from shoal.queue.states import JobState, Move

T = TypeVar("T")

DUE_AT_ONCE = 1000
_job_id = attrgetter("job_id")


class Turn(Struct, frozen=True):
    """One commit of a holder: the jobs that the holder ends or returns, and how many new jobs it wants."""

    request: LeaseRequest
    limit: int
    ttl: timedelta
    moves: Sequence[Move] = ()

    @classmethod
    def of(cls, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move]) -> "Turn":
        """Return a turn with the lease term of the holder: bots have their own lease term."""
        return cls(request, limit, request.lock_ttl or ttl, moves)

    def more(self, granted: int) -> "Turn":
        """Return a turn for the number of jobs that are still wanted."""
        return Turn(self.request, self.limit - granted, self.ttl)


class Candidates(Struct, frozen=True):
    """The jobs that a turn may grant: either all jobs of some lanes, each lane from a certain rank on, or the jobs that
    lanes outside the database gave out."""

    lanes: Sequence[str] = ()
    floors: Sequence[int] = ()
    named: Sequence[str] = ()

    @classmethod
    def of_lanes(cls, request: LeaseRequest) -> "Candidates":
        return cls(request.lanes, [LOWEST] * len(request.lanes))


class _TurnOutcome(Struct):
    """The outcome of a turn: the moved jobs, which of these may have counted towards a quota, and the granted jobs;
    whether other jobs became due, whether a quota may apply, and whether the turn did anything at all."""

    moved: set[str]
    counted: set[str]
    rows: list[Any]
    any_due: bool
    limited: bool
    done: bool = True

    def refused(self, moves: Sequence[Move]) -> list[Move]:
        """Return the refused moves. A batch may contain an old grant of a job and its newest grant; only the newest
        grant can have been live."""
        if len(self.moved) == len(moves):
            return []
        newest = {move.job_id: move.epoch for move in sorted(moves, key=lambda move: move.epoch)}
        return [move for move in moves if move.job_id not in self.moved or move.epoch != newest[move.job_id]]


class SqlLanes:
    """Implements `queue.lanes.Lanes`. `ageing`: the waiting time that equals a point of priority."""

    def __init__(self, dialect: str, ageing: timedelta, available: Availability) -> None:
        self._in_one_statement = dialect == "postgres"
        self._ageing = span(ageing)
        self._available = available
        self._hosts = JobHosts(SqlHostQueue(dialect))
        self._quotas = QuotaCounts(available)
        self._lease_start = LeaseStart()

    def takes_one_statement(self, jobs: Sequence[NewJob]) -> bool:
        # Further statements look up dedupe keys and record the hosts at which jobs wait.
        return all(job.dedupe_key is None and job.host is None for job in jobs)

    async def push(self, tx: Tx, jobs: Sequence[NewJob]) -> None:
        # The rows of these jobs are in the lanes already; only the hosts at which the jobs wait have to be recorded.
        await self._available.note(tx, [job.id for job in jobs], _best_of_hosts(jobs))

    async def move(self, tx: Tx, moves: Sequence[Move]) -> list[Move]:
        """Carry out moves without granting jobs; return the refused moves."""
        turn = Turn(LeaseRequest("", (), (), ()), 0, timedelta(0), moves)
        return (await self.pop_among(tx, turn, Candidates())).refused

    async def pop(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult:
        turn = Turn.of(request, limit, ttl, moves)
        if request.rate_limiter is not None:
            return await self.pop_by_host(tx, turn)
        return await self._complete(tx, turn, await self._grant_from_lanes(tx, turn))

    async def pop_among(self, tx: Tx, turn: Turn, candidates: Candidates) -> TurnResult:
        """Carry out a turn whose jobs are these candidates."""
        return await self._complete(tx, turn, await self._move_and_grant(tx, turn, candidates))

    async def _complete(self, tx: Tx, turn: Turn, outcome: _TurnOutcome) -> TurnResult:
        """Follow up on a turn: also grant jobs that have just become due, then apply the quotas."""
        await self._note_returned(tx, turn.moves, outcome)
        if outcome.any_due:
            await self.make_due(tx)
            if len(outcome.rows) < turn.limit:
                more = await self._grant_from_lanes(tx, turn.more(len(outcome.rows)))
                outcome.rows += more.rows
                outcome.limited |= more.limited
        return await self._within_quotas(tx, turn, outcome)

    async def pop_by_host(self, tx: Tx, turn: Turn, other: JobHosts | None = None) -> TurnResult:
        """Carry out a turn that leases by host, from the table of hosts in this database, or from `other`."""
        outcome = await self._move_and_grant(tx, turn, Candidates())
        await self._note_returned(tx, turn.moves, outcome)
        made_due = await self.make_due(tx) if outcome.any_due else 0
        # If jobs have just become due, search the table, too: lanes outside the database get these jobs only after this
        # commit.
        sources = [self._hosts] if other is None else [other, self._hosts] if made_due else [other]
        looked: list[tuple[JobHosts, dict[Key, ExaminedHost]]] = []
        for source in sources if turn.limit else ():
            rows, found = await source.lease(tx, turn.request, turn.limit - len(outcome.rows), turn.ttl)
            outcome.rows += rows
            looked.append((source, found))
        result = await self._within_quotas(tx, turn, outcome)
        for source, found in looked:  # last: hosts come after quota keys in the lock order (0019)
            await source.put_back(tx, found)
        return result

    async def pop_once(
        self, tx: Tx, request: LeaseRequest, limit: int, ttl: timedelta, moves: Sequence[Move] = ()
    ) -> TurnResult | None:
        return await self.turn_once(tx, Turn.of(request, limit, ttl, moves), Candidates.of_lanes(request))

    async def turn_once(self, tx: Tx, turn: Turn, candidates: Candidates) -> TurnResult | None:
        """Carry out a turn as a single statement; if one statement is not enough, do nothing and return None."""
        if not self.fits_one_statement(turn):
            return None
        if not self._in_one_statement:
            by_rank = turn.request.rate_limiter is None
            return await (self.pop_among(tx, turn, candidates) if by_rank else self.pop_by_host(tx, turn))
        outcome = await self._by_one_statement(tx, turn, candidates, alone=True)
        if not outcome.done:
            return None
        return TurnResult(outcome.refused(turn.moves), [_granted(row) for row in _in_order(outcome.rows, turn.request)])

    def fits_one_statement(self, turn: Turn) -> bool:
        """Return whether `turn_once` can carry out this turn. On SQLite every unit of work is like a single
        statement."""
        if not self._in_one_statement:
            return True
        return turn.request.rate_limiter is None and not any(_waits_again(move) for move in turn.moves)

    async def _grant_from_lanes(self, tx: Tx, turn: Turn) -> _TurnOutcome:
        """Carry out a turn with jobs of its lanes: first from the rank to which large batches have advanced, then from
        the head."""
        request, limit = turn.request, turn.limit
        if not self._in_one_statement:
            return await self._by_steps(tx, turn, Candidates.of_lanes(request))
        floors = self._lease_start.of(request, limit)
        outcome = await self._by_one_statement(tx, turn, Candidates(request.lanes, floors))
        if len(outcome.rows) < limit and max(floors, default=LOWEST) > LOWEST:
            rest = turn.more(len(outcome.rows))
            outcome.rows += (await self._by_one_statement(tx, rest, Candidates.of_lanes(request))).rows
        self._lease_start.learn(request, limit, outcome.rows)
        return outcome

    async def _move_and_grant(self, tx: Tx, turn: Turn, candidates: Candidates) -> _TurnOutcome:
        """Carry out the moves of a turn, then select, lock and grant jobs among the candidates."""
        return await (self._by_one_statement if self._in_one_statement else self._by_steps)(tx, turn, candidates)

    async def _by_one_statement(
        self, tx: Tx, turn: Turn, candidates: Candidates, *, alone: bool = False
    ) -> _TurnOutcome:
        """Move and grant in one statement. `alone`: do nothing if further statements would have to follow."""
        request = turn.request
        outcome, *rows = await tx.all(
            "turn_jobs",
            **_by_outcome(sorted(turn.moves, key=_job_id)),
            holder=request.holder,
            lanes=list(candidates.lanes),
            floors=list(candidates.floors),
            popped=list(candidates.named),
            kinds=list(request.kinds),
            capabilities=list(request.capabilities),
            limit=turn.limit,
            ttl=span(turn.ttl),
            by_job=int(request.lock_ttl is not None),
            ageing=self._ageing,
            alone=int(alone),
        )
        moved, counted = set(outcome["moved"] or ()), set(outcome["counted"] or ())
        return _TurnOutcome(moved, counted, rows, outcome["any_due"], outcome["limited"], outcome["done"])

    async def _by_steps(self, tx: Tx, turn: Turn, candidates: Candidates) -> _TurnOutcome:
        """Move and grant in several statements, on a store where no other writer can interfere."""
        moved, counted = await self._move(tx, turn.moves) if turn.moves else (set(), set())
        if not turn.limit:
            return _TurnOutcome(moved, counted, [], False, False)
        request = turn.request
        terms = {"holder": request.holder, "ttl": span(turn.ttl), "by_job": int(request.lock_ttl is not None)}
        leased: list[Any] = []
        if candidates.named:
            leased = await tx.all("lease_these_jobs", ids=list(candidates.named), **terms)
        elif candidates.lanes:
            wanted = {"kinds": list(request.kinds), "capabilities": list(request.capabilities), "limit": turn.limit}
            leased = await tx.all("lease_jobs", lanes=list(candidates.lanes), **wanted, **terms)
        return _TurnOutcome(moved, counted, leased, await tx.one("any_due") is not None, True)

    async def _note_returned(self, tx: Tx, moves: Sequence[Move], outcome: _TurnOutcome) -> None:
        """Make the moved jobs available that wait again without a pause."""
        again = [move.job_id for move in moves if _waits_again(move) and move.job_id in outcome.moved]
        await self._available.note(tx, again, again)

    async def _within_quotas(self, tx: Tx, turn: Turn, outcome: _TurnOutcome) -> TurnResult:
        """Grant the jobs that fit into the quotas, and park the other jobs."""
        rows, parked = _in_order(outcome.rows, turn.request), 0
        if outcome.counted or any(row[QUOTA_KEYS] is not None for row in rows):
            rows, parked = await self._quotas.settle(
                tx, outcome.counted, rows, quotas=outcome.limited, waits=turn.request.waits
            )
        return TurnResult(outcome.refused(turn.moves), [_granted(row) for row in rows], parked)

    async def return_lane(self, tx: Tx, lane: str) -> int:
        return await self._note_available(tx, await tx.all("return_lane", lane=lane, shared=SHARED_LANE))

    async def return_offers(self, tx: Tx, limit: int) -> list[str]:
        rows = await tx.all("give_up_offers", lane=SHARED_LANE, limit=limit)
        await self._note_available(tx, rows)
        return [orjson.loads(row["dispatch"] or "{}").get("node_id", "") for row in rows]

    async def count_lapses(self, tx: Tx, node_ids: Collection[str]) -> None:
        for node_id in sorted(node_ids):  # heartbeats lock nodes in the same order (0043)
            await tx.execute("count_lapse", id=node_id)

    async def depth(self, tx: Tx, lane: str, most: int) -> int:
        return int(await tx.value("depth_up_to", lane=lane, most=most))

    async def waits(self, tx: Tx, kind: str, lanes: Sequence[str]) -> bool:
        return any([await tx.one("kind_waits", kind=kind, lane=lane) is not None for lane in lanes])

    async def page_backlog(self, tx: Tx, capability: str, most: int) -> int:
        return int(await tx.value("waiting_page_jobs", capability=capability, most=most))

    async def repair(self, database: Database) -> LaneRepair:
        return LaneRepair()

    async def make_due(self, tx: Tx) -> int:
        return await self._note_available(tx, await tx.all("make_due", limit=DUE_AT_ONCE))

    async def _note_available(self, tx: Tx, rows: Sequence[Any]) -> int:
        """Follow up on jobs that have just become available; return their number."""
        at_hosts = [row["id"] for row in rows if row["host"] is not None]
        await self._available.note(tx, [row["id"] for row in rows], at_hosts)
        return len(rows)

    async def _move(self, tx: Tx, moves: Sequence[Move]) -> tuple[set[str], set[str]]:
        """Carry out moves where no other writer can interfere: read which jobs are locked, then move them, grouping
        equal moves."""
        rows = await tx.all("held_jobs", ids=[move.job_id for move in moves])
        # This transaction is the only writer, so jobs that are locked here are still locked when they are moved (0002).
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


OUTCOME = ("states", "ends", "reasons", "errors", "waits", "counts")


def _by_outcome(moves: list[Move]) -> dict[str, list[Any]]:
    """Return the distinct outcomes of these moves, and the index of the outcome of each job. Most moves of a batch have
    equal outcomes, and every array element has a cost."""
    outcomes: dict[tuple[Any, ...], int] = {}
    numbers = [outcomes.setdefault((*_outcome(move), _counts(move)), len(outcomes) + 1) for move in moves]
    columns = list(map(list, zip(*outcomes, strict=True))) or [[] for _ in OUTCOME]
    jobs, epochs = [move.job_id for move in moves], [move.epoch for move in moves]
    return {"ids": jobs, "epochs": epochs, "ways": numbers, **dict(zip(OUTCOME, columns, strict=True))}


def _outcome(move: Move) -> tuple[Any, ...]:
    """Return the outcome of a move as columns: its target state and the reason."""
    return (move.to.value, move.grant_end.value, move.reason, _error(move), span(move.wait))


def _error(move: Move) -> str | None:
    """Return the error as it is stored. An error may quote a page or a bot, so characters that the store rejects are
    removed: they would fail the other moves of the batch."""
    return None if move.error is None else storable(move.error)


def _counts(move: Move) -> int:
    """Return the flags of a move as one number, because the driver takes longer for five arrays than for one."""
    flags = move.counts_attempt | move.counts_crash << 1 | move.to_the_back << 2 | move.unseen << 3
    return flags | move.priority_drop << 4


def _waits_again(move: Move) -> bool:
    """Return whether the job becomes available again immediately."""
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
    timed = [job.id for job in jobs if job.host is not None and job.not_before is not None]  # may be due
    return [*(job.id for job in best.values()), *timed]


def _in_order(rows: list[Any], request: LeaseRequest) -> list[Any]:
    if len(rows) > 1:
        lanes = {lane: place for place, lane in enumerate(request.lanes)}
        rows.sort(key=lambda row: (lanes[row[10]], row[11], row[0]))
    return rows


def lease_of(row: Any) -> Lease:
    # By index: access by name would double the cost, and a batch has many rows.
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
LOOKS = 9  # queries from an advanced rank before the next one from the head; meanwhile, a better job may be missed


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
        """Learn from a batch: after a full batch, no job before its last rank can be leased."""
        if limit < LARGE or len(granted) < limit or len(request.kinds) * len(request.capabilities) > 1:
            self._ranks.clear()
            return
        for row in granted:
            key = _queue_key(request, row[LANE])
            self._ranks[key] = max(row[RANK], self._ranks.get(key, LOWEST))


def _queue_key(request: LeaseRequest, lane: str) -> tuple[str, ...]:
    return (lane, *request.kinds, *request.capabilities)
