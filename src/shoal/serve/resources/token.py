"""API tokens, and the audit log."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Self

from shoal.access import token as access
from shoal.access.audit_log import StoredAuditEntry
from shoal.access.token import TokenScope, in_order
from shoal.base.request_form import describe
from shoal.base.text import message
from shoal.serve.resources.resource import NextPage, Resource, Verb


class Token(Resource, kw_only=True):
    """An API token, without its secret."""

    id: Annotated[str, describe("Id of the token, which is not a secret.")]
    name: Annotated[str, describe("Descriptive name.")]
    state: Annotated[str, describe("valid, expired or revoked.")]
    scopes: Annotated[list[TokenScope], describe("Scopes of the token: the kinds of requests that it allows.")]
    node_id: Annotated[str | None, describe("The only node that may use the token, if its scope is `node`.")]
    made_by: Annotated[str, describe("Id of the token that created this token, or `local`.")]
    created_at: datetime
    expires_at: Annotated[datetime | None, describe("When the token expires; null: never.")]
    last_used_at: Annotated[datetime | None, describe("Time of the last use, to the minute.")]
    revoked_at: Annotated[datetime | None, describe("When the token was revoked, if it was.")]

    example: ClassVar = {
        "id": "tok_7h3k9m2pxw",
        "name": "nightly crawls",
        "state": "valid",
        "scopes": ["write"],
        "node_id": None,
        "made_by": "local",
        "created_at": "2026-03-01T09:00:00Z",
        "expires_at": "2026-05-30T09:00:00Z",
        "last_used_at": None,
        "revoked_at": None,
    }

    @classmethod
    def of(cls, shown: access.Token, **more: Any) -> Self:
        return super().of(shown, scopes=in_order(shown.scopes), **more)


class TokenMade(Token, kw_only=True):
    """A new API token with its secret."""

    token: Annotated[str, describe("The token. It is shown only once and is not stored.")]

    example: ClassVar = Token.example | {"token": "shl_7h3k9m2pxw_…"}


class TokenList(Resource, kw_only=True):
    items: list[Token]
    next: NextPage

    example: ClassVar = {"items": [Token.example], "next": None}


class AuditEntry(Resource, kw_only=True):
    """An administrative action."""

    number: Annotated[int, describe("Position in the audit log.")]
    at: Annotated[datetime, describe("When the action happened.")]
    who: Annotated[str, describe("Id of the caller's token, or `local` for a user on the server itself.")]
    act: Annotated[str, describe("Name of the action, such as `token.created`.")]
    subject: Annotated[str, describe("Id of the object of the action.")]
    facts: Annotated[dict[str, Any], describe("Further fields of the action.")]
    address: Annotated[str | None, describe("IP address of the caller.")]

    example: ClassVar = {
        "number": 12,
        "at": "2026-03-01T09:00:00Z",
        "who": "local",
        "act": "token.created",
        "subject": "tok_7h3k9m2pxw",
        "facts": {"name": "nightly crawls", "scopes": ["write"], "expires_in": "90d"},
        "address": "127.0.0.1",
    }

    @classmethod
    def of(cls, entry: StoredAuditEntry) -> Self:
        return super().of(entry, entry.action, act=entry.action.name, address=entry.address or None)


class AuditLog(Resource, kw_only=True):
    items: list[AuditEntry]
    next: NextPage

    example: ClassVar = {"items": [AuditEntry.example], "next": None}


VERBS: Final[Mapping[str, Verb]] = {
    "revoke": Verb(
        message("Revoke"),
        message("The token was revoked."),
        message("Revoke this token?"),
        message("Everybody who uses this token is signed out within seconds. This cannot be undone."),
        TokenScope.ADMIN,
    ),
}
