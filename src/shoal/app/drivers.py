"""The drivers for the database, for wake-up hints and for stored bodies, chosen by the settings."""

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.app.data_folders import artifact_folder, body_folder
from shoal.base.clock import Clock
from shoal.base.database import queries
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.errors import BadConfig
from shoal.base.extras import require
from shoal.base.settings import DatabaseSettings, RedisSettings, Settings
from shoal.base.signals import Signals
from shoal.drivers.folder_bodies import FolderBodies
from shoal.pages.bodies import BodyStore
from shoal.queue.wake import Wake

if TYPE_CHECKING:
    from shoal.audit.artifacts import ArtifactStore
    from shoal.base.database.postgres import PostgresDatabase

    SqlDatabase = SqliteDatabase | PostgresDatabase


def database_of(settings: DatabaseSettings, clock: Clock) -> "SqlDatabase":
    """Return the database driver for the store's URL."""
    url = settings.url
    if url.startswith("sqlite:///"):
        return SqliteDatabase(Path(url.removeprefix("sqlite:///")).expanduser(), clock)
    if url.startswith(("postgresql://", "postgres://")):
        require("postgres", "A store on PostgreSQL")
        from shoal.base.database.postgres import PostgresDatabase

        return PostgresDatabase(settings, clock)
    raise BadConfig("DATABASE_URL", "is not a store URL that Shoal supports", "use sqlite:////path or postgresql://…")


def wanted_version(database: "SqlDatabase") -> int:
    """Return the schema version that this release of Shoal needs."""
    return queries.newest(database.dialect)


def single_connection_of(database: "SqlDatabase", settings: DatabaseSettings, clock: Clock) -> "SqlDatabase":
    """Return a separate driver for the same store. The driver uses one connection, and opens a second one while the
    first does not respond."""
    if isinstance(database, SqliteDatabase):
        return SqliteDatabase(database.path, clock)
    from shoal.base.database.postgres import PostgresDatabase

    return PostgresDatabase(settings.but(pool_size=2), single_statements=True)


def wake_of(database: "SqlDatabase", settings: RedisSettings, clock: Clock, signals: Signals) -> Wake:
    """Return the driver that carries wake-up hints between the processes on this store. The hints use the same server
    as the lanes."""
    if settings.lanes == "redis":
        from shoal.drivers.redis.connection import LoopRedis
        from shoal.drivers.redis.wake import RedisWake

        return RedisWake(LoopRedis(settings), settings.timeout.total_seconds() / 2, clock, signals)
    if isinstance(database, SqliteDatabase):
        from shoal.queue.wake import SqliteWake

        return SqliteWake(database.path, clock, signals)
    from shoal.queue.wake import PostgresWake

    return PostgresWake(database.connect_apart, database.notify, clock, signals)


def artifacts_of(settings: Settings, clock: Clock, signals: Signals) -> "ArtifactStore":
    """Return the store of analysis files for the configured location."""
    folder = artifact_folder(settings)
    if folder is not None:
        from shoal.drivers.artifacts import FolderArtifacts

        return FolderArtifacts(folder)
    from shoal.drivers.artifacts import S3Artifacts
    from shoal.drivers.s3_bodies import S3Bodies

    place = settings.bodies.but(place=settings.audit.artifacts)
    return S3Artifacts(S3Bodies(place, clock, signals, "SHOAL_ARTIFACTS"))


def bodies_of(settings: Settings, clock: Clock, signals: Signals) -> BodyStore:
    """Return the body store for the configured location."""
    folder = body_folder(settings)
    if folder is not None:
        return FolderBodies(folder, clock)
    from shoal.drivers.s3_bodies import S3Bodies

    return S3Bodies(settings.bodies, clock, signals)
