"""Tokens, their scopes and roles, and the caller of a request."""

import re
import secrets
from binascii import crc32
from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

from msgspec import Struct, field

from shoal.base.errors import InvalidInput, NotAllowed
from shoal.base.ids import TokenId
from shoal.base.parsing import read_node_id, read_span
from shoal.base.request_form import Check, Form, describe
from shoal.base.text import message, visible


class TokenScope(StrEnum):
    """`admin` includes `write`, which includes `read`; `bot` and `node` include nothing else."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    BOT = "bot"
    NODE = "node"


INCLUDES = {
    TokenScope.READ: frozenset({TokenScope.READ}),
    TokenScope.WRITE: frozenset({TokenScope.READ, TokenScope.WRITE}),
    TokenScope.ADMIN: frozenset({TokenScope.READ, TokenScope.WRITE, TokenScope.ADMIN}),
    TokenScope.BOT: frozenset({TokenScope.BOT}),
    TokenScope.NODE: frozenset({TokenScope.NODE}),
}

ROLES: Mapping[str, frozenset[TokenScope]] = {
    "viewer": frozenset({TokenScope.READ}),  # reads
    "operator": frozenset({TokenScope.WRITE}),  # reads, starts and stops
    "admin": frozenset({TokenScope.ADMIN}),  # everything an operator may do, and manages tokens
    "bot": frozenset({TokenScope.BOT}),  # pulls page jobs and pushes results
    "node": frozenset({TokenScope.NODE}),  # a worker process of ours
}


def allows(held: frozenset[TokenScope], wanted: TokenScope) -> bool:
    """Return whether one of the held scopes includes the wanted scope."""
    return any(wanted in INCLUDES[scope] for scope in held)


def may_give(held: frozenset[TokenScope], wanted: TokenScope) -> bool:
    """Return whether a caller with these scopes may create a token with the wanted scope. A token can get only scopes
    that its creator has, except that an admin may also create tokens for bots and nodes."""
    return TokenScope.ADMIN in held or allows(held, wanted)


def in_order(scopes: Iterable[TokenScope]) -> list[TokenScope]:
    return [scope for scope in TokenScope if scope in set(scopes)]


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


class Token(Struct, frozen=True, kw_only=True):
    """The stored form of a token, without its text. Times are in microseconds. `seen_at` is the store's time when the
    token was read; the token has expired if `expires_at` is earlier."""

    number: int
    id: TokenId
    name: str
    hash: str
    scopes: frozenset[TokenScope]
    node_id: str | None  # for the scope `node`: the only node that may use the token
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
        describe("Scopes of the token. Give either scopes or role.", max_length=5),
    ] = field(default_factory=list)
    node_id: Annotated[
        str | None,
        describe("Node that may use the token. Required if the scope is node, and not allowed otherwise."),
    ] = None
    expires_in: Annotated[str | None, describe("Lifetime of the token; for example, `90d`. Default: never.")] = None

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
    """Return the id of a well-formed token; `None` if the text cannot be a token."""
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


LOCAL = "local"  # a user on this machine


class Caller(Struct, frozen=True, kw_only=True):
    """An authenticated caller: the owner of a token, or a user on this machine. `who` is the caller's name in the audit
    log, `address` is the client's address, and `until` is the end of the authorization (in microseconds)."""

    who: str
    scopes: frozenset[TokenScope]
    address: str = ""
    until: int | None = None

    def demand(self, wanted: TokenScope) -> None:
        """Raise `NotAllowed` if the caller does not have the wanted scope."""
        if not allows(self.scopes, wanted):
            held = ", ".join(sorted(self.scopes)) or "none"
            problem = f"this needs the scope {wanted.value}, but the token has {held}"
            raise NotAllowed(problem, f"use a token with the scope {wanted.value}", scope=wanted.value)


def local_caller(address: str = "") -> Caller:
    """Return the user on this machine, who may do everything."""
    return Caller(who=LOCAL, scopes=frozenset(TokenScope), address=address)
