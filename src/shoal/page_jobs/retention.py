"""Retention of job groups, which are kept at least as long as their jobs, and of the results of policies."""

from dataclasses import dataclass
from datetime import timedelta

from shoal.base.database import Database
from shoal.page_jobs.store import GroupStore, Place, ResultStore

BEGIN: Place = (0, 0)


@dataclass(slots=True)
class GroupRetention:
    """Remove ended groups whose jobs are gone, with their results. Implements `queue.pruner.RetentionRule`."""

    keep: timedelta
    store: GroupStore
    name: str = "job groups"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        removed = await database.run(lambda tx: self.store.prune(tx, before, limit))
        return removed, removed == limit


@dataclass(slots=True)
class ResultRetention:
    """Remove old results of policies, except the last success of each."""

    keep: timedelta
    store: ResultStore
    name: str = "results of policies"
    _after: Place = BEGIN  # rows kept before this position are not read again until the end is reached

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        after = self._after
        removed, place = await database.run(lambda tx: self.store.forget(tx, before, after, limit))
        self._after = place or BEGIN
        return removed, place is not None
