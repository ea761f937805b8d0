"""How long job groups are kept: as long as their jobs, and then until they are old themselves; and how long the results
of policies."""

from dataclasses import dataclass
from datetime import timedelta

from shoal.base.database import Database
from shoal.page_jobs.store import GroupStore, Place, ResultStore

BEGIN: Place = (0, 0)


@dataclass(slots=True)
class GroupRetention:
    """Groups that are over and whose jobs are gone, results and all. Answers `queue.pruner.Shelf`."""

    keep: timedelta
    store: GroupStore
    name: str = "job groups"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        removed = await database.run(lambda tx: self.store.prune(tx, before, limit))
        return removed, removed == limit


@dataclass(slots=True)
class ResultRetention:
    """What policies gave long ago. The last success of each stays."""

    keep: timedelta
    store: ResultStore
    name: str = "results of policies"
    _after: Place = BEGIN  # what stays of those before is not looked at again, until the end is reached

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        after = self._after
        removed, place = await database.run(lambda tx: self.store.forget(tx, before, after, limit))
        self._after = place or BEGIN
        return removed, place is not None
