"""How a verb that an administrator may use leaves a note of it in its own commit, without knowing who asked."""

from collections.abc import Awaitable, Callable

from shoal.base.database import Tx

AuditHook = Callable[[Tx, str], Awaitable[None]]
"""Writes into an open transaction that something was done to a subject."""


async def no_audit(tx: Tx, subject: str) -> None:
    """For what nobody has to answer for."""
