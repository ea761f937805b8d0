"""Servers in threads of their own, which leave no connection behind: its loss would be an error of whichever test runs
when it is collected."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

STEPS = 5  # of the loop, after which a connection that was just accepted has its transport and its task


class ServerLoop(asyncio.SelectorEventLoop):
    """The event loop of a server. That of Python 3.11 loses a connection which it accepts in the same step in which the
    server is closed: it closes neither the socket nor the transport that it has begun to make."""

    async def _accept_connection2(
        self, protocol_factory: Any, conn: socket.socket, extra: Any, sslcontext: Any, server: Any, *limits: Any
    ) -> None:
        if server.is_serving():
            await super()._accept_connection2(  # type: ignore[misc]
                protocol_factory, conn, extra, sslcontext, server, *limits
            )
        else:
            conn.close()


def serve_to_the_end(serving: Coroutine[Any, Any, None]) -> None:
    """Run a server until it returns, with all its connections."""
    with asyncio.Runner(loop_factory=ServerLoop) as runner:
        runner.run(serving)
        runner.run(close_connections())


async def close_connections() -> None:
    """Close every connection of this loop, also those that came in the last moment and those that they have made."""
    for _ in range(STEPS):
        await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for transport in list(asyncio.get_running_loop()._transports.values()):  # type: ignore[attr-defined]
        transport.abort()
    await asyncio.sleep(0)
