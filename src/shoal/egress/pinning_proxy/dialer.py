"""Opens connections to checked addresses only, the one place of the proxy that connects; also through another proxy:
`CONNECT` of HTTP, or SOCKS5 (RFC 1928, RFC 1929)."""

import asyncio
import base64
from typing import Final

from shoal.egress.address import AddressRule, Route, literal
from shoal.egress.ca_bundle import machine_ca_file
from shoal.egress.curl_errors import refused
from shoal.egress.exchange import Failure
from shoal.egress.pinning_proxy.byte_stream import ByteStream, HeadTooLarge
from shoal.egress.pinning_proxy.connections import ProxyLimits
from shoal.egress.pinning_proxy.messages import BadMessage, parse_response
from shoal.egress.proxy import Proxy
from shoal.egress.resolver import Answer, Resolver

_MOST_ADDRESSES: Final = 8
_SHORTEST_TRY_SECONDS: Final = 2.0


class PinnedDialer:
    """Resolves a host, checks every address of it, and connects to a checked one: directly, or through a proxy."""

    def __init__(
        self,
        rule: AddressRule,
        resolver: Resolver,
        limits: ProxyLimits,
        proxy: Proxy | None = None,
        ca_file: str | None = None,
    ) -> None:
        self._rule = rule
        self._resolver = resolver
        self._connect_seconds = limits.connect_timeout.total_seconds()
        self._idle_seconds = limits.idle_timeout.total_seconds()
        self._proxy = proxy
        self._ca_file = ca_file or machine_ca_file()

    @property
    def sends_to_proxy(self) -> bool:
        """Return whether plain requests go to another HTTP proxy, which wants absolute URLs."""
        return self._proxy is not None and self._proxy.url.startswith("http")

    @property
    def proxy_authorization(self) -> bytes | None:
        """The `Proxy-Authorization` for plain requests to another proxy."""
        if self._proxy is None or not self._proxy.login or not self.sends_to_proxy:
            return None
        return b"Basic " + base64.b64encode(self._proxy.login.encode())

    async def dial(self, host: str, port: int, *, tunnel: bool) -> ByteStream | Failure:
        """Connect to a host. With `tunnel`, bytes reach it unchanged, also through an HTTP proxy."""
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
    """The other proxy did not open the tunnel."""


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
        raise ProxyRefused("it accepts no login that was offered")
    if method == _LOGIN:
        username, _, password = (part.encode() for part in login.partition(":"))
        if max(len(username), len(password)) > 255:
            raise ProxyRefused("SOCKS5 allows no login that long")
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
