"""Events: the outbox, webhooks and their deliveries, and the form for a webhook."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.errors import ShoalError
from shoal.base.text import redact_url
from shoal.events.webhook import NewWebhook
from shoal.events.webhooks import MOST_WEBHOOKS, Webhooks
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.forms import FORM_TYPE, read_form
from shoal.serve.console.shell import Notice, Shell, sentence
from shoal.serve.console.view import View
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint

SHOWN: Final = 50
PLACES: Final = {
    **dict.fromkeys(("crawl.started", "crawl.completed", "crawl.failed", "crawl.stopped"), "/crawls/"),
    **dict.fromkeys(("crawl.job.completed", "crawl.job.failed"), "/jobs/"),
    "analysis.completed": "/analyses/",
    "node.lost": "/fleet/",
}
"""The pages of what events are about."""


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

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        return []

    @endpoint(
        "POST",
        "/events",
        scope=TokenScope.ADMIN,
        summary="Create a webhook from the form.",
        file=(FORM_TYPE,),
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
