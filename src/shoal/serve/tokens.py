"""REST endpoints for tokens and the audit log."""

from typing import Annotated

from shoal.access import audit_log as access
from shoal.access.token import TokenRequest, TokenScope
from shoal.access.tokens import Tokens
from shoal.base.errors import NotAllowed, StateConflict
from shoal.base.request_form import Form, describe
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json
from shoal.serve.requests import Paging, number_of, page_of
from shoal.serve.resources.token import AuditEntry, AuditLog, Token, TokenList, TokenMade

LAST_TOKEN = 2**31 - 1  # the largest number that a token can have
NO_STORE = {"Cache-Control": "no-store"}


class RevokeForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    force: Annotated[bool, describe("Revoke the token even if no other valid token has the scope `admin`.")] = False


class AuditLogQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subject: Annotated[str | None, describe("Only actions on the object with this id.")] = None


class TokenApi:
    """`/api/v1/tokens`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    @endpoint(
        "POST",
        "/api/v1/tokens",
        scope=TokenScope.ADMIN,
        summary="Create a token.",
        body=TokenRequest,
        status=201,
        response=TokenMade,
        problems=[NotAllowed],
        request_example={"name": "nightly crawls", "role": "operator", "expires_in": "90d"},
    )
    async def create_token(self, request: EndpointRequest[TokenRequest, Nothing]) -> Json:
        """The token is shown only in this response. The new token cannot have a scope that the token of the request
        lacks."""
        minted = await self._tokens.create(request.body, caller_of(request.http))
        headers = NO_STORE | {"Location": f"/api/v1/tokens/{minted.token.id}"}
        return Json(TokenMade.of(minted.token, token=minted.text), 201, headers)

    @endpoint(
        "GET",
        "/api/v1/tokens",
        scope=TokenScope.ADMIN,
        summary="List tokens, newest first.",
        query=Paging,
        response=TokenList,
    )
    async def list_tokens(self, request: EndpointRequest[Nothing, Paging]) -> TokenList:
        """Revoked and expired tokens are included."""
        before = number_of(request.query.cursor, LAST_TOKEN)
        found = await self._tokens.newest(before=before, limit=request.query.limit + 1)
        tokens, more = page_of(found, request.query.limit, lambda token: token.number)
        return TokenList(items=[Token.of(one) for one in tokens], next=more)

    @endpoint(
        "GET",
        "/api/v1/tokens/{token_id}",
        scope=TokenScope.ADMIN,
        summary="Show a token.",
        response=Token,
    )
    async def show_token(self, request: EndpointRequest[Nothing, Nothing]) -> Token:
        return Token.of(await self._tokens.get(request.path_param("token_id")))

    @endpoint(
        "POST",
        "/api/v1/tokens/{token_id}/revoke",
        scope=TokenScope.ADMIN,
        summary="Revoke a token.",
        body=RevokeForm,
        response=Token,
        problems=[StateConflict],
        response_example=Token.example | {"state": "revoked", "revoked_at": "2026-04-01T12:00:00Z"},
    )
    async def revoke_token(self, request: EndpointRequest[RevokeForm, Nothing]) -> Token:
        """Every controller rejects the token within a few seconds. Revoking a token twice changes nothing."""
        caller = caller_of(request.http)
        token = await self._tokens.revoke(request.path_param("token_id"), caller, even_last=request.body.force)
        return Token.of(token)


class AuditLogApi:
    """`/api/v1/audit-log`."""

    def __init__(self, audit_log: access.AuditLog) -> None:
        self._audit_log = audit_log

    @endpoint(
        "GET",
        "/api/v1/audit-log",
        scope=TokenScope.ADMIN,
        summary="List administrative actions, newest first.",
        query=AuditLogQuery,
        response=AuditLog,
    )
    async def list_audit_log(self, request: EndpointRequest[Nothing, AuditLogQuery]) -> AuditLog:
        query = request.query
        before, limit = number_of(query.cursor), query.limit + 1
        found = await self._audit_log.newest(before=before, limit=limit, subject=query.subject)
        entries, more = page_of(found, query.limit, lambda entry: entry.number)
        return AuditLog(items=[AuditEntry.of(one) for one in entries], next=more)
