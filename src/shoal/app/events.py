"""The objects of `shoal.events`, without the chores that deliver events (see `shoal.app.chores`)."""

from functools import cached_property, partial
from typing import TYPE_CHECKING

from shoal.egress import Egress
from shoal.events.webhooks import Webhooks, WebhookTester

if TYPE_CHECKING:
    from shoal.app.app import App


class Events:
    """The webhooks."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def webhooks(self) -> Webhooks:
        app = self._app
        return Webhooks(app.database, app.address_rule)

    @cached_property
    def tester(self) -> WebhookTester:
        app = self._app
        return WebhookTester(app.database, partial(Egress, app.address_rule, clock=app.clock), app.clock)
