"""One request over HTTP to a server on this machine, on a connection of its own."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from typing import Any


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


def request(
    port: int,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    connection = (
        HTTPConnection("127.0.0.1", port, timeout=30)
        if tls is None
        else HTTPSConnection("127.0.0.1", port, timeout=30, context=tls)
    )
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, told, response.read())
    finally:
        connection.close()
