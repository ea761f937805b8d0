"""A bad network: a proxy on loopback that forwards everything after a delay, cuts connections, or forgets them."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, urlsplit, urlunsplit

from shoal.base.clock import SystemClock
from tests.support.server_threads import ServerLoop, close_connections

CLOCK = SystemClock()


@contextmanager
def delay_proxy(url: str) -> Iterator["DelayProxy"]:
    """A proxy to the same server, which is as fast as any until it gets a delay."""
    parts = urlsplit(url)
    loop = ServerLoop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxy = DelayProxy(parts)
    asyncio.run_coroutine_threadsafe(proxy.open(), loop).result()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
        asyncio.run_coroutine_threadsafe(close_connections(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class DelayProxy:
    """A proxy in front of a server. `delay_seconds` is how much longer each round trip takes from now on, and `held`
    how many requests wait for that at this moment. After `cut_in`, whatever is connected then is cut off. After
    `fall_silent`, whatever is connected then stays open, and nothing passes any more, not even its end; new connections
    work."""

    def __init__(self, server: SplitResult) -> None:
        self.delay_seconds = 0.0
        self.connected = 0  # so far
        self.held = 0
        self._silent = 0  # of those
        self._target = server
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        """The URL of the server by way of the proxy."""
        user, _, _ = self._target.netloc.rpartition("@")
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def lead_to(self, url: str) -> None:
        """Lead to another server from now on; whoever is connected to the last one is cut off."""
        self._target = urlsplit(url)
        self.cut_in(0)

    def cut_in(self, seconds: float) -> None:
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._cut)

    def fall_silent(self) -> None:
        self._silent = self.connected

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        number = self.connected
        self._writers.append(writer)
        self._end_with_proxy(asyncio.current_task())
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers.append(back)
        for source, sink, delayed in ((reader, back, True), (there, writer, False)):
            self._end_with_proxy(asyncio.create_task(self._pass_on(number, source, sink, delayed)))

    def _end_with_proxy(self, task: asyncio.Task[None] | None) -> None:
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter, delayed: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if delayed and self.delay_seconds:
                    self.held += 1
                    await CLOCK.sleep(self.delay_seconds)
                    self.held -= 1
                if number > self._silent:
                    sink.write(data)
                    await sink.drain()
        if number > self._silent:
            sink.close()
