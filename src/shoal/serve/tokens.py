"""REST for tokens and the log of administrative acts."""

from typing import Annotated

from shoal.access.acts import Acts, Entry
from shoal.access.scopes import Scope
from shoal.access.token import Token, TokenWish
from shoal.access.tokens import Tokens
from shoal.base.errors import NotAllowed, NotFound, StateConflict
from shoal.base.form import Form, says
from shoal.serve import shapes
from shoal.serve.cursor import Paging, cursor_of, cut, number_of
from shoal.serve.endpoint import Ask, Nothing, endpoint
from shoal.serve.examples import ACT, TOKEN
from shoal.serve.keeper import caller_of
from shoal.serve.problems import Json

LAST_TOKEN = 2**31 - 1  # the largest number that a token can have
NEVER_KEPT = {"Cache-Control": "no-store"}


class Revoking(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    force: Annotated[bool, says("Revoke it even if it is the last valid one of an admin.")] = False


class ActFilter(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subject: Annotated[str | None, says("Only what was done to this, by its id.")] = None


class TokenApi:
    """`/api/v1/tokens`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    @endpoint(
        "POST",
        "/api/v1/tokens",
        scope=Scope.ADMIN,
        says="Make a token.",
        body=TokenWish,
        status=201,
        answer=shapes.TokenMade,
        problems=[NotAllowed],
        asks={"name": "nightly crawls", "role": "operator", "expires_in": "90d"},
        answers=TOKEN | {"token": "shl_7h3k9m2pxw_…"},
    )
    async def create_token(self, ask: Ask[TokenWish, Nothing]) -> Json:
        """The answer is the only place where it is ever shown. It never has more than the token that asks for it."""
        minted = await self._tokens.create(ask.body, caller_of(ask.request))
        headers = NEVER_KEPT | {"Location": f"/api/v1/tokens/{minted.token.id}"}
        return Json(minted.token.answer() | {"token": minted.text}, status_code=201, headers=headers)

    @endpoint(
        "GET",
        "/api/v1/tokens",
        scope=Scope.ADMIN,
        says="List tokens, the newest first.",
        query=Paging,
        answer=shapes.TokenList,
        answers={"items": [TOKEN], "next": None},
    )
    async def list_tokens(self, ask: Ask[Nothing, Paging]) -> Json:
        """Revoked and expired ones too."""
        before = number_of(ask.query.cursor, LAST_TOKEN)
        found = await self._tokens.newest(before=before, limit=ask.query.limit + 1)
        return Json(cut(found, ask.query.limit, Token.answer, lambda token: cursor_of(str(token.number))))

    @endpoint(
        "GET",
        "/api/v1/tokens/{token_id}",
        scope=Scope.ADMIN,
        says="Show what is kept of one token.",
        answer=shapes.Token,
        problems=[NotFound],
        answers=TOKEN,
    )
    async def show_token(self, ask: Ask[Nothing, Nothing]) -> Json:
        return Json((await self._tokens.get(ask.part("token_id"))).answer())

    @endpoint(
        "POST",
        "/api/v1/tokens/{token_id}/revoke",
        scope=Scope.ADMIN,
        says="End a token.",
        body=Revoking,
        answer=shapes.Token,
        problems=[NotFound, StateConflict],
        answers=TOKEN | {"state": "revoked", "revoked_at": "2026-04-01T12:00:00Z"},
    )
    async def revoke_token(self, ask: Ask[Revoking, Nothing]) -> Json:
        """Every controller refuses it within a few seconds. One that is revoked already stays as it is."""
        caller = caller_of(ask.request)
        token = await self._tokens.revoke(ask.part("token_id"), caller, even_last=ask.body.force)
        return Json(token.answer())


class AuditApi:
    """`/api/v1/audit-log`."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts

    @endpoint(
        "GET",
        "/api/v1/audit-log",
        scope=Scope.ADMIN,
        says="List what administrators did, the newest first.",
        query=ActFilter,
        answer=shapes.AuditLog,
        answers={"items": [ACT], "next": None},
    )
    async def list_acts(self, ask: Ask[Nothing, ActFilter]) -> Json:
        query = ask.query
        found = await self._acts.newest(before=number_of(query.cursor), limit=query.limit + 1, subject=query.subject)
        return Json(cut(found, query.limit, Entry.answer, lambda entry: cursor_of(str(entry.number))))
