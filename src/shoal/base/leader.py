"""The lead of a chore: of several controllers one does it, by a short lease in the store. What it does is
compare-and-set anyway, so that two who both believe to lead for a moment do no harm."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from shoal.base.database import Database, Tx
from shoal.base.errors import TimeError
from shoal.base.service import Chore, Closable, PassResult

LEAD = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """The right to do a chore; a later term of the same chore ends it. Fence commits with it where two would harm."""

    chore: str
    holder: str
    number: int


class LeaderStore(Protocol):
    async def claim(self, tx: Tx, chore: str, holder: str, ttl: timedelta) -> LeaderTerm | None:
        """Lead from now on, or go on leading; None while somebody else does. The number rises whenever the lead changed
        hands, or was let go by."""
        ...

    async def holds(self, tx: Tx, term: LeaderTerm) -> bool:
        """Whether the term is still the one, and not over."""
        ...

    async def give_up(self, tx: Tx, term: LeaderTerm) -> None:
        """Let the next one take over at once."""
        ...


class LeaderOnly:
    """A chore that only its leader does: a pass of the others does nothing. `lead` is what they compete for, if not all
    chores of that name."""

    def __init__(self, chore: Chore, database: Database, store: LeaderStore, holder: str, lead: str = "") -> None:
        self.name = chore.name
        self._chore = chore
        self._database = database
        self._store = store
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
            with suppress(TimeError):  # then it runs out by itself
                await self._database.run(lambda tx: self._store.give_up(tx, term))
