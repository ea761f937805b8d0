"""One connection of a browser to the proxy: either plain requests one after the other, or a tunnel, whose bytes are not
inspected."""

import asyncio
from collections.abc import Callable
from typing import Final

from shoal.base.clock import Clock
from shoal.egress.exchange import BLOCKED, Failure
from shoal.egress.pinning_proxy.account import ProxyAccount
from shoal.egress.pinning_proxy.connections import ProxyLimits
from shoal.egress.pinning_proxy.messages import (
    BadMessage,
    ByteStream,
    ConnectionLost,
    HeadTooLarge,
    RequestHead,
    ResponseHead,
    copy_body,
    is_chunked,
    parse_request,
    parse_response,
)

FindAccount = Callable[[tuple[str, str] | None], ProxyAccount | None]

_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_STATUS: Final = {
    "not_allowed": "403 Forbidden",
    "too_many_connections": "503 Service Unavailable",
    "connect_timeout": "504 Gateway Timeout",
    "timeout": "504 Gateway Timeout",
}


class BrowserConnection:
    """Reads requests from a browser and answers each of them with the server's response or with a refusal."""

    def __init__(self, browser: ByteStream, find: FindAccount, limits: ProxyLimits, clock: Clock) -> None:
        self._browser = browser
        self._find = find
        self._limits = limits
        self._clock = clock

    async def serve(self) -> None:
        """Serve requests until the browser disconnects or sends an invalid request."""
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
            account = self._find(request.credential())
            if account is None:
                if not await self._challenge(request):
                    return
            elif request.is_tunnel:
                await self._serve_tunnel(account, request)
                return
            elif not await self._serve_request(account, request):
                return

    async def _challenge(self, request: RequestHead) -> bool:
        """Ask for a credential. Return whether the browser may send it on this connection."""
        has_body = not request.is_tunnel and request.has_body
        text = "A credential of an open account is needed."
        await self._answer("407 Proxy Authentication Required", "unauthorized", text, close=has_body)
        return not has_body

    async def _serve_tunnel(self, account: ProxyAccount, request: RequestHead) -> None:
        failure = await account.admit(request.target, request.host)
        if failure is None:
            try:
                failure = await self._open_tunnel(account, request)
            finally:
                account.slots.release(request.host)
        if failure is not None:
            await self._refuse(account, request, failure, close=True)

    async def _open_tunnel(self, account: ProxyAccount, request: RequestHead) -> Failure | None:
        """Run a tunnel until it ends. Return why it could not be opened."""
        server = await account.dialer.dial(request.host, request.port, tunnel=True)
        if isinstance(server, Failure):
            return server
        tunnel = Tunnel(account, self._browser, server, self._clock)
        account.slots.add_tunnel(request.host, tunnel)
        try:
            with account.holding(tunnel):
                await self._browser.send(_ESTABLISHED)
                failure = await tunnel.run()
        finally:
            tunnel.abort()
            account.slots.remove_tunnel(request.host, tunnel)
        if failure is not None:
            account.refuse(request.target, failure)
        return None

    async def _serve_request(self, account: ProxyAccount, request: RequestHead) -> bool:
        """Serve a plain request. Return whether the connection can be used for a further request."""
        failure = await account.admit(request.url, request.host)
        if failure is None:
            exchange = PlainRequest(account, request, self._browser)
            try:
                return await exchange.run()
            except RequestFailed as error:
                if exchange.has_answered:
                    account.refuse(request.target, error.failure)
                    self._browser.abort()  # the browser must not take an incomplete response for the whole response
                    return False
                failure = error.failure
            finally:
                account.slots.release(request.host)
        return await self._refuse(account, request, failure, close=request.has_body)

    async def _refuse(self, account: ProxyAccount, request: RequestHead, failure: Failure, *, close: bool) -> bool:
        """Count a refusal and send it as the response. Return whether the connection can be used for a further
        request."""
        account.refuse(request.target, failure)
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


class RequestFailed(Exception):
    """The server gave no response, or an incomplete one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


class PlainRequest:
    """Sends a request to its server, over an idle connection if there is one, and copies the response."""

    def __init__(self, account: ProxyAccount, request: RequestHead, browser: ByteStream) -> None:
        self._account = account
        self._request = request
        self._browser = browser
        self._received = 0
        self._sent = 0
        self.has_answered = False
        """True once the browser has received the head of a response."""

    async def run(self) -> bool:
        """Return whether the browser can send another request on its connection. Raises RequestFailed."""
        try:
            async with asyncio.timeout(self._account.limits.total_timeout.total_seconds()):
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
        idle = self._account.idle.take(self._request.origin)
        if idle is not None:
            with self._account.holding(idle):
                try:
                    return await self._exchange(idle)
                except ConnectionLost as error:
                    idle.abort()
                    # The server may close an idle connection at any time. A request without any response may be sent
                    # again.
                    if error.stream is not idle or self.has_answered or self._request.has_body:
                        raise
                except BaseException:
                    idle.abort()
                    raise
        request = self._request
        server = await self._account.dialer.dial(request.host, request.port, tunnel=False)
        if isinstance(server, Failure):
            raise RequestFailed(server)
        with self._account.holding(server):
            try:
                return await self._exchange(server)
            except BaseException:
                server.abort()
                raise

    async def _exchange(self, server: ByteStream) -> bool:
        request, dialer = self._request, self._account.dialer
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
            self._account.idle.put(request.origin, server)
        else:
            server.close()
        return is_in_sync

    async def _final_response(self, server: ByteStream) -> ResponseHead:
        """Read the head of the final response; interim responses, such as 103 Early Hints, are dropped."""
        limits = self._account.limits
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
                # The browser would mistake this response for our own challenge, and answer it again and again.
                who = "proxy" if self._account.dialer.sends_to_proxy else "server"
                raise RequestFailed(Failure("proxy_error", f"The {who} asked for a proxy credential.", retryable=False))
            if response.status >= 200:
                return response

    def _count_received(self, count: int) -> None:
        self._received += count
        failure = self._account.received(count)
        if failure is None and self._received > self._account.limits.max_message_bytes:
            failure = Failure("body_too_large", "The body is larger than the limit.", retryable=False)
        if failure is not None:
            raise RequestFailed(failure)

    def _count_sent(self, count: int) -> None:
        self._sent += count
        if self._sent > self._account.limits.max_message_bytes:
            raise RequestFailed(Failure("body_too_large", "The request is larger than the limit.", retryable=False))


class Tunnel:
    """One tunnel of an account, which copies bytes in both directions."""

    def __init__(self, account: ProxyAccount, browser: ByteStream, server: ByteStream, clock: Clock) -> None:
        self._account = account
        self._browser = browser
        self._server = server
        self._clock = clock
        self._last_byte_at = clock.monotonic()
        self._awaits_server = False
        self._failure: Failure | None = None

    async def run(self) -> Failure | None:
        """Copy until one side ends. If a limit ended the tunnel, return the failure for that limit."""
        tasks = [
            asyncio.create_task(self._copy_to_server(), name="tunnel:up"),
            asyncio.create_task(self._copy_to_browser(), name="tunnel:down"),
            asyncio.create_task(self._wait_until_idle(), name="tunnel:idle"),
        ]
        seconds = self._account.limits.tunnel_timeout.total_seconds()
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
        """Return how long the tunnel has been idle; 0 while it is in use. An idle tunnel may be closed in favour of a
        waiting request."""
        return 0.0 if self._awaits_server else self._clock.monotonic() - self._last_byte_at

    def abort(self) -> None:
        self._server.abort()
        self._browser.abort()

    async def _copy_to_server(self) -> None:
        count, most = 0, self._account.limits.max_message_bytes
        while data := await self._browser.wait_for_bytes():
            self._note(awaits_server=True)
            count += len(data)
            if count > most:
                self._failure = Failure("body_too_large", "The request is larger than the limit.", retryable=False)
                return
            await self._server.send(data)

    async def _copy_to_browser(self) -> None:
        count, most = 0, self._account.limits.max_message_bytes
        while data := await self._server.wait_for_bytes():
            self._note(awaits_server=False)
            count += len(data)
            self._failure = self._account.received(len(data))
            if count > most:
                self._failure = Failure("body_too_large", "The response is larger than the limit.", retryable=False)
            if self._failure is not None:
                return
            await self._browser.send(data)

    def _note(self, *, awaits_server: bool) -> None:
        self._last_byte_at = self._clock.monotonic()
        self._awaits_server = awaits_server

    async def _wait_until_idle(self) -> None:
        limit = self._account.limits.idle_timeout.total_seconds()
        while (left := self._last_byte_at + limit - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
