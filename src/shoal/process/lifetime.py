"""Shared parts of all processes: logs and metrics from signals, garbage collection, and a watch for pages that block
the event loop."""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from shoal.base.clock import Clock, SystemClock
from shoal.base.settings import Settings
from shoal.base.signals import Signal, Signals
from shoal.crawl.lifecycle.crawls import KIND as CRAWL_JOB
from shoal.crawl.lifecycle.transitions import CrawlMoved
from shoal.observe.logs import Logs, capture_stdlib, silence
from shoal.queue.moves import JobMoved
from shoal.queue.states import GrantEnd, JobState

if TYPE_CHECKING:
    from shoal.observe.metrics import Metrics


def logged(settings: Settings) -> Signals:
    """Return a signal bus with logs attached."""
    logs, signals = Logs(settings.log, SystemClock()), Signals()
    capture_stdlib(logs)
    signals.subscribe(logs.listen)
    return signals


def watched(settings: Settings) -> "tuple[Signals, Metrics]":
    """Return a signal bus with logs and metrics attached."""
    from shoal.observe.metrics import Metrics

    metrics, signals = Metrics(), logged(settings)
    signals.subscribe(metrics.listen)
    return signals, metrics


def quiet(settings: Settings, is_printed: Callable[[Signal], bool] = lambda _: False) -> Signals:
    """Return a signal bus for an interactive command. It logs only warnings, and leaves out messages that the command
    prints itself, such as state changes of its crawl. A crawl that takes over the job of a killed process is not worth
    a warning either: the command says that it resumes the crawl."""
    silence()
    level = settings.log.but(level="warning")
    logs, signals = Logs(level, SystemClock()), Signals()

    def listen(signal: Signal) -> None:
        if not isinstance(signal, CrawlMoved) and not _is_takeover(signal) and not is_printed(signal):
            logs.listen(signal)

    signals.subscribe(listen)
    return signals


def _is_takeover(signal: Signal) -> bool:
    """Return whether a crawl's job was taken from a worker that is gone, and somebody else can continue it."""
    match signal:
        case JobMoved(kind=kind, how=GrantEnd.CRASHED | GrantEnd.EXPIRED, to=JobState.PENDING):
            return kind == CRAWL_JOB
        case _:
            return False


# objects; with a lower number, the pages of a commit would be scanned several times before they are stored
GENERATION_0 = 20_000


def reduce_collections() -> None:
    """Exclude imported modules from garbage collection, and collect less often, because page objects have no cycles.
    This saves two to three percent of a crawl's time."""
    gc.freeze()
    gc.set_threshold(GENERATION_0)
    gc.enable()


LOOKS: Final = 4  # number of checks within the time for which the loop may be silent
NAMES: Final = ("task", "source", "outcome", "errand", "url")
"""Names of local variables that hold a page's URL, or an object with one."""


class StallWatch:
    """Watches the running event loop while the block runs, because `shoal crawl` has no parent process that would kill
    it when a page blocks the loop. `say` is called from the watching thread.

    A thread watches the loop, because a blocked loop cannot watch itself. Nothing is killed, since the page may still
    finish. If a parser does not release the interpreter lock, its page is reported only when the lock is released.
    """

    def __init__(self, longest_seconds: float, how_to_go_on: str, clock: Clock, say: Callable[[str], None]) -> None:
        self._longest_seconds = longest_seconds
        self._how_to_go_on = how_to_go_on
        self._clock = clock
        self._say = say
        self._ticked_at = self._looked_at = clock.monotonic()
        self._is_reported = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)
        self._watched = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._tick()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join()

    def is_stalled(self, now: float) -> bool:
        """Return whether the loop has been silent for too long and this has not been reported yet. If the check itself
        is late, the whole process was stopped, for example by Ctrl-Z; then the silence is measured again from now."""
        late = now - self._looked_at > self._longest_seconds / 2
        self._looked_at = now
        if late:
            self._ticked_at = max(self._ticked_at, now)
        if now - self._ticked_at <= self._longest_seconds:
            self._is_reported = False
            return False
        was_reported, self._is_reported = self._is_reported, True
        return not was_reported

    def _tick(self) -> None:
        self._ticked_at = self._clock.monotonic()
        self._timer = asyncio.get_running_loop().call_later(self._longest_seconds / LOOKS, self._tick)

    def _watch(self) -> None:
        while not self._over.wait(self._longest_seconds / LOOKS):
            if self.is_stalled(self._clock.monotonic()):
                url = url_in(sys._current_frames().get(self._watched))  # noqa: SLF001 (the only way to see the frame)
                what = f"{url} has" if url else "Something has"
                self._say(
                    f"{what} blocked the crawl for more than {self._longest_seconds:g} s. Wait, or "
                    f"stop it (Ctrl-C, then kill -9) and resume with `{self._how_to_go_on}`."
                )


def url_in(frame: FrameType | None) -> str | None:
    """Return the URL in the local variables of the innermost frame that has one."""
    while frame is not None:
        for name in NAMES:
            value = frame.f_locals.get(name)
            url = value if isinstance(value, str) else getattr(value, "url", None)
            if isinstance(url, str) and url.startswith(("http://", "https://")):
                return url
        frame = frame.f_back
    return None
