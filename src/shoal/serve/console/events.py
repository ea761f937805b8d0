"""Events: the outbox, webhooks and their deliveries, and the form for a webhook."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.clock import from_micros, to_micros
from shoal.base.errors import InvalidInput, ShoalError
from shoal.base.text import message, redact_url
from shoal.events.webhook import DELIVERY_LABELS, DeliveryState, NewWebhook, WebhookChange
from shoal.events.webhooks import MOST_WEBHOOKS, TestDelivery, Webhooks, WebhookTester
from shoal.serve.console.exports import at_once, batched, listed
from shoal.serve.console.feed import LivePage
from shoal.serve.console.forms import AnyQuery, View, form_endpoint, page_endpoint, read_form
from shoal.serve.console.shell import Notice, Shell, carry_out, sentence
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.requests import LAST
from shoal.serve.resources import webhook as resource
from shoal.serve.resources.webhook import VERBS

SHOWN: Final = 50
BATCH: Final = 500
PLACES: Final = {
    **dict.fromkeys(("crawl.started", "crawl.completed", "crawl.failed", "crawl.stopped"), "/crawls/"),
    **dict.fromkeys(("crawl.job.completed", "crawl.job.failed"), "/jobs/"),
    "analysis.completed": "/analyses/",
    "node.lost": "/fleet/",
}
"""The paths of the objects that events are about."""


class EventsPage(LivePage):
    """`/events`."""

    paths = ("/events",)
    regions = ("events",)
    template, section = "events.html", "events"

    def __init__(self, shell: Shell, webhooks: Webhooks) -> None:
        self._shell = shell
        self._webhooks = webhooks

    @page_endpoint("/events", "Show events.")
    async def show_events(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request, secret="")

    @page_endpoint("/events.{format}", "Download the stored events.", expensive=always)
    async def export_events(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """All events that are still stored, oldest first."""
        found = batched(
            lambda after: self._webhooks.events(after or 0, BATCH), lambda one: one.sequence, resource.Event.of
        )
        return listed(request, "events", resource.Event, found)

    @page_endpoint("/webhooks.{format}", "Download the webhooks.", expensive=always)
    async def export_webhooks(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        rows = [resource.Webhook.of(one) for one in await self._webhooks.all()]
        return listed(request, "webhooks", resource.Webhook, at_once(*rows))

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        found = await self._webhooks.all()
        hooks = [await self._webhooks.get(one.id) for one in found[:MOST_WEBHOOKS]]
        return {
            "others": len(found) - len(hooks),
            "hooks": [(hook, redact_url(hook.url), counts) for hook, counts in hooks],
            "latest": await self._webhooks.latest(SHOWN),
            "lag": await self._webhooks.lag_seconds(),
            "places": PLACES,
            "is_live": True,
        }

    @form_endpoint("/events", "Create a webhook from the form.", TokenScope.ADMIN)
    async def create_webhook_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """The response page shows the secret; it is shown only this once."""
        form = await read_form(request.http)
        try:
            values = {"url": form.get("url"), "events": form.get("events").split()}
            webhook = await self._webhooks.make(NewWebhook.read(values), audit=request.audit)
        except ShoalError as error:
            return self._shell.refused("/events", error)
        return await self.shown(request, secret=webhook.secret, topic=None)


REPLAYED: Final = message("The event will be sent again.")
TIME_FORM: Final = "%Y-%m-%dT%H:%M"  # format of date and time fields


class WebhookPage(LivePage):
    """`/events/{webhook_id}`."""

    paths = ("/events/{webhook_id}",)
    regions = ("webhook",)
    template, section, query = "webhook.html", "events", ("state",)

    def __init__(self, shell: Shell, webhooks: Webhooks, tester: WebhookTester) -> None:
        self._shell = shell
        self._webhooks = webhooks
        self._tester = tester

    @page_endpoint("/events/{webhook_id}", "Show a webhook.")
    async def show_webhook_page(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request, secret="")

    @page_endpoint("/events/{webhook_id}/deliveries.{format}", "Download the deliveries.", expensive=always)
    async def export_deliveries(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """The deliveries in the state of the query, newest first."""
        hook, _ = await self._webhooks.get(request.path_param("webhook_id"))
        state = _known_state(request.http.query_params)
        found = batched(
            lambda before: self._webhooks.deliveries(hook.id, state, LAST if before is None else before, BATCH),
            lambda one: one.sequence,
            resource.Delivery.of,
        )
        return listed(request, f"{hook.id}.deliveries", resource.Delivery, found)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        hook, counts = await self._webhooks.get(params["webhook_id"])
        state = _known_state(params)
        return {
            "hook": hook,
            "address": redact_url(hook.url),
            "counts": counts,
            "state": state,
            "states": DELIVERY_LABELS,
            "deliveries": await self._webhooks.deliveries(hook.id, state, LAST, SHOWN),
            "is_live": True,
        }

    @form_endpoint("/events/{webhook_id}/actions", "Enable or disable a webhook.", TokenScope.ADMIN)
    async def switch_webhook(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, webhook_id = await read_form(request.http), request.path_param("webhook_id")
        language, action = self._shell.view(request.http).language, form.get("action")
        if action not in ("enable", "disable"):
            raise InvalidInput("action", "is not known", "use enable or disable")
        change = WebhookChange(enabled=action == "enable")
        return await carry_out(
            self._shell,
            f"/events/{webhook_id}",
            lambda: self._webhooks.change(webhook_id, change, audit=request.audit),
            language(VERBS[action].done),
        )

    @form_endpoint(
        "/events/{webhook_id}/replay", "Send an event, or the events of a time range, again.", TokenScope.ADMIN
    )
    async def replay_event(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, webhook_id = await read_form(request.http), request.path_param("webhook_id")
        language = self._shell.view(request.http).language

        async def replay() -> str:
            if event_id := form.get("event_id"):
                await self._webhooks.replay(webhook_id, event_id, audit=request.audit)
                return language(REPLAYED)
            since, until = (_time(name, form.get(name)) for name in ("since", "until"))
            count = await self._webhooks.replay_time(webhook_id, since, until, audit=request.audit)
            return language.plural("{count} event will be sent again.", "{count} events will be sent again.", count)

        return await carry_out(self._shell, f"/events/{webhook_id}", replay)

    @form_endpoint("/events/{webhook_id}/test", "Send a test event from the page of a webhook.", TokenScope.ADMIN)
    async def test_webhook_from_page(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """After a redirect, a notice shows the receiver's response."""
        await read_form(request.http)
        webhook_id = request.path_param("webhook_id")
        tested = await self._tester.test(webhook_id, audit=request.audit)
        notice = Notice(self._told(self._shell.view(request.http), tested), is_problem=not tested.is_delivered)
        return self._shell.redirect(f"/events/{webhook_id}", notice)

    @form_endpoint("/events/{webhook_id}/rotate", "Replace the secret of a webhook.", TokenScope.ADMIN)
    async def rotate_from_page(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """The response page shows the new secret; it is shown only this once."""
        form = await read_form(request.http)
        if not form.is_confirmed:
            return self._shell.confirm(request.http, form, VERBS["rotate"])
        rotated = await self._webhooks.rotate(request.path_param("webhook_id"), audit=request.audit)
        return await self.shown(request, secret=rotated.secret)

    @form_endpoint("/events/{webhook_id}/remove", "Remove a webhook from its page.", TokenScope.ADMIN)
    async def remove_webhook_page(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, language = await read_form(request.http), self._shell.view(request.http).language
        if not form.is_confirmed:
            return self._shell.confirm(request.http, form, VERBS["remove"])
        await self._webhooks.remove(request.path_param("webhook_id"), audit=request.audit)
        return self._shell.redirect("/events", Notice(language(VERBS["remove"].done)))

    async def once(self, request: EndpointRequest[Any, Any], view: View, context: Mapping[str, Any]) -> dict[str, Any]:
        now = from_micros(self._shell.formats(view).now)
        since, until = now - timedelta(hours=1), now + timedelta(minutes=1)
        return {"since": f"{since:{TIME_FORM}}", "until": f"{until:{TIME_FORM}}"}

    def _told(self, view: View, tested: TestDelivery) -> str:
        """Return the outcome of a test event as a sentence."""
        took = self._shell.formats(view).milliseconds(1000 * tested.took.total_seconds())
        if tested.is_delivered:
            return view.language(
                "The receiver accepted the test event with {status} after {took}.",
                status=tested.answer.status,
                took=took,
            )
        error = sentence(tested.answer.error or "")
        return view.language("The test event was not accepted, after {took}. {error}", took=took, error=error)


def _known_state(params: Mapping[str, str]) -> str | None:
    """Return the state of the deliveries to show, or None for an unknown state."""
    state = params.get("state")
    return state if state in set(DeliveryState) else None


def _time(name: str, text: str) -> int:
    """Read the value of a date and time field, in UTC."""
    try:
        return to_micros(datetime.fromisoformat(text).replace(tzinfo=UTC))
    except ValueError:
        raise InvalidInput(name, "is not a time", "write it as 2026-03-01T09:00, in UTC") from None
