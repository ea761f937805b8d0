"""The caller of an operation."""

from dataclasses import dataclass

from shoal.access.scopes import TokenScope, allows
from shoal.base.errors import NotAllowed

LOCAL = "local"  # a user on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated caller: the owner of a token, or a user on this machine. `who` is the name in the audit log,
    `address` the client's address, `until` the end of the authorization (microseconds)."""

    who: str
    scopes: frozenset[TokenScope]
    address: str = ""
    until: int | None = None

    def demand(self, wanted: TokenScope) -> None:
        """Raise `NotAllowed` if the caller lacks a token scope."""
        if not allows(self.scopes, wanted):
            held = ", ".join(sorted(self.scopes)) or "none"
            problem = f"this needs the scope {wanted.value}, but the token has {held}"
            raise NotAllowed(problem, f"use a token with the scope {wanted.value}", scope=wanted.value)


def local_caller(address: str = "") -> Caller:
    """Return the user on this machine, who may do everything."""
    return Caller(who=LOCAL, scopes=frozenset(TokenScope), address=address)
