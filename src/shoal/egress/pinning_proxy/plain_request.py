"""One plain HTTP request through the proxy: to the server, and its response back to the browser."""

import asyncio

from shoal.egress.exchange import Failure
from shoal.egress.pinning_proxy.body import copy_body
from shoal.egress.pinning_proxy.byte_stream import ByteStream, ConnectionLost, HeadTooLarge
from shoal.egress.pinning_proxy.messages import BadMessage, RequestHead, ResponseHead, is_chunked, parse_response
from shoal.egress.pinning_proxy.session import ProxySession


class RequestFailed(Exception):
    """The server gave no response, or not all of it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


class PlainRequest:
    """Sends a request to its server, over an idle connection if there is one, and copies the response."""

    def __init__(self, session: ProxySession, request: RequestHead, browser: ByteStream) -> None:
        self._session = session
        self._request = request
        self._browser = browser
        self._received = 0
        self._sent = 0
        self.has_answered = False
        """True once the browser has received the head of a response."""

    async def run(self) -> bool:
        """Return whether the browser can send another request on its connection. Raises RequestFailed."""
        try:
            async with asyncio.timeout(self._session.limits.total_timeout.total_seconds()):
                return await self._run()
        except TimeoutError:
            failure = Failure("timeout", "The server did not respond in time.", retryable=True)
        except HeadTooLarge:
            failure = Failure("headers_too_large", "The headers are larger than the limit.", retryable=False)
        except BadMessage as error:
            failure = Failure("protocol_error", str(error), retryable=False)
        except ConnectionLost as error:
            if error.stream is self._browser:
                raise
            failure = Failure("connection_lost", "The connection was lost.", retryable=True, operator_detail=str(error))
        raise RequestFailed(failure)

    async def _run(self) -> bool:
        idle = self._session.idle.take(self._request.origin)
        if idle is not None:
            with self._session.holding(idle):
                try:
                    return await self._exchange(idle)
                except ConnectionLost as error:
                    idle.abort()
                    # The server may close an idle connection at any time; what it never answered may be sent again.
                    if error.stream is not idle or self.has_answered or self._request.has_body:
                        raise
                except BaseException:
                    idle.abort()
                    raise
        request = self._request
        server = await self._session.dialer.dial(request.host, request.port, tunnel=False)
        if isinstance(server, Failure):
            raise RequestFailed(server)
        with self._session.holding(server):
            try:
                return await self._exchange(server)
            except BaseException:
                server.abort()
                raise

    async def _exchange(self, server: ByteStream) -> bool:
        request, dialer = self._request, self._session.dialer
        head = request.forwarded(dialer.proxy_authorization, absolute=dialer.sends_to_proxy)
        await server.send(head)
        is_in_sync = await copy_body(self._browser, server, request.fields, self._count_sent, until_close=False)
        response = await self._final_response(server)
        has_body = response.has_body(request.method)
        chunked = has_body and (is_chunked(response.fields) or not response.has_length)
        self.has_answered = True
        await self._browser.send(response.forwarded(chunked=chunked, close=not is_in_sync))
        keeps_alive = response.keeps_alive
        if has_body:
            keeps_alive &= await copy_body(
                server, self._browser, response.fields, self._count_received, until_close=True
            )
        if keeps_alive:
            self._session.idle.put(request.origin, server)
        else:
            server.close()
        return is_in_sync

    async def _final_response(self, server: ByteStream) -> ResponseHead:
        """Read the head of the response; interim ones, as 103 Early Hints, are dropped."""
        limits = self._session.limits
        while True:
            async with asyncio.timeout(limits.idle_timeout.total_seconds()):
                head = await server.read_head(limits.max_head_bytes)
            if not head:
                raise ConnectionLost(server, "the server closed the connection without a response")
            self._count_received(len(head))
            response = parse_response(head, limits.max_headers)
            if response.status == 101:
                raise BadMessage("The server switched to a protocol that was not requested.")
            if response.status == 407:
                # The browser would mistake it for our own challenge, and answer it again and again.
                who = "proxy" if self._session.dialer.sends_to_proxy else "server"
                raise RequestFailed(Failure("proxy_error", f"The {who} asked for a proxy credential.", retryable=False))
            if response.status >= 200:
                return response

    def _count_received(self, count: int) -> None:
        self._received += count
        failure = self._session.received(count)
        if failure is None and self._received > self._session.limits.max_message_bytes:
            failure = Failure("body_too_large", "The body is larger than the limit.", retryable=False)
        if failure is not None:
            raise RequestFailed(failure)

    def _count_sent(self, count: int) -> None:
        self._sent += count
        if self._sent > self._session.limits.max_message_bytes:
            raise RequestFailed(Failure("body_too_large", "The request is larger than the limit.", retryable=False))
