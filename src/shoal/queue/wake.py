"""The wake-up: a hint to idle workers that a job may be waiting. Drivers in `store/` carry it between processes."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from shoal.base.clock import Clock
from shoal.base.signals import Signal, Signals
from shoal.queue.enqueuer import JobEnqueued
from shoal.queue.job import is_local
from shoal.queue.moves import JobMoved, JobsMoved
from shoal.queue.recovery import JobsReturned
from shoal.queue.states import GrantEnd, JobState

RETURNS = (GrantEnd.RELEASED, GrantEnd.CRASHED, GrantEnd.EXPIRED)
BURST = 50  # hints within a second that are passed on at once
BURST_PAUSE_SECONDS = 0.1  # between two hints above that rate


class WakeDegraded(Signal, frozen=True, kw_only=True):
    """Hints are being lost; until they arrive again, idle workers find jobs by polling."""

    why: str


class WakeRestored(Signal, frozen=True, kw_only=True):
    """Hints arrive again."""


class WakeListenerFailed(Signal, frozen=True, kw_only=True):
    """A wake-up listener raised; the other listeners were called."""

    error: str


class Wake(Protocol):
    """Carries hints. A hint may be lost, repeated or false, so workers that wait for jobs also poll, at a lower
    rate."""

    @property
    def is_shared(self) -> bool:
        """Return whether other processes receive a hint as soon as this one. If not, a process that receives one passes
        it on to its children."""
        ...

    @property
    def problem(self) -> str | None:
        """Why hints get lost at the moment; None while they arrive, or while nobody listens."""
        ...

    def announce(self) -> None:
        """Hint that a job may be waiting; call it after the commit. Never blocks and never raises; calls in quick
        succession are merged into one hint."""
        ...

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        """Call `on_hint` for every hint, from this process or another. While no subscriber reports `is_idle`, hints may
        be dropped. Returns a function that ends the subscription."""
        ...

    async def close(self) -> None:
        """Send pending hints, then stop."""
        ...


class WakeListeners:
    """The subscribers in this process. One that raises does not keep the others from being called."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._listeners: dict[object, tuple[Callable[[], None], Callable[[], bool]]] = {}

    def add(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        key = object()
        self._listeners[key] = (on_hint, is_idle)
        return lambda: self._listeners.pop(key, None) and None

    @property
    def any_idle(self) -> bool:
        return any(is_idle() for _, is_idle in self._listeners.values())

    def notify(self) -> None:
        for on_hint, _ in list(self._listeners.values()):
            try:
                on_hint()
            except Exception as error:
                self._signals.emit(WakeListenerFailed(error=f"{type(error).__name__}: {error}"))


class WakeHealth:
    """The state of hints: they arrive or get lost. Only changes are emitted, because an outage repeats its error."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.problem: str | None = None

    def degrade(self, why: str) -> None:
        """Record that hints get lost."""
        if self.problem is None:
            self._signals.emit(WakeDegraded(why=why))
        self.problem = why

    def restore(self) -> bool:
        """Record that hints arrive; returns whether they did not before."""
        if self.problem is None:
            return False
        self.problem = None
        self._signals.emit(WakeRestored())
        return True


class HintRate:
    """Limits the rate of hints: after a burst they are merged, because one hint stands for any number of jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=BURST)

    def pause(self) -> float:
        """Count a hint that was passed on; return the seconds to wait before the next one."""
        now = self._clock.monotonic()
        self._recent.append(now)
        return BURST_PAUSE_SECONDS if len(self._recent) == BURST and now - self._recent[0] < 1.0 else 0.0


class InProcessWake:
    """Hints within one process, for a store that cannot carry them to others."""

    is_shared = False
    problem = None

    def __init__(self, signals: Signals) -> None:
        self._listeners = WakeListeners(signals)

    def announce(self) -> None:
        self._listeners.notify()

    def subscribe(self, on_hint: Callable[[], None], is_idle: Callable[[], bool]) -> Callable[[], None]:
        return self._listeners.add(on_hint, is_idle)

    async def close(self) -> None:
        return


def announcing(wake: Wake) -> Callable[[Signal], None]:
    """Return a signal listener that announces every job that becomes available."""

    def listen(signal: Signal) -> None:
        enqueued = isinstance(signal, JobEnqueued) and not is_local(signal.lane)
        returned = isinstance(signal, JobsReturned) or (isinstance(signal, JobMoved) and signal.to is JobState.PENDING)
        if enqueued or returned or (isinstance(signal, JobsMoved) and signal.how in RETURNS):
            wake.announce()

    return listen
