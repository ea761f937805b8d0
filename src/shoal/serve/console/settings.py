"""The settings page: tokens, storage, the audit log and the values of settings; and the preferences of the reader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from shoal.access.audit_log import AuditLog
from shoal.access.token import TokenRequest, TokenScope
from shoal.access.tokens import Tokens
from shoal.base.errors import ShoalError
from shoal.base.settings import Settings
from shoal.base.text import message
from shoal.observe.stats import StoreSize, TableSize
from shoal.serve.authentication import caller_of, is_secure, sign_in
from shoal.serve.console.exports import batched, listed
from shoal.serve.console.forms import AnyQuery, form_endpoint, page_endpoint, read_form
from shoal.serve.console.shell import Shell, carry_out, local_path
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.resources import token as resource
from shoal.serve.resources.token import VERBS
from shoal.serve.stats import Cached
from shoal.serve.tokens import LAST_TOKEN

WITH_CRAWL: Final = message("until their crawl is removed")
UNTIL_REMOVED: Final = message("until they are removed")
FOR_EVER: Final = message("forever")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data and its tables; the first table has one row per item. `kept` is the name of a setting, or a text
    on how long the data is kept."""

    name: str
    tables: tuple[str, ...]
    kept: str


KINDS: Final = (
    Kind(message("Crawls"), ("crawl", "crawl_counter", "crawl_skip", "crawl_line", "trap"), UNTIL_REMOVED),
    Kind(message("Pages"), ("page", "page_detail", "redirect_target", "sitemap"), WITH_CRAWL),
    Kind(message("URLs"), ("fate", "frontier", "frontier_touched", "frontier_host"), WITH_CRAWL),
    Kind(message("Analyses"), ("analysis", "finding", "finding_count"), WITH_CRAWL),
    Kind(message("Jobs"), ("job", "job_host", "job_grant", "job_seat"), "SHOAL_JOB_RETENTION"),
    Kind(message("Dead letters"), (), "SHOAL_DEAD_RETENTION"),
    Kind(message("Results of policies"), ("result",), "SHOAL_RESULT_RETENTION"),
    Kind(message("Events"), ("outbox",), "SHOAL_EVENTS_KEEP"),
    Kind(message("Deliveries"), ("delivery",), "SHOAL_EVENTS_KEEP"),
    Kind(message("Hourly statistics"), ("job_hour", "bot_hour"), "SHOAL_STATS_RETENTION"),
    Kind(message("Priority signals"), (), "SHOAL_SIGNAL_RETENTION"),
    Kind(message("Lost nodes"), (), "SHOAL_NODES_KEEP"),
    Kind(message("Policies"), ("policy",), UNTIL_REMOVED),
    Kind(message("Audit log"), ("audit_entry",), FOR_EVER),
)


@dataclass(frozen=True, slots=True)
class StorageRow:
    """A kind of data. `keep` is the retention time if a setting defines it; otherwise `words` describes it."""

    name: str
    rows: int | None
    bytes: int | None
    keep: timedelta | None
    words: str
    setting: str

    @property
    def is_kept_for_ever(self) -> bool:
        return self.keep == timedelta.max


class Storage:
    """The rows of the storage section, and the size of the whole store."""

    def __init__(self, sizes: Cached[StoreSize], settings: Settings) -> None:
        self._sizes = sizes
        self._keep = {
            "SHOAL_JOB_RETENTION": settings.queue.keep_finished,
            "SHOAL_DEAD_RETENTION": settings.queue.keep_dead,
            "SHOAL_RESULT_RETENTION": settings.pages.keep_results,
            "SHOAL_EVENTS_KEEP": settings.events.keep,
            "SHOAL_STATS_RETENTION": settings.queue.keep_hours,
            "SHOAL_SIGNAL_RETENTION": settings.plan.keep_signals,
            "SHOAL_NODES_KEEP": settings.fleet.keep_lost,
        }

    async def read(self) -> tuple[StoreSize, list[StorageRow]]:
        size = await self._sizes.get()
        tables = {table.name: table for table in size.tables}
        return size, [self._row(kind, tables) for kind in KINDS]

    def _row(self, kind: Kind, tables: Mapping[str, TableSize]) -> StorageRow:
        found = [tables[name] for name in kind.tables if name in tables]
        keep = self._keep.get(kind.kept)
        sizes = [table.bytes for table in found if table.bytes is not None]
        return StorageRow(
            kind.name,
            found[0].rows if found else None,
            sum(sizes) if sizes else None,
            keep,
            kind.kept if keep is None else "",
            kind.kept if keep is not None else "",
        )


MOST_TOKENS: Final = 200
ENTRIES: Final = 100
MADE: Final = "shoal_made"  # the cookie that takes a new token to the page that shows it
MADE_SECONDS: Final = 30
BATCH: Final = 500
ROLES: Final = ("viewer", "operator", "admin", "bot", "node")


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

    @page_endpoint("/settings", "Show the settings.")
    async def show_settings(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """The page shows a token that was just created, once."""
        text = request.http.cookies.get(MADE, "")
        shown = await self._shown(request, text)
        if text:
            shown.delete_cookie(MADE, path=self._shell.url("/settings"), httponly=True, samesite="strict")
        return shown

    @form_endpoint("/settings/tokens", "Create a token from the form.", TokenScope.ADMIN)
    async def create_token_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        given = {name: form.get(name) for name in ("name", "role", "expires_in", "node_id") if form.get(name)}
        is_first = not await self._tokens.any_made()
        try:
            minted = await self._tokens.create(TokenRequest.read(given), caller_of(request.http))
        except ShoalError as error:
            return self._shell.refused("/settings", error)
        created = self._shell.redirect("/settings")
        path, secure = self._shell.url("/settings"), is_secure(request.http)
        created.set_cookie(MADE, minted.text, MADE_SECONDS, path=path, secure=secure, httponly=True, samesite="strict")
        if is_first:  # the browser that created the first token must not be locked out
            sign_in(request.http, created, minted.text)
        return created

    @form_endpoint("/settings/tokens/{token_id}/revoke", "Revoke a token.", TokenScope.ADMIN)
    async def revoke_token_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, language = await read_form(request.http), self._shell.view(request.http).language
        if not form.is_confirmed:
            return self._shell.confirm(request.http, form, VERBS["revoke"])
        token_id, caller = request.path_param("token_id"), caller_of(request.http)
        return await carry_out(
            self._shell, "/settings", lambda: self._tokens.revoke(token_id, caller), language(VERBS["revoke"].done)
        )

    @page_endpoint("/settings/tokens.{format}", "Download the tokens.", TokenScope.ADMIN, expensive=always)
    async def export_tokens(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        found = batched(
            lambda before: self._tokens.newest(before=before, limit=BATCH), lambda one: one.number, resource.Token.of
        )
        return listed(request, "tokens", resource.Token, found)

    @page_endpoint("/settings/audit-log.{format}", "Download the audit log.", TokenScope.ADMIN, expensive=always)
    async def export_audit_log(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        found = batched(
            lambda before: self._audit_log.newest(before=before, limit=BATCH),
            lambda one: one.number,
            resource.AuditEntry.of,
        )
        return listed(request, "audit-log", resource.AuditEntry, found)

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


class PreferencesApi:
    """`/console/preferences`."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    @form_endpoint("/console/preferences", "Choose the theme and the language.", TokenScope.READ)
    async def choose(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        view = self._shell.view(request.http)
        response = self._shell.redirect(local_path(form.get("back", "/")))
        self._shell.remember(response, form.get("theme", view.theme), form.get("language", view.language.code))
        return response
