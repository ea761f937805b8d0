"""Who asks for something."""

from dataclasses import dataclass

from shoal.access.scopes import TokenScope, allows
from shoal.base.errors import NotAllowed

LOCAL = "local"  # whoever works at this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who was let in: the holder of a token, or who works at this machine. `who` is what the log of
    administrative acts says of them, `address` where they asked from, `until` when their right ends (micros)."""

    who: str
    scopes: frozenset[TokenScope]
    address: str = ""
    until: int | None = None

    def demand(self, wanted: TokenScope) -> None:
        """Refuse who lacks a scope, by its name."""
        if not allows(self.scopes, wanted):
            held = ", ".join(sorted(self.scopes)) or "none"
            problem = f"this needs the scope {wanted.value}, and the token has {held}"
            raise NotAllowed(problem, f"use a token with {wanted.value}", scope=wanted.value)


def local_caller(address: str = "") -> Caller:
    """Who works at this machine, and so may do everything."""
    return Caller(who=LOCAL, scopes=frozenset(TokenScope), address=address)
