"""Heads of HTTP/1.1 messages: parsed, checked and rewritten for the other side."""

import base64
import binascii
import re
from typing import Final

from msgspec import Struct

from shoal.base.url import UrlRefusal, canonical
from shoal.egress.address import Endpoint, endpoint

Fields = tuple[tuple[bytes, bytes], ...]

# Fields that concern one connection only, and those with which a site could impersonate the proxy.
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
    """A head that is not valid HTTP/1.1, or not allowed here. The text is public."""


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
        """Return the head for the server, or with `absolute` for another proxy."""
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
        # Without its own port the default of the scheme would be assumed.
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
