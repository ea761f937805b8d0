"""A small raw HTTP server that sends the bytes a test gives it. The tests define the expected outcome."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal.egress.curl import machine_ca_file
from tests.support.patience import wait_until

TLS = Path(__file__).parent / "tls"


@contextmanager
def own_authority() -> Iterator[None]:
    """Let what is built meanwhile trust the certificates of the tests, as a user does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(TLS / "authority.pem"))
        machine_ca_file.cache_clear()
        yield
    machine_ca_file.cache_clear()


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Line:
    """A connection that a script controls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def wait_for_end(self) -> None:
        """Until the other side has closed the connection."""
        while await self.reader.read(65536):
            pass

    def reset(self) -> None:
        """Reset the connection."""
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Line, Asked], Awaitable[None]]


@dataclass
class BadServer:
    """Plays `scripts` by path. After a script the connection stays open, unless the script has ended it."""

    port: int = 0
    scripts: dict[str, Script] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open_connections: set["asyncio.Task[None]"] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    async def until(self, condition: Callable[[], bool], *tasks: "asyncio.Task[Any]") -> None:
        """Wait for something that a request or the end of a connection makes true, while the tasks that make requests
        run."""
        await wait_until(condition, self._changed, *tasks)

    async def until_asked(self, times: int = 1, *tasks: "asyncio.Task[Any]") -> None:
        await self.until(lambda: len(self.asked) >= times, *tasks)

    async def until_alone(self) -> None:
        await self.until(lambda: not self.open_connections)

    def answer(self, path: str, *parts: bytes) -> None:
        """Send these bytes, one piece after the other, and wait for the next request."""

        async def script(line: Line, _asked: Asked) -> None:
            for part in parts:
                await line.send(part)

        self.scripts[path] = script

    def answer_and_close(self, path: str, *parts: bytes) -> None:
        """Send these bytes and close."""

        async def script(line: Line, _asked: Asked) -> None:
            for part in parts:
                await line.send(part)
            raise ConnectionResetError

        self.scripts[path] = script

    def fall_silent(self, path: str, *parts: bytes) -> None:
        """Send these bytes, then nothing, until the other side gives up."""

        async def script(line: Line, _asked: Asked) -> None:
            for part in parts:
                await line.send(part)
            await line.wait_for_end()

        self.scripts[path] = script

    def repeat(self, path: str, head: bytes, piece: bytes, pause_seconds: float = 0) -> None:
        """Send the piece again and again, until the other side gives up."""

        async def script(line: Line, _asked: Asked) -> None:
            await line.send(head)
            while True:
                await line.send(piece)
                await asyncio.sleep(pause_seconds)

        self.scripts[path] = script

    def redirect(self, path: str, location: str, status: int = 302, body: bytes = b"") -> None:
        self.answer(path, reply(status, body, [("Location", location)]))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.open_connections.add(task)
        self.connections += 1
        try:
            # Python 3.11 complains about cancelled connections, and being cancelled is how they end here.
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
                while True:
                    await self._serve_one(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            self.open_connections.discard(task)
            self._changed.set()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        request_line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _version = request_line.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        asked = Asked(method, target, headers, body)
        self.asked.append(asked)
        self._changed.set()
        script = self.scripts.get(target.partition("?")[0]) or self.scripts.get("*")
        if script is None:
            await Line(reader, writer).send(reply(404, b"not here"))
        else:
            await script(Line(reader, writer), asked)


def reply(status: int = 200, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A well-formed answer."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *(f"{n}: {v}" for n, v in headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def tls_context(certificate: str) -> ssl.SSLContext:
    """A server's context with one of the test certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / f"{certificate}.pem")
    return context


@asynccontextmanager
async def bad_server(certificate: str | None = None, context: ssl.SSLContext | None = None) -> AsyncIterator[BadServer]:
    """A server on a free port of 127.0.0.1, gone with its connections at the end."""
    bad = BadServer()
    context = tls_context(certificate) if certificate else context
    server = await asyncio.start_server(bad.serve, "127.0.0.1", 0, ssl=context, limit=1 << 20)
    bad.port = server.sockets[0].getsockname()[1]
    try:
        yield bad
    finally:
        server.close()
        for task in list(bad.open_connections):
            task.cancel()
        await asyncio.gather(*bad.open_connections, return_exceptions=True)
