"""The store's clock. Leases, slots, holds, retries and policies use it, and never the clock of a process. It never goes
back: if the underlying clock is set back, this one continues until the other has caught up; if it is set forward, this
one follows."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals


class ClockStepped(Signal, frozen=True, kw_only=True):
    """The clock underlying the store's was set: the database server's, or the machine's for an embedded store."""

    direction: str  # back or forward
    seconds: float


class OwnClockSetBack(Signal, frozen=True, kw_only=True):
    """The clock of this process's machine was set back. Nothing depends on it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """The result of a check: steps not yet reported, in seconds, and the time since the store's clock jumped."""

    steps: tuple[float, ...]
    jumped_ago: timedelta


class StoreClock(Protocol):
    async def check(self, database: Database, clock: Clock) -> ClockCheck:
        """Compare the underlying clock with the uptime of this machine, and absorb a step. Call it about once a second,
        from any number of processes: one of them absorbs a step, and only that one gets it reported."""
        ...


class ClockWatch:
    """The chore that checks the store's clock and reports steps to the operator."""

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

    def report_own_clock(self, seconds: float) -> None:
        self._signals.emit(OwnClockSetBack(seconds=seconds))
