"""The database contract on PostgreSQL: connection pool, deadlines, error translation.

The server cancels statements that take too long, but that does not help if the response is lost on the way: a
connection that a router or a proxy has forgotten stays open, and silent. So each statement also has a deadline in this
process (decision 0049).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg

from shoal.base.clock import Clock, SystemClock
from shoal.base.database import Conflict, Effects, Rows, Tx, Work, await_all, call_all, queries
from shoal.base.database.replanning import ReplanOnGrowth
from shoal.base.errors import BackendUnavailable, BadConfig, StorageFull
from shoal.base.settings import DatabaseSettings

T = TypeVar("T")

TRIES = 5
ANSWER_GRACE_SECONDS = 2.0  # added to the server's statement timeout, for the network
# If a deadline is noticed this much too late, this process was busy or stopped. The response may already be there to
# read.
LATE_SECONDS = 1.0
UPGRADE_LOCK = 7_346_019  # arbitrary key of the advisory lock that lets only one process upgrade at a time
SESSION = {
    "application_name": "shoal",
    "idle_in_transaction_session_timeout": "10s",  # ours never idle, and a stopped process must not keep locks
    "timezone": "UTC",
    "enable_seqscan": "off",  # plans are kept: a plan made for a small table must not scan it when it is large
    "enable_sort": "off",  # a sort would read the rest of a crawl for each batch of rows; an index has them in order
    "plan_cache_mode": "force_generic_plan",  # planning a queue statement takes longer than running it
    "jit": "off",  # our statements are short: compiling a statement takes longer than running it
}
IDLE = """
    SELECT pid FROM pg_stat_activity
    WHERE pid = ANY($1) AND state LIKE 'idle%' AND state_change < clock_timestamp() - make_interval(secs => $2)
"""
# Errors after which the unit of work is run again from its start.
CONFLICTS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.InvalidCachedStatementError,  # the schema was upgraded; the driver prepares its statements again
    Conflict,
)
# If a unit of work checks that a key is free and then inserts it, another unit may insert the same key in between. A
# retry then sees the existing row.
RACES = (*CONFLICTS, asyncpg.UniqueViolationError)
GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a call was cancelled while its connection was lost
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby during a failover
    asyncpg.OutOfMemoryError,
    ConnectionError,
    OSError,
    TimeoutError,
)

SILENT_SECONDS = 2.0  # a connection without a response for this long counts as silent; opening one is faster


class AnswerWatch:
    """Ends a connection whose response is overdue, so that everything that waits for the connection fails. The timeouts
    of the driver would not help: it cancels the statement, and then waits for the same connection to confirm that."""

    __slots__ = ("_connection", "_loop", "_since", "_timer", "expired")

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._on_time)
        self.expired = False

    @property
    def waited_seconds(self) -> float:
        """Return the time since the last statement was sent."""
        return self._loop.time() - self._since

    def expect(self, seconds: float) -> None:
        """Start to wait for the next response."""
        self._timer.cancel()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._on_time)

    def end(self) -> None:
        self.expired = True
        self._connection.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._timer.cancel()
        if self.expired and isinstance(error, GONE):
            raise TimeoutError("a connection fell silent") from error

    def _on_time(self) -> None:
        if self._loop.time() - self._timer.when() > LATE_SECONDS:
            self.expect(LATE_SECONDS)
        else:
            self.end()


class PostgresTx(Effects):
    """An open transaction on one connection of the pool. A statement without a response after `seconds` fails."""

    __slots__ = ("_connection", "_queries", "rows", "seconds", "watch")

    def __init__(self, connection: Any, watch: AnswerWatch, seconds: float) -> None:
        super().__init__()
        self._connection = connection
        self.watch = watch
        self.seconds = seconds
        self.rows = 0  # written in batches
        self._queries = queries.load("postgres")

    async def all(self, query: str, **values: Any) -> list[Any]:
        found = self._expect(query)
        return cast(list[Any], await self._connection.fetch(found.sql, *found.ordered(values)))

    async def one(self, query: str, **values: Any) -> Any | None:
        found = self._expect(query)
        return await self._connection.fetchrow(found.sql, *found.ordered(values))

    async def value(self, query: str, **values: Any) -> Any:
        found = self._expect(query)
        return await self._connection.fetchval(found.sql, *found.ordered(values))

    async def execute(self, query: str, **values: Any) -> int:
        found = self._expect(query)
        return _touched(await self._connection.execute(found.sql, *found.ordered(values)))

    async def many(self, query: str, rows: Rows) -> int:
        found = self._expect(query)
        assert found.arrays, f"{query} takes one row; declare it with `-- batch: arrays`"
        self.rows += len(rows)
        try:
            return _touched(await self._connection.execute(found.sql, *_columns(found, rows))) if rows else 0
        except asyncpg.DataError as error:
            raise error.__cause__ if isinstance(error.__cause__, UnicodeEncodeError) else error from None

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        found = self._expect(query)
        assert found.arrays, f"{query} takes one row; declare it with `-- batch: arrays`"
        self.rows += len(rows)
        return cast(list[Any], await self._connection.fetch(found.sql, *_columns(found, rows))) if rows else []

    def _expect(self, query: str) -> queries.Query:
        self.watch.expect(self.seconds)
        return self._queries[query]


class PostgresDatabase:
    """One PostgreSQL database, and in it the schema that the search path names."""

    dialect = "postgres"
    warning: str | None = None

    def __init__(
        self, settings: DatabaseSettings, clock: Clock | None = None, *, single_statements: bool = False
    ) -> None:
        """With `single_statements`, each unit of work is a single statement and a separate transaction, which takes one
        round trip."""
        self._replanning = ReplanOnGrowth(clock or SystemClock())
        self._attempt = self._one_statement if single_statements else self._transaction
        self._idle_seconds = 0 if single_statements else 300  # latency matters here, so connections are kept open
        self._url = settings.url
        self._pool_size = settings.pool_size
        self._timeout = settings.connect_timeout.total_seconds()
        self._statement_seconds = settings.statement_timeout.total_seconds() + ANSWER_GRACE_SECONDS
        limit = f"{int(settings.statement_timeout.total_seconds() * 1000)}ms"
        self._session = {**SESSION, "statement_timeout": limit, "lock_timeout": limit}
        self._pool: asyncpg.Pool | None = None
        self._connections: dict[int, Any] = {}  # connections of the pool, by pid of their server process
        self._busy: dict[int, AnswerWatch] = {}  # connections in use, by pid of their server process
        self._asked_at = float("-inf")  # when the server was last asked which of them are silent

    @property
    def name(self) -> str:
        return f"PostgreSQL store {_without_secrets(self._url)}"

    async def open(self, *, upgrade: bool = False) -> None:
        """Connect and check the schema. An empty database is initialised. An older schema is upgraded only with
        `upgrade`, otherwise it is an error."""
        self._pool = await self._translated(self._connect)

        async def migrate() -> None:
            async with self._open_pool.acquire(timeout=self._timeout) as connection:
                with AnswerWatch(connection, self._statement_seconds) as watch:
                    await self._migrate(connection, watch, upgrade=upgrade)

        try:
            await self._translated(migrate)
        except BaseException:
            await self.close()
            raise

    async def run(self, work: Work[T], *, within: timedelta | None = None) -> T:
        return await self._translated(lambda: self._retried(self._attempt, work, self._seconds(within)))

    async def once(self, work: Work[T], *, within: timedelta) -> T:
        return await self._translated(lambda: self._retried(self._one_statement, work, self._seconds(within)))

    async def read(self, work: Work[T], *, within: timedelta | None = None) -> T:
        async def on_snapshot() -> T:
            async with (
                self._connection(self._seconds(within)) as (connection, tx),
                _transaction(connection, tx, self._timeout, isolation="repeatable_read", readonly=True),
            ):
                return await work(cast(Tx, tx))

        return await self._translated(on_snapshot)

    async def connect_apart(self, session: Mapping[str, str]) -> Any:
        """Open a connection outside the pool, for callers that must not wait for a free one. The caller closes it."""

        async def call() -> Any:
            _check(self._url)
            settings = {**self._session, **session}
            return await asyncpg.connect(self._url, timeout=self._timeout, server_settings=settings)

        return await self._translated(call)

    async def notify(self, channel: str) -> None:
        """Send an empty notification to all listeners on the channel."""
        await self.run(lambda tx: tx.execute("notify", channel=channel))

    async def check_space(self) -> None:
        """Do nothing: only the server knows its free space, and writes fail when it is full."""

    async def current(self) -> int:
        """Return the schema version of the database; 0 if it is empty. Changes nothing."""
        return max(await self._on_own_connection(lambda connection, _: _applied(connection)), default=0)

    async def upgrade(self) -> int:
        await self._on_own_connection(partial(self._migrate, upgrade=True))
        return await self.current()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), self._timeout)
        except GONE:
            pool.terminate()

    @property
    def _open_pool(self) -> "asyncpg.Pool":
        if self._pool is None:
            raise BackendUnavailable(self.name, "it is closed", "open it first")
        return self._pool

    async def _connect(self) -> "asyncpg.Pool":
        _check(self._url)
        return await asyncpg.create_pool(
            self._url,
            min_size=1,
            max_size=self._pool_size,
            timeout=self._timeout,
            server_settings=self._session,
            statement_cache_size=500,
            max_inactive_connection_lifetime=self._idle_seconds,
            reset=_as_it_is,
            init=self._begin,
        )

    async def _begin(self, connection: Any) -> None:
        pid = connection.get_server_pid()  # the pool's proxy cannot report that the connection was closed
        self._connections[pid] = connection
        connection.add_termination_listener(lambda _: self._forget(pid))

    def _forget(self, pid: int) -> None:
        self._replanning.forget(pid)
        self._connections.pop(pid, None)

    def _seconds(self, within: timedelta | None) -> float:
        """Return the deadline of a statement. It is never shorter than the connect timeout: on a slow network,
        replacing the connection would take even longer."""
        seconds = self._statement_seconds if within is None else within.total_seconds()
        return min(max(seconds, self._timeout), self._statement_seconds)

    async def _acquired(self) -> "tuple[asyncpg.Pool, Any]":
        pool = self._open_pool
        try:
            return pool, await pool.acquire(timeout=self._timeout)
        except TimeoutError:
            if pool.get_size() == pool.get_max_size() and not pool.get_idle_size():
                await self._end_silent_connections()
            raise

    @asynccontextmanager
    async def _connection(self, seconds: float) -> AsyncIterator[tuple[Any, PostgresTx]]:
        """Yield a connection of the pool, and a transaction object for it. Each statement of the unit of work must get
        a response within `seconds`. The statements before it, such as BEGIN, never wait for locks, so their deadline is
        the connect timeout, which finds dead connections sooner."""
        cancelled: asyncio.CancelledError | None = None
        pool, connection = await self._acquired()
        try:
            pid, watch = connection.get_server_pid(), AnswerWatch(connection, self._timeout)
            self._busy[pid] = watch
            try:
                with watch:
                    await self._replanning.keep_up(connection)
                    yield connection, PostgresTx(connection, watch, seconds)
            except asyncio.CancelledError as error:
                cancelled = error
                raise
            finally:
                if watch.expired:
                    await self._end_idle_connections()
                self._busy.pop(pid, None)
                await pool.release(connection)
        except GONE:
            if cancelled is None:
                raise
            # The task was cancelled, and then the connection failed while it was returned to the pool. Raise the
            # cancellation and not that error: a caller that retries after errors would otherwise never stop.
            await self._end_idle_connections()
            raise cancelled from None

    async def _end_silent_connections(self) -> None:
        """End the connections in use whose responses are lost. They are overdue here, but a query on a separate
        connection shows that the server has nothing to do for them. Otherwise they would stay in use until the
        statement timeout."""
        now = asyncio.get_running_loop().time()
        overdue = {pid: watch for pid, watch in self._busy.items() if watch.waited_seconds >= self._timeout}
        if not overdue or now - self._asked_at < self._timeout:
            return
        self._asked_at = now
        with suppress(BackendUnavailable):
            rows = await self._on_own_connection(lambda own, _: own.fetch(IDLE, list(overdue), self._timeout))
            for row in rows:
                if self._busy.get(row["pid"]) is overdue[row["pid"]]:
                    overdue[row["pid"]].end()

    async def _end_idle_connections(self) -> None:
        """Let the pool replace all idle connections. If one connection is silent, the others probably are, too, and
        testing each of them would take one more timeout."""
        for pid, connection in list(self._connections.items()):
            if pid not in self._busy:
                connection.terminate()

    async def _on_own_connection(self, use: Callable[[Any, AnswerWatch], Awaitable[T]]) -> T:
        async def call() -> T:
            connection = await self.connect_apart({})
            try:
                with AnswerWatch(connection, self._statement_seconds) as watch:
                    done = await use(connection, watch)
            except BaseException:
                connection.terminate()  # `close` would wait for the statement in progress
                raise
            await connection.close(timeout=self._timeout)
            return done

        return await self._translated(call)

    async def _retried(self, attempt: Callable[[Work[T], float], Awaitable[T]], work: Work[T], seconds: float) -> T:
        for tried in range(1, TRIES + 1):
            try:
                return await attempt(work, seconds)
            except RACES:
                if tried == TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _one_statement(self, work: Work[T], seconds: float) -> T:
        async with self._connection(seconds) as (_, tx), _undone(tx):
            try:
                done = await work(cast(Tx, tx))
            except asyncio.CancelledError:
                # A heartbeat that has waited too long is cancelled and tried again immediately. The retry must not get
                # another silent connection. But connections to a database that is merely far away are kept, because
                # opening new ones would take even longer.
                if tx.watch.waited_seconds >= min(self._timeout * 0.9, SILENT_SECONDS):
                    await self._end_idle_connections()
                raise
        await self._committed(tx)
        return done

    async def _transaction(self, work: Work[T], seconds: float) -> T:
        async with (
            self._connection(seconds) as (connection, tx),
            _undone(tx),
            _transaction(connection, tx, self._timeout),
        ):
            done = await work(cast(Tx, tx))
        await self._committed(tx)
        for later in tx.later:
            # The unit is committed, and its caller must learn of the commit even if the follow-up work fails.
            with suppress(*RACES, *GONE):
                await self._retried(self._transaction, later, seconds)
        return done

    async def _committed(self, tx: PostgresTx) -> None:
        self._replanning.wrote(tx.rows)
        call_all(tx.callbacks)
        if tx.calls:  # shielded: the transaction is committed, so the calls are made even if the caller is cancelled
            await asyncio.shield(await_all(tx.calls))

    async def _migrate(self, connection: Any, watch: AnswerWatch, *, upgrade: bool) -> None:
        applied = await _applied(connection)
        queries.check_schema(self.dialect, self.name, applied, _UNRELEASED_FIX, upgrade=upgrade)
        if max(applied, default=0) < queries.newest(self.dialect):
            await _upgrade(connection, watch, self._statement_seconds)

    async def _translated(self, call: Callable[[], Awaitable[T]]) -> T:
        """Translate driver errors into errors of Shoal. No other code does this for PostgreSQL."""
        try:
            return await call()
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
            raise BackendUnavailable(self.name, str(error), "check user and password in DATABASE_URL") from error
        except asyncpg.InvalidCatalogNameError as error:
            raise BackendUnavailable(self.name, str(error), "create it, or correct DATABASE_URL") from error
        except asyncpg.DiskFullError as error:
            raise StorageFull(self.name) from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise BadConfig(
                "DATABASE_URL", f"has a user without the permission for this ({error})", "grant the permission"
            ) from error
        except asyncpg.ClientConfigurationError:
            raise BadConfig("DATABASE_URL", "is not a valid URL", _URL_FIX) from None
        except CONFLICTS as error:
            raise BackendUnavailable(self.name, f"{error}", "try again in a moment") from error
        except GONE as error:
            raise BackendUnavailable(
                self.name, _reason_of(error), "check that the server is running and that DATABASE_URL is correct"
            ) from error


@asynccontextmanager
async def _transaction(connection: Any, tx: PostgresTx, end_seconds: float, **options: Any) -> AsyncIterator[None]:
    """Run a transaction. A rollback that takes longer than `end_seconds` ends the connection, because the code that
    cancels a unit of work waits for the rollback."""
    transaction = connection.transaction(**options)
    await transaction.start()
    try:
        yield
    except BaseException:
        tx.watch.expect(end_seconds)
        with suppress(*GONE):
            await transaction.rollback()
        raise
    tx.watch.expect(tx.seconds)
    await transaction.commit()


@asynccontextmanager
async def _undone(tx: PostgresTx) -> AsyncIterator[None]:
    """If the transaction fails, make the calls that undo its changes in other systems."""
    try:
        yield
    except BaseException:
        await await_all(tx.undo_calls)
        raise


_UNRELEASED_FIX = "it was created by an unreleased version of Shoal: use an empty database, or an empty schema"
_URL_FIX = "write it as postgresql://user:password@host:5432/database"


def _reason_of(error: Exception) -> str:
    """Return the cause without the numbers and tuples that drivers add."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    if isinstance(error, asyncpg.InternalClientError):  # the driver's message is about states of its protocol
        return "the connection was lost during a call"
    return str(error) or type(error).__name__


async def _as_it_is(connection: Any) -> None:
    """Return a connection to the pool without a round trip: our transactions change no session settings, and an open
    one is rolled back first."""


def _columns(query: queries.Query, rows: Rows) -> Iterable[tuple[Any, ...]]:
    return zip(*query.rows(rows), strict=True)


def _touched(tag: str) -> int:
    """Return the count at the end of a command tag such as `UPDATE 3`."""
    count = tag.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0


def _check(url: str) -> None:
    """Reject a URL on which the driver would raise a bare error, or an error that contains the password."""
    try:
        parts = urlsplit(url)
        readable = parts.port != 0 and not (parts.username is None and ":" in parts.netloc and parts.port is None)
    except ValueError:
        readable = False
    if not readable:
        raise BadConfig("DATABASE_URL", "is not a valid URL", _URL_FIX)


def _without_secrets(url: str) -> str:
    """Return the URL as it may be shown: host, port and database only."""
    try:
        parts = urlsplit(url)
        place = f"{parts.hostname or 'local'}:{parts.port}" if parts.port else parts.hostname or "local"
    except ValueError:
        return "(invalid URL)"
    return f"{place}{parts.path}"


async def _applied(connection: Any) -> dict[int, str | None]:
    """Return the migrations that were applied, each with its fingerprint at that time; None if it was not recorded."""
    if not await connection.fetchval("SELECT to_regclass('schema_version') IS NOT NULL"):
        return {}
    rows = await connection.fetch("SELECT version, to_jsonb(s) ->> 'fingerprint' FROM schema_version AS s")
    return {row[0]: row[1] for row in rows}


async def _upgrade(connection: Any, watch: AnswerWatch, statement_seconds: float) -> None:
    async with connection.transaction():
        watch.expect(statement_seconds)
        # The lock is held to the end of the transaction, so that only one of several processes that start together
        # upgrades.
        await connection.execute("SELECT pg_advisory_xact_lock($1)", UPGRADE_LOCK)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER, applied_at TIMESTAMPTZ, fingerprint TEXT)"
        )
        found = await connection.fetchval("SELECT coalesce(max(version), 0) FROM schema_version")
        for step in queries.missing("postgres", found):
            watch.expect(statement_seconds * (step.sql.count(";") + 1))  # the server limits each statement
            await connection.execute(step.sql)
            watch.expect(statement_seconds)
            await connection.execute(
                "INSERT INTO schema_version VALUES ($1, now(), $2)", step.version, step.fingerprint
            )


class BorrowedPoolPostgres(PostgresDatabase):
    """A PostgreSQL database on a connection pool that the caller creates and closes. The schema and the session
    settings are those of the pool's connections."""

    def __init__(self, settings: DatabaseSettings, pool: "asyncpg.Pool") -> None:
        super().__init__(settings)
        self._given = pool

    @property
    def name(self) -> str:
        return "PostgreSQL store behind a given pool"

    async def _connect(self) -> "asyncpg.Pool":
        return self._given

    async def _end_silent_connections(self) -> None:
        """Do nothing: silent connections end at their deadlines, because only the pool knows how to open a separate one
        to its server."""

    async def _end_idle_connections(self) -> None:
        """Let the pool replace each connection as soon as it is idle: the pool does not tell which ones are idle
        now."""
        await self._given.expire_connections()

    async def close(self) -> None:
        """Release the pool without closing it."""
        self._pool = None
