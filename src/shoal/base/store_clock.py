"""The store's clock: leases, slots, holds, retries and policies run by it, never by the clock of a process. It always
advances. When the clock below it is set back, it goes on and lets the other catch up; set forward, it follows."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStepped(Signal):
    """The clock below the store's was set: the database server's, or for an embedded store the machine's."""

    direction: str  # back or forward
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnClockSetBack(Signal):
    """The clock of a process's own machine was set back. It decides nothing."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """What a check found: steps that nobody was told of yet, in seconds, and how long ago the store's clock jumped."""

    steps: tuple[float, ...]
    jumped_ago: timedelta


class StoreClock(Protocol):
    async def check(self, database: Database, clock: Clock) -> ClockCheck:
        """Compare the clock below the store's with the uptime of this machine, and absorb a step. Call it every second
        or so. Any number of processes may: one of them absorbs a step, and only that one is told of it."""
        ...


class ClockWatch:
    """The chore that checks the store's clock and tells the operator of steps."""

    name = "clock"

    def __init__(self, database: Database, store_clock: StoreClock, clock: Clock, signals: Signals) -> None:
        self._database = database
        self._store_clock = store_clock
        self._clock = clock
        self._signals = signals

    async def run_once(self) -> PassResult:
        await self.check()
        return PassResult()

    async def check(self) -> ClockCheck:
        found = await self._store_clock.check(self._database, self._clock)
        for seconds in found.steps:
            direction = "back" if seconds < 0 else "forward"
            self._signals.emit(ClockStepped(direction=direction, seconds=abs(seconds)))
        return found

    def tell_own_clock(self, seconds: float) -> None:
        self._signals.emit(OwnClockSetBack(seconds=seconds))
