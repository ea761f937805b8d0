"""Retention of expired boosts."""

from dataclasses import dataclass
from datetime import timedelta

from shoal.base.database import Database
from shoal.plan.store import PolicyStore


@dataclass(slots=True)
class BoostRetention:
    """Remove boosts that expired long ago. Implements `queue.pruner.RetentionRule`."""

    keep: timedelta
    name: str = "priority boosts"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        removed = await database.run(lambda tx: PolicyStore().forget_boosts(tx, before, limit))
        return removed, removed == limit
