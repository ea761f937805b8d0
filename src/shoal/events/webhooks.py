"""Manages webhooks: create, change, test, replay, remove."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import orjson

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.clock import Clock, span
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput, NotFound, TooLarge
from shoal.base.ids import EventId, new_id
from shoal.base.url import Url
from shoal.egress import AddressRule, Egress, endpoint
from shoal.egress.address import literal
from shoal.events.courier import Answer, WebhookSender
from shoal.events.event import TEST_TYPE, EventReceipt
from shoal.events.store import EventStore, WebhookStore
from shoal.events.webhook import Delivery, NewWebhook, Webhook, WebhookChange, new_secret

OLD_SECRET_FOR = timedelta(hours=24)
MOST_OLD_SECRETS = 3
MOST_WEBHOOKS = 100
BATCH = 1_000
EMPTIED_AT_ONCE = 10_000  # deliveries removed per commit when a webhook is removed
ADDRESS_FIX = "use a public address, or ask the operator to allow its network with SHOAL_ALLOW_NETWORKS"


class Webhooks:
    """Manages webhooks and their deliveries."""

    def __init__(self, database: Database, rule: AddressRule) -> None:
        self._database = database
        self._store = WebhookStore()
        self._events = EventStore()
        self._rule = rule

    async def make(self, form: NewWebhook, webhook_id: str | None = None, *, audit: AuditHook = no_audit) -> Webhook:
        """Create a webhook for events from now on. Only the results of this method and of `rotate` contain the secret.
        Creating a webhook with an existing id changes nothing."""
        self._check_address(form.url)
        secret = form.secret or new_secret()
        webhook = Webhook(webhook_id or new_id("whk"), form.url, tuple(form.events), secret)

        async def commit(tx: Tx) -> Webhook:
            if webhooks := await self._store.all(tx):
                # Webhooks are created one at a time, so that each commit counts the webhooks of earlier commits.
                await self._store.lock(tx, webhooks[0].id)
            if (there := await self._store.get(tx, webhook.id)) is not None:
                return there
            if len(await self._store.all(tx)) >= MOST_WEBHOOKS:
                raise TooLarge("the list of webhooks", f"{MOST_WEBHOOKS} webhooks", "remove one first")
            made = replace(webhook, cursor=await self._events.last(tx), created_at=await self._store.now(tx))
            await self._store.insert(tx, made)
            await audit(tx, "webhook.created", made.id)
            return await self._locked(tx, made.id)

        return await self._database.run(commit)

    async def all(self) -> list[Webhook]:
        return await self._database.read(self._store.all)

    async def get(self, webhook_id: str) -> tuple[Webhook, dict[str, int]]:
        """Return a webhook, with the numbers of its waiting and dead deliveries."""

        async def look(tx: Tx) -> tuple[Webhook, dict[str, int]]:
            return await self._known(tx, webhook_id), await self._store.counts(tx, webhook_id)

        return await self._database.read(look)

    async def change(self, webhook_id: str, change: WebhookChange, *, audit: AuditHook = no_audit) -> Webhook:
        """Change a webhook. If a webhook is enabled again, it gets the events it missed, as far as they are still
        stored."""
        if change.url is not None:
            self._check_address(change.url)

        def changed(webhook: Webhook, now: int) -> Webhook:
            if change.enabled is not None:
                why = None if change.enabled else "asked"
                webhook = replace(webhook, enabled=change.enabled, reason=why, failing_since=None, held_until=0)
            if change.url is not None:  # failures and holds of the old address do not apply to the new address
                webhook = replace(webhook, url=change.url, failing_since=None, held_until=0)
            return webhook if change.events is None else replace(webhook, events=tuple(change.events))

        return await self._update(webhook_id, changed, audit, "webhook.changed")

    async def rotate(self, webhook_id: str, *, audit: AuditHook = no_audit) -> Webhook:
        """Create a new secret. For a day, requests are also signed with the previous secrets. The result contains the
        new secret."""

        def rotated(webhook: Webhook, now: int) -> Webhook:
            old = " ".join(webhook.secrets(now)[:MOST_OLD_SECRETS])  # so rotating twice does not cut off receivers
            return replace(webhook, secret=new_secret(), old_secret=old, old_until=now + span(OLD_SECRET_FOR))

        return await self._update(webhook_id, rotated, audit, "webhook.rotated")

    async def remove(self, webhook_id: str, *, audit: AuditHook = no_audit) -> None:
        """Remove a webhook and its queue. Because the queue may be long, each commit removes only one batch, so that
        other processes can write in between."""

        async def empty(tx: Tx) -> int:
            webhook = await self._locked(tx, webhook_id)
            if webhook.enabled:
                await self._store.save(tx, replace(webhook, enabled=False, reason="asked"))
            return await self._store.empty(tx, webhook_id, EMPTIED_AT_ONCE)

        async def commit(tx: Tx) -> None:
            if not await self._store.remove(tx, webhook_id):
                raise unknown_webhook(webhook_id)
            await audit(tx, "webhook.removed", webhook_id)

        while await self._database.run(empty) == EMPTIED_AT_ONCE:
            pass
        await self._database.run(commit)

    async def deliveries(self, webhook_id: str, state: str | None, before: int, limit: int) -> list[Delivery]:
        async def look(tx: Tx) -> list[Delivery]:
            await self._known(tx, webhook_id)
            return await self._store.deliveries(tx, webhook_id, state, before, limit)

        return await self._database.read(look)

    async def replay(self, webhook_id: str, event_id: str, *, audit: AuditHook = no_audit) -> int:
        """Send one event again, regardless of the state of its delivery."""

        async def commit(tx: Tx) -> int:
            await self._locked(tx, webhook_id)
            event = await self._events.find(tx, event_id)
            if event is None:
                raise NotFound("event", event_id, "the event may have been removed after SHOAL_EVENTS_KEEP")
            await self._store.put(tx, webhook_id, [event.sequence])
            await audit(tx, "webhook.replayed", webhook_id)
            return 1

        return await self._database.run(commit)

    async def replay_time(self, webhook_id: str, since: int, until: int, *, audit: AuditHook = no_audit) -> int:
        """Send the events in a time range again, if the webhook subscribes to them; return their number."""
        if since >= until:
            raise InvalidInput("since", "is not before until", "swap them")
        count, after = 0, (since, 0)
        while True:
            some = partial(self._replay_some, webhook_id, after, until, audit)
            looked, put, after = await self._database.run(some)
            audit = no_audit  # the audit log gets one entry, with the first batch
            count += put
            if looked < BATCH:
                return count

    async def events(self, after: int, limit: int) -> list[EventReceipt]:
        """Return events after a number, in order; the list is empty only if there are no such events. A client that has
        seen a number has missed no smaller number."""
        return await self._database.read(lambda tx: self._events.after(tx, after, limit))

    async def latest(self, limit: int) -> list[EventReceipt]:
        """Return the newest events, newest first; fewer than `limit` if some of them have already been removed."""

        async def look(tx: Tx) -> list[EventReceipt]:
            return await self._events.after(tx, max(0, await self._events.last(tx) - limit), limit)

        return (await self._database.read(look))[::-1]

    async def lag_seconds(self) -> float:
        """Return the lag of the outbox: the age of the oldest event that the forwarder has not numbered yet."""
        return await self._database.read(self._events.lag) / 1e6

    async def _replay_some(
        self, webhook_id: str, after: tuple[int, int], until: int, audit: AuditHook, tx: Tx
    ) -> tuple[int, int, tuple[int, int]]:
        webhook = await self._locked(tx, webhook_id)
        found = await self._events.between(tx, after, until, BATCH)
        wanted = [number for _, number, kind in found if webhook.wants(kind) and number <= webhook.cursor]
        await self._store.put(tx, webhook_id, wanted)
        await audit(tx, "webhook.replayed", webhook_id)
        return len(found), len(wanted), found[-1][:2] if found else after

    async def _update(
        self, webhook_id: str, change: Callable[[Webhook, int], Webhook], audit: AuditHook, action: str
    ) -> Webhook:
        async def commit(tx: Tx) -> Webhook:
            after = change(await self._locked(tx, webhook_id), await self._store.now(tx))
            await self._store.save(tx, after)
            await audit(tx, action, webhook_id)
            return after

        return await self._database.run(commit)

    async def _locked(self, tx: Tx, webhook_id: str) -> Webhook:
        """Return the webhook, locked. The lock order is webhook, then deliveries."""
        webhook = await self._store.lock(tx, webhook_id)
        if webhook is None:
            raise unknown_webhook(webhook_id)
        return webhook

    async def _known(self, tx: Tx, webhook_id: str) -> Webhook:
        webhook = await self._store.get(tx, webhook_id)
        if webhook is None:
            raise unknown_webhook(webhook_id)
        return webhook

    def _check_address(self, url: str) -> None:
        """Reject IP addresses that may not be requested (SSRF protection). Host names are checked when an event is
        sent."""
        host, port = endpoint(Url(url))
        address = literal(host)
        if address is not None and self._rule.judge(address, port, host) is not None:
            raise InvalidInput("url", "has an address or port that is not allowed (SSRF protection)", ADDRESS_FIX)


def unknown_webhook(webhook_id: str) -> NotFound:
    return NotFound("webhook", webhook_id, "list them with `shoal webhooks ls`")


@dataclass(frozen=True, slots=True)
class TestDelivery:
    """The outcome of a test event."""

    event_id: EventId
    answer: Answer
    took: timedelta

    @property
    def is_delivered(self) -> bool:
        return self.answer.ok


class WebhookTester:
    """Sends test events. Test events are not retried and do not change the state of the webhook, which may also be
    disabled."""

    def __init__(self, database: Database, egress: Callable[[], Egress], clock: Clock) -> None:
        self._database = database
        self._store = WebhookStore()
        self._egress = egress
        self._clock = clock

    async def test(self, webhook_id: str, *, audit: AuditHook = no_audit) -> TestDelivery:
        """Send a test event to a webhook, regardless of the events it subscribes to, and wait for the response."""

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
