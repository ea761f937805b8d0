"""Test events: sent to one webhook at once, on the way of real ones, and stored nowhere."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import orjson

from shoal.access.audit_hook import AuditHook, no_audit
from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.ids import EventId, new_id
from shoal.egress import Egress
from shoal.events.event import TEST_TYPE, EventReceipt
from shoal.events.sender import Answer, WebhookSender
from shoal.events.store import WebhookStore
from shoal.events.webhook import Webhook
from shoal.events.webhooks import unknown_webhook


@dataclass(frozen=True, slots=True)
class TestDelivery:
    """The outcome of a test event."""

    event_id: EventId
    answer: Answer
    took: timedelta

    @property
    def is_delivered(self) -> bool:
        return self.answer.error is None


class WebhookTester:
    """Sends test events. They are not retried and change nothing about the webhook, which may be disabled."""

    def __init__(self, database: Database, egress: Callable[[], Egress], clock: Clock) -> None:
        self._database = database
        self._store = WebhookStore()
        self._egress = egress
        self._clock = clock

    async def test(self, webhook_id: str, *, audit: AuditHook = no_audit) -> TestDelivery:
        """Send a test event to a webhook, whatever events it wants, and wait for the answer."""

        async def look(tx: Tx) -> tuple[Webhook, int]:
            webhook = await self._store.get(tx, webhook_id)
            if webhook is None:
                raise unknown_webhook(webhook_id)
            await audit(tx, "webhook.tested", webhook_id)
            return webhook, await self._store.now(tx)

        webhook, now = await self._database.run(look)
        data = orjson.dumps({"webhook_id": webhook.id, "message": "This is a test event."}).decode()
        event = EventReceipt(0, EventId(new_id("evt")), TEST_TYPE, webhook.id, data, now)
        sender, began = WebhookSender(self._egress, self._clock), self._clock.monotonic()
        try:
            answer = await sender.send(webhook.url, webhook.secrets(now), event)
        finally:
            sender.close()
        return TestDelivery(event.id, answer, timedelta(seconds=self._clock.monotonic() - began))
