"""Tokens: their format, their stored form, and the form to request one.

`shl_7h3k9m2pxw_…`: a prefix that secret scanners recognize, ten characters that name the token (its id is
`tok_7h3k9m2pxw`), 200 random bits, and a checksum, so that a mistyped token is rejected without a query to the store.
"""

import re
import secrets
from binascii import crc32
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

from msgspec import field

from shoal.access.scopes import ROLES, TokenScope
from shoal.base.errors import InvalidInput
from shoal.base.ids import TokenId
from shoal.base.parsing import read_node_id, read_span
from shoal.base.request_form import Check, Form, describe
from shoal.base.sentence import message
from shoal.base.text import visible

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i, l, o, u
NAME_LENGTH, SECRET_LENGTH, SUM_LENGTH = 10, 40, 7
_SHAPE = re.compile(
    rf"shl_([{ALPHABET}]{{{NAME_LENGTH}}})_[{ALPHABET}]{{{SECRET_LENGTH}}}([{ALPHABET}]{{{SUM_LENGTH}}})"
)
LONGEST_NAME = 100


class TokenState(StrEnum):
    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


LABELS = {
    TokenState.VALID: message("Valid"),
    TokenState.EXPIRED: message("Expired"),
    TokenState.REVOKED: message("Revoked"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The stored form of a token, without its text. Times are microseconds; `seen_at` is the store's time when it was
    read, by which its expiry is determined."""

    number: int
    id: TokenId
    name: str
    hash: str
    scopes: frozenset[TokenScope]
    node_id: str | None  # the only node that may use it, for the scope `node`
    made_by: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None
    seen_at: int

    @property
    def state(self) -> TokenState:
        if self.revoked_at is not None:
            return TokenState.REVOKED
        is_over = self.expires_at is not None and self.expires_at <= self.seen_at
        return TokenState.EXPIRED if is_over else TokenState.VALID


def _check_name(name: str) -> str:
    if name.strip() != name or visible(name) != name:
        raise ValueError("begins or ends with a space, or contains a control character")
    return name


def _check_duration(text: str | None) -> str | None:
    if text is not None:
        read_span(text)
    return text


def _check_node_id(text: str | None) -> str | None:
    if text is not None:
        read_node_id(text)
    return text


class TokenRequest(Form, frozen=True, kw_only=True):
    """The request to create a token."""

    checks: ClassVar[dict[str, Check]] = {
        "name": _check_name,
        "expires_in": _check_duration,
        "node_id": _check_node_id,
    }

    name: Annotated[
        str, describe("Name of the person or program that will use the token.", min_length=1, max_length=LONGEST_NAME)
    ]
    role: Annotated[
        Literal["viewer", "operator", "admin", "bot", "node"] | None,
        describe("Role of the token: a named set of scopes."),
    ] = None
    scopes: Annotated[
        list[Literal["read", "write", "admin", "bot", "node"]],
        describe("Scopes of the token, instead of a role.", max_length=5),
    ] = field(default_factory=list)
    node_id: Annotated[
        str | None,
        describe("Node that may use the token: required for the scope node, and only for it."),
    ] = None
    expires_in: Annotated[str | None, describe("Expire the token after this long, such as 90d. Default: never.")] = None

    def wanted(self) -> frozenset[TokenScope]:
        """Return the scopes that the role or the list names."""
        if (self.role is None) == (not self.scopes):
            problem = "is missing" if self.role is None else "cannot be combined with scopes"
            raise InvalidInput("role", problem, f"give one of {', '.join(ROLES)}, or a list of scopes")
        scopes = ROLES[self.role] if self.role is not None else frozenset(map(TokenScope, self.scopes))
        if (TokenScope.NODE in scopes) != (self.node_id is not None):
            if self.node_id is None:
                raise InvalidInput("node_id", "is missing", "name the node that may use the token (--node-id)")
            raise InvalidInput(
                "node_id", "is only for tokens with the scope node", "leave it out, or use the role node"
            )
        return scopes


def mint() -> tuple[TokenId, str]:
    """Create a token; return its id and its text."""
    body = f"shl_{_random(NAME_LENGTH)}_{_random(SECRET_LENGTH)}"
    text = body + _checksum(body)
    return _id_of(text), text


def read_token(text: str) -> TokenId | None:
    """Return the id of a well-formed token; None if the text cannot be a token."""
    match = _SHAPE.fullmatch(text)
    if match is None or _checksum(text[:-SUM_LENGTH]) != match[2]:
        return None
    return _id_of(text)


def hash_of(text: str) -> str:
    """Return the hash that is stored. Plain SHA-256 is enough, because 200 random bits cannot be guessed."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _id_of(text: str) -> TokenId:
    return TokenId(f"tok_{text[4 : 4 + NAME_LENGTH]}")


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _checksum(body: str) -> str:
    number = crc32(body.encode())
    return "".join(ALPHABET[number >> 5 * place & 31] for place in range(SUM_LENGTH))
