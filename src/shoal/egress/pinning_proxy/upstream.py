"""Opens a tunnel through another proxy: `CONNECT` of HTTP, or SOCKS5 (RFC 1928, RFC 1929)."""

from typing import Final

from shoal.egress.address import literal
from shoal.egress.pinning_proxy.byte_stream import ByteStream, HeadTooLarge
from shoal.egress.pinning_proxy.messages import BadMessage, parse_response

_MOST_HEAD_BYTES: Final = 16_000
_MOST_FIELDS: Final = 100

_SOCKS5, _NO_LOGIN, _LOGIN, _CONNECT = 5, 0, 2, 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}


class ProxyRefused(OSError):
    """The other proxy did not open the tunnel."""


async def connect(stream: ByteStream, authorization: bytes | None, host: str, port: int) -> None:
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


async def socks5(stream: ByteStream, login: str, host: str, port: int) -> None:
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
