"""Sends events to webhooks, retries with back-off, and disables a webhook that has failed for a long time."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from shoal import __version__
from shoal.base.clock import Clock, span
from shoal.base.database import Database, Tx
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.base.text import redact_url
from shoal.egress import Egress, Limits, Outcome, Request, Response
from shoal.egress.exchange import asked_wait, parse_retry_after
from shoal.events.event import EventReceipt
from shoal.events.store import WebhookStore
from shoal.events.webhook import JITTER, WAITS, Delivery, Webhook, sign

RESPONSE_TIMEOUT = timedelta(seconds=20)  # for a response
LIMITS = Limits(
    connect_timeout=timedelta(seconds=10), total_timeout=RESPONSE_TIMEOUT, max_body_bytes=64_000, cut_body=True
)
LONGEST_HOLD = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of a receiver. `hold`: for how long the receiver asked us to send nothing."""

    status: int | None
    error: str | None  # `None` if the receiver accepted the event
    hold: timedelta | None = None
    code: str | None = None  # error code, if there was no response

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def coded_error(self) -> str | None:
        return f"{self.code}: {self.error}" if self.code else self.error


class WebhookSender:
    """Sends events through its own egress, which is opened for the first event."""

    def __init__(self, egress: Callable[[], Egress], clock: Clock) -> None:
        self._new_egress = egress
        self._egress: Egress | None = None
        self._clock = clock

    async def send(self, url: str, secrets: Sequence[str], event: EventReceipt) -> Answer:
        """Send an event, signed with each of the secrets."""
        if self._egress is None:
            self._egress = self._new_egress()
        body = event.line()
        now = self._clock.micros() // 1_000_000
        headers = (
            ("Content-Type", "application/cloudevents+json; charset=utf-8"),
            ("User-Agent", f"Shoal/{__version__}"),
            ("webhook-id", event.id),
            ("webhook-timestamp", str(now)),
            ("webhook-signature", sign(list(secrets), event.id, now, body)),
        )
        return self._judge(await self._egress.fetch(Request(url, "POST", headers, body, LIMITS)))

    def close(self) -> None:
        egress, self._egress = self._egress, None
        if egress is not None:
            egress.close()

    def _judge(self, outcome: Outcome) -> Answer:
        if not isinstance(outcome, Response):
            return Answer(None, outcome.message, code=outcome.code)
        if 200 <= outcome.status < 300:
            return Answer(outcome.status, None)
        hold = None
        if outcome.status in (429, 502, 503, 504):
            hold = parse_retry_after(asked_wait(outcome.headers.get), self._clock.now(), LONGEST_HOLD)
        redirect = 300 <= outcome.status < 400
        why = (
            "redirects are not followed; set the webhook to the final URL"
            if redirect
            else "the endpoint returned an error"
        )
        return Answer(outcome.status, f"{why} ({outcome.status})", hold)


AT_ONCE = 8  # concurrent deliveries to one webhook; a failing webhook gets one delivery at a time
AT_ONCE_TO_ALL = 200  # concurrent deliveries in all; each may occupy a connection for as long as a response may take
BATCH = 64  # deliveries that one commit takes and the next commit settles
BEGIN_WITHIN = 2.0  # deliveries not started by then are returned, because no other courier can send taken ones
TAKEN_FOR = 3 * RESPONSE_TIMEOUT
GIVE_UP = timedelta(days=5)  # after so much time with only failures, the endpoint is considered gone


class DeliveriesSent(Signal, frozen=True, kw_only=True):
    """The results of one batch of deliveries to one webhook."""

    webhook_id: str
    delivered: int
    failed: int
    dead: int
    error: str | None


class WebhookDisabled(Signal, frozen=True, kw_only=True):
    webhook_id: str
    url: str
    reason: str


class CourierFailed(Signal, frozen=True, kw_only=True):
    """Sending events to a webhook failed on our side, usually because the store could not be reached."""

    webhook_id: str
    error: str


@dataclass(slots=True)
class _Batch:
    """Deliveries that were taken: `left` are not started yet, `sent` have results."""

    webhook: Webhook
    secrets: list[str]
    left: deque[tuple[Delivery, EventReceipt]]
    sent: list[tuple[Delivery, Answer]] = field(default_factory=list)
    all_ok: bool = True


class Courier:
    """The chore that sends deliveries. Several couriers may run at the same time: a delivery that one courier has taken
    is skipped by the others."""

    name = "courier"

    def __init__(
        self,
        database: Database,
        egress: Callable[[], Egress],
        clock: Clock,
        signals: Signals,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self._webhooks = WebhookStore()
        self._sender = WebhookSender(egress, clock)
        self._clock = clock
        self._signals = signals
        self._jitter = jitter
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE_TO_ALL)

    async def run_once(self) -> PassResult:
        """Start sending the due deliveries of every webhook, without waiting for the results."""
        for webhook_id in await self._database.read(self._webhooks.due):
            if webhook_id not in self._serving or self._serving[webhook_id].done():
                self._serving[webhook_id] = asyncio.create_task(self._serve(webhook_id))
        return PassResult()

    async def rest(self) -> None:
        """Wait until no delivery is in progress."""
        await asyncio.gather(*self._serving.values(), return_exceptions=True)
        self._serving.clear()

    async def close(self) -> None:
        for task in self._serving.values():
            task.cancel()
        await self.rest()
        self._sender.close()

    async def _serve(self, webhook_id: str) -> None:
        """Send due deliveries batch by batch; failed deliveries are retried in a later pass."""
        try:
            batch = await self._database.run(lambda tx: self._take(tx, webhook_id))
            while batch is not None:
                batch = await self._round(batch)
        except Exception as error:  # the taken deliveries become due again, and other webhooks must not be affected
            self._signals.emit(CourierFailed(webhook_id=webhook_id, error=f"{type(error).__name__}: {error}"))

    async def _take(self, tx: Tx, webhook_id: str) -> _Batch | None:
        webhook = await self._webhooks.get(tx, webhook_id)
        if webhook is None or not webhook.enabled:
            return None
        return await self._next(tx, webhook)

    async def _next(self, tx: Tx, webhook: Webhook) -> _Batch | None:
        taken = await self._webhooks.take(tx, webhook.id, BATCH, TAKEN_FOR)
        return _Batch(webhook, webhook.secrets(await self._webhooks.now(tx)), deque(taken)) if taken else None

    async def _round(self, batch: _Batch) -> _Batch | None:
        """Send a batch; one commit settles this batch and takes the next one."""
        until = self._clock.monotonic() + BEGIN_WITHIN
        lanes = AT_ONCE if batch.webhook.failing_since is None else 1
        await asyncio.gather(*(self._send_some(batch, until) for _ in range(lanes)))
        after, following = await self._database.run(lambda tx: self._settle(tx, batch))
        self._tell(batch.webhook, batch.sent, after)
        return following

    async def _send_some(self, batch: _Batch, until: float) -> None:
        """Send one delivery after the other and stop at the first failure or when the time is up."""
        while batch.left and batch.all_ok:
            must_wait = self._places.locked()
            async with self._places:
                if not batch.left or (must_wait and self._clock.monotonic() >= until):
                    return
                delivery, event = batch.left.popleft()
                answer = await self._sender.send(batch.webhook.url, batch.secrets, event)
                batch.sent.append((delivery, answer))
                if not answer.ok:
                    batch.all_ok = False
            if self._clock.monotonic() >= until:
                return

    async def _settle(self, tx: Tx, batch: _Batch) -> tuple[Webhook | None, _Batch | None]:
        """Record the results of a batch and the new state of the webhook; if all succeeded, take the next batch."""
        webhook_id, sent = batch.webhook.id, batch.sent
        webhook = await self._webhooks.lock(tx, webhook_id)
        if webhook is None:
            return None, None
        delivered = {delivery.sequence: answer.status for delivery, answer in sent if answer.ok}
        await self._webhooks.delivered(tx, webhook_id, delivered)
        for delivery, answer in sent:
            if not answer.ok:
                again = self._wait(delivery, answer)
                await self._webhooks.failed(tx, delivery, answer.status, answer.coded_error or "", again)
        await self._webhooks.give_back(tx, [delivery for delivery, _ in batch.left])
        answers = [answer for _, answer in sent]
        after = _standing(webhook, answers, await self._webhooks.now(tx))
        if after != webhook:
            await self._webhooks.save(tx, after)
        if holds := [answer.hold for answer in answers if answer.hold]:
            await self._webhooks.hold(tx, webhook_id, max(holds))
        goes_on = after.enabled and batch.all_ok
        return after, await self._next(tx, after) if goes_on else None

    def _wait(self, delivery: Delivery, answer: Answer) -> timedelta | None:
        """Return the delay before the next attempt; `None` after the last attempt. `attempts` includes the current
        attempt."""
        if delivery.attempts > len(WAITS):
            return None
        wait = WAITS[delivery.attempts - 1] * (1 + JITTER * self._jitter())
        return max(wait, answer.hold or timedelta(0))

    def _tell(self, webhook: Webhook, sent: list[tuple[Delivery, Answer]], after: Webhook | None) -> None:
        failed = [(delivery, answer) for delivery, answer in sent if not answer.ok]
        self._signals.emit(
            DeliveriesSent(
                webhook_id=webhook.id,
                delivered=len(sent) - len(failed),
                failed=len(failed),
                dead=sum(self._wait(*one) is None for one in failed),
                error=next((answer.coded_error for _, answer in failed), None),
            )
        )
        if after is not None and not after.enabled and webhook.enabled:
            self._signals.emit(
                WebhookDisabled(webhook_id=webhook.id, url=redact_url(webhook.url), reason=after.reason or "")
            )


def _standing(webhook: Webhook, answers: list[Answer], now: int) -> Webhook:
    """Return the webhook with its state after a batch. `now` is the store's time."""
    if not answers:  # no delivery was sent, because no place was free in time
        return webhook
    if any(answer.status == 410 for answer in answers):
        return replace(webhook, enabled=False, reason="gone")
    if any(answer.ok for answer in answers):
        return replace(webhook, failing_since=None)
    since = webhook.failing_since or now
    if now - since > span(GIVE_UP):
        return replace(webhook, failing_since=since, enabled=False, reason="failing")
    return replace(webhook, failing_since=since)
