"""The chore that stops a process when a newer version of Shoal has upgraded its store."""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.app.drivers import wanted_version
from shoal.base.errors import SchemaMismatch
from shoal.base.service import PassResult

if TYPE_CHECKING:
    from shoal.app.drivers import SqlDatabase

EVERY = timedelta(seconds=10)
FIX = "it was upgraded while this process ran: update Shoal and start it again"


class SchemaWatch:
    """Compares the schema version of the store with that of this program, and calls `stop` once if the store is newer.
    The process raises `error` when it has drained."""

    name = "schema watch"

    def __init__(self, database: "SqlDatabase", stop: Callable[[], None]) -> None:
        self._database = database
        self._stop = stop
        self.error: SchemaMismatch | None = None

    async def run_once(self) -> PassResult:
        found: int = await self._database.read(lambda tx: tx.value("schema_version"))
        wanted = wanted_version(self._database)
        if found <= wanted or self.error is not None:
            return PassResult()
        self.error = SchemaMismatch(self._database.name, found, wanted, FIX)
        self._stop()
        return PassResult(f"stopped this process: {self.error.message}")
