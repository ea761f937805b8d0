"""Shared by long-running commands: logs and metrics from signals, and a stop handler."""

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.base.clock import SystemClock
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.transitions import CrawlMoved
from shoal.observe.logs import Logs, capture_stdlib, silence
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.observe.metrics import Metrics


def watched(settings: Settings) -> "tuple[Signals, Metrics]":
    """Return a signal bus with logs and metrics attached."""
    from shoal.observe.metrics import Metrics

    logs = Logs(settings.log, SystemClock())
    capture_stdlib(logs)
    metrics, signals = Metrics(), Signals()
    signals.subscribe(logs.listen)
    signals.subscribe(metrics.listen)
    return signals, metrics


def quiet(settings: Settings) -> Signals:
    """Return a signal bus for an interactive command: log only warnings, and no state changes of its crawl, which the
    command prints itself."""
    silence()
    level = settings.log.but(level="warning")
    logs, signals = Logs(level, SystemClock()), Signals()

    def listen(signal: Signal) -> None:
        if not isinstance(signal, CrawlMoved):
            logs.listen(signal)

    signals.subscribe(listen)
    return signals


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` on each SIGTERM and each Ctrl-C."""
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop)
