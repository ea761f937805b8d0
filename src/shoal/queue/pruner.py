"""The pruner: removes old rows, one batch per commit. Each package with a retention period brings its own rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from shoal.base.clock import span
from shoal.base.database import Database
from shoal.base.service import PassResult
from shoal.base.settings import QueueSettings
from shoal.queue.job import RUN_KINDS
from shoal.queue.job_admin_store import JobAdminStore, JobFilter

BATCH = 500
BATCHES = 20  # batches per rule in one pass, so that every rule gets its turn


class RetentionRule(Protocol):
    """Rows that are kept for a limited time. `keep`: how long; `timedelta.max`: for ever."""

    name: str
    keep: timedelta

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        """Remove the rows older than `before` among about `limit` rows, in one commit; return how many, and whether
        there may be more. This must not wait for locks or touch rows that are not final."""
        ...


@dataclass(slots=True)
class JobRetention:
    """Retention of ended jobs: either dead letters or all other ended jobs. Jobs of runs are kept as long as their
    run."""

    name: str
    keep: timedelta
    store: JobAdminStore
    dead: bool
    _after: int = 0  # where the last pass stopped; reset at the end. So the many jobs of runs are not read again

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        which, after = JobFilter(dead=self.dead), self._after
        purged = await database.run(lambda tx: self.store.purge(tx, which, after, before, limit, RUN_KINDS))
        self._after = purged.after or 0
        return purged.count, purged.after is not None


def job_retention(store: JobAdminStore, settings: QueueSettings) -> list[RetentionRule]:
    """Return the retention rules of the queue: one for done and cancelled jobs, one for dead letters, which are kept
    longer."""
    return [
        JobRetention("ended jobs", settings.keep_finished, store, dead=False),
        JobRetention("dead letters", settings.keep_dead, store, dead=True),
    ]


class Pruner:
    """Applies the retention rules. A pass is followed immediately by the next one while there are more rows to
    remove."""

    name = "pruner"

    def __init__(self, database: Database, rules: Sequence[RetentionRule]) -> None:
        self._database = database
        self._rules = list(rules)

    async def run_once(self) -> PassResult:
        now: int = await self._database.read(lambda tx: tx.value("now"))
        passes = {rule.name: await self._prune(rule, now) for rule in self._rules if rule.keep != timedelta.max}
        summary = ", ".join(f"{count} {name}" for name, (count, _) in passes.items() if count)
        more = any(more for _, more in passes.values())
        return PassResult(did=f"removed {summary}" if summary else "", again_in=timedelta(0) if more else None)

    async def _prune(self, rule: RetentionRule, now: int) -> tuple[int, bool]:
        removed, more, before = 0, True, now - span(rule.keep)
        for _ in range(BATCHES):
            count, more = await rule.prune(self._database, before, BATCH)
            removed += count
            if not more:
                break
        return removed, more
