"""The database contract on PostgreSQL, over a connection pool that the caller creates and closes."""

import asyncpg

from shoal.settings import DatabaseSettings
from shoal.store.sql.postgres import PostgresDatabase


class BorrowedPoolPostgres(PostgresDatabase):
    """The database and schema that the connections of a given pool see. The owner of the pool chooses their session
    settings."""

    def __init__(self, settings: DatabaseSettings, pool: "asyncpg.Pool") -> None:
        super().__init__(settings)
        self._given = pool

    @property
    def name(self) -> str:
        return "PostgreSQL store behind a given pool"

    async def _connect(self) -> "asyncpg.Pool":
        return self._given

    async def close(self) -> None:
        """Release the pool without closing it."""
        self._pool = None
