"""One connection of a browser to the proxy: plain requests one after the other, or a tunnel."""

import asyncio
from collections.abc import Callable
from typing import Final

from shoal.base.clock import Clock
from shoal.egress.exchange import BLOCKED, Failure
from shoal.egress.pinning_proxy.byte_stream import ByteStream, HeadTooLarge
from shoal.egress.pinning_proxy.limits import ProxyLimits
from shoal.egress.pinning_proxy.messages import BadMessage, RequestHead, parse_request
from shoal.egress.pinning_proxy.plain_request import PlainRequest, RequestFailed
from shoal.egress.pinning_proxy.session import ProxySession
from shoal.egress.pinning_proxy.tunnel import Tunnel

FindSession = Callable[[tuple[str, str] | None], ProxySession | None]

_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_STATUS: Final = {
    "not_allowed": "403 Forbidden",
    "too_many_connections": "503 Service Unavailable",
    "connect_timeout": "504 Gateway Timeout",
    "timeout": "504 Gateway Timeout",
}


class BrowserConnection:
    """Reads requests from a browser and answers each: with the server's response, or with a refusal."""

    def __init__(self, browser: ByteStream, find: FindSession, limits: ProxyLimits, clock: Clock) -> None:
        self._browser = browser
        self._find = find
        self._limits = limits
        self._clock = clock

    async def serve(self) -> None:
        """Serve requests until the browser leaves, or cannot be understood."""
        while True:
            try:
                async with asyncio.timeout(self._limits.head_timeout.total_seconds()):
                    head = await self._browser.read_head(self._limits.max_head_bytes)
                if not head:
                    return
                request = parse_request(head, self._limits.max_headers)
            except HeadTooLarge:
                await self._answer("431 Request Header Fields Too Large", "headers_too_large", close=True)
                return
            except BadMessage as error:
                await self._answer("400 Bad Request", "invalid_request", str(error), close=True)
                return
            session = self._find(request.credential())
            if session is None:
                if not await self._challenge(request):
                    return
            elif request.is_tunnel:
                await self._serve_tunnel(session, request)
                return
            elif not await self._serve_request(session, request):
                return

    async def _challenge(self, request: RequestHead) -> bool:
        """Ask for a credential. Return whether the browser may send it on this connection."""
        has_body = not request.is_tunnel and request.has_body
        text = "A credential of an open session is needed."
        await self._answer("407 Proxy Authentication Required", "unauthorized", text, close=has_body)
        return not has_body

    async def _serve_tunnel(self, session: ProxySession, request: RequestHead) -> None:
        failure = await session.admit(request.target, request.host)
        if failure is None:
            try:
                failure = await self._open_tunnel(session, request)
            finally:
                session.slots.release(request.host)
        if failure is not None:
            await self._refuse(session, request, failure, close=True)

    async def _open_tunnel(self, session: ProxySession, request: RequestHead) -> Failure | None:
        """Run a tunnel until it ends. Return why it could not be opened."""
        server = await session.dialer.dial(request.host, request.port, tunnel=True)
        if isinstance(server, Failure):
            return server
        tunnel = Tunnel(session, self._browser, server, self._clock)
        session.slots.add_tunnel(request.host, tunnel)
        try:
            with session.holding(tunnel):
                await self._browser.send(_ESTABLISHED)
                failure = await tunnel.run()
        finally:
            tunnel.abort()
            session.slots.remove_tunnel(request.host, tunnel)
        if failure is not None:
            session.refuse(request.target, failure)
        return None

    async def _serve_request(self, session: ProxySession, request: RequestHead) -> bool:
        """Serve a plain request. Return whether the connection can be used for another one."""
        failure = await session.admit(request.url, request.host)
        if failure is None:
            exchange = PlainRequest(session, request, self._browser)
            try:
                return await exchange.run()
            except RequestFailed as error:
                if exchange.has_answered:
                    session.refuse(request.target, error.failure)
                    self._browser.abort()  # the browser must not mistake the part that it has for the whole response
                    return False
                failure = error.failure
            finally:
                session.slots.release(request.host)
        return await self._refuse(session, request, failure, close=request.has_body)

    async def _refuse(self, session: ProxySession, request: RequestHead, failure: Failure, *, close: bool) -> bool:
        """Count a refusal and answer with it. Return whether the connection can be used for another request."""
        session.refuse(request.target, failure)
        status = "403 Forbidden" if failure.code in BLOCKED else _STATUS.get(failure.code, "502 Bad Gateway")
        await self._answer(status, failure.code, failure.message, close=close)
        return not close

    async def _answer(self, status: str, code: str, text: str = "", *, close: bool) -> None:
        body = f"{text or code}\n".encode()
        fields = [
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain; charset=utf-8",
            "Cache-Control: no-store",
            f"Content-Length: {len(body)}",
            f"Shoal-Refusal: {code}",
        ]
        if status.startswith("407"):
            fields.append('Proxy-Authenticate: Basic realm="shoal"')
        if close:
            fields.append("Connection: close")
        await self._browser.send("\r\n".join([*fields, "", ""]).encode() + body)
