"""A tunnel: bytes between the browser and a server, unread, until one of them ends it or a limit is reached."""

import asyncio

from shoal.base.clock import Clock
from shoal.egress.exchange import Failure
from shoal.egress.pinning_proxy.byte_stream import ByteStream
from shoal.egress.pinning_proxy.session import ProxySession


class Tunnel:
    """One tunnel of a session, with both its directions."""

    def __init__(self, session: ProxySession, browser: ByteStream, server: ByteStream, clock: Clock) -> None:
        self._session = session
        self._browser = browser
        self._server = server
        self._clock = clock
        self._last_byte_at = clock.monotonic()
        self._awaits_server = False
        self._failure: Failure | None = None

    async def run(self) -> Failure | None:
        """Copy until one side ends. Return the limit that ended it, if one did."""
        tasks = [
            asyncio.create_task(self._copy_to_server(), name="tunnel:up"),
            asyncio.create_task(self._copy_to_browser(), name="tunnel:down"),
            asyncio.create_task(self._wait_until_idle(), name="tunnel:idle"),
        ]
        seconds = self._session.limits.tunnel_timeout.total_seconds()
        try:
            ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                self._failure = Failure("timeout", "The connection lasted longer than the limit.", retryable=True)
        finally:
            for task in tasks:
                task.cancel()
            self._server.abort()
            self._browser.close()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._failure

    def idle_seconds(self) -> float:
        return 0.0 if self._awaits_server else self._clock.monotonic() - self._last_byte_at

    def abort(self) -> None:
        self._server.abort()
        self._browser.abort()

    async def _copy_to_server(self) -> None:
        count, most = 0, self._session.limits.max_message_bytes
        while data := await self._browser.wait_for_bytes():
            self._note(awaits_server=True)
            count += len(data)
            if count > most:
                self._failure = Failure("body_too_large", "The request is larger than the limit.", retryable=False)
                return
            await self._server.send(data)

    async def _copy_to_browser(self) -> None:
        count, most = 0, self._session.limits.max_message_bytes
        while data := await self._server.wait_for_bytes():
            self._note(awaits_server=False)
            count += len(data)
            self._failure = self._session.received(len(data))
            if count > most:
                self._failure = Failure("body_too_large", "The response is larger than the limit.", retryable=False)
            if self._failure is not None:
                return
            await self._browser.send(data)

    def _note(self, *, awaits_server: bool) -> None:
        self._last_byte_at = self._clock.monotonic()
        self._awaits_server = awaits_server

    async def _wait_until_idle(self) -> None:
        limit = self._session.limits.idle_timeout.total_seconds()
        while (left := self._last_byte_at + limit - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
