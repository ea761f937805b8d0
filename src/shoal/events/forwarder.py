"""The chores that process the outbox: number events and queue them for webhooks, append events to a file, remove old
events."""

import os
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.base.errors import BadConfig
from shoal.base.machine import open_private
from shoal.base.service import PassResult
from shoal.base.settings import EventSettings
from shoal.base.signals import Signal, Signals
from shoal.events.store import EventStore, ReadingProgress, WebhookStore

BATCH = 1_000


class EventsNumbered(Signal, frozen=True, kw_only=True):
    """Events were numbered: how many, and the longest time that an event had waited since its commit."""

    count: int
    waited_seconds: float


class Forwarder:
    """Numbers events and queues them for webhooks. Several forwarders may run at the same time: each step is one commit
    under a lock."""

    name = "forwarder"

    def __init__(self, database: Database, signals: Signals) -> None:
        self._database = database
        self._events = EventStore()
        self._webhooks = WebhookStore()
        self._signals = signals

    async def run_once(self) -> PassResult:
        numbered, waited = await self._database.run(lambda tx: self._events.number(tx, BATCH))
        if numbered:
            self._signals.emit(EventsNumbered(count=numbered, waited_seconds=max(0.0, waited.total_seconds())))
        more = numbered == BATCH
        for webhook_id in await self._database.read(self._behind):
            more |= await self._database.run(partial(self._fan_out, webhook_id)) == BATCH
        return PassResult(again_in=timedelta(0) if more else None)

    async def _behind(self, tx: Tx) -> list[str]:
        last = await self._events.last(tx)
        return [one.id for one in await self._webhooks.all(tx) if one.enabled and one.cursor < last]

    async def _fan_out(self, webhook_id: str, tx: Tx) -> int:
        """Put the next events into the queue of one webhook; return how many were examined."""
        webhook = await self._webhooks.lock(tx, webhook_id)
        if webhook is None or not webhook.enabled:
            return 0
        events = await self._events.heads(tx, webhook.cursor, BATCH)
        if events:
            await self._webhooks.put(tx, webhook.id, [number for number, kind in events if webhook.wants(kind)])
            await self._webhooks.save(tx, replace(webhook, cursor=events[-1][0]))
        return len(events)


class EventFile:
    """Appends each event to a file at least once. After a crash between writing lines and storing the cursor, the next
    writer writes these lines again, with the same ids."""

    name = "event file"

    def __init__(self, database: Database, path: Path) -> None:
        self._database = database
        self._events = EventStore()
        self._path = path
        self.sink = f"file:{path}"

    async def run_once(self) -> PassResult:
        seen = await self._database.read(lambda tx: self._events.cursor(tx, self.sink))
        events = await self._database.read(lambda tx: self._events.after(tx, seen, BATCH))
        if not events:
            return PassResult()
        self._append(b"".join(one.line() + b"\n" for one in events))
        await self._database.run(lambda tx: self._events.move_cursor(tx, self.sink, seen, events[-1].sequence))
        return PassResult(again_in=timedelta(0))

    def _append(self, lines: bytes) -> None:
        try:
            with open(self._path, "ab+", opener=open_private) as file:
                file.write(_fresh_line(file) + lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadConfig("SHOAL_EVENTS_FILE", f"cannot be written ({error.strerror})", "use another file") from None


def _fresh_line(file: BinaryIO) -> bytes:
    """Return a line break if the last line is incomplete because a write was cut short."""
    if file.seek(0, os.SEEK_END) == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


class SinkMissedEvents(Signal, frozen=True, kw_only=True):
    """A sink fell so far behind that events were removed before the sink had read them."""

    sink: str


class EventRetention:
    """Implements `queue.pruner.RetentionRule`. Events that a webhook still has to receive are kept, no matter how old
    they are. Events that the event file still has to receive are kept longer than others, but not forever, because a
    file that is no longer used looks the same as a file that cannot be written at the moment."""

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
            # First compute the last number that may be removed, so that no pass reads the events that have to be kept.
            until = last_prunable(old, too_old, await self._store.progress(tx))
            return await self._store.prune(tx, until, before, limit)

        count, missed = await database.run(commit)
        for sink in missed:
            self._signals.emit(SinkMissedEvents(sink=sink))
        return count, count == limit


def last_prunable(old: int, too_old: int, progress: ReadingProgress) -> int:
    """Return the number of the last event that may be removed. An event may be removed if it is `old` and every webhook
    and sink has read it. Events up to `too_old` may be removed even if a sink has not read them, but not before every
    webhook has."""
    hooks = old if progress.hooks is None else progress.hooks
    sinks = old if progress.sinks is None else progress.sinks
    return min(old, hooks, max(sinks, too_old))
