"""A connection as the proxy uses it: heads of messages, then bytes, each read within a time limit."""

import asyncio
import re
from typing import Final

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
        """Return the next head with its blank line; nothing if the connection ended before."""
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
        """Return the next bytes; nothing at the end. Raises TimeoutError if none come within the idle timeout."""
        async with asyncio.timeout(self._idle_seconds):
            return await self.wait_for_bytes(most)

    async def wait_for_bytes(self, most: int = CHUNK) -> bytes:
        """Return the next bytes, however long they take; nothing at the end."""
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
        """Close the connection once what was written has been sent, if the other side takes it in time."""
        transport = self._writer.transport
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(self._idle_seconds, transport.abort)
        self._writer.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def _read(self, most: int) -> bytes:
        try:
            return await self._reader.read(most)
        except ConnectionError as error:
            raise ConnectionLost(self, str(error)) from error
