"""The forwarder: numbers committed events and puts them into the queues of the webhooks that want them."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

from shoal.base.database import Database, Tx
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.events.store import EventStore, WebhookStore

BATCH = 1_000


class EventsNumbered(Signal, frozen=True, kw_only=True):
    """Events were numbered: how many, and the longest time that one of them had waited since its commit."""

    count: int
    waited_seconds: float


class Forwarder:
    """Numbers events and queues them. Several may run at once: each step is one commit under a lock."""

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
