"""The objects of `shoal.audit`."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.audit.analyses import Analyses

if TYPE_CHECKING:
    from shoal.app.app import App


class Audit:
    """The analyses of crawls."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def analyses(self) -> Analyses:
        app = self._app
        return Analyses(app.database, app.stores.analyses, app.queue, app.stores.outbox, app.signals)
