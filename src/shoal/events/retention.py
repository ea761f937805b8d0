"""Retention of events: which of them the pruner may remove."""

from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Database
from shoal.base.signals import Signal, Signals
from shoal.events.store import EventStore
from shoal.settings import EventSettings


class SinkMissedEvents(Signal, frozen=True, kw_only=True):
    """A sink fell so far behind that events it had not read were removed."""

    sink: str


class EventRetention:
    """Implements `queue.pruner.RetentionRule`. Events that a webhook still waits for are kept however old they are. For
    the event file and the run recorder of policies they are kept longer, but not for ever: a file that is no longer
    used looks like one that cannot be written at the moment."""

    name = "events"

    def __init__(self, store: EventStore, settings: EventSettings, signals: Signals) -> None:
        self._store = store
        self._longer = settings.longest - settings.keep
        self._signals = signals
        self.keep: timedelta = settings.keep

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        at_last = before - span(self._longer)
        count, missed = await database.run(lambda tx: self._store.prune(tx, before, at_last, limit))
        for sink in missed:
            self._signals.emit(SinkMissedEvents(sink=sink))
        return count, count == limit
