"""A slow network: a proxy on loopback that delays all traffic."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from shoal.base.clock import SystemClock

CLOCK = SystemClock()


@contextmanager
def lagging(url: str, seconds: float) -> Iterator[str]:
    """The address of the same server, each round trip to which takes so much longer."""
    parts = urlsplit(url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxy = _Proxy(parts.hostname or "", parts.port or 0, seconds)
    port = asyncio.run_coroutine_threadsafe(proxy.open(), loop).result()
    user, _, _ = parts.netloc.rpartition("@")
    try:
        yield urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Proxy:
    def __init__(self, host: str, port: int, seconds: float) -> None:
        self._host = host
        self._port = port
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, back]
        for source, sink, delay in ((reader, back, self._seconds), (there, writer, 0.0)):
            task = asyncio.create_task(self._pass_on(source, sink, delay))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await CLOCK.sleep(delay)
                sink.write(data)
                await sink.drain()
        sink.close()
