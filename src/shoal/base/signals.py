"""Signals: packages emit what happened; listeners (logs, metrics, wake-ups) decide what to do with it."""

from collections.abc import Callable

from msgspec import Struct


class Signal(Struct, frozen=True):
    """Something that happened. Subclasses have the details as fields; the package `observe` turns them into
    messages."""


Listener = Callable[[Signal], None]


class Signals:
    """The signal bus of a process. Listeners are called synchronously, so they must be quick and must not raise."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def emit(self, signal: Signal) -> None:
        for listener in self._listeners:
            listener(signal)


class ChoreFailed(Signal, frozen=True, kw_only=True):
    """A pass of a chore raised an error; it is retried after a delay."""

    chore: str
    error: str
    failures: int
    retry_in_seconds: float


class ChoreDone(Signal, frozen=True, kw_only=True):
    """A pass of a chore changed something."""

    chore: str
    did: str
