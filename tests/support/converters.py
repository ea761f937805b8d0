"""The processes that convert large pages for this one, pages that they take long for, and how long a loop pauses."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.base.clock import SystemClock
from tests.support.patience import PATIENCE_SECONDS

CLOCK = SystemClock()

SLOW = "<title>Knots</title><main>" + "<b><i><p>x" * 60_000  # takes some seconds for its main text
LARGE = "<title>Carp</title><main>" + '<p>The <a href="/carp">carp</a> is a fish of ponds. ' * 4_000
_SECTION = '<div><h2 id="a">Carp</h2><p>The <a href="/carp?q=1">carp</a> is a fish of ponds.</p></div>\n'
TEN_MB = _SECTION * (9_999_000 // len(_SECTION))
LONGEST_PAUSE = 0.05  # CPU seconds


def converters(parent: str = "self") -> list[int]:
    """Return the process ids of the converters of a process."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(pid) for pid in task.read_text().split() if is_converter(pid)]
    return found


def is_converter(pid: str | int) -> bool:
    try:
        return b"shoal.extract.converter" in Path(f"/proc/{pid}/cmdline").read_bytes()  # empty if it is a zombie
    except OSError:
        return False


async def running_converter() -> int:
    """Wait until one is running."""
    await _until(lambda: bool(converters()))
    return converters()[0]


async def no_converter(pid: int | None = None) -> None:
    """Wait until this one has ended, or all have."""
    await _until(lambda: not (converters() if pid is None else is_converter(pid)))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await CLOCK.sleep(0.01)


async def longest_pause(working: "asyncio.Task[Any]") -> float:
    """Return the most CPU seconds of this process, in whatever thread, between two turns of the loop."""
    longest, last = 0.0, time.process_time()
    while not working.done():
        await CLOCK.sleep(0.001)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    return longest
