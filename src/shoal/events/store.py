"""The store of events, of webhooks and of their delivery queues. `events.event` fills the outbox."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import orjson
from msgspec import Struct

from shoal.base.clock import span
from shoal.base.database import Tx, readable
from shoal.base.text import storable
from shoal.events.event import EventReceipt
from shoal.events.webhook import Delivery, DeliveryState, Webhook

SCAN = 5_000  # deliveries that one query reads


class ReadingProgress(Struct, frozen=True):
    """How far events have been read, as event numbers; `None` if there is no such reader."""

    hooks: int | None  # every enabled webhook has the events up to here in its queue
    sinks: int | None  # every sink has processed the events up to here


class EventStore:
    """The outbox, from which events are read by number, and the cursors of its readers."""

    async def number(self, tx: Tx, limit: int) -> tuple[int, timedelta]:
        """Number the oldest committed events that have no sequence number; return how many events were numbered, and
        the longest time that one of them had waited. Only one transaction at a time assigns numbers: no number is
        assigned while a smaller one is uncommitted, so a reader that has seen a number has missed no smaller number."""
        last = await tx.value("lock_event_number")
        rows = await tx.all("new_events", limit=limit)
        if rows:
            numbered = [{"id": row["id"], "sequence": last + place} for place, row in enumerate(rows, 1)]
            await tx.many("number_events", numbered)
            await tx.execute("set_last_event", last=last + len(rows))
        return len(rows), timedelta(microseconds=max((row["waited"] for row in rows), default=0))

    async def lag(self, tx: Tx) -> int:
        """Return how long the oldest event without a number has waited, in microseconds; 0 if there is none."""
        rows = await tx.all("new_events", limit=1)
        return max((int(row["waited"]) for row in rows), default=0)

    async def after(self, tx: Tx, sequence: int, limit: int) -> list[EventReceipt]:
        """Return numbered events after `sequence`, in order. Return up to `limit` events, or fewer if they are large,
        but at least one if there is any."""
        heads = readable(await tx.all("sizes_of_events", sequence=sequence, limit=limit))
        last = heads[-1]["sequence"] if heads else sequence
        return [_event(row) for row in await tx.all("events_until", sequence=sequence, last=last)] if heads else []

    async def heads(self, tx: Tx, sequence: int, limit: int) -> list[tuple[int, str]]:
        """Return the numbers and types of the events after `sequence`, in order."""
        return [
            (row["sequence"], row["type"]) for row in await tx.all("event_types_after", sequence=sequence, limit=limit)
        ]

    async def find(self, tx: Tx, event_id: str) -> EventReceipt | None:
        row = await tx.one("event", id=event_id)
        return None if row is None else _event(row)

    async def between(self, tx: Tx, after: tuple[int, int], until: int, limit: int) -> list[tuple[int, int, str]]:
        """Return times, numbers and types of the events before `until`, ordered by time, starting after the time and
        number in `after`."""
        rows = await tx.all("event_types_between", since=after[0], sequence=after[1], until=until, limit=limit)
        return [(row["created_at"], row["sequence"], row["type"]) for row in rows]

    async def last(self, tx: Tx) -> int:
        """Return the last number that was assigned; 0 if there is none."""
        last: int = await tx.value("last_event")
        return last

    async def cursor(self, tx: Tx, sink: str) -> int:
        """Return the cursor of a sink: the last event it has taken."""
        return await tx.value("event_cursor", sink=sink) or 0

    async def move_cursor(self, tx: Tx, sink: str, seen: int, to: int) -> bool:
        """Store the cursor of a sink; return `False` if the stored cursor was no longer `seen`."""
        return await tx.execute("move_event_cursor", sink=sink, seen=seen, moved=to) == 1

    async def drop_cursor(self, tx: Tx, sink: str) -> None:
        """Remove the cursor of a sink that reads no more, so that no event is kept for it."""
        await tx.execute("drop_cursor", sink=sink)

    async def last_before(self, tx: Tx, time: int) -> int:
        """Return the number of the last event from before a time; 0 if there is none."""
        return await tx.value("last_event_before", before=time) or 0

    async def progress(self, tx: Tx) -> ReadingProgress:
        row = await tx.one("least_taken")
        assert row is not None
        return ReadingProgress(row["hooks"], row["sinks"])

    async def prune(self, tx: Tx, until: int, before: int, limit: int) -> tuple[int, list[str]]:
        """Remove events up to the number `until` and older than `before`, except those that a webhook still has to
        receive. Return how many events were removed, and the sinks that had not read some of them. The cursors of these
        sinks are removed too, so that an abandoned sink does not prevent the removal of further events."""
        rows = await tx.all("old_events", until=until, before=before, limit=limit)
        old = [{"sequence": row["sequence"]} for row in rows]
        if not old:
            return 0, []
        await tx.many("forget_deliveries", old)
        await tx.many("forget_events", old)
        missed = await tx.all("forget_cursors", before=old[-1]["sequence"])
        return len(old), sorted(row["sink"] for row in missed)


class WebhookStore:
    """Webhooks, and the events that each webhook still has to receive."""

    async def now(self, tx: Tx) -> int:
        """Return the time of the store's clock."""
        now: int = await tx.value("now")
        return now

    async def insert(self, tx: Tx, webhook: Webhook) -> None:
        """Store a webhook. If the id exists, the stored webhook is not changed."""
        await tx.execute("insert_webhook", **_values(webhook))

    async def get(self, tx: Tx, webhook_id: str) -> Webhook | None:
        return _webhook(await tx.one("webhook", id=webhook_id))

    async def lock(self, tx: Tx, webhook_id: str) -> Webhook | None:
        """Return the webhook, locked against changes until this transaction ends."""
        return _webhook(await tx.one("lock_webhook", id=webhook_id))

    async def all(self, tx: Tx) -> list[Webhook]:
        """Return all webhooks, oldest first."""
        return [found for row in await tx.all("webhooks") if (found := _webhook(row)) is not None]

    async def save(self, tx: Tx, webhook: Webhook) -> None:
        values = _values(webhook)
        del values["created_at"]
        await tx.execute("save_webhook", **values)

    async def empty(self, tx: Tx, webhook_id: str, limit: int) -> int:
        """Remove up to `limit` deliveries of a webhook; return how many."""
        return await tx.execute("empty_webhook", webhook=webhook_id, limit=limit)

    async def remove(self, tx: Tx, webhook_id: str) -> bool:
        """Remove a webhook and the rest of its queue."""
        return await tx.execute("remove_webhook", id=webhook_id) == 1

    async def put(self, tx: Tx, webhook_id: str, sequences: Sequence[int]) -> None:
        """Put events into a webhook's queue, due immediately, even if they were in the queue before."""
        await tx.many("put_deliveries", [{"webhook": webhook_id, "sequence": number} for number in sequences])

    async def hold(self, tx: Tx, webhook_id: str, wait: timedelta) -> None:
        """Send nothing to the webhook for the time `wait`, because the receiver asked for it."""
        await tx.execute("hold_webhook", id=webhook_id, wait=span(wait))

    async def due(self, tx: Tx) -> list[str]:
        """Return the enabled webhooks that are not held and have a delivery due."""
        return [row["id"] for row in await tx.all("due_webhooks")]

    async def take(
        self, tx: Tx, webhook_id: str, limit: int, reserved_for: timedelta
    ) -> list[tuple[Delivery, EventReceipt]]:
        """Take due deliveries of a webhook (fewer if their events are large), and count an attempt for each. No other
        courier takes these deliveries for the time `reserved_for`. If the courier dies after it has sent some of them,
        they are sent again."""
        rows = readable(await tx.all("due_deliveries", webhook=webhook_id, limit=limit))
        if not rows:
            return []
        taken = [
            {"webhook": webhook_id, "sequence": row["sequence"], "reserved_for": span(reserved_for)} for row in rows
        ]
        await tx.many("try_delivery", taken)
        numbers = [row["sequence"] for row in rows]
        events = {row["sequence"]: _event(row) for row in await tx.all("numbered_events", sequences=numbers)}
        return [(_delivery(row), events[row["sequence"]]) for row in rows]

    async def give_back(self, tx: Tx, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that were taken but not tried to their previous state."""
        await tx.many(
            "give_back_deliveries", [(one.webhook, one.sequence, one.attempts, one.next_at) for one in deliveries]
        )

    async def delivered(self, tx: Tx, webhook_id: str, answers: Mapping[int, int | None]) -> None:
        """Mark these deliveries, by sequence number, as delivered, with their response statuses."""
        rows = [{"webhook": webhook_id, "sequence": number, "status": status} for number, status in answers.items()]
        await tx.many("delivered", rows)

    async def failed(
        self, tx: Tx, delivery: Delivery, status: int | None, error: str, again_in: timedelta | None
    ) -> None:
        """Record a failed attempt: the delivery waits for the next attempt, or is dead if this was the last one. A
        delivery that was replayed in the meantime is not changed."""
        await tx.execute(
            "delivery_failed",
            webhook=delivery.webhook,
            sequence=delivery.sequence,
            attempts=delivery.attempts,
            state=DeliveryState.DEAD if again_in is None else DeliveryState.WAITING,
            wait=span(again_in or timedelta(0)),
            status=status,
            error=storable(error),
        )

    async def deliveries(self, tx: Tx, webhook_id: str, state: str | None, before: int, limit: int) -> list[Delivery]:
        """Return deliveries of a webhook, newest first, before a sequence number. Each query reads a limited number of
        deliveries, even if few of them are in the given state."""
        if state == DeliveryState.DEAD:
            rows = await tx.all("deliveries_that_died", webhook=webhook_id, before=before, limit=limit)
            return [_delivery(row) for row in rows]
        which, scan = {"webhook": webhook_id, "state": state}, limit if state is None else SCAN
        rows = await tx.all("deliveries", **which, before=before, scan=scan, limit=limit)
        while state is not None and len(rows) < limit:
            last = await tx.value("delivery_before", webhook=webhook_id, before=before, skip=scan - 1)
            if last is None:
                break
            before = last
            rows += await tx.all("deliveries", **which, before=before, scan=scan, limit=limit - len(rows))
        return [_delivery(row) for row in rows]

    async def counts(self, tx: Tx, webhook_id: str) -> dict[str, int]:
        """Return how many deliveries of a webhook are waiting and how many are dead."""
        waiting = await tx.value("waiting_deliveries", webhook=webhook_id)
        return {"waiting": waiting, "dead": await tx.value("dead_deliveries", webhook=webhook_id)}


def _event(row: Any) -> EventReceipt:
    return EventReceipt(**{name: row[name] for name in EventReceipt.__struct_fields__})


def _delivery(row: Any) -> Delivery:
    values = {name: row[name] for name in Delivery.__slots__}
    return Delivery(**(values | {"state": DeliveryState(values["state"])}))


def _values(webhook: Webhook) -> dict[str, Any]:
    return asdict(webhook) | {"events": orjson.dumps(webhook.events).decode(), "enabled": int(webhook.enabled)}


def _webhook(row: Any) -> Webhook | None:
    if row is None:
        return None
    values = {name: row["seen" if name == "cursor" else name] for name in Webhook.__slots__}
    values |= {"events": tuple(orjson.loads(values["events"])), "enabled": bool(values["enabled"])}
    return Webhook(**values)
