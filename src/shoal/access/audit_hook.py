"""The hook by which an administrative operation writes an audit log entry in its own commit, without knowing its
caller."""

from collections.abc import Awaitable, Callable

from shoal.base.database import Tx

AuditHook = Callable[[Tx, str], Awaitable[None]]
"""Writes an audit log entry about a subject, in an open transaction."""


async def no_audit(tx: Tx, subject: str) -> None:
    """Write nothing: for operations that are not audited."""
