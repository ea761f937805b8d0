"""Events that nobody needs any more: a shelf for the pruner."""

from dataclasses import dataclass
from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Database
from shoal.base.signals import Signal, Signals
from shoal.events.store import EventStore
from shoal.settings import EventSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMissedEvents(Signal):
    """A sink did not take events for so long that they were removed."""

    sink: str


class EventRetention:
    """Answers `queue.pruner.Shelf`. What a webhook waits for is kept however old it is. For the file of events and
    the notes on policies it is kept longer, but not for ever: a file that nobody writes any more looks like one that
    cannot be written just now."""

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
