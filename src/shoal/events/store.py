"""The contracts of the outbox and of the webhooks' queues."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.events.event import Event, EventReceipt
from shoal.events.webhook import Delivery, Webhook


class OutboxStore(Protocol):
    async def append(self, tx: Tx, *events: Event) -> None:
        """Keep the events, in the commit of the change that they tell of."""
        ...


class EventStore(Protocol):
    async def number(self, tx: Tx, limit: int) -> tuple[int, int]:
        """Give the oldest committed events that have none their sequence numbers; how many, and for how long one of
        them had waited at most. One at a time: a number is never given while a smaller one is still to be committed, so
        a reader who has seen a number has missed none."""
        ...

    async def after(self, tx: Tx, sequence: int, limit: int) -> list[EventReceipt]:
        """Numbered events after that number, in order: up to so many, and fewer if they are large; at least one if
        there is one."""
        ...

    async def heads(self, tx: Tx, sequence: int, limit: int) -> list[tuple[int, str]]:
        """The numbers and types of the events after that number, in order."""
        ...

    async def find(self, tx: Tx, event_id: str) -> EventReceipt | None: ...

    async def between(self, tx: Tx, after: tuple[int, int], until: int, limit: int) -> list[tuple[int, int, str]]:
        """Moments, numbers and types of the events of a time, in the order of moments: those after that moment and
        number."""
        ...

    async def last(self, tx: Tx) -> int:
        """The last number that was given; 0 if none was."""
        ...

    async def cursor(self, tx: Tx, sink: str) -> int:
        """How far a sink that keeps its own place has come."""
        ...

    async def move_cursor(self, tx: Tx, sink: str, seen: int, to: int) -> bool:
        """Remember how far a sink has come; False if it was no longer where we saw it."""
        ...

    async def prune(self, tx: Tx, before: int, at_last: int, limit: int) -> tuple[int, list[str]]:
        """Forget numbered events from before that time that no webhook waits for and that every sink has taken; those
        from before `at_last` whatever sinks have taken. How many, and the sinks that missed some: their places are
        forgotten too, so that one which is gone for good holds nothing back again."""
        ...


class WebhookStore(Protocol):
    async def now(self, tx: Tx) -> int:
        """What the store's clock shows."""
        ...

    async def insert(self, tx: Tx, webhook: Webhook) -> None:
        """Keep a webhook; one whose id is kept already stays as it is."""
        ...

    async def get(self, tx: Tx, webhook_id: str) -> Webhook | None: ...

    async def lock(self, tx: Tx, webhook_id: str) -> Webhook | None:
        """The webhook, kept from others who would change it until this transaction ends."""
        ...

    async def all(self, tx: Tx) -> list[Webhook]:
        """Every webhook, the oldest first."""
        ...

    async def save(self, tx: Tx, webhook: Webhook) -> None: ...

    async def empty(self, tx: Tx, webhook_id: str, limit: int) -> int:
        """Forget deliveries of a webhook, no more than so many; how many."""
        ...

    async def remove(self, tx: Tx, webhook_id: str) -> bool:
        """Forget a webhook, and what is left in its queue."""
        ...

    async def put(self, tx: Tx, webhook_id: str, sequences: Sequence[int]) -> None:
        """Put events into a webhook's queue, to be sent at once; also those that were in it before."""
        ...

    async def hold(self, tx: Tx, webhook_id: str, wait: timedelta) -> None:
        """Send it nothing for so long: it asked for that."""
        ...

    async def due(self, tx: Tx) -> list[str]:
        """Enabled webhooks that are not held and have a delivery due."""
        ...

    async def take(
        self, tx: Tx, webhook_id: str, limit: int, patience: timedelta
    ) -> list[tuple[Delivery, EventReceipt]]:
        """Due deliveries of a webhook, fewer if they are large, each counted as tried. Nobody else takes them for so
        long: whoever took them and died has perhaps sent them, and they are sent again."""
        ...

    async def give_back(self, tx: Tx, deliveries: Sequence[Delivery]) -> None:
        """Deliveries that were taken and not tried are as they were before."""
        ...

    async def delivered(self, tx: Tx, webhook_id: str, answers: Mapping[int, int | None]) -> None:
        """These deliveries, by their numbers, were answered well, with these statuses."""
        ...

    async def failed(
        self, tx: Tx, delivery: Delivery, status: int | None, error: str, again_in: timedelta | None
    ) -> None:
        """A try failed: it waits for the next, or there is none and it is dead. One that was replayed meanwhile is left
        as it is."""
        ...

    async def deliveries(self, tx: Tx, webhook_id: str, state: str | None, before: int, limit: int) -> list[Delivery]:
        """Deliveries of a webhook, the newest first, before a sequence number."""
        ...

    async def counts(self, tx: Tx, webhook_id: str) -> dict[str, int]:
        """How many of its deliveries wait, and how many are dead."""
        ...
