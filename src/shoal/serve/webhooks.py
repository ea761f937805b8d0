"""REST endpoints for webhooks and events."""

import asyncio
from typing import Annotated, ClassVar

from msgspec import Meta
from starlette.responses import Response

from shoal.access.idempotency import Idempotency
from shoal.access.token import TokenScope
from shoal.base.clock import to_micros
from shoal.base.errors import InvalidInput
from shoal.base.request_form import Form, describe
from shoal.events.webhook import DeliveryState, NewWebhook, WebhookChange
from shoal.events.webhooks import MOST_WEBHOOKS, Webhooks, WebhookTester
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json
from shoal.serve.requests import LAST, Paging, number_of, page_of, respond_once
from shoal.serve.resources.resource import Moment
from shoal.serve.resources.webhook import (
    Delivery,
    DeliveryList,
    Event,
    EventList,
    EventsReplayed,
    Webhook,
    WebhookDetail,
    WebhookList,
    WebhookSecret,
    WebhookTest,
)


class DeliveryQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[DeliveryState | None, describe("Only deliveries in this state.")] = None


class EventQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[int, describe("Sequence number of the last event received.", ge=0, le=LAST)] = 0
    limit: Annotated[int, describe("Maximum number of events.", ge=1, le=1000)] = 200
    tail: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        describe("Return only the last events, at most this many; continue with `next`."),
    ] = None

    other_names: ClassVar = {"cursor": "after"}


class ReplayForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The events to send again: one event, or a time range."""

    event_id: Annotated[str, describe("Id of one event.", max_length=64)] | None = None
    since: Annotated[Moment, describe("Events from this time on.")] | None = None
    until: Annotated[Moment, describe("Events before this time.")] | None = None


class WebhookApi:
    """`/api/v1/webhooks` and `/api/v1/events`."""

    def __init__(self, webhooks: Webhooks, tester: WebhookTester, idempotency: Idempotency) -> None:
        self._webhooks = webhooks
        self._tester = tester
        self._idempotency = idempotency

    @endpoint(
        "POST",
        "/api/v1/webhooks",
        scope=TokenScope.ADMIN,
        summary="Create a webhook.",
        body=NewWebhook,
        status=201,
        response=WebhookSecret,
        request_example={"url": "https://core.example.com/shoal", "events": ["crawl.job.*"]},
        idempotency_key=True,
    )
    async def create_webhook(self, request: EndpointRequest[NewWebhook, Nothing]) -> Response:
        """Deliveries are signed as specified by Standard Webhooks; the secret is shown only in this response. A store
        has at most 100 webhooks."""
        return await respond_once(self._idempotency, request, "whk", lambda new: self._create(request, new.subject))

    @endpoint(
        "GET",
        "/api/v1/webhooks",
        scope=TokenScope.READ,
        summary="List webhooks.",
        response=WebhookList,
    )
    async def list_webhooks(self, request: EndpointRequest[Nothing, Nothing]) -> WebhookList:
        """The list has the oldest 100 webhooks. An earlier version of Shoal may have stored more; remove webhooks to
        see the newer ones."""
        found = await self._webhooks.all()
        return WebhookList(items=[Webhook.of(one) for one in found[:MOST_WEBHOOKS]])

    @endpoint(
        "GET",
        "/api/v1/webhooks/{webhook_id}",
        scope=TokenScope.READ,
        summary="Show a webhook and the state of its queue.",
        response=WebhookDetail,
    )
    async def show_webhook(self, request: EndpointRequest[Nothing, Nothing]) -> WebhookDetail:
        webhook, counts = await self._webhooks.get(request.path_param("webhook_id"))
        return WebhookDetail.of(webhook, waiting=counts["waiting"], dead=counts["dead"])

    @endpoint(
        "PATCH",
        "/api/v1/webhooks/{webhook_id}",
        scope=TokenScope.ADMIN,
        summary="Change a webhook.",
        body=WebhookChange,
        response=Webhook,
        request_example={"enabled": True},
    )
    async def change_webhook(self, request: EndpointRequest[WebhookChange, Nothing]) -> Webhook:
        """When a webhook is enabled again, it receives the missed events that are still stored."""
        webhook_id = request.path_param("webhook_id")
        return Webhook.of(await self._webhooks.change(webhook_id, request.body, audit=request.audit))

    @endpoint(
        "DELETE",
        "/api/v1/webhooks/{webhook_id}",
        scope=TokenScope.ADMIN,
        summary="Remove a webhook and its queue.",
        status=204,
    )
    async def remove_webhook(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        await self._webhooks.remove(request.path_param("webhook_id"), audit=request.audit)
        return Response(status_code=204)

    @endpoint(
        "POST",
        "/api/v1/webhooks/{webhook_id}/rotate",
        scope=TokenScope.ADMIN,
        summary="Rotate the secret of a webhook.",
        response=WebhookSecret,
    )
    async def rotate_webhook(self, request: EndpointRequest[Nothing, Nothing]) -> WebhookSecret:
        """For one day, deliveries are also signed with the previous secrets."""
        webhook = await self._webhooks.rotate(request.path_param("webhook_id"), audit=request.audit)
        return WebhookSecret.of(webhook)

    @endpoint(
        "POST",
        "/api/v1/webhooks/{webhook_id}/test",
        scope=TokenScope.ADMIN,
        summary="Send a test event to a webhook.",
        response=WebhookTest,
    )
    async def test_webhook(self, request: EndpointRequest[Nothing, Nothing]) -> WebhookTest:
        """A signed event of the type `webhook.test` is sent immediately, and Shoal waits up to 20 seconds for the
        response. The event is sent even if the webhook is disabled. It is not retried and not listed with the
        deliveries."""
        webhook_id = request.path_param("webhook_id")
        return WebhookTest.of(await self._tester.test(webhook_id, audit=request.audit))

    @endpoint(
        "GET",
        "/api/v1/webhooks/{webhook_id}/deliveries",
        scope=TokenScope.READ,
        summary="List the deliveries of a webhook, newest first.",
        query=DeliveryQuery,
        response=DeliveryList,
    )
    async def list_deliveries(self, request: EndpointRequest[Nothing, DeliveryQuery]) -> DeliveryList:
        query = request.query
        before = number_of(query.cursor) or LAST
        found = await self._webhooks.deliveries(request.path_param("webhook_id"), query.state, before, query.limit + 1)
        deliveries, more = page_of(found, query.limit, lambda delivery: delivery.sequence)
        return DeliveryList(items=[Delivery.of(one) for one in deliveries], next=more)

    @endpoint(
        "POST",
        "/api/v1/webhooks/{webhook_id}/replay",
        scope=TokenScope.ADMIN,
        summary="Send events again.",
        body=ReplayForm,
        status=202,
        response=EventsReplayed,
        request_example={"since": "2026-03-01T09:00:00Z", "until": "2026-03-01T12:00:00Z"},
        response_example={"replayed": 120},
    )
    async def replay_events(self, request: EndpointRequest[ReplayForm, Nothing]) -> EventsReplayed:
        """Give the id of one event, or a time range. For a range, Shoal sends every event in it that the webhook
        subscribes to. The events keep their ids."""
        webhook_id, form = request.path_param("webhook_id"), request.body
        if form.event_id is not None and form.since is None and form.until is None:
            count = await self._webhooks.replay(webhook_id, form.event_id, audit=request.audit)
            return EventsReplayed(replayed=count)
        if form.event_id is not None or form.since is None or form.until is None:
            raise InvalidInput(
                "event_id", "or a time range is required, but not both", "give event_id alone, or since and until"
            )
        since, until = to_micros(form.since), to_micros(form.until)
        count = await self._webhooks.replay_time(webhook_id, since, until, audit=request.audit)
        return EventsReplayed(replayed=count)

    @endpoint(
        "GET",
        "/api/v1/events",
        scope=TokenScope.READ,
        summary="List events in order.",
        query=EventQuery,
        response=EventList,
    )
    async def list_events(self, request: EndpointRequest[Nothing, EventQuery]) -> Response:
        """To receive every event exactly once, send `next` of each response as `after` of the next request. If events
        are large, a response may have fewer items than `limit`; only an empty response means that there are no more
        events yet."""
        query = request.query
        if query.tail is not None:
            if query.after:
                raise InvalidInput("tail", "cannot be combined with after", "pass one of them")
            found = (await self._webhooks.latest(query.tail))[::-1]
        else:
            found = await self._webhooks.events(query.after, query.limit)
        last = found[-1].sequence if found else query.after
        # One page of events may have megabytes.
        return await asyncio.to_thread(lambda: Json(EventList(items=[Event.of(one) for one in found], next=last)))

    async def _create(self, request: EndpointRequest[NewWebhook, Nothing], webhook_id: str) -> Json:
        webhook = await self._webhooks.make(request.body, webhook_id, audit=request.audit)
        headers = {"Location": f"/api/v1/webhooks/{webhook.id}"}
        return Json(WebhookSecret.of(webhook), 201, headers)
