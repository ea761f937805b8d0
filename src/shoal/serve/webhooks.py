"""REST for webhooks and events."""

from typing import Annotated, Any

from msgspec import Struct
from starlette.responses import Response

from shoal.access.idempotency import Idempotency
from shoal.access.scopes import TokenScope
from shoal.base.clock import to_micros
from shoal.base.errors import InvalidInput, NotFound
from shoal.base.request_form import Form, describe
from shoal.events.event import EventReceipt
from shoal.events.webhook import Delivery, DeliveryState, NewWebhook, WebhookChange
from shoal.events.webhooks import Webhooks
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.idempotency import respond_once
from shoal.serve.pagination import LAST, Paging, cursor_of, cut, number_of
from shoal.serve.problems import Json
from shoal.serve.schemas import Moment

EXAMPLE: dict[str, Any] = {
    "id": "whk_01hr2v8k3m4n5p6q",
    "url": "https://core.example.com/shoal",
    "events": ["crawl.job.*"],
    "enabled": True,
    "reason": None,
    "failing_since": None,
    "held_until": None,
    "created_at": "2026-03-01T09:00:00Z",
}
SECRET = {"secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"}
EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "evt_01hr2v8k3m4n5p6q",
    "source": "shoal",
    "type": "crawl.completed",
    "subject": "crl_01hr2v8k3m4n5p6q",
    "time": "2026-03-01T09:00:00Z",
    "datacontenttype": "application/json",
    "sequence": "42",
    "data": {"crawl_id": "crl_01hr2v8k3m4n5p6q", "reason": None},
}


class WebhookShape(Struct, kw_only=True):
    """Somebody who is told of events."""

    id: str
    url: str
    events: Annotated[list[str], describe("Which events; none means all.")]
    enabled: bool
    reason: Annotated[str | None, describe("Why it is not enabled: asked, gone or failing.")]
    failing_since: Annotated[Moment | None, describe("Since when nothing could be delivered.")]
    held_until: Annotated[Moment | None, describe("Nothing is sent before: it asked for that with Retry-After.")]
    created_at: Moment


class NewWebhookShape(WebhookShape, kw_only=True):
    """A webhook with its secret, which is told only here."""

    secret: str


class WebhookDetail(WebhookShape, kw_only=True):
    """A webhook with how its queue stands."""

    waiting: Annotated[int, describe("Deliveries that will be tried, for the first time or again.")]
    dead: Annotated[int, describe("Deliveries whose last try failed.")]


class WebhookList(Struct, kw_only=True):
    items: list[WebhookShape]


class DeliveryShape(Struct, kw_only=True):
    """One event on its way to one webhook."""

    event_id: str
    event_type: str
    sequence: int
    state: DeliveryState
    attempts: int
    next_at: Annotated[Moment | None, describe("When it is tried next.")]
    status: Annotated[int | None, describe("The HTTP status that was answered last.")]
    error: str | None


class DeliveryList(Struct, kw_only=True):
    items: list[DeliveryShape]
    next: Annotated[str | None, describe("The cursor of the next page; null on the last one.")]


class EventShape(Struct, kw_only=True):
    """An event in the words of CloudEvents 1.0."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: Moment
    datacontenttype: str
    sequence: Annotated[str, describe("Its place among all events.")]
    data: Any


class EventList(Struct, kw_only=True):
    items: list[EventShape]
    next: Annotated[int, describe("`after` of the next question, whether there is more or not.")]


class Replayed(Struct, kw_only=True):
    replayed: Annotated[int, describe("How many events will be sent again.")]


class DeliveryFilter(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[DeliveryState | None, describe("Only deliveries in this state.")] = None


class EventFilter(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[int, describe("The sequence number of the last event that you have.", ge=0, le=LAST)] = 0
    limit: Annotated[int, describe("How many events at most.", ge=1, le=1000)] = 200


class Replay(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be sent again: one event, or those of a time."""

    event_id: Annotated[str, describe("One event.", max_length=64)] | None = None
    since: Annotated[Moment, describe("Events from this moment on.")] | None = None
    until: Annotated[Moment, describe("Events before this moment.")] | None = None


class WebhookApi:
    """`/api/v1/webhooks` and `/api/v1/events`."""

    def __init__(self, webhooks: Webhooks, once: Idempotency) -> None:
        self._webhooks = webhooks
        self._once = once

    @endpoint(
        "POST",
        "/api/v1/webhooks",
        scope=TokenScope.ADMIN,
        summary="Have events sent to an address.",
        body=NewWebhook,
        status=201,
        answer=NewWebhookShape,
        request_example={"url": "https://core.example.com/shoal", "events": ["crawl.job.*"]},
        response_example=EXAMPLE | SECRET,
        act="webhook.created",
        once=True,
    )
    async def create_webhook(self, ask: EndpointRequest[NewWebhook, Nothing]) -> Response:
        """The secret signs every delivery as the Standard Webhooks specification says, and is told only now."""
        return await respond_once(self._once, ask, "whk", lambda webhook_id: self._make(ask, webhook_id))

    @endpoint(
        "GET",
        "/api/v1/webhooks",
        scope=TokenScope.READ,
        summary="List webhooks.",
        answer=WebhookList,
        response_example={"items": [EXAMPLE]},
    )
    async def list_webhooks(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json({"items": [webhook.answer() for webhook in await self._webhooks.all()]})

    @endpoint(
        "GET",
        "/api/v1/webhooks/{webhook_id}",
        scope=TokenScope.READ,
        summary="Show one webhook.",
        answer=WebhookDetail,
        response_example=EXAMPLE | {"waiting": 0, "dead": 2},
        problems=[NotFound],
    )
    async def show_webhook(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        webhook, counts = await self._webhooks.get(ask.part("webhook_id"))
        return Json(webhook.answer() | counts)

    @endpoint(
        "PATCH",
        "/api/v1/webhooks/{webhook_id}",
        scope=TokenScope.ADMIN,
        summary="Change a webhook.",
        body=WebhookChange,
        answer=WebhookShape,
        request_example={"enabled": True},
        response_example=EXAMPLE,
        problems=[NotFound],
        act="webhook.changed",
    )
    async def change_webhook(self, ask: EndpointRequest[WebhookChange, Nothing]) -> Json:
        """One that is enabled again gets what it missed, as far as that is kept."""
        return Json((await self._webhooks.change(ask.part("webhook_id"), ask.body, noting=ask.note)).answer())

    @endpoint(
        "DELETE",
        "/api/v1/webhooks/{webhook_id}",
        scope=TokenScope.ADMIN,
        summary="Remove a webhook and its queue.",
        status=204,
        problems=[NotFound],
        act="webhook.removed",
    )
    async def remove_webhook(self, ask: EndpointRequest[Nothing, Nothing]) -> Response:
        await self._webhooks.remove(ask.part("webhook_id"), noting=ask.note)
        return Response(status_code=204)

    @endpoint(
        "POST",
        "/api/v1/webhooks/{webhook_id}/rotate",
        scope=TokenScope.ADMIN,
        summary="Give a webhook a new secret.",
        answer=NewWebhookShape,
        response_example=EXAMPLE | SECRET,
        problems=[NotFound],
        act="webhook.rotated",
    )
    async def rotate_webhook(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """For a day deliveries carry the signatures of those before as well."""
        webhook = await self._webhooks.rotate(ask.part("webhook_id"), noting=ask.note)
        return Json(webhook.answer() | {"secret": webhook.secret})

    @endpoint(
        "GET",
        "/api/v1/webhooks/{webhook_id}/deliveries",
        scope=TokenScope.READ,
        summary="List what was or will be sent to a webhook, the newest first.",
        query=DeliveryFilter,
        answer=DeliveryList,
        response_example={
            "items": [
                {
                    "event_id": EVENT["id"],
                    "event_type": EVENT["type"],
                    "sequence": 42,
                    "state": "dead",
                    "attempts": 11,
                    "next_at": None,
                    "status": 500,
                    "error": "it was answered (500)",
                }
            ],
            "next": None,
        },
        problems=[NotFound],
    )
    async def list_deliveries(self, ask: EndpointRequest[Nothing, DeliveryFilter]) -> Json:
        query = ask.query
        before = number_of(query.cursor) or LAST
        found = await self._webhooks.deliveries(ask.part("webhook_id"), query.state, before, query.limit + 1)
        return Json(cut(found, query.limit, Delivery.answer, lambda one: cursor_of(str(one.sequence))))

    @endpoint(
        "POST",
        "/api/v1/webhooks/{webhook_id}/replay",
        scope=TokenScope.ADMIN,
        summary="Send events again.",
        body=Replay,
        status=202,
        answer=Replayed,
        request_example={"since": "2026-03-01T09:00:00Z", "until": "2026-03-01T12:00:00Z"},
        response_example={"replayed": 120},
        problems=[NotFound],
        act="webhook.replayed",
    )
    async def replay_events(self, ask: EndpointRequest[Replay, Nothing]) -> Json:
        """One by its id, whatever became of it, or those of a time that the webhook wants. Their ids stay the same."""
        webhook_id, wish = ask.part("webhook_id"), ask.body
        if wish.event_id is not None and wish.since is None and wish.until is None:
            count = await self._webhooks.replay(webhook_id, wish.event_id, noting=ask.note)
            return Json({"replayed": count}, status_code=202)
        if wish.event_id is not None or wish.since is None or wish.until is None:
            raise InvalidInput(
                "event_id", "or a time is what a replay needs", "give event_id alone, or since and until"
            )
        since, until = to_micros(wish.since), to_micros(wish.until)
        count = await self._webhooks.replay_time(webhook_id, since, until, noting=ask.note)
        return Json({"replayed": count}, status_code=202)

    @endpoint(
        "GET",
        "/api/v1/events",
        scope=TokenScope.READ,
        summary="Read events in order.",
        query=EventFilter,
        answer=EventList,
        response_example={"items": [EVENT], "next": 42},
    )
    async def list_events(self, ask: EndpointRequest[Nothing, EventFilter]) -> Json:
        """Whoever asks again with `next` of the last answer as `after` misses none and gets none twice. Of large events
        there are fewer in an answer than were asked for; only none at all means that there is none yet."""
        found = await self._webhooks.events(ask.query.after, ask.query.limit)
        last = found[-1].sequence if found else ask.query.after
        return Json({"items": [EventReceipt.answer(one) for one in found], "next": last})

    async def _make(self, ask: EndpointRequest[NewWebhook, Nothing], webhook_id: str) -> Json:
        webhook = await self._webhooks.make(ask.body, webhook_id, noting=ask.note)
        headers = {"Location": f"/api/v1/webhooks/{webhook.id}"}
        return Json(webhook.answer() | {"secret": webhook.secret}, status_code=201, headers=headers)
