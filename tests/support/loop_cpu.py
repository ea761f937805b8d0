"""The longest callback of an event loop, in CPU seconds of its thread: for as long, nobody else was served."""

import time
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class LongestCallback:
    seconds: float = 0.0
    callback: str = ""


@contextmanager
def longest_callback() -> Iterator[LongestCallback]:
    """Watch the callbacks of all event loops of this process that are written in Python."""
    longest, run = LongestCallback(), Handle._run

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        seconds = time.thread_time() - began
        if seconds > longest.seconds:
            longest.seconds, longest.callback = seconds, repr(handle)[:300]

    Handle._run = timed  # type: ignore[assignment,method-assign]
    try:
        yield longest
    finally:
        Handle._run = run  # type: ignore[method-assign]
