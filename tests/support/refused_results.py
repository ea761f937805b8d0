"""A store that refuses some results of page jobs, as if there were a constraint that nobody has thought of."""

import sqlite3
from contextlib import closing

import asyncpg


async def refuse_results(store_url: str, column: str, value: str | int) -> None:
    """Add a constraint: no result may have this value in this column."""
    await _refuse(store_url, column, f"= {value}" if isinstance(value, int) else f"= '{value}'")


async def refuse_all_results(store_url: str) -> None:
    await _refuse(store_url, "job_id", "<> ''")


async def accept_results(store_url: str) -> None:
    """Remove the constraint."""
    sqlite = store_url.startswith("sqlite")
    await _change(store_url, "DROP TRIGGER refused" if sqlite else "ALTER TABLE result DROP CONSTRAINT refused")


async def _refuse(store_url: str, column: str, condition: str) -> None:
    if store_url.startswith("sqlite"):
        refuse = f"WHEN NEW.{column} {condition} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        await _change(store_url, f"CREATE TRIGGER refused BEFORE INSERT ON result {refuse}")
    else:  # not valid: the results that are there may stay
        check = f"CHECK (({column} {condition}) IS NOT TRUE) NOT VALID"
        await _change(store_url, f"ALTER TABLE result ADD CONSTRAINT refused {check}")


async def _change(store_url: str, statement: str) -> None:
    if store_url.startswith("sqlite"):
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"), timeout=60)) as file:
            file.execute(statement)
    else:
        connection = await asyncpg.connect(store_url, timeout=60)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()
