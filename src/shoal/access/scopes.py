"""What a caller may do: scopes, and roles, which are names for sets of them."""

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Scope(StrEnum):
    """`admin` includes `write`, which includes `read`; `bot` and `node` stand for themselves."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    BOT = "bot"
    NODE = "node"


INCLUDES = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.WRITE: frozenset({Scope.READ, Scope.WRITE}),
    Scope.ADMIN: frozenset({Scope.READ, Scope.WRITE, Scope.ADMIN}),
    Scope.BOT: frozenset({Scope.BOT}),
    Scope.NODE: frozenset({Scope.NODE}),
}

ROLES: Mapping[str, frozenset[Scope]] = {
    "viewer": frozenset({Scope.READ}),  # looks
    "operator": frozenset({Scope.WRITE}),  # looks, starts, stops
    "admin": frozenset({Scope.ADMIN}),  # all of that, and tokens
    "bot": frozenset({Scope.BOT}),  # pulls page jobs and pushes results
    "node": frozenset({Scope.NODE}),  # a worker of ours
}


def allows(held: frozenset[Scope], wanted: Scope) -> bool:
    """Whether one of the held scopes includes the wanted one."""
    return any(wanted in INCLUDES[scope] for scope in held)


def may_give(held: frozenset[Scope], wanted: Scope) -> bool:
    """Whether who holds these may make a token with that one: nobody gives what he lacks, but an admin names bots and
    nodes without being one."""
    return Scope.ADMIN in held or allows(held, wanted)


def in_order(scopes: Iterable[Scope]) -> list[Scope]:
    return [scope for scope in Scope if scope in set(scopes)]
