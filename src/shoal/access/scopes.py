"""Token scopes, which say what a caller may do, and roles, which are named sets of them."""

from collections.abc import Iterable, Mapping
from enum import StrEnum


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
    "operator": frozenset({TokenScope.WRITE}),  # reads, starts, stops
    "admin": frozenset({TokenScope.ADMIN}),  # all of that, and manages tokens
    "bot": frozenset({TokenScope.BOT}),  # pulls page jobs and pushes results
    "node": frozenset({TokenScope.NODE}),  # a worker process of ours
}


def allows(held: frozenset[TokenScope], wanted: TokenScope) -> bool:
    """Return whether one of the held scopes includes the wanted one."""
    return any(wanted in INCLUDES[scope] for scope in held)


def may_give(held: frozenset[TokenScope], wanted: TokenScope) -> bool:
    """Return whether a caller with these scopes may create a token with the wanted one: only scopes the caller has,
    except that an admin may create tokens for bots and nodes."""
    return TokenScope.ADMIN in held or allows(held, wanted)


def in_order(scopes: Iterable[TokenScope]) -> list[TokenScope]:
    return [scope for scope in TokenScope if scope in set(scopes)]
