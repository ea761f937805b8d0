"""Jobs that have become available, or are not any more: hosts are recorded, and lanes outside the database are told."""

from collections.abc import Sequence
from typing import Protocol

from shoal.base.database import Tx
from shoal.store.sql.job_hosts import note_hosts


class OtherLanes(Protocol):
    """Lanes that are kept outside the database. What they are told takes effect once the transaction has committed."""

    async def push(self, tx: Tx, job_ids: Sequence[str]) -> None:
        """Put those of these jobs that wait and are due into their lanes."""
        ...

    async def forget(self, tx: Tx, job_ids: Sequence[str]) -> None:
        """Remove jobs that do not wait any more."""
        ...


class Availability:
    """Every commit that makes jobs available calls `note`: new jobs, returned ones, those whose time has come or whose
    quota has room again. A commit that takes waiting jobs away, but does not lease them, calls `forget`."""

    def __init__(self, lanes: OtherLanes | None = None) -> None:
        """`lanes`: None if the jobs table is the only lane."""
        self._lanes = lanes

    async def note(self, tx: Tx, job_ids: Sequence[str], at_hosts: Sequence[str]) -> None:
        """Follow up on jobs that have become available. `at_hosts`: those of them whose hosts have to be recorded."""
        await note_hosts(tx, at_hosts)
        if self._lanes is not None and job_ids:
            await self._lanes.push(tx, job_ids)

    async def forget(self, tx: Tx, job_ids: Sequence[str]) -> None:
        if self._lanes is not None and job_ids:
            await self._lanes.forget(tx, job_ids)
