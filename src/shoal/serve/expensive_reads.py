"""Limits for requests that read a large part of a crawl: a few concurrent reads per caller, a bounded queue, and a time
limit."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.base.errors import RateLimited, TookTooLong
from shoal.serve.authentication import caller_of

T = TypeVar("T")


async def disconnect(request: Request) -> None:
    """Wait until the client has closed the connection. The body of the request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Awaitable[T], seconds: float | None = None) -> T:
    """Return the result of `work`. If the client disconnects first or the time is up, cancel `work` and raise."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnect(request))
    try:
        done, _ = await asyncio.wait({working, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            return working.result()
        raise ClientDisconnect if gone in done else TookTooLong("the read", seconds or 0.0)
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


AT_ONCE = 2  # concurrent reads per caller
WAITING = 8  # further reads per caller that may wait for their turn
SECONDS = 120.0  # from the request to the start of the response
RETRY_SECONDS = 10.0


@dataclass(slots=True)
class _Places:
    """The running and waiting reads of one caller."""

    running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    taken: int = 0  # number of reads that run or wait


class ExpensiveReads:
    """The expensive reads of one controller. They are limited per caller, so that no caller can have all of them. What
    they share, such as the processes that convert pages, may still make one caller wait for others."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._callers: dict[str, _Places] = {}

    async def respond(self, request: Request, read: Callable[[], Awaitable[Response]]) -> ASGIApp:
        """Run a read within the limit of its caller. The read is cancelled when the client disconnects or the time is
        up. It counts until the response has been sent, because a streamed response reads while it is being sent."""
        who = caller_of(request).who
        places = self._callers.setdefault(who, _Places())
        if places.taken >= AT_ONCE + WAITING:
            raise RateLimited(
                f"{places.taken} large reads of this caller are already running or waiting", RETRY_SECONDS
            )
        places.taken += 1
        running = False

        async def run() -> Response:
            nonlocal running
            await places.running.acquire()
            running = True
            return await read()

        def release() -> None:
            places.taken -= 1
            if running:
                places.running.release()
            if not places.taken:
                self._callers.pop(who, None)

        try:
            return _Releasing(await unless_gone(request, run(), self._seconds), release)
        except BaseException:
            release()
            raise


class _Releasing:
    """A response that calls `release` once sending has succeeded or failed."""

    def __init__(self, response: Response, release: Callable[[], None]) -> None:
        self._response = response
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._release()
