"""Leader election for chores: one of several controllers runs a chore, by a short lease in the store. Chores use
compare-and-set anyway, so two controllers that both believe they lead for a moment do no harm."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.base.errors import TimeError
from shoal.base.service import Chore, Closable, PassResult

LEAD = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """The right to run a chore, until a later term of the same chore begins. Fence commits with it where two leaders
    would do harm."""

    chore: str
    holder: str
    number: int


class LeaderStore:
    """The leads of all chores."""

    async def claim(self, tx: Tx, chore: str, holder: str, ttl: timedelta) -> LeaderTerm | None:
        """Take or renew the lead; return None while another holder has it. The number increases whenever the holder
        changes, or the lead was given up or has expired in between."""
        number = await tx.value("claim_lead", chore=chore, holder=holder, ttl=span(ttl))
        return None if number is None else LeaderTerm(chore, holder, number)

    async def holds(self, tx: Tx, term: LeaderTerm) -> bool:
        """Return whether the term is still the current one and has not expired."""
        return await tx.one("leads_still", chore=term.chore, holder=term.holder, term=term.number) is not None

    async def give_up(self, tx: Tx, term: LeaderTerm) -> None:
        """Give up the lead, so that another controller can take over immediately."""
        await tx.execute("give_up_lead", chore=term.chore, holder=term.holder, term=term.number)


class LeaderOnly:
    """A chore that only its leader runs: the passes of other controllers do nothing. `lead` is the name of the lead
    they compete for; by default the name of the chore."""

    def __init__(self, chore: Chore, database: Database, holder: str, lead: str = "") -> None:
        self.name = chore.name
        self._chore = chore
        self._database = database
        self._store = LeaderStore()
        self._holder = holder
        self._lead = lead or chore.name
        self._term: LeaderTerm | None = None

    async def run_once(self) -> PassResult:
        self._term = await self._database.run(lambda tx: self._store.claim(tx, self._lead, self._holder, LEAD))
        return PassResult() if self._term is None else await self._chore.run_once()

    async def close(self) -> None:
        if isinstance(self._chore, Closable):
            await self._chore.close()
        if (term := self._term) is not None:
            with suppress(TimeError):  # the lease then expires by itself
                await self._database.run(lambda tx: self._store.give_up(tx, term))
