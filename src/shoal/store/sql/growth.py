"""When connections to PostgreSQL plan their statements again: after the tables have grown.

A connection plans each statement once and keeps the plan. To the planner all indexes of an empty table cost the same,
so a plan that was made then may read a table from end to end. It would stay until the server counts the table, which
takes a minute or more; a crawl finds a million URLs meanwhile.
"""

from typing import Any

from shoal.base.clock import Clock

EVERY_SECONDS = 2.0
EVERY_ROWS = 5_000  # that this process has written in batches
LARGE = 4_096  # pages of 8 KB: above, a plan for fewer of them is as good for more
TABLES = """
    SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace =
        (SELECT relnamespace FROM pg_class WHERE oid = 'schema_version'::regclass)
"""
SIZES = "SELECT pg_relation_size(oid) / 8192 FROM unnest($1::oid[]) AS t (oid)"


class Growth:
    """The sizes of the tables for which the connections of one process have made their plans.

    All connections share it: they plan again when a table is four times as large as the smallest that any of them may
    have planned for. A table that has shrunk needs no other plan.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._look_at = 0.0
        self._rows = 0
        self._tables: list[int] = []
        self._least: list[int] = []
        self._generation = 0
        self._planned: dict[int, int] = {}  # by connection, of which generation its plans are

    def wrote(self, rows: int) -> None:
        """Count rows that were written: a process that writes much looks sooner."""
        self._rows += rows

    def forget(self, pid: int) -> None:
        """A connection is gone."""
        self._planned.pop(pid, None)

    async def keep_up(self, connection: Any) -> None:
        """Look at the sizes, if it is time; and if tables have grown since, let this connection plan again."""
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
    """0 for an empty table, then one more each time that it is four times as large."""
    return (min(pages, LARGE).bit_length() + 1) // 2
