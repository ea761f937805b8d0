"""Limits requests that read much of a crawl: a few at a time for each caller, a bounded queue, and a time budget."""

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
    """Return what `work` returns; cancel it and raise if the client leaves first, or the time is up."""
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


AT_ONCE = 2  # reads of one caller that run at the same time
WAITING = 8  # further reads of one caller that wait for these
SECONDS = 120.0  # from the request to the start of the response
RETRY_SECONDS = 10.0


@dataclass(slots=True)
class _Places:
    """The places of one caller."""

    running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    taken: int = 0  # reads that run or wait


class ExpensiveReads:
    """The expensive reads of one controller, by caller: one caller's reads do not delay those of another."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._callers: dict[str, _Places] = {}

    async def respond(self, request: Request, read: Callable[[], Awaitable[Response]]) -> ASGIApp:
        """Run a read in a place of its caller. It is cancelled when the client leaves or the time is up. The place is
        held until the response has been sent, because a stream reads while it is sent."""
        who = caller_of(request).who
        places = self._callers.setdefault(who, _Places())
        if places.taken >= AT_ONCE + WAITING:
            raise RateLimited(f"{places.taken} large reads of this caller run or wait already", RETRY_SECONDS)
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
    """A response that releases something once it has been sent, or could not be."""

    def __init__(self, response: Response, release: Callable[[], None]) -> None:
        self._response = response
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._release()
