"""Copies the body of one message from a connection to another, and not a byte more.

Bytes after the body must not reach the browser, which would read them as the response to its next request, perhaps one
for another site.
"""

from collections.abc import Callable
from typing import Final

from httptools import HttpParserError, HttpResponseParser

from shoal.egress.pinning_proxy.byte_stream import CHUNK, ByteStream, ConnectionLost
from shoal.egress.pinning_proxy.messages import BadMessage, Fields, body_length, is_chunked

LAST_CHUNK: Final = b"0\r\n\r\n"
Count = Callable[[int], None]
"""Counts bytes as they come; raises if a limit is reached."""


async def copy_body(source: ByteStream, sink: ByteStream, fields: Fields, count: Count, *, until_close: bool) -> bool:
    """Copy a body whose head has these fields. Without a length it lasts until the connection ends (`until_close`), and
    is sent in chunks, or it is absent. Return whether the source can be used for another message."""
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
    """Copy a chunked body with chunks of our own; bytes after it are dropped."""
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
    """Decodes one chunked body, as that of a response."""

    def __init__(self) -> None:
        self.is_complete = False
        self.has_more = False  # bytes after the body
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
