"""A small HTTP/2 server over TLS that violates the protocol in the way its path says. The tests define the expected
outcome."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from tests.support.bad_http_server import TLS

PAGE = b"<!doctype html><title>%s</title>"
FEW_STREAMS = 2


class _Connection:
    """One connection: the library follows the rules of HTTP/2, and each script breaks them on a lower level."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        config = H2Configuration(client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False)
        self._h2 = H2Connection(config)
        self._h2.local_settings.update({SettingCodes.MAX_CONCURRENT_STREAMS: FEW_STREAMS})
        self._scripts: dict[str, Callable[[int], None]] = {
            "/goaway": self._goaway,
            "/reset": self._reset,
            "/refused": self._refuse,
            "/shut": self._shut,
            "/headers": self._headers,
            "/short": self._short,
            "/long": self._long,
            "/streams": self._more_streams,
            "/noise": self._noise,
        }

    async def serve(self) -> None:
        self._h2.initiate_connection()
        await self._flush()
        while data := await self._reader.read(65536):
            for event in self._h2.receive_data(data):
                if isinstance(event, RequestReceived):
                    self._answer(event)
            await self._flush()

    async def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())
        await self._writer.drain()

    def _answer(self, asked: RequestReceived) -> None:
        stream = asked.stream_id
        path = next(str(value, "ascii") for name, value in asked.headers or [] if name == b":path")
        script = self._scripts.get(path)
        if script is not None:
            script(stream)
        elif path == "/robots.txt":
            self._h2.send_headers(stream, [(":status", "404")], end_stream=True)
        else:
            body = PAGE % path.encode()
            self._begin(stream, len(body))
            self._h2.send_data(stream, body, end_stream=True)

    def _begin(self, stream: int, length: int | None) -> None:
        fields = [(":status", "200"), ("content-type", "text/html")]
        self._h2.send_headers(stream, fields + ([] if length is None else [("content-length", str(length))]))

    def _goaway(self, stream: int) -> None:
        """The connection ends in the middle of a body; other requests on it are lost, too."""
        self._begin(stream, 1000)
        self._h2.send_data(stream, b"x" * 100)
        self._writer.write(self._h2.data_to_send())
        self._h2.close_connection(ErrorCodes.INTERNAL_ERROR)
        self._writer.write(self._h2.data_to_send())
        self._writer.close()

    def _reset(self, stream: int) -> None:
        self._begin(stream, 1000)
        self._h2.send_data(stream, b"x" * 100)
        self._h2.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)

    def _refuse(self, stream: int) -> None:
        self._h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)

    def _shut(self, stream: int) -> None:
        """A body that never arrives, as if its flow-control window stayed closed."""
        self._begin(stream, 1000)

    def _headers(self, stream: int) -> None:
        """Too many header fields."""
        self._h2.send_headers(stream, [(":status", "200"), *((f"x-{n}", "x") for n in range(500))], end_stream=True)

    def _short(self, stream: int) -> None:
        """Less than was announced."""
        self._begin(stream, 1000)
        self._h2.send_data(stream, b"x" * 100, end_stream=True)

    def _long(self, stream: int) -> None:
        """More than was announced."""
        self._begin(stream, 10)
        self._h2.send_data(stream, b"x" * 100, end_stream=True)

    def _more_streams(self, _stream: int) -> None:
        """Data on a stream that nobody opened."""
        self._writer.write(self._h2.data_to_send() + b"\x00\x00\x01\x00\x01\x00\x00\x0f\xffx")

    def _noise(self, _stream: int) -> None:
        self._writer.write(self._h2.data_to_send() + b"HTTP/1.1 200 OK\r\n\r\n" * 3)


GOOD = [f"/good/{number}" for number in range(20)]


@asynccontextmanager
async def bad_http2_server(certificate: str) -> AsyncIterator[int]:
    """Its port of 127.0.0.1; gone with its connections at the end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / f"{certificate}.pem")
    context.set_alpn_protocols(["h2"])
    open_connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        try:
            with suppress(ConnectionError, ssl.SSLError, ProtocolError, asyncio.CancelledError):
                await _Connection(reader, writer).serve()
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            open_connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(open_connections):
            connection.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)
