"""What a caller may do: scopes, and roles, which are names for sets of them."""

from collections.abc import Iterable, Mapping
from enum import StrEnum


class TokenScope(StrEnum):
    """`admin` includes `write`, which includes `read`; `bot` and `node` stand for themselves."""

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
    "viewer": frozenset({TokenScope.READ}),  # looks
    "operator": frozenset({TokenScope.WRITE}),  # looks, starts, stops
    "admin": frozenset({TokenScope.ADMIN}),  # all of that, and tokens
    "bot": frozenset({TokenScope.BOT}),  # pulls page jobs and pushes results
    "node": frozenset({TokenScope.NODE}),  # a worker of ours
}


def allows(held: frozenset[TokenScope], wanted: TokenScope) -> bool:
    """Whether one of the held scopes includes the wanted one."""
    return any(wanted in INCLUDES[scope] for scope in held)


def may_give(held: frozenset[TokenScope], wanted: TokenScope) -> bool:
    """Whether who holds these may make a token with that one: nobody gives what he lacks, but an admin names bots and
    nodes without being one."""
    return TokenScope.ADMIN in held or allows(held, wanted)


def in_order(scopes: Iterable[TokenScope]) -> list[TokenScope]:
    return [scope for scope in TokenScope if scope in set(scopes)]
