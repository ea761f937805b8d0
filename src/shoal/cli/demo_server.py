"""A minimal HTTP/1.1 server on a free loopback port: the site of `shoal demo`, and the receiver of its webhook.

It does not use uvicorn, because a second uvicorn in the same process would replace the signal handlers of the first.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

MOST_BYTES: Final = 1_000_000  # maximum size of a request head, and of a request body


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """An HTTP request. Names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class DemoResponse:
    """An HTTP response."""

    status: HTTPStatus
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[DemoRequest], Awaitable[DemoResponse]]


class DemoServer:
    """Serves the responses that `answer` returns, while the context is open."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0, limit=MOST_BYTES)
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
                while (request := await _read(reader)) is not None:
                    writer.write(_encode(await self._answer(request), with_body=request.method != "HEAD"))
                    await writer.drain()
        finally:
            self._visits.discard(task)
            writer.close()


async def _read(reader: StreamReader) -> DemoRequest | None:
    """Read one request. Return None if this server does not understand it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    words = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if len(words) != 3 or not length.isdecimal() or int(length) > MOST_BYTES or "transfer-encoding" in headers:
        return None
    return DemoRequest(words[0], words[1], headers, await reader.readexactly(int(length)))


def _encode(response: DemoResponse, *, with_body: bool) -> bytes:
    headers = {"Content-Length": str(len(response.body)), **response.headers}
    if response.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        del headers["Content-Length"]
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (response.body if with_body else b"")
