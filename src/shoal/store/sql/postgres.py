"""The database contract on PostgreSQL: connection pool, statement timeouts, error translation, the server's clock."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg

from shoal.base.clock import Clock, SystemClock
from shoal.base.database import Call, Callback, Conflict, Rows, Tx, Work, await_all, call_all
from shoal.base.errors import BackendUnavailable, BadConfig, SchemaMismatch, StorageFull
from shoal.settings import DatabaseSettings
from shoal.store.sql import migrations, queries
from shoal.store.sql.replanning import ReplanOnGrowth

T = TypeVar("T")

TRIES = 5
UPGRADE_LOCK = 7_346_019  # an arbitrary number for the advisory lock: one upgrade at a time
SESSION = {
    "application_name": "shoal",
    "idle_in_transaction_session_timeout": "10s",  # ours never idle; a stopped process must not keep its locks
    "timezone": "UTC",
    "enable_seqscan": "off",  # plans are kept: one made while a table is small must not scan it when it is large
    "plan_cache_mode": "force_generic_plan",  # planning a queue statement takes longer than running it
    "jit": "off",  # our statements are short; compiling one costs more than running it
}
# Errors that a retry can resolve: the unit of work is run again from its start.
CONFLICTS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError, Conflict)
# A unit that checked whether a key is free and then inserted it may have lost a race: a retry sees the existing row.
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


class PostgresTx:
    """An open transaction on one connection of the pool."""

    __slots__ = ("_connection", "_queries", "callbacks", "calls", "later", "rows", "undo_calls")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.rows = 0  # written in batches
        self.callbacks: list[Callback] = []
        self.calls: list[Call] = []
        self.undo_calls: list[Call] = []
        self.later: list[Work[Any]] = []
        self._queries = queries.load("postgres")

    async def all(self, query: str, **values: Any) -> list[Any]:
        found = self._queries[query]
        return cast(list[Any], await self._connection.fetch(found.sql, *found.ordered(values)))

    async def one(self, query: str, **values: Any) -> Any | None:
        found = self._queries[query]
        return await self._connection.fetchrow(found.sql, *found.ordered(values))

    async def value(self, query: str, **values: Any) -> Any:
        found = self._queries[query]
        return await self._connection.fetchval(found.sql, *found.ordered(values))

    async def execute(self, query: str, **values: Any) -> int:
        found = self._queries[query]
        return _touched(await self._connection.execute(found.sql, *found.ordered(values)))

    async def many(self, query: str, rows: Rows) -> int:
        found = self._queries[query]
        assert found.arrays, f"{query} takes one row; declare it with `-- batch: arrays`"
        self.rows += len(rows)
        try:
            return _touched(await self._connection.execute(found.sql, *_columns(found, rows))) if rows else 0
        except asyncpg.DataError as error:
            raise error.__cause__ if isinstance(error.__cause__, UnicodeEncodeError) else error from None

    async def batch(self, query: str, rows: Rows) -> list[Any]:
        found = self._queries[query]
        assert found.arrays, f"{query} takes one row; declare it with `-- batch: arrays`"
        self.rows += len(rows)
        return cast(list[Any], await self._connection.fetch(found.sql, *_columns(found, rows))) if rows else []

    def on_commit(self, callback: Callback) -> None:
        self.callbacks.append(callback)

    def after_commit(self, call: Call) -> None:
        self.calls.append(call)

    def after_rollback(self, call: Call) -> None:
        self.undo_calls.append(call)

    def afterwards(self, work: Work[Any]) -> None:
        self.later.append(work)


class PostgresDatabase:
    """One PostgreSQL database (and the schema its search path names)."""

    dialect = "postgres"
    warning: str | None = None

    def __init__(
        self, settings: DatabaseSettings, clock: Clock | None = None, *, single_statements: bool = False
    ) -> None:
        """With `single_statements` a unit of work is one statement, which is its own transaction: one round trip."""
        self._replanning = ReplanOnGrowth(clock or SystemClock())
        self._attempt = self._one_statement if single_statements else self._transaction
        self._idle_seconds = 0 if single_statements else 300  # latency matters here, so connections are kept open
        self._url = settings.url
        self._pool_size = settings.pool_size
        self._timeout = settings.connect_timeout.total_seconds()
        limit = f"{int(settings.statement_timeout.total_seconds() * 1000)}ms"
        self._session = {**SESSION, "statement_timeout": limit, "lock_timeout": limit}
        self._pool: asyncpg.Pool | None = None

    @property
    def name(self) -> str:
        return f"PostgreSQL store {_without_secrets(self._url)}"

    async def open(self, *, upgrade: bool = False) -> None:
        """Connect and check the schema. An empty database is initialised; an older one only with `upgrade`."""
        self._pool = await self._translated(self._connect)
        try:
            async with self._pool.acquire(timeout=self._timeout) as connection:
                await self._translated(lambda: self._migrate(connection, upgrade=upgrade))
        except BaseException:
            await self.close()
            raise

    async def run(self, work: Work[T]) -> T:
        return await self._translated(lambda: self._retried(self._attempt, work))

    async def once(self, work: Work[T]) -> T:
        return await self._translated(lambda: self._retried(self._one_statement, work))

    async def read(self, work: Work[T]) -> T:
        async def on_snapshot() -> T:
            async with self._open_pool.acquire(timeout=self._timeout) as connection:
                await self._replanning.keep_up(connection)
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    return await work(cast(Tx, PostgresTx(connection)))

        return await self._translated(on_snapshot)

    async def connect_apart(self, session: Mapping[str, str]) -> Any:
        """Open a connection outside the pool, for callers that must not wait for others; the caller closes it."""

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
        return max(await self._on_own_connection(_applied), default=0)

    async def upgrade(self) -> int:
        await self._on_own_connection(lambda connection: self._migrate(connection, upgrade=True))
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
        connection.add_termination_listener(lambda _: self._replanning.forget(pid))

    async def _on_own_connection(self, use: Callable[[Any], Awaitable[T]]) -> T:
        async def call() -> T:
            connection = await self.connect_apart({})
            try:
                return await use(connection)
            finally:
                await connection.close()

        return await self._translated(call)

    async def _retried(self, attempt: Callable[[Work[T]], Awaitable[T]], work: Work[T]) -> T:
        for tried in range(1, TRIES + 1):
            try:
                return await attempt(work)
            except RACES:
                if tried == TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _one_statement(self, work: Work[T]) -> T:
        async with self._open_pool.acquire(timeout=self._timeout) as connection:
            await self._replanning.keep_up(connection)
            tx = PostgresTx(connection)
            async with _undone(tx):
                done = await work(cast(Tx, tx))
        await self._committed(tx)
        return done

    async def _transaction(self, work: Work[T]) -> T:
        async with self._open_pool.acquire(timeout=self._timeout) as connection:
            await self._replanning.keep_up(connection)
            tx = PostgresTx(connection)
            async with _undone(tx), connection.transaction():
                done = await work(cast(Tx, tx))
        await self._committed(tx)
        for later in tx.later:
            # The unit is committed, and its caller must be told so even if the follow-up work fails.
            with suppress(*RACES, *GONE):
                await self._retried(self._transaction, later)
        return done

    async def _committed(self, tx: PostgresTx) -> None:
        self._replanning.wrote(tx.rows)
        call_all(tx.callbacks)
        if tx.calls:  # made for a caller that is cancelled, too: the transaction is committed
            await asyncio.shield(await_all(tx.calls))

    async def _migrate(self, connection: Any, *, upgrade: bool) -> None:
        wanted = migrations.newest("postgres")
        applied = await _applied(connection)
        found = max(applied, default=0)
        if found > wanted:
            raise SchemaMismatch(self.name, found, wanted, "update Shoal")
        if migrations.differing("postgres", applied) is not None:
            raise SchemaMismatch(self.name, found, wanted, _UNRELEASED_FIX)
        if 0 < found < wanted and not upgrade:
            raise SchemaMismatch(self.name, found, wanted, "run `shoal db upgrade`")
        if found < wanted:
            await _upgrade(connection)

    async def _translated(self, call: Callable[[], Awaitable[T]]) -> T:
        """Translate driver errors into ours; this is the only place that does."""
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
async def _undone(tx: PostgresTx) -> AsyncIterator[None]:
    """Undo elsewhere what was done for a transaction that fails."""
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


async def _upgrade(connection: Any) -> None:
    async with connection.transaction():
        # Held to the end of the transaction, so that processes that start together upgrade once.
        await connection.execute("SELECT pg_advisory_xact_lock($1)", UPGRADE_LOCK)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER, applied_at TIMESTAMPTZ, fingerprint TEXT)"
        )
        found = await connection.fetchval("SELECT coalesce(max(version), 0) FROM schema_version")
        for step in migrations.missing("postgres", found):
            await connection.execute(step.sql)
            await connection.execute(
                "INSERT INTO schema_version VALUES ($1, now(), $2)", step.version, step.fingerprint
            )
