"""A store that refuses some results of page jobs, as if there were a constraint that nobody has thought of."""

import sqlite3
from contextlib import closing

import asyncpg


async def refuse_results(store_url: str, column: str, value: str | int) -> None:
    """Add a constraint: no result may have this value in this column."""
    literal = value if isinstance(value, int) else f"'{value}'"
    if store_url.startswith("sqlite"):
        refuse = f"WHEN NEW.{column} = {literal} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"), timeout=60)) as file:
            file.execute(f"CREATE TRIGGER refused BEFORE INSERT ON result {refuse}")
    else:
        connection = await asyncpg.connect(store_url, timeout=60)
        try:
            await connection.execute(
                f"ALTER TABLE result ADD CONSTRAINT refused CHECK (({column} = {literal}) IS NOT TRUE)"
            )
        finally:
            await connection.close()
