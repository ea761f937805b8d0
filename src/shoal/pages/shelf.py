"""How long job groups are kept: as long as their jobs, and then until they are old themselves."""

from dataclasses import dataclass
from datetime import timedelta

from shoal.base.database import Database
from shoal.pages.jobs_store import GroupStore


@dataclass(slots=True)
class OldGroups:
    """Groups that are over and whose jobs are gone, results and all. Answers `queue.pruner.Shelf`."""

    keep: timedelta
    store: GroupStore
    name: str = "job groups"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        removed = await database.run(lambda tx: self.store.prune(tx, before, limit))
        return removed, removed == limit
