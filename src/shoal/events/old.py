"""Events that nobody needs any more: a shelf for the pruner."""

from dataclasses import dataclass
from datetime import timedelta

from shoal.base.database import Database
from shoal.events.store import EventStore


@dataclass(slots=True)
class OldEvents:
    """Answers `queue.pruner.Shelf`. What somebody still waits for is kept however old it is."""

    store: EventStore
    keep: timedelta
    name: str = "events"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        count = await database.run(lambda tx: self.store.prune(tx, before, limit))
        return count, count == limit
