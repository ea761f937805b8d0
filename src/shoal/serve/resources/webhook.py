"""Webhooks, their deliveries, and events."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

import orjson

from shoal.access.token import TokenScope
from shoal.base.clock import moment
from shoal.base.request_form import describe
from shoal.base.text import message, redact_url
from shoal.events.event import EventReceipt
from shoal.events.webhook import Delivery as StoredDelivery
from shoal.events.webhook import DeliveryState
from shoal.events.webhook import Webhook as StoredWebhook
from shoal.events.webhooks import TestDelivery
from shoal.serve.resources.resource import Moment, NextPage, Resource, Verb


class Webhook(Resource, kw_only=True):
    """An HTTP endpoint that receives events."""

    id: Annotated[str, describe("Id of the webhook.")]
    url: Annotated[str, describe("URL that receives the events.")]
    events: Annotated[list[str], describe("Event types to send; empty for all.")]
    enabled: Annotated[bool, describe("Whether events are sent.")]
    reason: Annotated[
        str | None, describe("Why the webhook is disabled: `asked` (by a user), `gone` (response 410) or `failing`.")
    ]
    failing_since: Annotated[Moment | None, describe("Time since which every delivery has failed.")]
    held_until: Annotated[
        Moment | None, describe("No delivery is sent before this time, as the receiver requested with Retry-After.")
    ]
    created_at: Moment

    example: ClassVar = {
        "id": "whk_01hr2v8k3m4n5p6q",
        "url": "https://core.example.com/shoal",
        "events": ["crawl.job.*"],
        "enabled": True,
        "reason": None,
        "failing_since": None,
        "held_until": None,
        "created_at": "2026-03-01T09:00:00Z",
    }

    @classmethod
    def of(cls, webhook: StoredWebhook, **more: Any) -> Self:
        return super().of(
            webhook,
            url=redact_url(webhook.url),
            events=list(webhook.events),
            held_until=moment(webhook.held_until or None),
            **more,
        )


class WebhookSecret(Webhook, kw_only=True):
    """A webhook with its signing secret."""

    secret: Annotated[str, describe("Secret that signs every delivery; shown only in this response.")]

    example: ClassVar = Webhook.example | {"secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"}


class WebhookDetail(Webhook, kw_only=True):
    """A webhook with the state of its queue."""

    waiting: Annotated[int, describe("Deliveries that wait for their first attempt or a retry.")]
    dead: Annotated[int, describe("Deliveries whose last attempt failed.")]

    example: ClassVar = Webhook.example | {"waiting": 0, "dead": 2}


class WebhookList(Resource, kw_only=True):
    items: list[Webhook]

    example: ClassVar = {"items": [Webhook.example]}


class WebhookTest(Resource, kw_only=True):
    """The outcome of a test event."""

    event_id: str
    delivered: Annotated[bool, describe("Whether the receiver accepted the event (2xx).")]
    status: Annotated[int | None, describe("Status of the response; null if there was none.")]
    duration_seconds: Annotated[float, describe("Duration of the request.")]
    error: Annotated[str | None, describe("Why the event was not accepted.")]

    example: ClassVar = {
        "event_id": "evt_01hr2v8k3m4n5p6q",
        "delivered": False,
        "status": 404,
        "duration_seconds": 0.042,
        "error": "the endpoint returned an error (404)",
    }

    @classmethod
    def of(cls, test: TestDelivery) -> Self:
        return super().of(
            test, test.answer, delivered=test.is_delivered, duration_seconds=round(test.took.total_seconds(), 3)
        )


class Event(Resource, kw_only=True):
    """An event in CloudEvents 1.0 format."""

    specversion: Annotated[str, describe("Version of CloudEvents.")]
    id: Annotated[str, describe("Id of the event; all deliveries of the event have the same id.")]
    source: Annotated[str, describe("Always `shoal`.")]
    type: Annotated[str, describe("Type of the event, such as `crawl.completed`.")]
    subject: Annotated[str, describe("Id of the object of the event.")]
    time: Annotated[Moment, describe("When the event happened.")]
    datacontenttype: Annotated[str, describe("Media type of `data`.")]
    sequence: Annotated[str, describe("Sequence number of the event.")]
    data: Annotated[Any, describe("Fields of the event; they depend on its type.")]

    example: ClassVar = {
        "specversion": "1.0",
        "id": "evt_01hr2v8k3m4n5p6q",
        "source": "shoal",
        "type": "crawl.completed",
        "subject": "crl_01hr2v8k3m4n5p6q",
        "time": "2026-03-01T09:00:00Z",
        "datacontenttype": "application/json",
        "sequence": "42",
        "data": {"crawl_id": "crl_01hr2v8k3m4n5p6q", "reason": "drained", "skipped": {"robots": 4}, "message": None},
    }

    @classmethod
    def of(cls, event: EventReceipt) -> Self:
        return cls(**event.attributes(), data=orjson.loads(event.body))


class EventList(Resource, kw_only=True):
    items: list[Event]
    next: Annotated[int, describe("Value of `after` for the next request; always present.")]

    example: ClassVar = {"items": [Event.example], "next": 42}


class EventsReplayed(Resource, kw_only=True):
    replayed: Annotated[int, describe("Number of events that will be sent again.")]


class Delivery(Resource, kw_only=True):
    """The delivery of one event to one webhook."""

    event_id: str
    event_type: Annotated[str, describe("Type of the event.")]
    sequence: Annotated[int, describe("Sequence number of the event.")]
    state: DeliveryState
    attempts: Annotated[int, describe("Number of attempts so far.")]
    next_at: Annotated[Moment | None, describe("Time of the next attempt.")]
    status: Annotated[int | None, describe("HTTP status of the last attempt.")]
    error: Annotated[str | None, describe("Why the last attempt failed.")]

    example: ClassVar = {
        "event_id": Event.example["id"],
        "event_type": Event.example["type"],
        "sequence": 42,
        "state": "dead",
        "attempts": 11,
        "next_at": None,
        "status": 500,
        "error": "the endpoint returned an error (500)",
    }

    @classmethod
    def of(cls, delivery: StoredDelivery) -> Self:
        waits = delivery.state is DeliveryState.WAITING
        return super().of(delivery, next_at=moment(delivery.next_at) if waits else None)


class DeliveryList(Resource, kw_only=True):
    items: list[Delivery]
    next: NextPage

    example: ClassVar = {"items": [Delivery.example], "next": None}


VERBS: Final[Mapping[str, Verb]] = {
    "test": Verb(message("Send a test event"), scope=TokenScope.ADMIN),
    "rotate": Verb(
        message("Replace the secret"),
        question=message("Replace the secret of this webhook?"),
        explanation=message(
            "The new secret is shown only once. For one day, deliveries are also signed with the old secret."
        ),
        scope=TokenScope.ADMIN,
    ),
    "enable": Verb(
        message("Enable"),
        message("The webhook is enabled; it receives the missed events that are still stored."),
        scope=TokenScope.ADMIN,
    ),
    "disable": Verb(
        message("Disable"), message("The webhook is disabled; its events are kept."), scope=TokenScope.ADMIN
    ),
    "remove": Verb(
        message("Remove"),
        message("The webhook was removed."),
        message("Remove this webhook and its queue?"),
        message("Pending deliveries are lost. This cannot be undone."),
        TokenScope.ADMIN,
    ),
}
