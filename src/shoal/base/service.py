"""Background services: `Service` runs a chore periodically, and `LeaderOnly` runs it in only one process at a time."""

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import Protocol, runtime_checkable

from shoal.base.clock import Clock, span
from shoal.base.database import Database
from shoal.base.errors import ShoalError, TimeError
from shoal.base.signals import ChoreDone, ChoreFailed, Signals

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
LAST_PASS_SECONDS = 10.0  # how long `stop` waits for the current pass, which may be waiting for a silent peer


class PassResult:
    """The result of one pass of a chore, and the delay until the next one (None: the usual interval)."""

    __slots__ = ("again_in", "did")

    def __init__(self, did: str = "", again_in: timedelta | None = None) -> None:
        self.did = did
        self.again_in = again_in


class Chore(Protocol):
    """Periodic work. `run_once` may be repeated at any time and after any failure."""

    name: str

    async def run_once(self) -> PassResult: ...


@runtime_checkable
class Closable(Protocol):
    """A chore that keeps something open between its passes."""

    async def close(self) -> None: ...


class Service:
    """Runs one chore until stopped.

    `start` first waits a random part of the interval, so that many processes do not run in step. `stop` lets the
    current pass finish, or cancels it after `grace_seconds`. `stop` may be called twice. If it is called before
    `start`, then `start` does nothing.
    """

    def __init__(self, chore: Chore, interval: timedelta, clock: Clock, signals: Signals) -> None:
        self._chore = chore
        self._interval = interval.total_seconds()
        self._clock = clock
        self._signals = signals
        self._stopping = asyncio.Event()
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    def start(self) -> None:
        if self._task is None and not self._stopping.is_set():
            self._task = asyncio.create_task(self._loop(), name=f"chore:{self._chore.name}")

    def nudge(self) -> None:
        """Run the chore as soon as possible, without waiting for its interval."""
        self._nudged.set()

    async def stop(self, grace_seconds: float = LAST_PASS_SECONDS) -> None:
        self._stopping.set()
        self._nudged.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=grace_seconds)
            self._task.cancel()
            await asyncio.wait({self._task})
        if isinstance(self._chore, Closable):
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    while pause := await self._close(self._chore):
                        await self._clock.sleep(pause)

    async def _close(self, chore: Closable) -> float:
        try:
            await chore.close()
        except Exception as error:  # unwritten data of the chore may be lost, but the process must end
            return self._failed(str(error) or repr(error))
        return 0.0

    async def _loop(self) -> None:
        await self._pause(random.random() * self._interval)
        while not self._stopping.is_set():
            self._nudged.clear()
            await self._pause(await self._once())

    async def _once(self) -> float:
        try:
            done = await self._chore.run_once()
        except (ShoalError, OSError, TimeoutError) as error:
            return self._failed(str(error))
        except Exception as error:  # the service must go on after any failed pass
            return self._failed(repr(error))
        self._failures = 0
        if done.did:
            self._signals.emit(ChoreDone(chore=self._chore.name, did=done.did))
        return self._interval if done.again_in is None else done.again_in.total_seconds()

    def _failed(self, error: str) -> float:
        self._failures += 1
        pause = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** (self._failures - 1))
        self._signals.emit(
            ChoreFailed(chore=self._chore.name, error=error, failures=self._failures, retry_in_seconds=pause)
        )
        return pause

    async def _pause(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        nudged = asyncio.ensure_future(self._nudged.wait())
        try:
            await asyncio.wait({sleeping, nudged}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            nudged.cancel()


LEAD = timedelta(seconds=5)


class LeaderOnly:
    """A chore that only one process runs, its leader. The passes of other processes do nothing. `lead` is the name
    under which they compete, by default the name of the chore."""

    def __init__(self, chore: Chore, database: Database, holder: str, lead: str = "") -> None:
        self.name = chore.name
        self._chore = chore
        self._database = database
        self._holder = holder
        self._lead = lead or chore.name
        self._term: int | None = None

    async def run_once(self) -> PassResult:
        return PassResult() if await self.claim() is None else await self._chore.run_once()

    async def claim(self) -> int | None:
        """Take or renew the lead and return its term; return None while a different holder has the lead. The term
        increases when the holder changes, and when the lead was given up or had expired."""
        values = {"chore": self._lead, "holder": self._holder, "ttl": span(LEAD)}
        self._term = await self._database.run(lambda tx: tx.value("claim_lead", **values))
        return self._term

    async def close(self) -> None:
        """Give up the lead, so that another controller can take over immediately."""
        if isinstance(self._chore, Closable):
            await self._chore.close()
        if self._term is not None:
            values = {"chore": self._lead, "holder": self._holder, "term": self._term}
            with suppress(TimeError):  # if the store is not available, the lead expires by itself
                await self._database.run(lambda tx: tx.execute("give_up_lead", **values))
