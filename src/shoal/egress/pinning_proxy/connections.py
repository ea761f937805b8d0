"""The connections of the proxy: limits for browsers and servers, and dialling of servers."""

import asyncio
import base64
from collections import Counter, deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from shoal.egress.address import AddressRule, Endpoint, Proxy, Route, literal
from shoal.egress.curl import machine_ca_file, refused
from shoal.egress.exchange import Failure
from shoal.egress.pinning_proxy.messages import BadMessage, ByteStream, HeadTooLarge, parse_response
from shoal.egress.resolver import Answer, Resolver

if TYPE_CHECKING:
    from shoal.base.settings import EgressSettings
    from shoal.egress.pinning_proxy.browser_connection import Tunnel


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits on time, size and connections; each account may have its own."""

    head_timeout: timedelta = timedelta(seconds=20)  # for a whole request head, and between two requests
    slot_timeout: timedelta = timedelta(seconds=10)  # for getting a free connection to a host
    connect_timeout: timedelta = timedelta(seconds=10)
    idle_timeout: timedelta = timedelta(seconds=20)  # without a byte in either direction
    total_timeout: timedelta = timedelta(seconds=60)  # for one request
    tunnel_timeout: timedelta = timedelta(minutes=5)  # a tunnel carries many requests, or a WebSocket
    yield_after: timedelta = timedelta(seconds=1)  # an idle tunnel is closed after this time if a request waits
    max_head_bytes: int = 64_000
    max_headers: int = 100
    max_message_bytes: int = 50_000_000  # size of one response, or of one direction of a tunnel
    max_account_bytes: int = 200_000_000  # received in total
    host_connections: int = 6
    account_connections: int = 64
    client_connections: int = 1024  # for the whole proxy

    @classmethod
    def of(cls, settings: "EgressSettings") -> "ProxyLimits":
        return cls(
            connect_timeout=settings.connect_timeout,
            idle_timeout=settings.idle_timeout,
            total_timeout=settings.total_timeout,
            max_head_bytes=settings.max_header_bytes,
            max_headers=settings.max_headers,
        )


class ConnectionSlots:
    """The slots of one account. A request waits for a slot of its host; a tunnel that is idle gives up its slot.

    A browser keeps the connection of a finished request open for minutes. If idle connections kept their slots, other
    requests to the host would wait for minutes, too.
    """

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._tunnels: dict[str, set[Tunnel]] = {}

    async def acquire(self, host: str) -> Failure | None:
        """Take a slot; return a failure if there is none in time."""
        if self._used.total() >= self._limits.account_connections:
            return Failure("too_many_connections", "The page has too many connections.", retryable=True)
        if self._used[host] < self._limits.host_connections and not self._waiting.get(host):
            self._used[host] += 1
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(host, deque())
        queue.append(turn)
        try:
            async with asyncio.timeout(self._limits.slot_timeout.total_seconds()):
                await self._wait(host, turn)
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done():
                self.release(host)  # this request was given a slot at the last moment
            else:
                queue.remove(turn)
            if isinstance(error, asyncio.CancelledError):
                raise
            return Failure("too_many_connections", "All connections to the host are in use.", retryable=True)
        return None

    def release(self, host: str) -> None:
        """Release a slot and give it to the request that has waited longest."""
        queue = self._waiting.get(host)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._used[host] -= 1
        if not self._used[host]:
            del self._used[host]
            self._waiting.pop(host, None)

    def add_tunnel(self, host: str, tunnel: "Tunnel") -> None:
        self._tunnels.setdefault(host, set()).add(tunnel)

    def remove_tunnel(self, host: str, tunnel: "Tunnel") -> None:
        self._tunnels[host].discard(tunnel)
        if not self._tunnels[host]:
            del self._tunnels[host]

    async def _wait(self, host: str, turn: "asyncio.Future[None]") -> None:
        yield_after = self._limits.yield_after.total_seconds()
        while not turn.done():
            idlest = max(self._tunnels.get(host, ()), key=lambda tunnel: tunnel.idle_seconds(), default=None)
            if idlest is not None and idlest.idle_seconds() >= yield_after:
                idlest.abort()
            await asyncio.wait([turn], timeout=yield_after)


class IdleConnections:
    """The idle connections of one account, a few per origin."""

    def __init__(self, per_origin: int) -> None:
        self._per_origin = per_origin
        self._idle: dict[Endpoint, list[ByteStream]] = {}
        self._is_closed = False

    def take(self, origin: Endpoint) -> ByteStream | None:
        """Return the most recently used connection that is still open."""
        waiting = self._idle.get(origin, [])
        while waiting:
            stream = waiting.pop()
            if stream.is_reusable:
                return stream
            stream.close()
        return None

    def put(self, origin: Endpoint, stream: ByteStream) -> None:
        waiting = self._idle.setdefault(origin, [])
        if self._is_closed or not stream.is_reusable or len(waiting) >= self._per_origin:
            stream.close()
        else:
            waiting.append(stream)

    def close(self) -> None:
        self._is_closed = True
        for waiting in self._idle.values():
            for stream in waiting:
                stream.abort()
        self._idle.clear()


_MOST_ADDRESSES: Final = 8
_SHORTEST_TRY_SECONDS: Final = 2.0


class PinnedDialer:
    """Resolves a host, checks all of its addresses, and connects to a checked address: directly, or through a proxy."""

    def __init__(
        self,
        rule: AddressRule,
        resolver: Resolver,
        limits: ProxyLimits,
        proxy: Proxy | None = None,
    ) -> None:
        self._rule = rule
        self._resolver = resolver
        self._connect_seconds = limits.connect_timeout.total_seconds()
        self._idle_seconds = limits.idle_timeout.total_seconds()
        self._proxy = proxy
        self._ca_file = machine_ca_file()

    @property
    def sends_to_proxy(self) -> bool:
        """Return whether plain requests go to an upstream HTTP proxy, which needs absolute URLs."""
        return self._proxy is not None and self._proxy.url.startswith("http")

    @property
    def proxy_authorization(self) -> bytes | None:
        """The `Proxy-Authorization` for plain requests to an upstream proxy."""
        if self._proxy is None or not self._proxy.login or not self.sends_to_proxy:
            return None
        return b"Basic " + base64.b64encode(self._proxy.login.encode())

    async def dial(self, host: str, port: int, *, tunnel: bool) -> ByteStream | Failure:
        """Connect to a host. With `tunnel`, bytes reach the host unchanged, even through an HTTP proxy."""
        try:
            async with asyncio.timeout(self._connect_seconds):
                return await self._dial(host, port, tunnel=tunnel)
        except TimeoutError:
            return Failure("connect_timeout", "The server did not accept the connection in time.", retryable=True)

    async def _dial(self, host: str, port: int, *, tunnel: bool) -> ByteStream | Failure:
        target = await self._checked(self._rule, host, port)
        if isinstance(target, Failure) or self._proxy is None:
            return target if isinstance(target, Failure) else await self._connect(target)
        way = await self._checked(self._proxy.rule, self._proxy.host, self._proxy.port)
        stream = way if isinstance(way, Failure) else await self._connect(way)
        if isinstance(stream, Failure):
            return stream
        try:
            if self._proxy.url.startswith("https:"):
                await stream.start_tls(self._proxy.host.strip("[]"), self._ca_file)
            if self._proxy.url.startswith("socks5"):
                by_name = self._proxy.url.startswith("socks5h:")
                await _socks5(stream, self._proxy.login, host if by_name else target.addresses[0], port)
            elif tunnel:
                await _connect(stream, self.proxy_authorization, host, port)
        except OSError as error:  # including errors of TLS
            stream.abort()
            return Failure(
                "proxy_error", "The proxy refused the connection.", retryable=True, operator_detail=str(error)
            )
        except BaseException:
            stream.abort()
            raise
        return stream

    async def _checked(self, rule: AddressRule, host: str, port: int) -> Route | Failure:
        """Return the addresses of a host. A single refused address is enough to refuse the host."""
        spelled = literal(host)
        answer = (str(spelled),) if spelled is not None else await self._resolve(host)
        if isinstance(answer, Failure):
            return answer
        for ip in answer:
            refusal = rule.judge(ip, port, host)
            if refusal is not None:
                return refused(refusal, host)
        return Route(host, port, answer[:_MOST_ADDRESSES], rule, 0.0)

    async def _resolve(self, host: str) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._resolver.resolve(host, lambda answer: None if answered.done() else answered.set_result(answer))
        return await answered

    async def _connect(self, route: Route) -> ByteStream | Failure:
        """Try the addresses of a route one after the other."""
        seconds = max(self._connect_seconds / len(route.addresses), _SHORTEST_TRY_SECONDS)
        problem = "it has no address"
        for address in route.addresses:
            refusal = route.refusal(address, route.port)
            if refusal is not None:
                return refused(refusal, route.host)
            try:
                async with asyncio.timeout(seconds):
                    # The host is a literal address here, so that no name is resolved on the way.
                    reader, writer = await asyncio.open_connection(address, route.port)
            except (OSError, TimeoutError) as error:
                problem = str(error) or "timeout"
                continue
            stream = ByteStream(reader, writer, self._idle_seconds)
            refusal = route.refusal(*stream.peer())
            if refusal is not None:
                stream.abort()
                return refused(refusal, route.host)
            return stream
        return Failure("connect_error", "The server refused the connection.", True, f"{route.host}: {problem}")


_MOST_HEAD_BYTES: Final = 16_000
_MOST_FIELDS: Final = 100

_SOCKS5, _NO_LOGIN, _LOGIN, _CONNECT = 5, 0, 2, 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}


class ProxyRefused(OSError):
    """The upstream proxy did not open the tunnel."""


async def _connect(stream: ByteStream, authorization: bytes | None, host: str, port: int) -> None:
    """Ask an HTTP proxy for a tunnel."""
    authority = f"{host}:{port}".encode()
    lines = [b"CONNECT " + authority + b" HTTP/1.1", b"Host: " + authority]
    if authorization is not None:
        lines.append(b"Proxy-Authorization: " + authorization)
    await stream.send(b"\r\n".join([*lines, b"", b""]))
    try:
        response = parse_response(await stream.read_head(_MOST_HEAD_BYTES), _MOST_FIELDS)
    except (BadMessage, HeadTooLarge) as error:
        raise ProxyRefused("its response is not valid HTTP") from error
    if not 200 <= response.status < 300:
        raise ProxyRefused(f"its status is {response.status}")


async def _socks5(stream: ByteStream, login: str, host: str, port: int) -> None:
    """Ask a SOCKS5 proxy for a tunnel to a name or an address."""
    await stream.send(bytes([_SOCKS5, 2, _NO_LOGIN, _LOGIN]) if login else bytes([_SOCKS5, 1, _NO_LOGIN]))
    version, method = await stream.read_exactly(2)
    if version != _SOCKS5 or method not in (_NO_LOGIN, _LOGIN) or (method == _LOGIN and not login):
        raise ProxyRefused("it accepts none of the offered login methods")
    if method == _LOGIN:
        username, _, password = (part.encode() for part in login.partition(":"))
        if max(len(username), len(password)) > 255:
            raise ProxyRefused("the login is too long for SOCKS5")
        await stream.send(bytes([1, len(username)]) + username + bytes([len(password)]) + password)
        if (await stream.read_exactly(2))[1]:
            raise ProxyRefused("it refused the login")
    await stream.send(bytes([_SOCKS5, _CONNECT, 0]) + _address(host) + port.to_bytes(2, "big"))
    _, status, _, kind = await stream.read_exactly(4)
    if status:
        raise ProxyRefused(f"its status is {status}")
    count = _ADDRESS_BYTES.get(kind) or (await stream.read_exactly(1))[0]
    await stream.read_exactly(count + 2)


def _address(host: str) -> bytes:
    spelled = literal(host)
    if spelled is not None:
        return bytes([_IPV4 if spelled.version == 4 else _IPV6]) + spelled.packed
    name = host.encode("ascii")
    return bytes([_NAME, len(name)]) + name
