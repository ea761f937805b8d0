"""PostgreSQL schemas, used by one test after the other: created once and reset for each test.

Each schema has its own role, so that connections that are still open when its test is over can be found and closed,
except for those of pools that are kept (kept_pools.py).
Tables that were written to are emptied, numbers begin again, and the rows that a new store has are put back. One whose
definition a test has changed, or whose tables were counted for the planner, is dropped, and another one is made.

A table is emptied by DELETE while it is small: TRUNCATE makes new files for the table and all of its indexes, and every
connection to the database plans again, which costs more than most tests. The planner takes any table of up to ten pages
that was never counted for one of ten pages, so that it sees no difference to a new one.
"""

import asyncio
import secrets
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from shoal.base.database.postgres import PostgresDatabase
from shoal.base.settings import DatabaseSettings
from tests.support.kept_pools import KeptPools

T = TypeVar("T")

PAUSE_SECONDS = 0.002
END_OTHERS = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1 AND pid <> ALL ($2)"
SMALL_BYTES = 10 * 8192
TABLES = """
    SELECT relname, pg_relation_size(oid) AS bytes, reltuples >= 0 AS counted FROM pg_class
    WHERE relnamespace = $1::regnamespace AND relkind = 'r' ORDER BY relname
"""
RESTART_SEQUENCES = """
    SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences
    WHERE schemaname = $1 AND last_value IS NOT NULL
"""
DEFINITION = """
    SELECT sum(hashtextextended(line, 0)) FROM (
        SELECT concat_ws(' ', relname, relkind, relnatts, relchecks, relhastriggers, reloptions) AS line FROM pg_class
        WHERE relnamespace = $1::regnamespace
        UNION ALL
        SELECT concat_ws(' ', relname, attname, atttypid, atttypmod, attcollation, attnotnull, atthasdef, attisdropped)
        FROM pg_attribute
        JOIN pg_class ON pg_class.oid = attrelid AND relnamespace = $1::regnamespace AND relkind = 'r'
        UNION ALL
        SELECT concat_ws(' ', proname, provolatile, prosrc) FROM pg_proc WHERE pronamespace = $1::regnamespace
        UNION ALL
        SELECT concat_ws(' ', conname, contype) FROM pg_constraint WHERE connamespace = $1::regnamespace
    ) AS lines
"""


@dataclass(frozen=True)
class Schema:
    """A schema, its owner of the same name, and its content when it is new."""

    name: str
    url: str
    definition: Decimal
    rows: dict[str, str]  # the rows of the tables that are not empty in a new schema, as JSON


class Schemas:
    """Lends schemas with the tables of Shoal in them. It has a thread: the loop of a test stays untouched."""

    def __init__(self, url: str, pools: KeptPools) -> None:
        self._url = url
        self._pools = pools
        self._thread = ThreadPoolExecutor(1)
        self._runner = self._thread.submit(asyncio.Runner).result()
        self._connection: Any = None
        self._free: list[Schema] = []

    def lend(self, *, empty: bool = False) -> Schema:
        """Return an unused schema; `empty`: without any table."""
        return self._free.pop() if self._free and not empty else self._run(self._make(empty))

    def take_back(self, schema: Schema) -> None:
        if self._run(self._renew(schema)):
            self._free.append(schema)

    def close(self) -> None:
        if self._connection is not None:
            self._run(self._connection.close())
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(self._runner.run, doing).result()

    async def _ask(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            session = {"client_min_messages": "warning", "lock_timeout": "60s"}
            self._connection = await asyncpg.connect(self._url, timeout=60, server_settings=session)
        return self._connection

    async def _make(self, empty: bool) -> Schema:
        name, password = f"t_{secrets.token_hex(8)}", secrets.token_hex(8)
        ask = await self._ask()
        await ask.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{password}'; CREATE SCHEMA {name}")
        url = self._url_of(name, password)
        if empty:
            return Schema(name, url, Decimal(0), {})
        database = PostgresDatabase(DatabaseSettings(url=url))
        await database.open(upgrade=True)
        await database.close()
        self._pools.urls.add(url)
        used = [row["relname"] for row in await ask.fetch(TABLES, name) if row["bytes"]]
        rows = {table: await ask.fetchval(f"SELECT json_agg(t) FROM {name}.{table} AS t") for table in used}
        return Schema(name, url, await ask.fetchval(DEFINITION, name), rows)

    def _url_of(self, name: str, password: str) -> str:
        parts = urlsplit(self._url)
        place = parts.netloc.rpartition("@")[2]
        return urlunsplit(
            parts._replace(netloc=f"{name}:{password}@{place}", query=f"search_path={name}&sslmode=disable")
        )

    async def _renew(self, schema: Schema) -> bool:
        """Return whether it is as new; if not, it is gone."""
        ask = await self._ask()
        await self._end_connections(schema, except_for=self._pools.pids(schema.url))
        tables = await ask.fetch(TABLES, schema.name)
        spoiled = any(table["counted"] for table in tables)
        if spoiled or await ask.fetchval(DEFINITION, schema.name) != schema.definition:
            self._pools.urls.discard(schema.url)
            await self._end_connections(schema, except_for=[])
            await ask.execute(
                f"DROP SCHEMA {schema.name} CASCADE; DROP OWNED BY {schema.name}; DROP ROLE {schema.name}"
            )
            return False
        async with ask.transaction():
            await ask.execute(self._empty(schema, {table["relname"]: table["bytes"] for table in tables}))
            for table, rows in schema.rows.items():
                place = f"{schema.name}.{table}"
                await ask.execute(f"INSERT INTO {place} SELECT * FROM json_populate_recordset(NULL::{place}, $1)", rows)
            await ask.execute(RESTART_SEQUENCES, schema.name)
        return True

    async def _end_connections(self, schema: Schema, except_for: list[int]) -> None:
        ask = await self._ask()
        while await ask.fetchval(END_OTHERS, schema.name, except_for):  # noqa: ASYNC110 (no server reports their end)
            await asyncio.sleep(PAUSE_SECONDS)

    def _empty(self, schema: Schema, sizes: dict[str, int]) -> str:
        """Statements that empty every table; no foreign key is checked, as all of the tables are emptied."""
        small = [f"{schema.name}.{table}" for table, size in sizes.items() if 0 < size <= SMALL_BYTES]
        large = [f"{schema.name}.{table}" for table, size in sizes.items() if size > SMALL_BYTES]
        statements = [f"TRUNCATE {', '.join(large)} CASCADE"] if large else []
        statements += ["SET LOCAL session_replication_role = replica", *(f"DELETE FROM {table}" for table in small)]
        return "; ".join([*statements, "SET LOCAL session_replication_role = DEFAULT"])
