"""Wake-up hints between the processes on one SQLite file: each polls whether the file changed, and then whether a
new job waits. A job that no worker here can take causes only one wake-up."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.base.clock import Clock
from shoal.base.database import queries
from shoal.base.signals import Signals
from shoal.queue.wake import WakeListeners

LOOK_EVERY = 0.05  # seconds


class SqliteWake:
    """Implements `queue.wake.Wake`. A poll takes microseconds and no lock, and is skipped while no subscriber is idle,
    so it runs on the event loop itself."""

    is_shared = False
    problem = None

    def __init__(self, path: Path, clock: Clock, signals: Signals) -> None:
        self._path = path
        self._clock = clock
        self._listeners = WakeListeners(signals)
        self._seen: int | None = None
        self._waiting: frozenset[str] = frozenset()  # the last job of each lane
        self._looking: asyncio.Task[None] | None = None

    def announce(self) -> None:
        self._listeners.notify()  # other processes see the file change

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on(), name="wake")
        return self._listeners.add(on_hint, is_idle)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def _look_on(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            while True:
                await self._clock.sleep(LOOK_EVERY)
                with suppress(sqlite3.Error):  # busy or unavailable: workers still poll for jobs
                    connection = connection or self._connect()
                    if self._listeners.any_idle and self._job_may_wait(connection):
                        self._listeners.notify()
        finally:
            if connection is not None:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=0, isolation_level=None)

    def _job_may_wait(self, connection: sqlite3.Connection) -> bool:
        seen, self._seen = self._seen, connection.execute("PRAGMA data_version").fetchone()[0]
        if seen == self._seen:
            return False
        rows = connection.execute(queries.load("sqlite")["ends_of_lines"].sql).fetchall()
        before, self._waiting = self._waiting, frozenset(job_id for (job_id,) in rows)
        return not self._waiting <= before
