"""Waits that end in time, and at once if the task that was to bring about what they wait for has ended."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0


def with_load(seconds: float) -> float:
    """Return how long something may take now that takes this long on a quiet machine."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def in_time(awaitable: Awaitable[T]) -> T:
    """Wait for something that is about to end, such as a task that was told to stop."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaitable


async def wait_until(condition: Callable[[], bool], changed: asyncio.Event, *tasks: "asyncio.Task[Any]") -> None:
    """Wait until something is true; look whenever `changed` is set. A task that fails before raises its error here."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            changed.clear()
            change = asyncio.ensure_future(changed.wait())
            await asyncio.wait({change, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            for task in tasks:
                if task.done() and not condition():
                    raise AssertionError(f"it ended too early: {task}: {task.result()!r}")
