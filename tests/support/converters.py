"""The processes that convert large pages for this one, and pages that they take long for."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.base.clock import SystemClock
from tests.support.patience import PATIENCE_SECONDS

CLOCK = SystemClock()

SLOW = "<title>Knots</title><main>" + "<b><i><p>x" * 60_000  # takes some seconds for its main text
LARGE = "<title>Carp</title><main>" + '<p>The <a href="/carp">carp</a> is a fish of ponds. ' * 4_000


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
