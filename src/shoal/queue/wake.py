"""The wake-up: a hint to idle workers that a job may wait. Drivers carry it between processes (`store/`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.base.signals import Signal, Signals
from shoal.queue.job import is_local
from shoal.queue.queue import JobEnqueued, JobMoved, JobsMoved
from shoal.queue.states import GrantEnd, JobState

RETURNS = (GrantEnd.RELEASED, GrantEnd.CRASHED, GrantEnd.EXPIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeDegraded(Signal):
    """Hints do not come through; idle workers find jobs by polling until they do."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeRestored(Signal):
    """Hints come through again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeListenerFailed(Signal):
    """Somebody who was to hear a hint raised; the others have heard it."""

    error: str


class Wake(Protocol):
    """Carries hints. One may get lost, come twice, or be false: whoever waits for jobs also polls, only more rarely."""

    @property
    def swift(self) -> bool:
        """Whether other processes hear a hint as soon as this one. Where not, who hears one tells its children."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why hints get lost just now; None while they come through, or nobody listens."""
        ...

    def announce(self) -> None:
        """A job may wait: call after the commit. Never waits and never raises; what is said in quick succession is
        passed on as one."""
        ...

    def subscribe(self, heard: Callable[[], None], hungry: Callable[[], bool]) -> Callable[[], None]:
        """Call `heard` for every hint, from this process or another. While nobody is `hungry`, none need be passed on.
        The answer ends the subscription."""
        ...

    async def close(self) -> None:
        """Pass on what was announced, then fall silent."""
        ...


class WakeListeners:
    """Who in this process wants to hear. One that raises keeps nobody else from hearing."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._ears: dict[object, tuple[Callable[[], None], Callable[[], bool]]] = {}

    def add(self, heard: Callable[[], None], hungry: Callable[[], bool]) -> Callable[[], None]:
        key = object()
        self._ears[key] = (heard, hungry)
        return lambda: self._ears.pop(key, None) and None

    @property
    def hungry(self) -> bool:
        return any(hungry() for _, hungry in self._ears.values())

    def tell(self) -> None:
        for heard, _ in list(self._ears.values()):
            try:
                heard()
            except Exception as error:
                self._signals.emit(WakeListenerFailed(error=f"{type(error).__name__}: {error}"))


class QuietWake:
    """Hints within one process, for a store that cannot carry them further."""

    swift = False
    trouble = None

    def __init__(self, signals: Signals) -> None:
        self._ears = WakeListeners(signals)

    def announce(self) -> None:
        self._ears.tell()

    def subscribe(self, heard: Callable[[], None], hungry: Callable[[], bool]) -> Callable[[], None]:
        return self._ears.add(heard, hungry)

    async def close(self) -> None:
        return


def announcing(wake: Wake) -> Callable[[Signal], None]:
    """A listener of signals that announces every job which stands in line from now on."""

    def listen(signal: Signal) -> None:
        enqueued = isinstance(signal, JobEnqueued) and not is_local(signal.lane)
        returned = isinstance(signal, JobMoved) and signal.to is JobState.PENDING
        if enqueued or returned or (isinstance(signal, JobsMoved) and signal.how in RETURNS):
            wake.announce()

    return listen
