"""HTTP/1.1 messages, which the proxy reads from and writes to byte streams."""

import asyncio
import base64
import binascii
import re
from collections.abc import Callable
from typing import Final

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct

from shoal.base.url import UrlRefusal, canonical
from shoal.egress.address import Endpoint, endpoint

CHUNK: Final = 65_536
# Old servers end a line with a line feed alone.
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")


class HeadTooLarge(Exception):
    """The head of a message is larger than the limit."""


class ConnectionLost(ConnectionError):
    """The other side of a stream is gone."""

    def __init__(self, stream: "ByteStream", why: str) -> None:
        super().__init__(why)
        self.stream = stream


class ByteStream:
    """One connection, to the browser or to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_seconds: float) -> None:
        self._reader = reader
        self._writer = writer
        self._idle_seconds = idle_seconds
        self._ahead = bytearray()

    @property
    def is_reusable(self) -> bool:
        """Return whether the other side has neither closed the connection nor sent more than was read."""
        return not self._ahead and not self._reader.at_eof() and not self._writer.is_closing()

    async def read_head(self, most: int) -> bytes:
        """Return the next head with its blank line; empty if the connection ended before a head came."""
        data, self._ahead = self._ahead, bytearray()
        searched = 0
        while (end := _END_OF_HEAD.search(data, max(0, searched - 2))) is None:
            searched = len(data)
            if searched > most:
                raise HeadTooLarge
            more = await self._read(CHUNK)
            if not more:
                return b""
            data += more
        if end.end() > most:
            raise HeadTooLarge
        self._ahead = data[end.end() :]
        return bytes(data[: end.end()])

    async def read(self, most: int = CHUNK) -> bytes:
        """Return the next bytes; empty at the end. Raise TimeoutError if no bytes come within the idle timeout."""
        async with asyncio.timeout(self._idle_seconds):
            return await self.wait_for_bytes(most)

    async def wait_for_bytes(self, most: int = CHUNK) -> bytes:
        """Return the next bytes, without a timeout; empty at the end."""
        if self._ahead:
            data = bytes(self._ahead[:most])
            del self._ahead[:most]
            return data
        return await self._read(most)

    async def read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await self.read(count - len(data))
            if not more:
                raise ConnectionLost(self, "the connection ended early")
            data += more
        return data

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._idle_seconds):
                await self._writer.drain()
        except ConnectionError as error:
            raise ConnectionLost(self, str(error)) from error

    def peer(self) -> tuple[str, int]:
        """Return the address and port of the other side."""
        name = self._writer.get_extra_info("peername")
        return str(name[0]), int(name[1])

    async def start_tls(self, server: str, ca_file: str | None) -> None:
        import ssl

        await self._writer.start_tls(ssl.create_default_context(cafile=ca_file), server_hostname=server)

    def close(self) -> None:
        """Close the connection once all written bytes have been sent, if the other side receives them in time."""
        transport = self._writer.transport
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(self._idle_seconds, transport.abort)
        self._writer.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._writer.transport.abort()

    async def _read(self, most: int) -> bytes:
        try:
            return await self._reader.read(most)
        except ConnectionError as error:
            raise ConnectionLost(self, str(error)) from error


Fields = tuple[tuple[bytes, bytes], ...]

# Fields that concern only one connection, and fields with which a site could impersonate the proxy.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"shoal-refusal",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
NO_BODY: Final = frozenset({204, 304})

_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,60000}) HTTP/1\.1")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] +([1-9][0-9]{2})(?: .*)?")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_AUTHORITY: Final = re.compile(r"http://([^/?#@\\]+)(?=[/?]|$)", re.IGNORECASE)
_PORT: Final = re.compile(r".+:[0-9]{1,5}")


class BadMessage(Exception):
    """The head of a message is not valid HTTP/1.1, or not allowed here. The text is public."""


class RequestHead(Struct, frozen=True):
    """A request as the browser sent it. `url` is empty for a tunnel."""

    method: str
    url: str
    host: str
    port: int
    fields: Fields

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def target(self) -> str:
        """The URL, or host and port of a tunnel."""
        return self.url or f"{self.host}:{self.port}"

    @property
    def origin(self) -> Endpoint:
        return self.host, self.port

    @property
    def has_body(self) -> bool:
        return is_chunked(self.fields) or bool(body_length(self.fields))

    def credential(self) -> tuple[str, str] | None:
        """Return username and password of `Proxy-Authorization: Basic`."""
        scheme, _, text = (value_of(self.fields, b"proxy-authorization") or b"").partition(b" ")
        try:
            username, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return (username, password) if scheme.lower() == b"basic" and colon else None

    def forwarded(self, proxy_authorization: bytes | None, *, absolute: bool) -> bytes:
        """Return the head for the server, or with `absolute` for an upstream proxy."""
        found = _AUTHORITY.match(self.url)
        assert found is not None
        authority, rest = found[1], self.url[found.end() :]
        path = rest if rest.startswith("/") else f"/{rest}"
        line = self.url if absolute else path
        fields = [(b"Host", authority.encode()), *_end_to_end(self.fields, b"host")]
        if proxy_authorization is not None:
            fields.append((b"Proxy-Authorization", proxy_authorization))
        if is_chunked(self.fields):
            fields.append((b"Transfer-Encoding", b"chunked"))
        return _head(f"{self.method} {line} HTTP/1.1".encode(), fields)


class ResponseHead(Struct, frozen=True):
    """A response as the server sent it."""

    status: int
    line: bytes
    fields: Fields

    def has_body(self, method: str) -> bool:
        return method != "HEAD" and self.status >= 200 and self.status not in NO_BODY

    @property
    def has_length(self) -> bool:
        return body_length(self.fields) is not None

    def forwarded(self, *, chunked: bool, close: bool) -> bytes:
        """Return the head for the browser."""
        fields = _end_to_end(self.fields, b"content-length") if chunked else _end_to_end(self.fields)
        if chunked:
            fields.append((b"Transfer-Encoding", b"chunked"))
        if close:
            fields.append((b"Connection", b"close"))
        return _head(b"HTTP/1.1" + self.line[8:], fields)

    @property
    def keeps_alive(self) -> bool:
        words = (value_of(self.fields, b"connection") or b"").lower()
        return self.line.startswith(b"HTTP/1.1") and b"close" not in words


def parse_request(head: bytes, max_fields: int) -> RequestHead:
    """Parse a request to a proxy: an absolute `http` URL, or `CONNECT host:port`."""
    line, fields = _parse(head, max_fields)
    matched = _REQUEST_LINE.fullmatch(line)
    if matched is None:
        raise BadMessage("The request line is not valid HTTP/1.1.")
    method, target = matched[1].decode(), matched[2].decode()
    if method == "CONNECT":
        # Without an explicit port, the default port of the scheme would be assumed.
        location = f"https://{target}/" if _PORT.fullmatch(target) and not set("/?#@\\") & set(target) else ""
    else:
        found = _AUTHORITY.match(target)
        location = f"http://{found[1]}/" if found else ""
    url = canonical(location)
    if isinstance(url, UrlRefusal):
        raise BadMessage("The target is neither an http URL nor the host and port of a tunnel.")
    is_chunked(fields)
    body_length(fields)
    host, port = endpoint(url)
    return RequestHead(method, "" if method == "CONNECT" else f"http://{target[7:]}", host, port, fields)


def parse_response(head: bytes, max_fields: int) -> ResponseHead:
    line, fields = _parse(head, max_fields, is_lenient=True)
    matched = _STATUS_LINE.fullmatch(line)
    if matched is None:
        raise BadMessage("The server's response is not valid HTTP.")
    return ResponseHead(int(matched[1]), line, fields)


def body_length(fields: Fields) -> int | None:
    """Return the announced length of a body; None if none is announced."""
    lengths = {value for name, value in fields if name.lower() == b"content-length"}
    if not lengths:
        return None
    if len(lengths) > 1 or is_chunked(fields):
        raise BadMessage("The length of the body is ambiguous.")
    (length,) = lengths
    if not length.isdigit() or len(length) > 15:
        raise BadMessage("The length of the body is not a number.")
    return int(length)


def is_chunked(fields: Fields) -> bool:
    codings = b",".join(value for name, value in fields if name.lower() == b"transfer-encoding").lower()
    if codings.strip() not in (b"", b"identity", b"chunked"):
        raise BadMessage("The transfer encoding is not supported.")
    return codings.strip() == b"chunked"


def value_of(fields: Fields, name: bytes) -> bytes | None:
    """Return the first value of a field, by its name in lower case."""
    return next((value for each, value in fields if each.lower() == name), None)


def _parse(head: bytes, max_fields: int, *, is_lenient: bool = False) -> tuple[bytes, Fields]:
    line, *lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    lines = lines[:-2]  # the blank line
    if len(lines) > max_fields:
        raise BadMessage("There are too many header fields.")
    fields: list[tuple[bytes, bytes]] = []
    for each in lines:
        name, colon, value = each.partition(b":")
        if b"\r" in each or b"\0" in each:
            raise BadMessage("A header field has a control character.")
        if is_lenient and fields and each[:1] in b" \t":  # an old server folds long values
            fields[-1] = (fields[-1][0], fields[-1][1] + b" " + each.strip())
        elif colon and _NAME.fullmatch(name):
            fields.append((name, value.strip(b" \t")))
        elif not is_lenient:
            raise BadMessage("A header field is not valid.")
    return line, tuple(fields)


def _end_to_end(fields: Fields, *without: bytes) -> list[tuple[bytes, bytes]]:
    listed = b",".join(value for name, value in fields if name.lower() == b"connection").lower()
    dropped = HOP_BY_HOP | {word.strip() for word in listed.split(b",")} | set(without)
    return [(name, value) for name, value in fields if name.lower() not in dropped]


def _head(line: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join([line, *(name + b": " + value for name, value in fields), b"", b""])


LAST_CHUNK: Final = b"0\r\n\r\n"
Count = Callable[[int], None]
"""A function that counts bytes as they arrive and raises if a limit is reached."""


async def copy_body(source: ByteStream, sink: ByteStream, fields: Fields, count: Count, *, until_close: bool) -> bool:
    """Copy the body of a message whose head has these fields. A body without a length either lasts until the connection
    ends (`until_close`) and is then sent in chunks, or it is absent. Return whether the source can be used for a
    further message."""
    if is_chunked(fields):
        return await _copy_chunks(source, sink, count)
    length = body_length(fields)
    if length is not None:
        await _copy_bytes(source, sink, length, count)
    elif until_close:
        while data := await source.read():
            count(len(data))
            await sink.send(_chunk(data))
        await sink.send(LAST_CHUNK)
        return False
    return True


async def _copy_bytes(source: ByteStream, sink: ByteStream, length: int, count: Count) -> None:
    while length:
        data = await source.read(min(length, CHUNK))
        if not data:
            raise ConnectionLost(source, "the body is shorter than announced")
        length -= len(data)
        count(len(data))
        await sink.send(data)


async def _copy_chunks(source: ByteStream, sink: ByteStream, count: Count) -> bool:
    """Copy a chunked body in new chunks; bytes after the body are dropped."""
    body = _ChunkedBody()
    while not body.is_complete:
        data = await source.read()
        if not data:
            raise ConnectionLost(source, "the body ended within a chunk")
        count(len(data))
        parts = body.feed(data)
        await sink.send(b"".join(_chunk(part) for part in parts if part))
    await sink.send(LAST_CHUNK)
    return not body.has_more


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _ChunkedBody:
    """Decodes one chunked body. The parser sees it as the body of a response."""

    def __init__(self) -> None:
        self.is_complete = False
        self.has_more = False  # True if bytes follow the body
        self._parts: list[bytes] = []
        self._parser = HttpResponseParser(self)
        self._parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data that these bytes contain."""
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if not self.is_complete:
                raise BadMessage("A chunk of the body is not valid.") from error
            self.has_more = True
        parts, self._parts = self._parts, []
        return parts

    # Called by the parser

    def on_message_begin(self) -> None:
        self.has_more = self.is_complete

    def on_body(self, data: bytes) -> None:
        if not self.is_complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True
