"""Makes PostgreSQL connections replan their statements after the tables have grown.

A connection plans each statement once and keeps the plan. For an empty table the planner rates all indexes the same, so
a plan made at that time may scan the whole table later. The plan would stay until the server analyzes the table. That
takes a minute or more, and meanwhile a crawl may find a million URLs.
"""

from typing import Any

from shoal.base.clock import Clock

EVERY_SECONDS = 2.0
EVERY_ROWS = 5_000  # after this many rows written in batches by this process, check the table sizes
LARGE = 4_096  # pages of 8 KB: a plan made for a table of this size also suits larger ones
TABLES = """
    SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace =
        (SELECT relnamespace FROM pg_class WHERE oid = 'schema_version'::regclass)
"""
SIZES = "SELECT pg_relation_size(oid) / 8192 FROM unnest($1::oid[]) AS t (oid)"


class ReplanOnGrowth:
    """Knows the table sizes for which the connections of one process have made their plans, and makes them replan.

    All connections of the process share one object. They replan when a table is four times as large as the smallest
    size that any of them may have planned for. A table that has shrunk needs no new plan.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._look_at = 0.0
        self._rows = 0
        self._tables: list[int] = []
        self._least: list[int] = []
        self._generation = 0
        self._planned: dict[int, int] = {}  # generation of the plans of each connection

    def wrote(self, rows: int) -> None:
        """Count written rows: a process that writes much checks the sizes sooner."""
        self._rows += rows

    def forget(self, pid: int) -> None:
        """Forget a closed connection."""
        self._planned.pop(pid, None)

    async def keep_up(self, connection: Any) -> None:
        """Check the table sizes if it is time, and let this connection replan if tables have grown."""
        now = self._clock.monotonic()
        if now >= self._look_at or self._rows >= EVERY_ROWS:
            self._look_at, self._rows = now + EVERY_SECONDS, 0
            await self._look(connection)
        pid = connection.get_server_pid()
        if self._planned.setdefault(pid, self._generation) != self._generation:
            await connection.execute("DISCARD PLANS")
            self._planned[pid] = self._generation

    async def _look(self, connection: Any) -> None:
        self._tables = self._tables or [row[0] for row in await connection.fetch(TABLES)]
        levels = [_level(row[0] or 0) for row in await connection.fetch(SIZES, self._tables)]
        if any(level > least for level, least in zip(levels, self._least, strict=False)):
            self._generation += 1
            self._least = levels
        else:
            self._least = [min(both) for both in zip(levels, self._least, strict=True)] if self._least else levels


def _level(pages: int) -> int:
    """Return 0 for an empty table, and one more for each factor of four in size."""
    return (min(pages, LARGE).bit_length() + 1) // 2
