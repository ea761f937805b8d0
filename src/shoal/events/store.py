"""The store contracts of the outbox, of webhooks and of their delivery queues."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from shoal.base.database import Tx
from shoal.events.event import Event, EventReceipt
from shoal.events.webhook import Delivery, Webhook


class ReadingProgress(Struct, frozen=True):
    """How far events have been read, as event numbers; None if nobody reads them in that way."""

    hooks: int | None  # every enabled webhook has them in its queue
    sinks: int | None  # every sink has processed them


class OutboxStore(Protocol):
    async def append(self, tx: Tx, *events: Event) -> None:
        """Store the events, in the commit of the change that they describe."""
        ...


class EventStore(Protocol):
    async def number(self, tx: Tx, limit: int) -> tuple[int, timedelta]:
        """Number the oldest committed events that have no sequence number; return how many, and the longest wait among
        them. Only one transaction numbers at a time: no number is assigned while a smaller one is uncommitted, so a
        reader that has seen a number has missed none before it."""
        ...

    async def lag(self, tx: Tx) -> int:
        """Return how long the oldest event without a number has waited, in microseconds; 0 if there is none."""
        ...

    async def after(self, tx: Tx, sequence: int, limit: int) -> list[EventReceipt]:
        """Return numbered events after `sequence`, in order: up to `limit`, fewer if they are large, and at least one
        if there is one."""
        ...

    async def heads(self, tx: Tx, sequence: int, limit: int) -> list[tuple[int, str]]:
        """Return the numbers and types of the events after `sequence`, in order."""
        ...

    async def find(self, tx: Tx, event_id: str) -> EventReceipt | None: ...

    async def between(self, tx: Tx, after: tuple[int, int], until: int, limit: int) -> list[tuple[int, int, str]]:
        """Return times, numbers and types of the events before `until`, ordered by time, starting after the time and
        number in `after`."""
        ...

    async def last(self, tx: Tx) -> int:
        """Return the last number that was assigned; 0 if there is none."""
        ...

    async def cursor(self, tx: Tx, sink: str) -> int:
        """Return the cursor of a sink: the last event it has taken."""
        ...

    async def move_cursor(self, tx: Tx, sink: str, seen: int, to: int) -> bool:
        """Store the cursor of a sink; return False if it was no longer at `seen`."""
        ...

    async def drop_cursor(self, tx: Tx, sink: str) -> None:
        """Remove the cursor of a sink that reads no more, so that no event is kept for it."""
        ...

    async def last_before(self, tx: Tx, time: int) -> int:
        """Return the number of the last event from before a time; 0 if there is none."""
        ...

    async def progress(self, tx: Tx) -> ReadingProgress: ...

    async def prune(self, tx: Tx, until: int, before: int, limit: int) -> tuple[int, list[str]]:
        """Remove events up to the number `until` and older than `before`, except those that a webhook still has to
        receive. Return how many, and the sinks that missed some: their cursors are removed too, so that an abandoned
        sink does not keep events back again."""
        ...


class WebhookStore(Protocol):
    async def now(self, tx: Tx) -> int:
        """Return the time of the store's clock."""
        ...

    async def insert(self, tx: Tx, webhook: Webhook) -> None:
        """Store a webhook; one with the same id stays as it is."""
        ...

    async def get(self, tx: Tx, webhook_id: str) -> Webhook | None: ...

    async def lock(self, tx: Tx, webhook_id: str) -> Webhook | None:
        """Return the webhook, locked against changes until this transaction ends."""
        ...

    async def all(self, tx: Tx) -> list[Webhook]:
        """Return all webhooks, oldest first."""
        ...

    async def save(self, tx: Tx, webhook: Webhook) -> None: ...

    async def empty(self, tx: Tx, webhook_id: str, limit: int) -> int:
        """Remove up to `limit` deliveries of a webhook; return how many."""
        ...

    async def remove(self, tx: Tx, webhook_id: str) -> bool:
        """Remove a webhook and the rest of its queue."""
        ...

    async def put(self, tx: Tx, webhook_id: str, sequences: Sequence[int]) -> None:
        """Put events into a webhook's queue, due at once, including those that were in it before."""
        ...

    async def hold(self, tx: Tx, webhook_id: str, wait: timedelta) -> None:
        """Send the webhook nothing for `wait`, as it asked."""
        ...

    async def due(self, tx: Tx) -> list[str]:
        """Return the enabled webhooks that are not held and have a delivery due."""
        ...

    async def take(
        self, tx: Tx, webhook_id: str, limit: int, reserved_for: timedelta
    ) -> list[tuple[Delivery, EventReceipt]]:
        """Take due deliveries of a webhook, fewer if they are large, and count an attempt for each. Nobody else takes
        them for `reserved_for`. If the courier dies after sending some of them, they are sent again."""
        ...

    async def give_back(self, tx: Tx, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that were taken but not tried to their previous state."""
        ...

    async def delivered(self, tx: Tx, webhook_id: str, answers: Mapping[int, int | None]) -> None:
        """Mark these deliveries, by sequence number, as delivered, with their response statuses."""
        ...

    async def failed(
        self, tx: Tx, delivery: Delivery, status: int | None, error: str, again_in: timedelta | None
    ) -> None:
        """Record a failed attempt: the delivery waits for the next one, or is dead if there is none. A delivery that
        was replayed meanwhile is left as it is."""
        ...

    async def deliveries(self, tx: Tx, webhook_id: str, state: str | None, before: int, limit: int) -> list[Delivery]:
        """Return deliveries of a webhook, newest first, before a sequence number."""
        ...

    async def counts(self, tx: Tx, webhook_id: str) -> dict[str, int]:
        """Return how many of its deliveries are waiting and how many are dead."""
        ...
