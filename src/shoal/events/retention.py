"""Retention of events: which of them the pruner may remove."""

from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.base.settings import EventSettings
from shoal.base.signals import Signal, Signals
from shoal.events.store import EventStore, ReadingProgress


class SinkMissedEvents(Signal, frozen=True, kw_only=True):
    """A sink fell so far behind that events it had not read were removed."""

    sink: str


class EventRetention:
    """Implements `queue.pruner.RetentionRule`. Events that a webhook still waits for are kept however old they are. For
    the event file they are kept longer, but not for ever: a file that is no longer used looks like one that cannot be
    written at the moment."""

    name = "events"

    def __init__(self, settings: EventSettings, signals: Signals) -> None:
        self._store = EventStore()
        self._longer = settings.longest - settings.keep
        self._signals = signals
        self.keep: timedelta = settings.keep

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        async def commit(tx: Tx) -> tuple[int, list[str]]:
            old = await self._store.last_before(tx, before)
            too_old = await self._store.last_before(tx, before - span(self._longer))
            # The number is looked up, so that events which are kept are not read again and again.
            until = last_prunable(old, too_old, await self._store.progress(tx))
            return await self._store.prune(tx, until, before, limit)

        count, missed = await database.run(commit)
        for sink in missed:
            self._signals.emit(SinkMissedEvents(sink=sink))
        return count, count == limit


def last_prunable(old: int, too_old: int, progress: ReadingProgress) -> int:
    """Return the last event that may be removed: an old one that every reader has, or one so old that sinks are not
    waited for. Webhooks are."""
    hooks = old if progress.hooks is None else progress.hooks
    sinks = old if progress.sinks is None else progress.sinks
    return min(old, hooks, max(sinks, too_old))
