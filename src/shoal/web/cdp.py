"""A connection to Chromium over the Chrome DevTools Protocol (CDP).

The connection uses the two pipes of `--remote-debugging-pipe`. So there is no port that other users of the machine
could connect to, and Chromium exits when the pipes are closed, even if this process is killed.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import orjson

Params = dict[str, Any]
OnEvent = Callable[[str, Params], None]
"""A callback that gets the name and the parameters of an event."""

MOST_MESSAGE_BYTES = 256_000_000
_END = b"\0"


class BrowserLost(Exception):
    """The connection to the browser is closed, because the browser crashed, was killed, or violated the protocol."""


class CommandFailed(Exception):
    """The browser refused a command."""

    def __init__(self, method: str, message: str) -> None:
        super().__init__(f"{method}: {message}")


class CdpSession:
    """The commands and events of one target (a page, a frame), or of the browser itself if `id` is empty."""

    def __init__(self, connection: "CdpConnection", session_id: str = "", on_event: OnEvent | None = None) -> None:
        self._connection = connection
        self.id = session_id
        self.on_event = on_event or (lambda method, params: None)

    def send(self, method: str, **params: Any) -> "asyncio.Future[Params]":
        """Send a command; return a future of its result. Commands are executed in the order in which they were sent."""
        return self._connection.send(method, params, self.id)

    def post(self, method: str, **params: Any) -> None:
        """Send a command whose result nobody needs."""
        self.send(method, **params).add_done_callback(_forget)

    async def call(self, method: str, seconds: float, **params: Any) -> Params:
        """Send a command and return its result; raise `TimeoutError` after this many seconds."""
        async with asyncio.timeout(seconds):
            return await self.send(method, **params)


class CdpConnection(asyncio.Protocol):
    """The two pipes of one browser. After an error in one of the pipes, every command fails with `BrowserLost`."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self._last_id = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[Params]]] = {}
        self._sessions: dict[str, CdpSession] = {}
        self._received = bytearray()
        self._reading: asyncio.ReadTransport | None = None
        self._writing: asyncio.WriteTransport | None = None
        self.is_lost = False
        self.browser = CdpSession(self)
        self._sessions[""] = self.browser

    async def open(self, read_from: int, write_to: int) -> None:
        """Connect to the pipes. When the connection is closed, the pipes are closed, too."""
        loop = asyncio.get_running_loop()
        self._reading, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(read_from, "rb", 0))
        writer = os.fdopen(write_to, "wb", 0)
        self._writing, _ = await loop.connect_write_pipe(lambda: _WriteProtocol(self.lose), writer)

    def session(self, session_id: str, on_event: OnEvent) -> CdpSession:
        """Start to receive the events of a session."""
        session = self._sessions[session_id] = CdpSession(self, session_id, on_event)
        return session

    def end_session(self, session_id: str) -> None:
        """Ignore further events of a session."""
        self._sessions.pop(session_id, None)

    def send(self, method: str, params: Params, session_id: str) -> "asyncio.Future[Params]":
        future: asyncio.Future[Params] = asyncio.get_running_loop().create_future()
        if self.is_lost or self._writing is None:
            future.set_exception(BrowserLost("the browser is gone"))
            return future
        self._last_id += 1
        message: Params = {"id": self._last_id, "method": method, "params": params}
        if session_id:
            message["sessionId"] = session_id
        self._waiting[self._last_id] = method, future
        self._writing.write(orjson.dumps(message) + _END)
        return future

    def lose(self) -> None:
        """Close both pipes, and fail the commands that wait for a response."""
        if self.is_lost:
            return
        self.is_lost = True
        for transport in (self._reading, self._writing):
            if transport is not None:
                transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(BrowserLost("the browser is gone"))
                future.exception()  # the caller may have stopped waiting for this future
        self._received.clear()
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        received = self._received
        start = max(0, len(received) - 1)
        received += data
        if len(received) > MOST_MESSAGE_BYTES:
            self.lose()
            return
        if (end := received.rfind(_END, start)) < 0:
            return
        messages = bytes(received[:end])
        del received[: end + 1]
        for message in messages.split(_END):
            if self.is_lost:
                return
            try:
                self._receive(orjson.loads(message))
            except (orjson.JSONDecodeError, KeyError, TypeError):
                self.lose()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose()

    def _receive(self, message: Params) -> None:
        if "id" not in message:
            session = self._sessions.get(message.get("sessionId", ""))
            if session is not None:
                session.on_event(message["method"], message["params"])
            return
        method, future = self._waiting.pop(message["id"])
        if future.done():
            return  # the caller no longer waits
        if "error" in message:
            future.set_exception(CommandFailed(method, str(message["error"].get("message"))[:500]))
        else:
            future.set_result(message["result"])


class _WriteProtocol(asyncio.BaseProtocol):
    """Notices when the browser no longer reads."""

    def __init__(self, lose: Callable[[], None]) -> None:
        self._lose = lose

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()


def _forget(future: "asyncio.Future[Params]") -> None:
    if not future.cancelled():
        future.exception()
