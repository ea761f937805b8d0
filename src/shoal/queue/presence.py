"""The presence of workers. Workers note in the store that they are running, so that pages can show whether waiting work
has a worker."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from shoal.base.clock import span
from shoal.base.database import Database
from shoal.base.service import PassResult

NOTE_EVERY: Final = timedelta(seconds=5)
NOTE_COUNTS_FOR: Final = 4 * NOTE_EVERY  # so the stop of the last worker is noticed after this time
NAME: Final = "worker"


class WorkerPresence:
    """A chore of a process with workers: note in the store that a worker leases jobs. All workers of a store share one
    note."""

    name = "worker presence"

    def __init__(self, database: Database, is_leasing: Callable[[], bool]) -> None:
        self._database = database
        self._is_leasing = is_leasing

    async def run_once(self) -> PassResult:
        if self._is_leasing():
            await self._database.run(lambda tx: tx.execute("note_presence", name=NAME, fresh=span(NOTE_EVERY) // 2))
        return PassResult()


async def is_worker_running(database: Database) -> bool:
    """Return whether a worker has recently noted that it leases jobs. This is still true shortly after a worker was
    killed."""
    row = await database.read(lambda tx: tx.one("show_presence", name=NAME, counts_for=span(NOTE_COUNTS_FOR)))
    return row is not None
