"""One libcurl handle: sets its options, collects headers and body, and builds the outcome. The transport runs it.

Only options that differ from the last request are set, because setting options is most of a request's cost in Python.
"""

import re
import socket
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import pycurl
from msgspec.structs import replace

from shoal.egress.address import AddressRefusal, Proxy
from shoal.egress.curl import CUT, explain, lock_down, refused, too_large
from shoal.egress.decode import accept_encoding
from shoal.egress.exchange import Failure, HeaderPairs, Headers, Limits, Outcome, Request, Response, Signer

if TYPE_CHECKING:
    from shoal.egress.egress import Exchange

_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})

# Headers that frame the message or name the host. libcurl writes these headers, using the URL that was checked.
_RESERVED: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NO_SOCKET: Final[int] = pycurl.SOCKET_BAD
_SHOWN_BYTES: Final = 64  # bytes of a non-HTTP response that are shown
_MOST_CHUNKS: Final = 512  # at this number, chunks are joined: tiny chunks would take fifty times the size of the body
_ACCEPT_ENCODING: Final = f"Accept-Encoding: {accept_encoding()}".encode()


class CurlHandle:
    """A reusable handle that runs one transfer at a time."""

    __slots__ = (
        "_buffer",
        "_ca_file",
        "_capacity",
        "_chunks",
        "_headers",
        "_is_plain",
        "_limits",
        "_lines",
        "_on_opened",
        "_pins",
        "_proxy",
        "_refusal",
        "easy",
        "transfer",
    )

    def __init__(self, ca_file: str | None, proxy: Proxy | None, on_opened: Callable[[int, int], int]) -> None:
        self.easy: Any = pycurl.Curl()
        self.transfer: Exchange | None = None
        self._ca_file = ca_file
        self._proxy = proxy
        self._on_opened = on_opened
        self._lines: list[bytes] = []
        self._chunks: list[bytes] = []
        self._buffer: BytesIO | None = None  # for large bodies: BytesIO returns its contents without a copy
        self._refusal: AddressRefusal | None = None
        self._capacity = -1
        self._configure()

    def configure(self, transfer: "Exchange") -> None:
        """Set the options that differ from the last request. Raise ValueError if the request cannot be sent."""
        self.transfer = transfer
        transfer.curl_handle = self
        request = transfer.request
        self.easy.setopt(pycurl.URL, transfer.url)
        if transfer.route.pins is not self._pins:
            self._set_pins(transfer.route.pins)
        if request.headers is not self._headers:
            self._set_headers(request.headers)
        if transfer.limits is not self._limits:
            self._set_limits(transfer.limits)
        if request.method != "GET" or request.body:
            self._set_method(request)
        if request.signer is not None:
            self._set_signer(request, request.signer)

    def strip(self) -> None:
        """Detach the transfer and reset the handle for the next one."""
        if self.transfer is not None:
            self.transfer.curl_handle = None
            self.transfer = None
        self._lines.clear()
        self._chunks.clear()
        self._buffer = None
        self._refusal = None
        self._capacity = -1
        if not self._is_plain:
            self.easy.reset()
            self._configure()

    def close(self) -> None:
        self.easy.close()

    def response(self, transfer: "Exchange") -> Outcome:
        """Return the response, or a failure if its headers exceed the limits."""
        lines, chunks, easy, limits = self._lines, self._chunks, self.easy, transfer.limits
        block = b"".join(lines)
        # The status line and the empty line are not header fields.
        if len(lines) > limits.max_headers + 2 or len(block) > limits.max_header_bytes:
            return _bad_answer(
                "headers_too_large",
                "The headers are larger than SHOAL_MAX_HEADERS or SHOAL_MAX_HEADER_SIZE allows.",
                transfer,
            )
        status = easy.getinfo(pycurl.RESPONSE_CODE)
        if not 200 <= status <= 599:
            message = f"The server answered with the invalid status {status}."
            return self._with_beginning(_bad_answer("protocol_error", message, transfer))
        head = _last_block(lines, block)
        if not head:
            return _bad_answer("protocol_error", "The headers are incomplete.", transfer, retryable=True)
        return Response(
            transfer.url,
            status,
            Headers(head),
            chunks[0] if len(chunks) == 1 and self._buffer is None else self._body(),
            self._address(transfer.route.addresses),
            easy.getinfo(pycurl.TOTAL_TIME),
        )

    def _address(self, addresses: Sequence[str]) -> str:
        """Return the address of the server; empty behind a proxy, since only the proxy knows it."""
        if self._proxy is not None:
            return ""
        return addresses[0] if len(addresses) == 1 else str(self.easy.getinfo(pycurl.PRIMARY_IP))

    def failure(self, transfer: "Exchange", number: int, words: str) -> Outcome:
        """Return the outcome for an error of libcurl."""
        easy = self.easy
        if self._refusal is not None:
            return refused(self._refusal, transfer.url)
        if number in CUT:
            status = int(easy.getinfo(pycurl.RESPONSE_CODE))
            if transfer.limits.cut_body or status // 100 == 3:
                return self.response(transfer)
            length = Headers(_last_block(self._lines, b"".join(self._lines))).get("content-length") or ""
            announced = int(length) if length.isdecimal() and len(length) < 16 else 0
            return too_large(words, transfer.url, transfer.limits, status=status, announced=announced)
        last_line = self._lines[-1] if self._lines else b""
        verify_result = easy.getinfo(pycurl.SSL_VERIFYRESULT)
        return self._with_beginning(
            explain(number, words, transfer.url, verify_result=verify_result, last_line=last_line)
        )

    def _with_beginning(self, failure: Failure) -> Failure:
        """If a response is not HTTP and libcurl passed on its beginning, add this beginning to the operator detail."""
        began = b"".join([*self._lines[:2], *self._chunks[:1]])[:_SHOWN_BYTES]
        if failure.code != "protocol_error" or not began:
            return failure
        words = f"{failure.operator_detail}; " if failure.operator_detail else ""
        return replace(failure, operator_detail=f"{words}the response began with {began!r}")

    def _configure(self) -> None:
        easy = self.easy
        lock_down(easy, self._ca_file, self._proxy)
        easy.setopt(pycurl.HEADERFUNCTION, self._lines.append)
        easy.setopt(pycurl.WRITEFUNCTION, self._take)
        easy.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)
        easy.setopt(pycurl.SOCKOPTFUNCTION, self._on_opened)
        self._headers: HeaderPairs | None = None
        self._limits: Limits | None = None
        self._pins: list[str] | None = None
        self._is_plain = True

    def _take(self, data: bytes) -> int | None:
        """Store a chunk of the body. The body limit is much lower for redirects than for pages."""
        capacity = self._capacity
        if capacity < 0:
            capacity = self._body_limit()
        if len(data) > capacity:
            self._chunks.append(data[:capacity])
            return 0
        self._capacity = capacity - len(data)
        self._chunks.append(data)
        if len(self._chunks) > _MOST_CHUNKS:
            self._append()
        return None

    def _body(self) -> bytes:
        if self._buffer is None:
            return b"".join(self._chunks)
        self._append()
        body, self._buffer = self._buffer.getvalue(), None
        return body

    def _append(self) -> None:
        self._buffer = self._buffer or BytesIO()
        self._buffer.writelines(self._chunks)
        self._chunks.clear()

    def _body_limit(self) -> int:
        assert self.transfer is not None
        limits = self.transfer.limits
        return limits.max_redirect_bytes if _status_class(self._lines) == b"3" else limits.max_body_bytes

    def _open_socket(self, _purpose: int, address: Any) -> "socket.socket | int":
        assert self.transfer is not None
        refusal = self.transfer.route.refusal(*address.addr[:2])
        if refusal is not None:
            self._refusal = refusal
            return _NO_SOCKET
        try:
            return _BorrowedHandle(address.family, address.socktype, address.protocol)
        except OSError:
            return _NO_SOCKET  # unsupported address family, or no free descriptor; a different address may work

    def _set_pins(self, pins: list[str]) -> None:
        if pins:
            self.easy.setopt(pycurl.RESOLVE, pins)
        elif self._pins:
            self.easy.unsetopt(pycurl.RESOLVE)
        self._pins = pins

    def _set_headers(self, headers: HeaderPairs) -> None:
        self._headers = None
        self.easy.setopt(pycurl.HTTPHEADER, header_lines(headers))
        self._headers = headers

    def _set_limits(self, limits: Limits) -> None:
        setopt = self.easy.setopt
        setopt(pycurl.TIMEOUT_MS, _milliseconds(limits.total_timeout.total_seconds()))
        setopt(pycurl.CONNECTTIMEOUT_MS, _milliseconds(limits.connect_timeout.total_seconds()))
        setopt(pycurl.LOW_SPEED_TIME, max(1, round(limits.idle_timeout.total_seconds())))
        setopt(pycurl.MAXFILESIZE_LARGE, 0 if limits.cut_body else limits.max_body_bytes)
        self._limits = limits

    def _set_method(self, request: Request) -> None:
        if not _TOKEN.fullmatch(request.method):
            raise ValueError(f"{request.method!r} is not an HTTP method")
        self._is_plain = False
        if request.method == "HEAD":
            self.easy.setopt(pycurl.NOBODY, 1)
            return
        if request.body or request.method in _WITH_BODY:
            self.easy.setopt(pycurl.POSTFIELDS, request.body)
            # Otherwise libcurl waits a second for a `100 Continue`, which few servers send.
            self.easy.setopt(pycurl.HTTPHEADER, [*header_lines(request.headers), b"Expect:"])
        self.easy.setopt(pycurl.CUSTOMREQUEST, request.method)

    def _set_signer(self, request: Request, signer: Signer) -> None:
        self._is_plain = False
        # Omit Accept-Encoding: the header would be signed, and a proxy in front of an object store may change it.
        self.easy.setopt(pycurl.HTTPHEADER, [*(_header_line(*pair) for pair in request.headers), b"Expect:"])
        self.easy.setopt(pycurl.PATH_AS_IS, 0)  # libcurl signs only the normalized path
        self.easy.setopt(pycurl.AWS_SIGV4, signer.scheme)
        self.easy.setopt(pycurl.USERPWD, signer.login)


class _BorrowedHandle(socket.socket):
    """A socket whose descriptor pycurl duplicates; the original closes itself without a ResourceWarning."""

    def __del__(self) -> None:
        self.close()


def header_lines(headers: HeaderPairs) -> list[bytes]:
    """Return header lines for libcurl. Raise ValueError for a header that could inject a line or name another host."""
    lines = [_header_line(name, value) for name, value in headers]
    if not any(name.lower() == "accept-encoding" for name, _ in headers):
        lines.append(_ACCEPT_ENCODING)
    return lines


def _header_line(name: str, value: str) -> bytes:
    if not _TOKEN.fullmatch(name) or name.lower() in _RESERVED:
        raise ValueError(f"the header {name!r} cannot be set")
    if _UNSAFE.search(value):
        raise ValueError(f"the header {name!r} contains control characters")
    value = value.strip(" \t")
    return f"{name}: {value}".encode() if value else f"{name};".encode()


def _bad_answer(code: str, message: str, transfer: "Exchange", *, retryable: bool = False) -> Failure:
    return Failure(code, message, retryable, url=transfer.url)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _status_class(lines: list[bytes]) -> bytes:
    """Return the first digit of the final status, ignoring 1xx responses before it."""
    digit = lines[0].partition(b" ")[2][:1] if lines else b""
    if digit != b"1":
        return digit
    final = next(line for line in reversed(lines) if line.startswith(b"HTTP/"))
    return final.partition(b" ")[2][:1]


def _last_block(lines: list[bytes], block: bytes) -> bytes:
    """Return the headers of the final response, without the headers of earlier 1xx responses and without trailers;
    empty if the headers were truncated."""
    if lines and lines[-1] == b"\r\n" and lines.index(b"\r\n") == len(lines) - 1:
        return block
    blanks = [index for index, line in enumerate(lines) if line in (b"\r\n", b"\n")]
    starts = [index for index, line in enumerate(lines) if line.startswith(b"HTTP/")]
    start = starts[-1] if starts else 0
    end = next((index for index in blanks if index > start), -1)
    return b"".join(lines[start : end + 1])
