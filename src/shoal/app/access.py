"""The objects of `shoal.access`."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.access.audit_log import AuditLog
from shoal.access.idempotency import Idempotency
from shoal.access.tokens import Tokens

if TYPE_CHECKING:
    from shoal.app.app import App


class Access:
    """Tokens, the audit log and idempotency keys. The same `tokens` object verifies and revokes tokens, so that a
    revocation takes effect immediately."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def audit_log(self) -> AuditLog:
        return AuditLog(self._app.database)

    @cached_property
    def tokens(self) -> Tokens:
        app = self._app
        return Tokens(app.database, self.audit_log, app.clock, app.signals, app.queue.recovery.release_bot)

    @cached_property
    def idempotency(self) -> Idempotency:
        return Idempotency(self._app.database)
