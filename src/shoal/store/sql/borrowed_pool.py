"""PostgreSQL behind the database port, on a pool that somebody else made and closes."""

import asyncpg

from shoal.settings import DatabaseSettings
from shoal.store.sql.postgres import PostgresDatabase


class BorrowedPoolPostgres(PostgresDatabase):
    """The database and the schema that the connections of a given pool see. Their session settings are its maker's."""

    def __init__(self, settings: DatabaseSettings, pool: "asyncpg.Pool") -> None:
        super().__init__(settings)
        self._given = pool

    @property
    def name(self) -> str:
        return "PostgreSQL store behind a given pool"

    async def _connect(self) -> "asyncpg.Pool":
        return self._given

    async def close(self) -> None:
        """Let go of the pool; it stays open."""
        self._pool = None
