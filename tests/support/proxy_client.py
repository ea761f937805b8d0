"""A client of the pinning proxy that sends the bytes a test gives it."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from shoal.egress.pinning_proxy import PinningProxy, ProxyAccount


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def refusal(self) -> str:
        return self.headers.get("shoal-refusal", "")


class ProxyClient:
    """One connection to the proxy."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, account: ProxyAccount | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._authorization = authorization(account.username, account.password) if account else ""

    async def get(self, url: str, method: str = "GET", *fields: str, body: bytes = b"") -> Reply:
        """Send a plain request and read its response."""
        await self.send(self.head(f"{method} {url} HTTP/1.1", "Host: ignored.test", *fields) + body)
        return await self.reply(method)

    async def connect(self, authority: str) -> Reply:
        await self.send(self.head(f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"))
        return await self.reply("CONNECT")

    def head(self, *lines: str) -> bytes:
        return "\r\n".join([*lines, *([self._authorization] if self._authorization else []), "", ""]).encode()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, method: str = "GET") -> Reply:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        version, status = line.split(" ")[0], int(line.split(" ")[1])
        assert version == "HTTP/1.1"
        has_body = method != "HEAD" and status not in (204, 304) and (method != "CONNECT" or status != 200)
        return Reply(status, headers, await self._body(headers) if has_body else b"")

    async def read(self, count: int) -> bytes:
        return await self._reader.readexactly(count)

    async def rest(self) -> bytes:
        """Return everything that is received until the connection ends."""
        data = b""
        try:
            while more := await self._reader.read(65_536):
                data += more
        except ConnectionError:
            pass
        return data

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                body += (await self._reader.readexactly(size + 2))[:-2]
            assert await self._reader.readexactly(2) == b"\r\n"
            return body
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        return await self._reader.read()

    def close(self) -> None:
        self._writer.close()


def authorization(username: str, password: str) -> str:
    return f"Proxy-Authorization: Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


@asynccontextmanager
async def client(proxy: PinningProxy, account: ProxyAccount | None) -> AsyncIterator[ProxyClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    connection = ProxyClient(reader, writer, account)
    try:
        yield connection
    finally:
        connection.close()
