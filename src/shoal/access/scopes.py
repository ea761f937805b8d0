"""What a caller may do."""

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


def allows(held: frozenset[Scope], wanted: Scope) -> bool:
    """Whether one of the held scopes includes the wanted one."""
    return any(wanted in INCLUDES[scope] for scope in held)
