"""Leader election for chores, on SQL."""

from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.leader import LeaderTerm


class SqlLeaderStore:
    """Implements `base.leader.LeaderStore`."""

    async def claim(self, tx: Tx, chore: str, holder: str, ttl: timedelta) -> LeaderTerm | None:
        number = await tx.value("claim_lead", chore=chore, holder=holder, ttl=span(ttl))
        return None if number is None else LeaderTerm(chore, holder, number)

    async def holds(self, tx: Tx, term: LeaderTerm) -> bool:
        return await tx.one("leads_still", chore=term.chore, holder=term.holder, term=term.number) is not None

    async def give_up(self, tx: Tx, term: LeaderTerm) -> None:
        await tx.execute("give_up_lead", chore=term.chore, holder=term.holder, term=term.number)
