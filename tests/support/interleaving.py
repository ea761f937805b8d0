"""Many actors on one store. A seed decides at every statement which actor continues, so that a run can be repeated.

`Schedule` lets one actor go at a time, from one store call to the next, and may let it die on the way. `SteppedSqlite`
runs the statements of our own driver with the locks of SQLite, one writer and many readers, and switches between any
two of them; `SteppedPostgres` does so on real connections, where an actor that waits for a lock is left waiting.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import asyncpg

from shoal.base.database import Call, Callback, Rows, Tx, Work
from shoal.base.database.postgres import PostgresDatabase
from shoal.base.database.sqlite import SqliteDatabase, SqliteTx

T = TypeVar("T")

BLOCKED_SECONDS = 0.03  # an actor that has not returned by then is waiting for a database lock
STUCK_SECONDS = 60.0
LOCK_QUOTA_KEYS = {"lock_quota_keys", "lock_limited_keys"}  # the locks of quotas, which a lease takes after its jobs
BEFORE_QUOTA_KEYS = frozenset(  # statements that wait for the row of a run or of a job
    {
        *("lock_crawl", "lock_group", "lock_groups", "lock_analysis"),
        *("fence_job", "lock_jobs", "lock_expired"),
        *("lock_held_jobs", "lease_job", "beat_job", "extend_leases", "cancel_job"),
        *("cancel_waiting_jobs", "kill_jobs_of_run", "set_priority_of_run"),
    }
)


class Died(BaseException):
    """The process of an actor was killed here. Only the schedule may catch it."""


@dataclass(eq=False)
class _Turn:
    who: str
    what: str
    when: Callable[[], bool]
    go: "asyncio.Future[None]"


class Schedule:
    """The order in which actors proceed. `patience`: how long an actor may take; None if it always returns."""

    def __init__(self, seed: int, patience: float | None = None) -> None:
        self.dice = random.Random(seed)
        self.mortal: dict[str, float] = {}  # who may die at a store call, and how likely it is
        self.trace: list[str] = []
        self.disorder: list[str] = []  # statements that violated the lock order: they must come before the quota keys
        self.after_commit: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._patience = patience
        self._waiting: list[_Turn] = []
        self._blocked: set[str] = set()
        self._arrived = asyncio.Event()
        self._playing = False

    async def turn(self, what: str, when: Callable[[], bool] = lambda: True) -> None:
        """Wait until it is this actor's turn; outside of a run it always is."""
        task = asyncio.current_task()
        if not self._playing or task is None:
            return
        turn = _Turn(task.get_name(), what, when, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._blocked.discard(turn.who)
        self._arrived.set()
        await turn.go
        if self.dice.random() < self.mortal.get(turn.who, 0):
            self.trace.append(f"{turn.who} dies")
            raise Died(turn.who)

    async def play(self, actors: dict[str, Coroutine[Any, Any, None]]) -> None:
        """Run all actors to completion. An actor that dies counts as finished; any other error is raised."""
        self._playing = True
        tasks = {asyncio.create_task(self._begin(actor), name=name) for name, actor in actors.items()}
        for task in tasks:
            task.add_done_callback(lambda _: self._arrived.set())
        try:
            while not all(task.done() for task in tasks):
                await self._until_quiet(tasks)
                self._let_one_go()
        finally:
            self._playing = False
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, Died):
                raise end

    async def _begin(self, actor: Coroutine[Any, Any, None]) -> None:
        try:
            await self.turn("enters")
        except BaseException:
            actor.close()
            raise
        await actor

    async def _until_quiet(self, tasks: "set[asyncio.Task[None]]") -> None:
        """Wait until every actor waits for its turn, is done, or seems to wait for a database lock."""
        deadline = asyncio.get_running_loop().time() + STUCK_SECONDS
        while on_their_way := self._on_their_way(tasks):
            able = any(turn.when() for turn in self._waiting)
            if able and on_their_way <= self._blocked:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), self._patience)
            except TimeoutError:
                self._blocked |= on_their_way
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{sorted(on_their_way)} hang: {self.trace[-20:]}")

    def _on_their_way(self, tasks: "set[asyncio.Task[None]]") -> set[str]:
        alive = {task.get_name() for task in tasks if not task.done()}
        return alive - {turn.who for turn in self._waiting}

    def _let_one_go(self) -> None:
        ready = [turn for turn in self._waiting if turn.when()]
        if not ready:
            if self._waiting and self._patience is None:
                raise AssertionError(f"nobody can go on: {[(turn.who, turn.what) for turn in self._waiting]}")
            return
        ready.sort(key=lambda turn: turn.who)
        turn = self.dice.choice(ready)
        self._waiting.remove(turn)
        self.trace.append(f"{turn.who}: {turn.what}")
        turn.go.set_result(None)


class SteppedTx:
    """A transaction that waits for its turn before every statement."""

    def __init__(self, tx: Tx, schedule: Schedule) -> None:
        self._tx = tx
        self._schedule = schedule
        self._has_quota_keys = False

    async def _turn(self, query: str) -> None:
        if self._has_quota_keys and query in BEFORE_QUOTA_KEYS:
            self._schedule.disorder.append(query)
        self._has_quota_keys |= query in LOCK_QUOTA_KEYS
        await self._schedule.turn(query)

    async def all(self, query: str, **values: Any) -> list[Any]:
        await self._turn(query)
        return await self._tx.all(query, **values)

    async def one(self, query: str, **values: Any) -> Any | None:
        await self._turn(query)
        return await self._tx.one(query, **values)

    async def value(self, query: str, **values: Any) -> Any:
        await self._turn(query)
        return await self._tx.value(query, **values)

    async def execute(self, query: str, **values: Any) -> int:
        await self._turn(query)
        return await self._tx.execute(query, **values)

    async def many(self, query: str, rows: Rows) -> int:
        await self._turn(query)
        return await self._tx.many(query, rows)

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        await self._turn(query)
        return await self._tx.batch(query, rows)

    def on_commit(self, callback: Callback) -> None:
        self._tx.on_commit(callback)

    def after_commit(self, call: Call) -> None:
        self._tx.after_commit(call)

    def after_rollback(self, call: Call) -> None:
        self._tx.after_rollback(call)

    def afterwards(self, work: Work[Any]) -> None:
        self._tx.afterwards(lambda tx: work(cast(Tx, SteppedTx(tx, self._schedule))))


class Stepped(Protocol):
    """A database whose statements a schedule puts into an order. It answers `base.database.Database`."""

    schedule: Schedule

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T: ...

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T: ...

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T: ...

    async def close(self) -> None: ...


class SteppedSqlite:
    """One SQLite file: one writer at a time, and readers that see what was committed when they began."""

    dialect = "sqlite"

    def __init__(self, database: SqliteDatabase, schedule: Schedule) -> None:
        self.schedule = schedule
        self._database = database
        self._writer = self._connect()
        self._readers: list[sqlite3.Connection] = []
        self._free: list[sqlite3.Connection] = []
        self._writing = False

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        await self.schedule.turn("begin", lambda: not self._writing)
        self._writing = True
        try:
            answer = await self._transact(self._writer, "BEGIN IMMEDIATE", "COMMIT", work)
        finally:
            self._writing = False
        if self.schedule.after_commit is not None:
            await self.schedule.after_commit()
        await self.schedule.turn("committed")
        return answer

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        await self.schedule.turn("look")
        connection = self._free.pop() if self._free else self._new_reader()
        try:
            return await self._transact(connection, "BEGIN", "ROLLBACK", work)
        finally:
            self._free.append(connection)

    async def close(self) -> None:
        for connection in (self._writer, *self._readers):
            connection.close()

    async def _transact(self, connection: sqlite3.Connection, begin: str, end: str, work: Work[T]) -> T:
        connection.execute(begin)
        try:
            tx = SqliteTx(connection)
            answer = await work(cast(Tx, SteppedTx(cast(Tx, tx), self.schedule)))
            for later in tx.later:
                await later(cast(Tx, SqliteTx(connection)))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute(end)
        return answer

    def _new_reader(self) -> sqlite3.Connection:
        self._readers.append(self._connect())
        return self._readers[-1]

    def _connect(self) -> sqlite3.Connection:
        connection = self._database._connect()
        connection.execute("PRAGMA synchronous = OFF")  # another test covers power cuts
        return connection


class SteppedPostgres:
    """A PostgreSQL on which every actor has a connection of its own."""

    dialect = "postgres"

    def __init__(self, database: PostgresDatabase, schedule: Schedule) -> None:
        self.schedule = schedule
        self.deadlocks: list[str] = []
        self._database = database

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        async def stepped(tx: Tx) -> T:
            try:
                return await work(cast(Tx, SteppedTx(tx, self.schedule)))
            except asyncpg.DeadlockDetectedError as error:
                self.deadlocks.append(f"{error.detail}: {self.schedule.trace[-12:]}")
                raise

        await self.schedule.turn("begin")
        answer = await self._database.run(stepped)
        if self.schedule.after_commit is not None:
            await self.schedule.after_commit()
        await self.schedule.turn("committed")
        return answer

    async def once(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self.run(work)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        await self.schedule.turn("look")
        return await self._database.read(lambda tx: work(cast(Tx, SteppedTx(tx, self.schedule))))

    async def close(self) -> None:
        await self._database.close()
