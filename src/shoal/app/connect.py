"""Open the store and build the app on it; detect that a newer version of Shoal has upgraded the store."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.app.app import App
from shoal.app.drivers import database_of, single_connection_of, wake_of, wanted_version
from shoal.app.stores import Stores
from shoal.base.clock import SystemClock
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.errors import BadConfig, NotFound, SchemaMismatch
from shoal.base.ids import JobId
from shoal.base.service import PassResult
from shoal.base.settings import Settings
from shoal.base.signals import Signals
from shoal.queue.job import Fence
from shoal.queue.queue import Queue

if TYPE_CHECKING:
    import asyncpg

    from shoal.app.drivers import SqlDatabase


@asynccontextmanager
async def opened(
    settings: Settings,
    signals: Signals | None = None,
    *,
    upgrade: bool = False,
    existing: bool = False,
    controls: bool = False,
) -> AsyncIterator[App]:
    """Open the store, yield the app, and close the store at the end. An embedded store is always upgraded. If it does
    not exist, it is created, unless `existing` is true. `controls`: see `App`."""
    clock = SystemClock()
    signals = signals or Signals()
    database = database_of(settings.database, clock)
    if isinstance(database, SqliteDatabase):
        _check_path(database.path, settings.database.data_dir, existing)
    await database.open(upgrade=upgrade or isinstance(database, SqliteDatabase))
    try:
        stores = Stores(database.dialect, settings, clock, signals)
        app = App(stores, database, wake_of(database, settings.redis, clock, signals), controls=controls)
        try:
            await app.stores.check_redis()
            yield app
        except NotFound as error:
            if error.facts.get("kind") != "crawl":
                raise
            raise error.within(database.name, "list them with `shoal crawls ls`") from error
        finally:
            await app.wake.close()
            app.bodies.close()
            if "audit" in vars(app):
                app.audit.close()
            await app.stores.close()
    finally:
        await database.close()


async def attach(settings: Settings, store: "asyncpg.Pool | SqlDatabase") -> App:
    """Return an app on a store that the caller has opened and will close: either an open Shoal database, or the
    PostgreSQL database of an asyncpg pool. An empty database is initialised."""
    if not isinstance(store, SqliteDatabase):
        from shoal.base.database.postgres import BorrowedPoolPostgres, PostgresDatabase

        if not isinstance(store, PostgresDatabase):
            store = BorrowedPoolPostgres(settings.database, store)
            await store.open()
    return App(Stores(store.dialect, settings, SystemClock(), Signals()), store)


@asynccontextmanager
async def heartbeat_queue(app: App) -> AsyncIterator[Queue]:
    """Yield the queue on a separate connection, only for lease renewal: heartbeats must not wait for other work of the
    process, and on a slow network each should take a single round trip."""
    database = single_connection_of(app.database, app.settings.database, app.clock)
    await database.open()
    try:
        queue = app.queue.on(database)
        await queue.extend([Fence(JobId("none"), 0)])  # prepares the statement before a lease depends on it
        yield queue
    finally:
        await database.close()


def _check_path(store: Path, data_dir: Path, existing: bool) -> None:
    """Refuse to create a store at a mistyped path: only the default store is created together with its folder."""
    if store.parent == data_dir:
        return
    try:
        has_folder, is_there = store.parent.is_dir(), store.exists()
    except OSError:  # the driver reports this error
        return
    if not has_folder:
        fix = "create the folder, or use a file in an existing folder"
        raise BadConfig("DATABASE_URL", f"names {store}, whose folder does not exist", fix)
    if existing and not is_there:
        raise NotFound("store", str(store), "choose the store of your crawls with --store or DATABASE_URL")


SCHEMA_EVERY = timedelta(seconds=10)
_UPGRADED_FIX = "it was upgraded while this process ran: update Shoal and start it again"


class SchemaWatch:
    """A chore that compares the schema version of the store with the version that this program needs, and calls `stop`
    once if the store is newer. The process then drains and raises `error`."""

    name = "schema watch"

    def __init__(self, database: "SqlDatabase", stop: Callable[[], None]) -> None:
        self._database = database
        self._stop = stop
        self.error: SchemaMismatch | None = None

    async def run_once(self) -> PassResult:
        found: int = await self._database.read(lambda tx: tx.value("schema_version"))
        wanted = wanted_version(self._database)
        if found <= wanted or self.error is not None:
            return PassResult()
        self.error = SchemaMismatch(self._database.name, found, wanted, _UPGRADED_FIX)
        self._stop()
        return PassResult(f"stopped this process: {self.error.message}")
