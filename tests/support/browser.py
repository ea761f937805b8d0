"""A real Chromium for one test, driven over a pipe by the DevTools protocol."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

START_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
COMMAND_SECONDS = 30.0
END_SECONDS = 10.0

Answer = dict[str, Any]
OnEvent = Callable[[str, Answer, str], None]


class Browser:
    """Sends commands and waits for their results. `on_event` gets every event: method, parameters, session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self.on_event: OnEvent = lambda _method, _params, _session: None

    async def call(self, method: str, session: str = "", **params: object) -> Answer:
        async with asyncio.timeout(COMMAND_SECONDS):
            return await self.send(method, session, **params)

    def send(self, method: str, session: str = "", **params: object) -> "asyncio.Future[Answer]":
        """Send a command without waiting."""
        self._number += 1
        message: Answer = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = future
        self._writer.write(json.dumps(message).encode() + b"\0")
        return future

    async def listen(self) -> None:
        """Read what the browser sends, until it ends."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if "id" in message:
                    self._settle(message)
                else:
                    self.on_event(message["method"], message.get("params", {}), message.get("sessionId", ""))

    def _settle(self, message: Answer) -> None:
        future = self._waiting.pop(message["id"])
        if future.done():
            return
        if "error" in message:
            future.set_exception(RuntimeError(message["error"]["message"]))
            future.exception()  # a command that nobody waits for may fail
        else:
            future.set_result(message["result"])


@asynccontextmanager
async def browser(path: str, flags: Sequence[str], folder: Path) -> AsyncIterator[Browser]:
    """Start a browser with a profile in this folder; it is gone with all its processes at the end."""
    to_browser, our_end = os.pipe()
    their_end, from_browser = os.pipe()
    # A shell gives the pipes the numbers that the browser expects.
    script = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
    process = await asyncio.create_subprocess_exec(
        *["bash", "-c", script, "bash", path, *START_FLAGS, *flags, f"--user-data-dir={folder}"],
        pass_fds=(to_browser, from_browser),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_browser)
    os.close(from_browser)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    incoming, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(their_end, "rb", 0)
    )
    outgoing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(our_end, "wb", 0))
    chromium = Browser(reader, outgoing)
    listening = asyncio.create_task(chromium.listen())
    try:
        yield chromium
    finally:
        chromium.send("Browser.close")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        listening.cancel()
        incoming.close()
        outgoing.close()
