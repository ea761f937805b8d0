"""The database contract on SQLite: one writer thread and one reader thread per process, several processes on one file.

The hop to a thread costs several times as much as a statement. So when the writer wakes, it runs all waiting units of
work in one transaction, each in a separate savepoint, so that a failed unit does not undo the others. A unit is a
coroutine that awaits only its transaction. On SQLite no such call suspends, so the thread runs the coroutine to
completion in one step.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
from msgspec.structs import asdict

from shoal.base.clock import Clock
from shoal.base.database import CALL_FAILED, Effects, Rows, Tx, Work, call_all, queries, run_to_end
from shoal.base.database.clock import ClockAnchor, WallClock, after_boot, store_time
from shoal.base.errors import BackendUnavailable, BadConfig, StorageFull
from shoal.base.machine import NO_SPACE, make_private, open_private, try_write

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
WAL_RESET_FIX = (3, 51, 3)
# Keys are random, so the cache must be large enough for the tree of keys. A long WAL pays off, because most pages that
# one commit writes are written again by the next commits.
CACHE_KB = 40_960
READER_CACHE_KB = 8_192
CHECKPOINT_PAGES = 16_000  # 64 MB
FULL_BYTES = 65_536  # a disk with less free space counts as full
_SUSPENDED = "a unit of work may await nothing but its transaction"
MAX_UNITS = 64  # maximum per transaction; limits how long a unit waits for the units run with it


class SqliteTx(Effects):
    """An open transaction on this thread's connection. Work registered with `afterwards` runs in the same commit: there
    is only one writer, so no other transaction waits for the locks."""

    __slots__ = ("_connection", "_queries")

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection
        self._queries = queries.load("sqlite")

    async def all(self, query: str, **values: Any) -> list[Any]:
        # Always read to the end: a statement with RETURNING is complete only when it is exhausted.
        return self._execute(query, values).fetchall()

    async def one(self, query: str, **values: Any) -> Any | None:
        rows = self._execute(query, values).fetchall()
        return rows[0] if rows else None

    async def value(self, query: str, **values: Any) -> Any:
        row = await self.one(query, **values)
        return None if row is None else row[0]

    async def execute(self, query: str, **values: Any) -> int:
        return self._execute(query, values).rowcount

    async def many(self, query: str, rows: Rows) -> int:
        if not rows:
            return 0
        found = self._queries[query]
        return self._connection.executemany(found.sql, found.rows(rows)).rowcount

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        found, execute = self._queries[query], self._connection.execute
        return [answer for row in found.rows(rows) for answer in execute(found.sql, row).fetchall()]

    def _execute(self, query: str, values: dict[str, Any]) -> sqlite3.Cursor:
        for name, value in values.items():
            if type(value) is list:  # SQLite has no arrays: its queries read lists with json_each
                values[name] = orjson.dumps(value).decode()
        found = self._queries[query]
        return self._connection.execute(found.sql, found.ordered(values))


class _Connection(sqlite3.Connection):
    """A connection that knows the anchor of the store's clock."""

    base = at = since = 0

    def read_clock(self) -> None:
        """Reload the anchor, once per transaction, in case another process changed it."""
        self.base, self.at, self.since = self.execute("SELECT base, at, since FROM store_clock").fetchone()


_NO_EFFECTS = Effects()


class _Unit:
    """A unit of work in the writer: the work, its outcome, and the event loop that waits for the outcome."""

    __slots__ = ("effects", "error", "future", "loop", "result", "work")

    def __init__(self, work: Work[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None
        self.effects = _NO_EFFECTS

    def run(self, connection: "_Connection") -> None:
        """Run the work to completion, and then the work it deferred."""
        self.effects = tx = SqliteTx(connection)
        self.result = run_to_end(self.work(cast(Tx, tx)), _SUSPENDED)
        for later in tx.later:
            run_to_end(later(cast(Tx, tx)), _SUSPENDED)

    def call(self) -> None:
        """Make the calls to other systems that follow the commit, or the rollback."""
        for call in self.effects.calls if self.error is None else self.effects.undo_calls:
            try:
                run_to_end(call(), _SUSPENDED)
            except Exception as error:  # the unit is committed or rolled back, so make the other calls in any case
                context = {"message": CALL_FAILED, "exception": error}
                self.loop.call_soon_threadsafe(self.loop.call_exception_handler, context)

    def deliver(self) -> None:
        """Deliver the outcome, on the event loop."""
        if self.error is None:
            call_all(self.effects.callbacks)  # also if the caller was cancelled, because the unit is committed
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class SqliteDatabase:
    """One SQLite file."""

    dialect = "sqlite"

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._anchor = (0, 0, 0)  # anchor of the store's clock when the file was opened
        self._writes: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    @property
    def name(self) -> str:
        return f"SQLite store {self.path}"

    @property
    def warning(self) -> str | None:
        """A warning for the operator about this SQLite version, if there is one."""
        if sqlite3.sqlite_version_info >= WAL_RESET_FIX:
            return None
        wanted = ".".join(map(str, WAL_RESET_FIX))
        return (
            f"SQLite {sqlite3.sqlite_version} lacks the WAL-reset fix of {wanted}: with several processes on one file "
            "a rare crash can damage it; use a Python with a newer SQLite, or PostgreSQL, for data you cannot lose"
        )

    async def open(self, *, upgrade: bool = True) -> None:
        """Create or upgrade the file, then start the threads."""
        await asyncio.to_thread(self._prepare, upgrade)
        for name, body in (("writer", self._write_loop), ("reader", self._read_loop)):
            thread = threading.Thread(target=body, name=f"sqlite-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return cast(T, await self._submit(self._writes, work))

    async def once(self, work: Work[T], *, within: timedelta) -> T:
        return await self.run(work, within=within)

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return cast(T, await self._submit(self._reads, work))

    async def check_space(self) -> None:
        """Raise `StorageFull` unless the disk has more free space than the WAL has already reserved."""
        try:
            await asyncio.to_thread(try_write, self.path.parent)
        except OSError as error:
            translated = self._translate(error)
            raise translated from error

    async def current(self) -> int:
        """Return the schema version of the file; 0 if there is none. Changes nothing."""
        if not self.path.exists():
            return 0
        return await asyncio.to_thread(self._on_own_connection, _version)

    async def upgrade(self) -> int:
        await asyncio.to_thread(self._prepare, True)
        return await self.current()

    async def close(self) -> None:
        threads, self._threads = self._threads, []
        if threads:
            self._writes.put(None)
            self._reads.put(None)
        for thread in threads:
            await asyncio.to_thread(thread.join)

    def _submit(self, line: "queue.SimpleQueue[_Unit | None]", work: Work[Any]) -> asyncio.Future[Any]:
        if not self._threads:
            raise BackendUnavailable(self.name, "it is closed", "open it first")
        unit = _Unit(work, asyncio.get_running_loop())
        line.put(unit)
        return unit.future

    def _prepare(self, upgrade: bool) -> None:
        try:
            make_private(self.path.parent)
        except OSError as error:
            raise self._translate(error) from error
        # The file holds secrets, so only its owner may read it. SQLite creates the WAL and its index with the same
        # mode. Open only a new file here: closing a file that a connection of this process uses would drop the locks of
        # that connection.
        with suppress(OSError):  # the file exists, or SQLite will report why it cannot be created
            os.close(open_private(str(self.path), os.O_RDWR | os.O_CREAT | os.O_EXCL))
        self._on_own_connection(lambda connection: self._migrate(connection, upgrade))

    def _on_own_connection(self, use: Callable[[_Connection], T]) -> T:
        try:
            connection = self._connect()
            try:
                return use(connection)
            finally:
                connection.close()
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error

    def _migrate(self, connection: _Connection, upgrade: bool) -> None:
        if _version(connection) == 0 and _is_of_another_program(connection):
            raise BadConfig("DATABASE_URL", f"names {self.path}, which is the database of another program", _PATH_FIX)
        queries.check_schema(self.dialect, self.name, _fingerprints(connection), _UNRELEASED_FIX, upgrade=upgrade)
        while _version(connection) < queries.newest(self.dialect):
            _apply_next(connection)
        self._start_clock(connection)

    def _connect(self) -> _Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=BUSY_TIMEOUT_MS / 1000,
            isolation_level=None,
            cached_statements=512,
            factory=_Connection,
        )
        uptime = self._clock.uptime
        try:
            connection.row_factory = sqlite3.Row
            connection.base, connection.at, connection.since = self._anchor
            connection.create_function(
                "shoal_now", 0, lambda: store_time(connection.base + uptime(), connection.at, connection.since)
            )
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _start_clock(self, connection: _Connection) -> None:
        """Re-anchor the store's clock if the machine was rebooted, or if the file was moved to a different machine."""
        if after_boot(_anchor(connection), WallClock.of(self._clock)) is not None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if (anchor := after_boot(_anchor(connection), WallClock.of(self._clock))) is not None:
                    query = queries.load("sqlite")["anchor_machine_clock"]
                    connection.execute(query.sql, query.ordered(asdict(anchor)))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        connection.read_clock()
        self._anchor = (connection.base, connection.at, connection.since)

    def _write_loop(self) -> None:
        connection = None
        while (unit := self._writes.get()) is not None:
            units, last = self._waiting(unit)
            connection = connection or self._connect_for(units)
            if connection is not None:
                self._transact(connection, units)
            for unit in units:
                unit.call()
                _deliver([unit])  # before the calls of the next unit, so that this unit's caller need not wait for them
            if last:
                break
        if connection is not None:
            connection.close()

    def _connect_for(self, units: list[_Unit]) -> _Connection | None:
        """Return a connection for a thread. If connecting fails, these units get the error, and the thread connects
        again for the next units."""
        try:
            return self._connect()
        except Exception as error:
            for unit in units:
                unit.error = self._translate(error)
            return None

    def _waiting(self, first: _Unit) -> tuple[list[_Unit], bool]:
        units = [first]
        while len(units) < MAX_UNITS:
            try:
                unit = self._writes.get_nowait()
            except queue.Empty:
                break
            if unit is None:
                return units, True
            units.append(unit)
        return units, False

    def _transact(self, connection: _Connection, units: list[_Unit]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.read_clock()
            for unit in units:
                self._run_unit(connection, unit, alone=len(units) == 1)
            connection.execute("COMMIT")
        except BaseException as error:
            # The whole transaction failed: none of its units is stored, and every unit gets the error.
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            for unit in units:
                unit.error = unit.error or self._translate(error)

    def _run_unit(self, connection: _Connection, unit: _Unit, *, alone: bool) -> None:
        if alone:
            unit.run(connection)
            return
        connection.execute("SAVEPOINT unit")
        try:
            unit.run(connection)
        except BaseException as error:
            unit.error = self._translate(error)
            if not connection.in_transaction:
                raise  # a full disk rolls the whole transaction back
            connection.execute("ROLLBACK TO unit")
        connection.execute("RELEASE unit")

    def _read_loop(self) -> None:
        connection = None
        while (unit := self._reads.get()) is not None:
            connection = connection or self._connect_for([unit])
            if connection is not None:
                self._look(connection, unit)
            _deliver([unit])
        if connection is not None:
            connection.close()

    def _look(self, connection: _Connection, unit: _Unit) -> None:
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KB}")
            connection.execute("BEGIN")
            connection.read_clock()
            unit.result = run_to_end(unit.work(cast(Tx, SqliteTx(connection))), _SUSPENDED)
        except BaseException as error:
            unit.error = self._translate(error)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _is_full(self) -> bool:
        # If the disk is full, SQLite reports failed writes to the WAL index as I/O errors.
        import shutil

        with suppress(OSError):
            return shutil.disk_usage(self.path.parent).free < FULL_BYTES
        return False

    def _translate(self, error: BaseException) -> BaseException:
        """Translate a driver error into an error of Shoal; return other errors unchanged."""
        if isinstance(error, OSError):
            if error.errno in NO_SPACE:
                return StorageFull(self.name)
            return BadConfig("DATABASE_URL", f"names {self.path}, which cannot be used ({error.strerror})", _PATH_FIX)
        if not isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError):
            return error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            return error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL and self._is_full()):
            return StorageFull(self.name)
        if code == sqlite3.SQLITE_BUSY:
            return BackendUnavailable(self.name, "another process holds its lock", "try again in a moment")
        if code == sqlite3.SQLITE_IOERR:
            return BackendUnavailable(self.name, str(error), "check the disk")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return BadConfig("DATABASE_URL", f"names {self.path}, which cannot be opened ({error})", _PATH_FIX)
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return BadConfig(
                "DATABASE_URL", f"names {self.path}, which is not a usable SQLite file ({error})", _PATH_FIX
            )
        return error


_PERHAPS_FULL = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)  # the WAL or its index could not be created or extended
_UNRELEASED_FIX = "it was created by an unreleased version of Shoal: move the file away, or use another"
_PATH_FIX = "use a file in a folder that exists and is writable, as sqlite:////absolute/path.db"


def _deliver(units: list[_Unit]) -> None:
    for unit in units:
        with suppress(RuntimeError):  # the unit's event loop was closed meanwhile: nobody waits for the outcome
            unit.loop.call_soon_threadsafe(unit.deliver)


def _use_wal(connection: _Connection) -> None:
    """Switch a new file to WAL mode. While another process writes to the file, SQLite refuses the switch immediately,
    without the usual timeout for locks. So take an exclusive lock, which waits, and try again."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")


def _anchor(connection: sqlite3.Connection) -> ClockAnchor:
    return ClockAnchor(
        *connection.execute("SELECT boot, base, at, since, jumped_at, untold FROM store_clock").fetchone()
    )


def _version(connection: _Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _fingerprints(connection: _Connection) -> dict[int, str | None]:
    """Return the fingerprint of each migration when it was applied; None if it was not recorded."""
    made: dict[int, str | None] = dict.fromkeys(range(1, _version(connection) + 1))
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone():
        made |= dict(connection.execute("SELECT version, fingerprint FROM schema_version").fetchall())
    return made


def _is_of_another_program(connection: _Connection) -> bool:
    # Check both conditions in one statement, because another process may be creating our schema right now.
    query = (
        "SELECT user_version = 0 AND EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table') FROM pragma_user_version"
    )
    return bool(connection.execute(query).fetchone()[0])


def _apply_next(connection: _Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        steps = queries.missing("sqlite", _version(connection))
        if steps:
            for statement in _statements(steps[0].sql):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {steps[0].version:d}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL)"
            )
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (steps[0].version, steps[0].fingerprint))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """Split a script into single statements: `executescript` would commit before it runs."""
    found, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
