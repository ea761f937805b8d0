"""Connection limits of the HTTP server: the number of open connections, the time in which a client must send a request,
and the time for which a client may stop reading the response.

A connection is *proven* once a request on it had a valid credential. Unproven connections are closed when they are slow
or too many, the longest-waiting first, so that a client with a credential can always connect. Authorization is done in
other modules.
"""

import asyncio
import fcntl
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from shoal.access.limits import UNREAD_SECONDS, ConnectionLimits, client_network
from shoal.base.errors import BadConfig
from shoal.base.service import PassResult
from shoal.base.settings import ServeSettings
from shoal.serve.authentication import EXTENSION

CERT, KEY = "SHOAL_TLS_CERT", "SHOAL_TLS_KEY"
LOOK_EVERY = timedelta(seconds=10)


def tls_of(settings: ServeSettings) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 or newer with the configured certificate; None if there is none."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    if "BEGIN CERTIFICATE" not in _text(CERT, settings.tls_cert):
        raise BadConfig(
            CERT,
            f"names {settings.tls_cert}, which contains no certificate",
            "use a PEM file with the certificate chain",
        )
    key = _text(KEY, settings.tls_key)
    if "PRIVATE KEY" not in key:
        raise BadConfig(
            KEY, f"names {settings.tls_key}, which contains no private key", "use the PEM file of the private key"
        )
    if "ENCRYPTED" in key:
        raise BadConfig(
            KEY, f"names {settings.tls_key}, which is encrypted with a password", "use a copy without a password"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadConfig(KEY, f"does not match {CERT}", "use a certificate and its own key") from None
        problem = f"and {KEY} cannot be used together ({error.reason or error})"
        raise BadConfig(CERT, problem, "check both files with `openssl x509` and `openssl pkey`") from None
    return context


class Certificate:
    """A chore that reloads the certificate after its files were replaced. Open connections keep the old certificate. If
    the new certificate and key are invalid, that is reported, and the old pair stays in use."""

    name = "certificate"

    def __init__(self, context: ssl.SSLContext, settings: ServeSettings) -> None:
        self._context = context
        self._settings = settings
        self._known = self._look()

    async def run_once(self) -> PassResult:
        found = self._look()
        if found == self._known:
            return PassResult()
        cert, key = self._settings.tls_cert, self._settings.tls_key
        # validate first: loading only half of the pair would leave the context without a usable certificate
        tls_of(self._settings)
        if cert is not None:
            self._context.load_cert_chain(cert, key)
        self._known = found
        return PassResult("reloaded")

    def _look(self) -> list[tuple[int, int, int]]:
        """Return the file attributes that change when a file is replaced."""
        files = [path.stat() for path in (self._settings.tls_cert, self._settings.tls_key) if path is not None]
        return [(file.st_mtime_ns, file.st_ino, file.st_size) for file in files]


def _text(key: str, path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise BadConfig(key, f"names {path}, which cannot be read ({why})", "use a readable PEM file") from None


MOST_HEAD_BYTES = 64_000  # limit for the request line and headers
SLOWEST_BODY = 1_000  # bytes per second
ACCEPT_AGAIN_SECONDS = 0.1


class Reading(Enum):
    """The part of a request that a connection is reading."""

    NOTHING = auto()  # before the first request, or between two requests
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, with deadlines for the parts of a request and connection limits."""

    def __init__(
        self, *args: Any, connections: ConnectionLimits, head_seconds: float, body_seconds: float, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.peer = ""
        self._bounds = connections
        self._head_seconds = head_seconds
        self._body_seconds = body_seconds
        self._is_in = False
        self._reading = Reading.NOTHING
        self._head_bytes = 0
        self._body_bytes = 0  # bytes received since the timer was set
        self._timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0  # number of unread bytes when `_unread_timer` was set
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        return not self._is_answering and not self.transport.is_closing()

    @property
    def _is_answering(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    def cut(self) -> None:
        self._stop_timer()
        self.transport.abort()
        self._leave()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = client_network(self.client[0]) if self.client else ""
        self._is_in = self._bounds.enter(self)
        if not self._is_in:
            transport.abort()
            return
        self._set_timer(self._head_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread_timer()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._reading is not Reading.BODY:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._reading is not Reading.BODY and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(431, "the headers of the request are too large", f"send at most {MOST_HEAD_BYTES} bytes")
        elif self._timer is None and self._reading is Reading.BODY:
            self._set_timer(self._body_seconds, self._body_may_be_late)
        elif self._timer is None and (self._reading is Reading.HEAD or not self._is_answering):
            # Empty lines between requests do not start a request, but they stop uvicorn's keep-alive timer.
            self._set_timer(self._head_seconds, self._head_is_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading = Reading.HEAD
        self.scope["extensions"] = {EXTENSION: {"prove": partial(self._bounds.prove, self)}}

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._reading = Reading.BODY
        self._head_bytes = self._body_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._reading = Reading.NOTHING
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_reader()

    def _await_reader(self) -> None:
        """Close the connection if bytes are waiting to be sent and the client reads none of them for too long."""
        self._stop_unread_timer()
        if self.transport.get_write_buffer_size():
            self._unread_bytes = self._unread()
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._reader_may_be_silent)

    def _reader_may_be_silent(self) -> None:
        # While a response is being written, the number of waiting bytes may grow although the client is reading.
        is_growing = self._is_answering and not self.flow.write_paused
        if is_growing or self._unread() < self._unread_bytes:
            self._await_reader()
        else:
            self.transport.abort()

    def _unread(self) -> int:
        """Return the number of bytes in our send buffer and in the kernel's. The kernel buffer must be counted, because
        the kernel accepts more bytes only when a third of its buffer is free, and a slow client needs minutes to read a
        third."""
        kernel = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kernel)
        return self.transport.get_write_buffer_size() + int.from_bytes(kernel, sys.byteorder)

    def _leave(self) -> None:
        if self._is_in:
            self._is_in = False
            self._bounds.leave(self)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._is_answering:  # the late request follows an unfinished response: send this response first
            self.cycle.keep_alive = False
        else:
            self._refuse(408, "the headers of the request arrived too slowly", "send all headers without a pause")

    def _body_may_be_late(self) -> None:
        """Enforce a minimum rate, except while the server itself has paused reading."""
        self._timer = None
        asks = self.cycle.waiting_for_100_continue
        if not self.flow.read_paused and not asks and self._body_bytes < SLOWEST_BODY * self._body_seconds:
            self._refuse(
                408, "the body of the request arrived too slowly", f"send at least {SLOWEST_BODY} bytes per second"
            )
            return
        self._body_bytes = 0
        self._set_timer(self._body_seconds, self._body_may_be_late)

    def _refuse(self, status: int, problem: str, fix: str) -> None:
        """Send an error response, unless a response has already begun, and close the connection."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if not (self.cycle.response_started if self._reading is Reading.BODY else self._is_answering):
            title = STATUS_LINE[status][13:-2].decode()
            body = orjson.dumps(
                {
                    "type": "about:blank",
                    "title": title,
                    "status": status,
                    "code": "request_timeout" if status == 408 else "headers_too_large",
                    "detail": f"{problem}; {fix}.",
                }
            )
            head = b"content-type: application/problem+json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
                body
            )
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _set_timer(self, seconds: float, late: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(seconds, late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


class Handshake:
    """A connection during the TLS handshake. It counts towards the limits like every other connection."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.handshaking: asyncio.Task[Any] | None = None

    @property
    def is_waiting(self) -> bool:
        return self.handshaking is not None

    def cut(self) -> None:
        if self.handshaking is not None:
            self.handshaking.cancel()
            self.handshaking = None


class BoundedServer(uvicorn.Server):
    """A uvicorn server with connection limits. With TLS, this class accepts connections itself, because uvicorn leaves
    handshakes to the event loop, which does not count them and waits a minute for each handshake."""

    def __init__(self, config: uvicorn.Config, connections: ConnectionLimits, settings: ServeSettings) -> None:
        self._seconds = settings.header_timeout.total_seconds()
        config.http = cast(
            type[asyncio.Protocol],  # uvicorn uses this attribute only as a factory
            partial(
                BoundedProtocol,
                connections=connections,
                head_seconds=self._seconds,
                body_seconds=settings.body_timeout.total_seconds(),
            ),
        )
        super().__init__(config)
        self._bounds = connections
        self._clock = connections.clock
        self.tls = tls_of(settings)
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.tls is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for listener in sockets or ():
            listener.setblocking(False)
            listener.listen(self.config.backlog)
            self._accepting.append(asyncio.create_task(self._accept(listener, self.tls)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        loop, handshaking = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
        try:
            while True:
                try:
                    accepted, address = await loop.sock_accept(listener)
                except OSError:  # the client disconnected before the accept, or no file descriptor is free
                    await self._clock.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                handshake = Handshake(client_network(str(address[0])))
                if not self._bounds.enter(handshake):
                    accepted.close()
                    continue
                handshaken = loop.connect_accepted_socket(
                    self._protocol, accepted, ssl=tls, ssl_handshake_timeout=self._seconds
                )
                task = handshake.handshaking = asyncio.create_task(handshaken)
                handshaking.add(task)
                task.add_done_callback(handshaking.discard)
                task.add_done_callback(partial(self._handshake_done, handshake, accepted))
        finally:
            for task in handshaking:
                task.cancel()

    def _handshake_done(self, handshake: Handshake, accepted: socket.socket, task: asyncio.Task[Any]) -> None:
        """Clean up after a handshake, even if it was cancelled before it began."""
        self._bounds.leave(handshake)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            accepted.close()
        if error is not None and not isinstance(
            error, OSError
        ):  # OSError: the client is slow, gone, or does not speak TLS
            raise error

    def _protocol(self) -> asyncio.Protocol:
        made: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
