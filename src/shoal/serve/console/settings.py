"""Settings: effective values with their sources, tokens, the audit log, and what is stored for how long. Only
administrators see them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.responses import Response

from shoal.access.audit_log import AuditLog
from shoal.access.token import TokenRequest, TokenScope
from shoal.access.tokens import Tokens
from shoal.base.errors import ShoalError
from shoal.base.text import message
from shoal.serve.authentication import caller_of, sign_in
from shoal.serve.console.actions import carry_out
from shoal.serve.console.feed import AnyQuery
from shoal.serve.console.forms import FORM_TYPE, read_form
from shoal.serve.console.shell import Notice, Shell, sentence
from shoal.serve.console.storage import Storage
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.tokens import LAST_TOKEN

MOST_TOKENS: Final = 200
ENTRIES: Final = 100
ROLES: Final = ("viewer", "operator", "admin", "bot", "node")
REVOKED: Final = message("The token was revoked.")
REVOKE_QUESTION: Final = message("Revoke this token?")
REVOKE_EXPLANATION: Final = message("Everybody who uses it is signed out within seconds. This cannot be undone.")
REVOKE: Final = message("Revoke")


class SettingsPage:
    """`/settings`. `settings` returns the name, the value without secrets, and the source of each setting."""

    def __init__(
        self,
        shell: Shell,
        tokens: Tokens,
        audit_log: AuditLog,
        settings: Callable[[], Sequence[tuple[str, str, str]]],
        storage: Storage,
    ) -> None:
        self._shell = shell
        self._tokens = tokens
        self._audit_log = audit_log
        self._settings = settings
        self._storage = storage

    @endpoint("GET", "/settings", scope=TokenScope.READ, summary="Show the settings.", query=AnyQuery, public=False)
    async def show_settings(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self._shown(request)

    @endpoint(
        "POST",
        "/settings/tokens",
        scope=TokenScope.ADMIN,
        summary="Create a token from the form.",
        file=(FORM_TYPE,),
        public=False,
    )
    async def create_token_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """The page of the response shows the token, once."""
        form = await read_form(request.http)
        given = {name: form.get(name) for name in ("name", "role", "expires_in", "node_id") if form.get(name)}
        is_first = not await self._tokens.any_made()
        try:
            minted = await self._tokens.create(TokenRequest.read(given), caller_of(request.http))
        except ShoalError as error:
            if error.response.http_status >= 500:
                raise
            return self._shell.redirect("/settings", Notice(sentence(error.message), is_problem=True))
        shown = await self._shown(request, minted.text)
        if is_first:  # the browser that made it must not be locked out
            sign_in(request.http, shown, minted.text)
        return shown

    @endpoint(
        "POST",
        "/settings/tokens/{token_id}/revoke",
        scope=TokenScope.ADMIN,
        summary="Revoke a token from its row.",
        file=(FORM_TYPE,),
        public=False,
    )
    async def revoke_token_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, language = await read_form(request.http), self._shell.view(request.http).language
        if not form.is_confirmed:
            words = language(REVOKE_QUESTION), language(REVOKE_EXPLANATION), language(REVOKE)
            return self._shell.confirm(request.http, form, *words)
        token_id, caller = request.path_param("token_id"), caller_of(request.http)
        return await carry_out(
            self._shell, "/settings", lambda: self._tokens.revoke(token_id, caller), language(REVOKED)
        )

    async def _shown(self, request: EndpointRequest[Any, Any], text: str = "") -> Response:
        context: dict[str, Any] = {"text": text, "roles": ROLES, "tokens": [], "entries": [], "settings": []}
        if self._shell.view(request.http).may_administer:
            size, kinds = await self._storage.read()
            context |= {
                "size": size,
                "kinds": kinds,
                "tokens": await self._tokens.newest(before=LAST_TOKEN, limit=MOST_TOKENS),
                "entries": await self._audit_log.newest(before=None, limit=ENTRIES, subject=None),
                "settings": self._settings(),
            }
        return self._shell.page(request.http, "settings.html", context, section="settings")
