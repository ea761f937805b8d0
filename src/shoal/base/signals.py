"""Signals: rooms say what happened; whoever listens (logs, metrics, wake-ups) decides what to make of it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Something that happened. Subclasses carry the facts; `observe` words them."""


Listener = Callable[[Signal], None]


class Signals:
    """One bus per process. A listener must be quick and must not raise: it is told inside the room's own step."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def emit(self, signal: Signal) -> None:
        for listener in self._listeners:
            listener(signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoreFailed(Signal):
    """A chore's pass raised; it is tried again after a pause."""

    chore: str
    error: str
    failures: int
    retry_in_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoreDone(Signal):
    """A chore's pass changed something."""

    chore: str
    did: str
