"""The hook by which an operation writes what an operator did to the audit log, in its own commit, without knowing its
caller. The operation names the action, so that the API, the console and the command line write the same entry."""

from collections.abc import Awaitable, Callable

from shoal.base.database import Tx

AuditHook = Callable[[Tx, str, str], Awaitable[None]]
"""Writes an action, such as `gate.created`, and its subject to the audit log, in an open transaction."""


async def no_audit(tx: Tx, action: str, subject: str) -> None:
    """Write nothing: for operations that nobody asked for, or whose entry is written already."""
