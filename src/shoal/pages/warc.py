"""WARC: records, and the recorder that writes them while a crawl runs."""

import asyncio
import hashlib
import re
import struct
import zlib
from base64 import b32encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, cast
from uuid import uuid4

from isal import isal_zlib
from msgspec import Struct

from shoal.base.clock import from_micros
from shoal.base.errors import NotFound
from shoal.egress import PUBLIC_HEADERS, HeaderPairs, Request, Response
from shoal.egress.decode import accept_encoding
from shoal.pages.bodies import RENDERED_TYPE, BodyLocation, BodyStore, CapturedExchange, Waiting, place_of
from shoal.pages.page import Page

CONFORMS_TO: Final = "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"
CONVERSION: Final = "conversion"  # the type of the record that holds a rendered document
# The indexers of replay tools list every record under its URI. Under the URI of the page, the rendered document would
# be replayed in place of the response, and its scripts would run on their own result.
RENDERED_URI: Final = "urn:rendered:"
NOT_MODIFIED: Final = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"

_BROKEN: Final = cast("type[Exception]", isal_zlib.error)  # the stub does not type this class
_LEVEL: Final = 1
_STORED: Final = 0
_MEMBER_HEAD: Final = struct.Struct("<4sLBBH2sHLL")  # the ten bytes of a gzip header, then one extra field: "sl"
_MEMBER_TAIL: Final = struct.Struct("<LL")
_HEAD_STEPS: Final = (1 << 10, 1 << 12, 1 << 20)  # bytes to try in turn; the last number covers every head
_MAGIC: Final = b"\x1f\x8b\x08\x04"
_NEEDED_OF_ANSWERS: Final = frozenset({"content-length", "warc-date", "warc-payload-digest", "warc-target-uri"})
_NEEDED: Final = {
    "warcinfo": frozenset({"content-length"}),
    "request": frozenset({"content-length", "warc-date", "warc-target-uri"}),
}
# All other request headers may contain credentials, cookies or keys, which must not get into the file.
_SHOWN: Final = PUBLIC_HEADERS | {"range", "if-none-match", "if-modified-since"}
# The body is stored without chunked encoding; a replay tool that trusted this header would look for chunks.
_FRAMING: Final = re.compile(rb"^(transfer-encoding[ \t]*:)", re.IGNORECASE | re.MULTILINE)
_LINE_END: Final = re.compile(rb"\r?\n")


def exchange_members(captured: CapturedExchange, at: int, original: Mapping[str, str] | None = None) -> bytes:
    """Return a response and its request as two members, and the rendered document, if there is one, as a third member;
    `at` is the time in microseconds. `original`: the fields of the record that a 304 response confirms.

    Inlined for speed, because it runs for every stored page.
    """
    request, response, rendered = captured
    head, protocol = _http_head(response)
    kind = "response"
    more = ""
    if response.status == 304 and _is_conditional(request.headers):
        kind, more = "revisit", f"WARC-Profile: {NOT_MODIFIED}\r\n"
        if original is not None:
            more += f"WARC-Refers-To-Target-URI: {original['warc-target-uri']}\r\n"
            more += f"WARC-Refers-To-Date: {original['warc-date']}\r\n"
    if response.address:
        more += f"WARC-IP-Address: {response.address}\r\n"
    if _is_cut(response):
        more += "WARC-Truncated: length\r\n"
    about = f"WARC-Target-URI: {response.url}\r\nWARC-Date: {_date(at)}\r\n"
    answer_id = _record_id()
    digest = payload_digest(response.raw) if original is None else original["warc-payload-digest"]
    answer = (
        f"WARC/1.1\r\nWARC-Type: {kind}\r\n{about}WARC-Record-ID: {answer_id}\r\n"
        f"WARC-Protocol: {protocol}\r\n"
        f"WARC-Payload-Digest: {digest}\r\n{more}"
        "Content-Type: application/http;msgtype=response\r\n"
    )
    asked = (
        f"WARC/1.1\r\nWARC-Type: request\r\n{about}WARC-Record-ID: {_record_id()}\r\n"
        f"WARC-Concurrent-To: {answer_id}\r\nContent-Type: application/http;msgtype=request\r\n"
    )
    level = _STORED if response.headers.get("content-encoding") else _LEVEL
    exchange = _member(answer, head, response.raw, level=level) + _member(asked, _request_head(request), b"")
    if not rendered:
        return exchange
    conversion = (
        f"WARC/1.1\r\nWARC-Type: {CONVERSION}\r\nWARC-Target-URI: {RENDERED_URI}{response.url}\r\n"
        f"WARC-Date: {_date(at)}\r\nWARC-Record-ID: {_record_id()}\r\n"
        f"WARC-Refers-To: {answer_id}\r\nWARC-Payload-Digest: {payload_digest(rendered)}\r\n"
        f"Content-Type: {RENDERED_TYPE}\r\n"
    )
    return exchange + _member(conversion, b"", rendered)


def info_member(file_name: str, at: int, facts: Iterable[tuple[str, str]]) -> bytes:
    """Return the first record of a file: which software wrote the file, and for what."""
    fields = (
        f"WARC/1.1\r\nWARC-Type: warcinfo\r\nWARC-Date: {_date(at)}\r\nWARC-Record-ID: {_record_id()}\r\n"
        f"WARC-Filename: {file_name}\r\nContent-Type: application/warc-fields\r\n"
    )
    info = [("format", "WARC File Format 1.1"), ("conformsTo", CONFORMS_TO), *facts]
    return _member(fields, "".join(f"{name}: {value}\r\n" for name, value in info).encode(), b"")


def payload_digest(payload: bytes) -> str:
    """Return the SHA-1 in base 32 that WARC readers expect: an identifier, not a security measure."""
    return f"sha1:{b32encode(hashlib.sha1(payload, usedforsecurity=False).digest()).decode()}"


class Record(Struct, frozen=True):
    """One record: its fields by lower-case name, and its block."""

    fields: dict[str, str]
    block: bytes

    def http(self) -> tuple[bytes, bytes]:
        """Return the head of the HTTP message in the block, including the empty line, and the body."""
        end = self.block.find(b"\r\n\r\n")
        if end < 0:
            raise ValueError("it is not an HTTP message")
        return self.block[: end + 4], self.block[end + 4 :]


class Piece(NamedTuple):
    """The offset and length of a member among others."""

    offset: int
    length: int


def pieces(kept: bytes) -> Iterator[Piece]:
    """Yield the members of a sequence without decompressing them."""
    at = 0
    while at < len(kept):
        if kept[at : at + 4] != _MAGIC or kept[at + 12 : at + 14] != b"sl":
            raise ValueError("it was not written by Shoal")
        length = int.from_bytes(kept[at + 16 : at + 20], "little")
        if not 0 < length <= len(kept) - at:
            raise ValueError("a member is cut off")
        yield Piece(at, length)
        at += length


def first_exchange(kept: bytes) -> bytes:
    """Return the members of the first response and its request, and of its rendered document if there is one."""
    _, request = islice(pieces(kept), 2)
    last = _rendered_piece(kept) or request
    return kept[: last.offset + last.length]


def rendered_in(kept: bytes) -> bytes | None:
    """Return the rendered document that follows the first response and its request; None if there is none."""
    piece = _rendered_piece(kept)
    return None if piece is None else read_member(kept[piece.offset : piece.offset + piece.length]).block


def _rendered_piece(kept: bytes) -> Piece | None:
    for piece in islice(pieces(kept), 2, 3):
        if kind_of(kept[piece.offset : piece.offset + piece.length]) == CONVERSION:
            return piece
    return None


def read_first(kept: bytes) -> Record:
    """Return the first record of a sequence of members."""
    for piece in pieces(kept):
        return read_member(kept[piece.offset : piece.offset + piece.length])
    raise ValueError("it is empty")


def read_member(member: bytes) -> Record:
    try:
        plain = isal_zlib.decompress(member, wbits=31)
    except _BROKEN as error:
        raise ValueError(str(error)) from None
    return _read(plain)


def kind_of(member: bytes) -> str:
    """Return the type of a record, decompressing only a little more than the type."""
    return _beginning(member, 64).partition(b"WARC-Type: ")[2].partition(b"\r")[0].decode("latin-1")


def read_head(member: bytes) -> Record:
    """Return a record whose block may be truncated: decompresses enough for its fields and the head of its message."""
    plain = b""
    for most in _HEAD_STEPS:
        plain = _beginning(member, most)
        if plain.count(b"\r\n\r\n") > 1:
            break
    return _read(plain)


def _beginning(member: bytes, most: int) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(member, most)  # unlike ISA-L, zlib can stop after this number of bytes
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _read(plain: bytes) -> Record:
    head, empty, rest = plain.partition(b"\r\n\r\n")
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    if not empty or not first.startswith("WARC/"):
        raise ValueError("it is not a WARC record")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    missing = _NEEDED.get(fields.get("warc-type", ""), _NEEDED_OF_ANSWERS) - fields.keys()
    if missing:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    return Record(fields, rest[: int(fields["content-length"])])


def _member(fields: str, head: bytes, body: bytes, *, level: int = _LEVEL) -> bytes:
    length_line = f"Content-Length: {len(head) + len(body)}\r\n\r\n"
    plain = b"".join(((fields + length_line).encode("utf-8", "replace"), head, body, b"\r\n\r\n"))
    packed = isal_zlib.compress(plain, level, wbits=-isal_zlib.MAX_WBITS)
    length = _MEMBER_HEAD.size + len(packed) + _MEMBER_TAIL.size
    start = _MEMBER_HEAD.pack(_MAGIC, 0, 0, 255, 12, b"sl", 8, length, len(plain))
    return b"".join((start, packed, _MEMBER_TAIL.pack(isal_zlib.crc32(plain), len(plain))))


def _http_head(response: Response) -> tuple[bytes, str]:
    """Return the status line and headers as sent, in HTTP/1.1 form, and the actual protocol."""
    block = response.headers.block
    version = response.http_version
    if block.startswith(b"HTTP/1."):
        protocol = f"http/{version}"
    else:
        protocol = f"h{version}"
        rest = block.partition(b"\n")[2]
        block = f"HTTP/1.1 {response.status} {response.reason}\r\n".encode("latin-1", "replace") + rest
    if _FRAMING.search(block):
        block = _FRAMING.sub(rb"X-Crawler-\1", block)
    if not block.endswith(b"\r\n\r\n") or block.count(b"\n") != block.count(b"\r\n"):
        lines = [line for line in _LINE_END.split(block) if line]
        block = b"\r\n".join([*lines, b"", b""])
    return block, protocol


def _request_head(request: Request) -> bytes:
    """Return the request as sent, without secrets."""
    url = request.url
    at = url.find("/", 8)
    host, target = (url, "/") if at < 0 else (url[:at], url[at:])
    host = host.partition("://")[2].rpartition("@")[2]
    lines = f"{request.method} {target} HTTP/1.1\r\nHost: {host}\r\n{_shown(request.headers)}\r\n"
    return lines.encode("utf-8", "replace")


@lru_cache(64)
def _shown(headers: HeaderPairs) -> str:
    """Return the headers that may be stored. Cached, because most requests of a crawl have the same headers."""
    if not any(name.lower() == "accept-encoding" for name, _ in headers):
        headers += (("Accept-Encoding", accept_encoding()),)  # as the transport does
    return "".join(f"{name}: {value}\r\n" for name, value in headers if name.lower() in _SHOWN)


def _is_conditional(headers: HeaderPairs) -> bool:
    return any(name.lower() in ("if-none-match", "if-modified-since") for name, _ in headers)


def _is_cut(response: Response) -> bool:
    """Return whether a body was truncated, for example because only the beginning of a redirect's body is read."""
    info = response.headers.get("content-length") if 300 <= response.status < 400 else None
    return info is not None and info.isdecimal() and int(info) > len(response.raw)


def _date(micros: int) -> str:
    return from_micros(micros).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _record_id() -> str:
    return f"<urn:uuid:{uuid4()}>"


MOST_WAITING = 32_000_000  # bytes of responses; above that, fetching pauses until they are written


class BodyRecorder:
    """Collects responses as they arrive, and writes them before the commit that stores their pages."""

    def __init__(self, store: BodyStore, name: str, most: int = MOST_WAITING) -> None:
        self._store = store
        self._writer = store.writer(name)
        self._most = most
        self._waiting: list[Waiting] = []
        self._unchanged: dict[str, BodyLocation] = {}  # where an earlier crawl stored the unchanged body, by URL
        self._bytes = 0  # bytes of responses that wait or are being written

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._most

    def add(self, page: Page, captured: tuple[CapturedExchange, ...], earlier: bytes = b"") -> None:
        """Queue a page's responses for the next commit: the last response first, then the redirects (`earlier`)."""
        self._waiting.append((page, captured, earlier))
        self._bytes += _size(captured)

    def recall(self, page: Page, earlier: Page) -> None:
        """Copy the body stored by an earlier crawl, because the server answered 304 (not modified). The body is copied
        because the earlier crawl may be removed."""
        place = place_of(earlier)
        if place is not None:
            self._unchanged[page.url] = place

    def take(self) -> list[Waiting]:
        """Return and clear all queued responses, to be written before the commit that stores their pages."""
        taken, self._waiting = self._waiting, []
        return taken

    async def write(self, taken: list[Waiting]) -> None:
        """Write the responses that `take` returned and set each page's location; the bytes are durable when this
        returns."""
        if not taken:
            return
        try:
            packed = await asyncio.to_thread(_pack, taken, await self._recalled())
            place = await self._writer.append(b"".join(packed))
        finally:
            self._bytes -= sum(_size(captured) for _, captured, _ in taken)
        offset = place.offset
        for (page, _, _), members in zip(taken, packed, strict=True):
            page.body_file, page.body_offset, page.body_length = place.file, offset, len(members)
            offset += len(members)

    async def _recalled(self) -> dict[str, bytes]:
        unchanged, self._unchanged = self._unchanged, {}
        found = {}
        for url, place in unchanged.items():
            with suppress(NotFound):  # removed with the earlier crawl, or lost: the 304 response is stored anyway
                found[url] = await self._store.read(place)
        return found

    def forget(self) -> None:
        """Discard the queued responses, because their pages will not be stored."""
        self._waiting.clear()
        self._unchanged.clear()
        self._bytes = 0

    async def close(self) -> None:
        await self._writer.close()


def _pack(waiting: list[Waiting], recalled: dict[str, bytes]) -> list[bytes]:
    return [_members(page, captured, recalled.get(page.url)) + earlier for page, captured, earlier in waiting]


def _members(page: Page, captured: tuple[CapturedExchange, ...], earlier: bytes | None) -> bytes:
    original, fields = _original(earlier)
    return original + b"".join([exchange_members(one, page.fetched_at, fields) for one in captured])


def _original(earlier: bytes | None) -> tuple[bytes, dict[str, str] | None]:
    """Return the members of the last full response and its request, and the fields of its record."""
    if earlier is None:
        return b"", None
    try:
        original = first_exchange(earlier)
        return original, read_head(original).fields
    except ValueError:  # damaged: the 304 response is stored anyway
        return b"", None


def _size(captured: tuple[CapturedExchange, ...]) -> int:
    return sum(one.size for one in captured)
