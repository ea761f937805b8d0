"""Signals about a Redis server, emitted on the event loop."""

import asyncio

from shoal.base.signals import Signal, Signals


class ServerSignals:
    """Emits what calls to a server reveal about it. They are made in units of work, which SQLite runs on a thread of
    its own, so the event loop of the process that built this emits the signals. It does not wait for a commit: a server
    that cannot be used is reported above all if it makes the transaction fail."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._loop = asyncio.get_running_loop()

    def emit(self, signal: Signal) -> None:
        """Emit a signal soon. May be called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._signals.emit, signal)
