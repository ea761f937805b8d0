"""REST for tokens and the log of administrative acts."""

from typing import Annotated

from shoal.access.audit_log import AuditLog, StoredAuditEntry
from shoal.access.scopes import TokenScope
from shoal.access.token import Token, TokenRequest
from shoal.access.tokens import Tokens
from shoal.base.errors import NotAllowed, NotFound, StateConflict
from shoal.base.request_form import Form, describe
from shoal.serve import schemas
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.examples import ACT, TOKEN
from shoal.serve.pagination import Paging, cursor_of, cut, number_of
from shoal.serve.problems import Json

LAST_TOKEN = 2**31 - 1  # the largest number that a token can have
NEVER_KEPT = {"Cache-Control": "no-store"}


class Revoking(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    force: Annotated[bool, describe("Revoke it even if it is the last valid one of an admin.")] = False


class ActFilter(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subject: Annotated[str | None, describe("Only what was done to this, by its id.")] = None


class TokenApi:
    """`/api/v1/tokens`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    @endpoint(
        "POST",
        "/api/v1/tokens",
        scope=TokenScope.ADMIN,
        summary="Make a token.",
        body=TokenRequest,
        status=201,
        answer=schemas.TokenMade,
        problems=[NotAllowed],
        request_example={"name": "nightly crawls", "role": "operator", "expires_in": "90d"},
        response_example=TOKEN | {"token": "shl_7h3k9m2pxw_…"},
    )
    async def create_token(self, ask: EndpointRequest[TokenRequest, Nothing]) -> Json:
        """The answer is the only place where it is ever shown. It never has more than the token that asks for it."""
        minted = await self._tokens.create(ask.body, caller_of(ask.request))
        headers = NEVER_KEPT | {"Location": f"/api/v1/tokens/{minted.token.id}"}
        return Json(minted.token.answer() | {"token": minted.text}, status_code=201, headers=headers)

    @endpoint(
        "GET",
        "/api/v1/tokens",
        scope=TokenScope.ADMIN,
        summary="List tokens, the newest first.",
        query=Paging,
        answer=schemas.TokenList,
        response_example={"items": [TOKEN], "next": None},
    )
    async def list_tokens(self, ask: EndpointRequest[Nothing, Paging]) -> Json:
        """Revoked and expired ones too."""
        before = number_of(ask.query.cursor, LAST_TOKEN)
        found = await self._tokens.newest(before=before, limit=ask.query.limit + 1)
        return Json(cut(found, ask.query.limit, Token.answer, lambda token: cursor_of(str(token.number))))

    @endpoint(
        "GET",
        "/api/v1/tokens/{token_id}",
        scope=TokenScope.ADMIN,
        summary="Show what is kept of one token.",
        answer=schemas.Token,
        problems=[NotFound],
        response_example=TOKEN,
    )
    async def show_token(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json((await self._tokens.get(ask.part("token_id"))).answer())

    @endpoint(
        "POST",
        "/api/v1/tokens/{token_id}/revoke",
        scope=TokenScope.ADMIN,
        summary="End a token.",
        body=Revoking,
        answer=schemas.Token,
        problems=[NotFound, StateConflict],
        response_example=TOKEN | {"state": "revoked", "revoked_at": "2026-04-01T12:00:00Z"},
    )
    async def revoke_token(self, ask: EndpointRequest[Revoking, Nothing]) -> Json:
        """Every controller refuses it within a few seconds. One that is revoked already stays as it is."""
        caller = caller_of(ask.request)
        token = await self._tokens.revoke(ask.part("token_id"), caller, even_last=ask.body.force)
        return Json(token.answer())


class AuditApi:
    """`/api/v1/audit-log`."""

    def __init__(self, acts: AuditLog) -> None:
        self._acts = acts

    @endpoint(
        "GET",
        "/api/v1/audit-log",
        scope=TokenScope.ADMIN,
        summary="List what administrators did, the newest first.",
        query=ActFilter,
        answer=schemas.AuditLog,
        response_example={"items": [ACT], "next": None},
    )
    async def list_acts(self, ask: EndpointRequest[Nothing, ActFilter]) -> Json:
        query = ask.query
        found = await self._acts.newest(before=number_of(query.cursor), limit=query.limit + 1, subject=query.subject)
        return Json(cut(found, query.limit, StoredAuditEntry.answer, lambda entry: cursor_of(str(entry.number))))
