"""Servers in threads of their own, which leave no connection behind."""

import asyncio
from collections.abc import Coroutine
from typing import Any

STEPS = 5  # of the loop, after which a connection that was just accepted has its transport


def serve_to_the_end(serving: Coroutine[Any, Any, None]) -> None:
    """Run a server until it returns, with all its connections."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(serving)
        runner.run(close_connections())


async def close_connections() -> None:
    """Close every connection of this loop. One that came in the last moment has no task that would close it, and its
    loss would be reported as an error of whichever test runs when it is collected."""
    for _ in range(STEPS):
        await asyncio.sleep(0)
    for transport in list(asyncio.get_running_loop()._transports.values()):  # type: ignore[attr-defined]
        transport.abort()
    await asyncio.sleep(0)
