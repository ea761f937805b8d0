"""A minimal HTTP/1.1 server for the demo site, on a free loopback port. It supports only GET.

It does not use uvicorn, because a second instance in a process would take over the signal handlers of the first.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Self

from shoal.base.clock import Clock
from shoal.demo.site import DemoResponse, answer

HEAD_LIMIT = 16_384
THINKING_SECONDS = 0.25  # before each response; without it the crawl would be over before anybody could watch it


class DemoSite:
    """The site, served while the context is open."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0, limit=HEAD_LIMIT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    async def _visit(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visits.add(task)
        try:
            # The demo ends connections by cancelling them; before Python 3.12, streams would log that as an error.
            with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._visits.discard(task)
            writer.close()

    async def _serve_one(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """Serve one request; return whether the connection can be used for another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        words = head.partition("\r\n")[0].split(" ")
        if len(words) != 3 or words[0] != "GET":
            writer.write(_encode(DemoResponse(HTTPStatus.NOT_IMPLEMENTED, "")))
            return False
        await self._clock.sleep(THINKING_SECONDS)
        writer.write(_encode(answer(words[1].partition("?")[0])))
        await writer.drain()
        return True


def _encode(response: DemoResponse) -> bytes:
    body = response.body.encode()
    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body)), **response.headers}
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
