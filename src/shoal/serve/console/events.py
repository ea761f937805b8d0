"""Events: the outbox, webhooks and their deliveries, replay, and the form for a webhook."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from shoal.access.scopes import TokenScope
from shoal.base.errors import InvalidInput, ShoalError
from shoal.base.text import redact_url
from shoal.events.webhook import DeliveryState, NewWebhook, WebhookChange
from shoal.events.webhooks import Webhooks
from shoal.serve.console.actions import carry_out
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.forms import FORM_TYPE, read_form
from shoal.serve.console.messages import message
from shoal.serve.console.shell import Notice, Shell, sentence
from shoal.serve.console.view import View
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import LAST

SHOWN: Final = 50
STATES: Final = {
    DeliveryState.WAITING: ("queued", message("Waiting")),
    DeliveryState.DELIVERED: ("good", message("Delivered")),
    DeliveryState.DEAD: ("failed", message("Given up")),
}
ENABLED: Final = message("The webhook is enabled; it receives the events it missed, as far as they are stored.")
DISABLED: Final = message("The webhook is disabled; its events are kept.")
REPLAYED: Final = message("The event will be sent again.")
REMOVED: Final = message("The webhook was removed.")
REMOVE_QUESTION: Final = message("Remove this webhook and its queue?")
REMOVE_EXPLANATION: Final = message("Pending deliveries are lost. This cannot be undone.")
REMOVE: Final = message("Remove")


class EventsPage:
    """`/events`."""

    paths = ("/events",)
    regions = ("events",)

    def __init__(self, shell: Shell, webhooks: Webhooks) -> None:
        self._shell = shell
        self._webhooks = webhooks

    @endpoint("GET", "/events", scope=TokenScope.READ, summary="Show events.", query=AnyQuery, public=False)
    async def show_events(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        context = await self.context(self._shell.view(request.http), {})
        context |= {"topic": "/events", "secret": ""}
        return self._shell.page(request.http, "events.html", context, section="events")

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        hooks = [await self._webhooks.get(one.id) for one in await self._webhooks.all()]
        return {
            "hooks": [(hook, redact_url(hook.url), counts) for hook, counts in hooks],
            "latest": await self._webhooks.latest(SHOWN),
            "lag": await self._webhooks.lag_seconds(),
            "is_live": True,
        }

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        return []

    @endpoint(
        "POST",
        "/events",
        scope=TokenScope.ADMIN,
        summary="Create a webhook from the form.",
        file=(FORM_TYPE,),
        audit="webhook.created",
        public=False,
    )
    async def create_webhook_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """The page of the response shows the secret, once."""
        form = await read_form(request.http)
        try:
            values = {"url": form.get("url"), "events": form.get("events").split()}
            webhook = await self._webhooks.make(NewWebhook.read(values), audit=request.audit)
        except ShoalError as error:
            if error.response.http_status >= 500:
                raise
            return self._shell.redirect("/events", Notice(sentence(error.message), is_problem=True))
        context = await self.context(self._shell.view(request.http), {}) | {"secret": webhook.secret}
        return self._shell.page(request.http, "events.html", context, section="events")


class WebhookPage:
    """`/events/{webhook_id}`."""

    paths = ("/events/{webhook_id}",)
    regions = ("webhook",)

    def __init__(self, shell: Shell, webhooks: Webhooks) -> None:
        self._shell = shell
        self._webhooks = webhooks

    @endpoint(
        "GET", "/events/{webhook_id}", scope=TokenScope.READ, summary="Show a webhook.", query=AnyQuery, public=False
    )
    async def show_webhook_page(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        webhook_id, state = request.path_param("webhook_id"), request.http.query_params.get("state", "")
        params = {"webhook_id": webhook_id, **({"state": state} if state in set(DeliveryState) else {})}
        context = await self.context(self._shell.view(request.http), params)
        topic = self._shell.url(f"/events/{webhook_id}", state=params.get("state")).removeprefix(self._shell.prefix)
        return self._shell.page(request.http, "webhook.html", context | {"topic": topic}, section="events")

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        hook, counts = await self._webhooks.get(params["webhook_id"])
        state = params.get("state")
        return {
            "hook": hook,
            "address": redact_url(hook.url),
            "counts": counts,
            "state": state,
            "states": STATES,
            "deliveries": await self._webhooks.deliveries(hook.id, state, LAST, SHOWN),
            "is_live": True,
        }

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        return []

    @endpoint(
        "POST",
        "/events/{webhook_id}/actions",
        scope=TokenScope.ADMIN,
        summary="Enable or disable a webhook.",
        file=(FORM_TYPE,),
        audit="webhook.changed",
        public=False,
    )
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
            language(ENABLED if action == "enable" else DISABLED),
        )

    @endpoint(
        "POST",
        "/events/{webhook_id}/replay",
        scope=TokenScope.ADMIN,
        summary="Send an event again.",
        file=(FORM_TYPE,),
        audit="webhook.replayed",
        public=False,
    )
    async def replay_event(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, webhook_id = await read_form(request.http), request.path_param("webhook_id")
        return await carry_out(
            self._shell,
            f"/events/{webhook_id}",
            lambda: self._webhooks.replay(webhook_id, form.get("event_id"), audit=request.audit),
            self._shell.view(request.http).language(REPLAYED),
        )

    @endpoint(
        "POST",
        "/events/{webhook_id}/remove",
        scope=TokenScope.ADMIN,
        summary="Remove a webhook from its page.",
        file=(FORM_TYPE,),
        audit="webhook.removed",
        public=False,
    )
    async def remove_webhook_page(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, language = await read_form(request.http), self._shell.view(request.http).language
        if not form.is_confirmed:
            words = language(REMOVE_QUESTION), language(REMOVE_EXPLANATION), language(REMOVE)
            return self._shell.confirm(request.http, form, *words)
        await self._webhooks.remove(request.path_param("webhook_id"), audit=request.audit)
        return self._shell.redirect("/events", Notice(language(REMOVED)))
