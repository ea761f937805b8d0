"""Sending one signed event to a webhook, and judging the answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from shoal import __version__
from shoal.base.clock import Clock
from shoal.base.retry_after import asked_wait, parse_retry_after
from shoal.egress import Egress, Limits, Outcome, Request, Response
from shoal.events.event import EventReceipt
from shoal.events.signature import sign

RESPONSE_TIMEOUT = timedelta(seconds=20)  # for a response
LIMITS = Limits(
    connect_timeout=timedelta(seconds=10), total_timeout=RESPONSE_TIMEOUT, max_body_bytes=64_000, cut_body=True
)
LONGEST_HOLD = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a receiver. `hold`: how long it asked to be sent nothing."""

    status: int | None
    error: str | None  # None: it accepted the event
    hold: timedelta | None = None
    code: str | None = None  # error code, if there was no response


class WebhookSender:
    """Sends events through an egress of its own, which is opened with the first one."""

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
