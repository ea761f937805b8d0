"""Responses that violate HTTP or contradict their own headers, each with the error code that a crawl must record."""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Iterable

import brotli
from backports import zstd

from tests.support.bad_http_server import Asked, Line, Script, reply

DECODED_LIMIT = 30_000_000
HTML = ("Content-Type", "text/html")
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

Bad = dict[str, tuple[str, Script]]
"""Path -> the code it must come to, and what is played there."""


def send(*parts: bytes) -> Script:
    """These bytes, and then whatever comes next."""

    async def script(line: Line, _asked: Asked) -> None:
        for part in parts:
            await line.send(part)

    return script


def send_and_close(*parts: bytes) -> Script:
    async def script(line: Line, _asked: Asked) -> None:
        for part in parts:
            await line.send(part)
        raise ConnectionResetError

    return script


def send_and_reset(part: bytes) -> Script:
    async def script(line: Line, _asked: Asked) -> None:
        await line.send(part)
        line.reset()
        raise ConnectionResetError

    return script


def send_and_wait(*parts: bytes) -> Script:
    """These bytes, then silence until the other side gives up."""

    async def script(line: Line, _asked: Asked) -> None:
        for part in parts:
            await line.send(part)
        await line.wait_for_end()

    return script


def repeat(head: bytes, piece: bytes, pause_seconds: float = 0) -> Script:
    """The piece again and again, until the other side gives up."""

    async def script(line: Line, _asked: Asked) -> None:
        await line.send(head)
        while True:
            await line.send(piece)
            await asyncio.sleep(pause_seconds)

    return script


def redirect(location: str | Callable[[Asked], str], status: int = 302, body: bytes = b"") -> Script:
    async def script(line: Line, asked: Asked) -> None:
        where = location if isinstance(location, str) else location(asked)
        await line.send(reply(status, body, [("Location", where)]))

    return script


def first_then(first: bytes, later: bytes) -> Script:
    """One answer for the first who asks, another for all others."""
    left = [first]

    async def script(line: Line, _asked: Asked) -> None:
        await line.send(left.pop() if left else later)

    return script


def encoded(body: bytes, encodings: str) -> Script:
    return send(reply(200, body, [HTML, ("Content-Encoding", encodings)]))


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def fields(count: int, value: str = "1") -> Iterable[tuple[str, str]]:
    return [(f"X-{number}", value) for number in range(count)]


def wire() -> Bad:
    """Responses that are not HTTP or contradict themselves."""
    close, no_http = send_and_close, "protocol_error"
    return {
        "garbage": (no_http, close(bytes(range(256)) * 4)),
        "no-http": (no_http, close(b"220 mail.test ESMTP ready\r\n")),
        "http-0.9": (no_http, close(b"<title>old</title>")),
        "http-9.9": (no_http, close(b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n")),
        "status-099": (no_http, close(b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n")),
        "status-600": (no_http, close(b"HTTP/1.1 600 High\r\nContent-Length: 0\r\n\r\n")),
        "status-999": (no_http, close(b"HTTP/1.1 999 Denied\r\nContent-Length: 0\r\n\r\n")),
        "switching": (no_http, close(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello")),
        "nothing": ("empty_reply", close()),
        "reset": ("connection_lost", send_and_reset(b"HTTP/1.1 200 OK\r\n")),
        "short": (no_http, close(OK + b"Content-Length: 100\r\n\r\nshort")),
        "negative-length": (no_http, close(OK + b"Content-Length: -5\r\n\r\nabc")),
        "worded-length": (no_http, close(OK + b"Content-Length: ten\r\n\r\nabc")),
        "two-lengths": (no_http, close(OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")),
        "chunk-nonsense": (no_http, close(CHUNKED + b"xyz\r\n")),
        "chunk-negative": (no_http, close(CHUNKED + b"-5\r\nhello\r\n")),
        "chunk-huge": (no_http, close(CHUNKED + b"F" * 17 + b"\r\nhello\r\n")),
        "chunk-cut": (no_http, close(CHUNKED + b"5\r\nab")),
        "chunk-too-long": (no_http, close(CHUNKED + b"5\r\nhello, world\r\n0\r\n\r\n")),
        "unasked-transfer-coding": (no_http, close(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")),
        "nul-in-header": (no_http, close(OK + b"X-A: nul\x00byte\r\n\r\n")),
        "return-in-header": (no_http, close(OK + b"X-A: a\rLocation: /x\r\n\r\n")),
        "cut-headers": (no_http, close(OK + b"Content-Length: 0\r\n")),
        "no-colon": (no_http, close(OK + b"no colon here\r\n\r\n")),
    }


def floods() -> Bad:
    """Responses that never end, or not in time."""
    much, late, large = "headers_too_large", "total_timeout", "body_too_large"
    return {
        "many-headers": (much, send_and_close(reply(200, b"x", fields(10_000)))),
        "long-header": (much, send_and_close(reply(200, b"x", fields(1, "a" * 1_000_000)))),
        "cookie-flood": (much, send_and_close(OK + b"Set-Cookie: a=b\r\n" * 300_000 + b"\r\n")),
        "endless-headers": (much, repeat(OK, b"X-A: 1\r\n")),
        "endless-header": (much, repeat(OK + b"X-A: ", b"a" * 1000)),
        "endless-status": (much, repeat(b"HTTP/1.1 200 ", b"a" * 1000)),
        "endless-continue": (much, repeat(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50)),
        "endless-hints": (much, repeat(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")),
        "endless-trailers": (much, repeat(CHUNKED + b"0\r\n", b"X-A: " + b"a" * 1000 + b"\r\n")),
        "endless-body": (large, repeat(CHUNKED, b"10000\r\n" + b"<p>x" * 0x4000 + b"\r\n")),
        "endless-line": (large, repeat(OK + b"\r\n", b"x" * 65_536)),
        "announced-too-large": (large, send_and_wait(OK + b"Content-Length: 99999999999\r\n\r\n<p>")),
        "drip-body": (late, repeat(OK + b"Content-Length: 100000\r\n\r\n", b"x", 0.2)),
        "drip-headers": (late, repeat(OK, b"X-A: 1\r\n", 0.2)),
        "drip-chunks": (late, repeat(CHUNKED, b"1\r\nx\r\n", 0.2)),
        "endless-chunk-extension": (late, repeat(CHUNKED + b"5;", b"a" * 1000, 0.01)),
        "never-answers": (late, send_and_wait()),
        "falls-silent": (late, send_and_wait(OK + b"Content-Length: 100\r\n\r\n<p>")),
    }


def encodings() -> Bad:
    """Bodies that are not what their Content-Encoding says, or far more (B27, B28)."""
    zeros = bytes(DECODED_LIMIT + 1_000_000)
    bomb = gzip.compress(zeros, 1)
    large, broken = "decompressed_too_large", "bad_encoding"
    return {
        "gzip-bomb": (large, encoded(bomb, "gzip")),
        "deflate-bomb": (large, encoded(zlib.compress(zeros, 1), "deflate")),
        "raw-deflate-bomb": (large, encoded(raw_deflate(zeros), "deflate")),
        "brotli-bomb": (large, encoded(brotli.compress(zeros, quality=1), "br")),
        "zstd-bomb": (large, encoded(zstd.compress(zeros, 1), "zstd")),
        "bomb-in-a-bomb": (large, encoded(gzip.compress(bomb), "gzip, gzip")),
        "bomb-in-an-error-page": (large, send(reply(404, bomb, [HTML, ("Content-Encoding", "gzip")]))),
        "many-encodings": ("too_many_encodings", encoded(b"x", ", ".join(["gzip"] * 100))),
        "empty-members": (broken, encoded(gzip.compress(b"") * 400_000, "gzip")),
        "not-gzip": (broken, encoded(b"<p>plain", "gzip")),
        "cut-gzip": (broken, encoded(gzip.compress(b"<p>x" * 1000)[:-20], "gzip")),
        "cut-brotli": (broken, encoded(brotli.compress(b"<p>x" * 1000)[:-4], "br")),
        "unreadable": (broken, encoded(b"\x1f\x9d\x90", "compress")),
    }


def redirects(canary: int) -> Bad:
    """Redirects that do not end or lead to forbidden addresses (B11, B15, B17, B34). `canary` is a port inside."""

    def at(place: str) -> Callable[[Asked], str]:
        """A separate target for each page that redirects, because a shared target would be requested only once."""
        return lambda asked: f"{place}:{canary}/redirected?{asked.target}"

    inside, scheme, endless = "address_not_public", "redirect_scheme", "too_many_redirects"
    return {
        "to-itself": ("redirect_loop", redirect("/bad/to-itself")),
        "circle": ("redirect_loop", redirect("/circle/1")),
        "chain": (endless, redirect("/chain/1")),
        "growing": (endless, redirect(lambda asked: f"/bad/growing?{'x' * (1 + len(asked.target) % 1000)}")),
        "to-canary": (inside, redirect(at("http://127.0.0.1"))),
        "to-canary-301": (inside, redirect(at("http://127.0.0.1"), 301)),
        "to-canary-303": (inside, redirect(at("http://127.0.0.1"), 303)),
        "to-canary-307": (inside, redirect(at("http://127.0.0.1"), 307)),
        "to-canary-308": (inside, redirect(at("http://127.0.0.1"), 308)),
        "to-canary-by-name": (inside, redirect(at("http://localhost"))),
        "to-canary-by-number": (inside, redirect(at("http://2130706433"))),
        "to-canary-in-hex": (inside, redirect(at("//0x7f.1"))),
        "to-canary-mapped": (inside, redirect(at("http://[::ffff:127.0.0.1]"))),
        "to-canary-by-zero": (inside, redirect(at("http://0"))),
        "to-canary-twice": (inside, redirect("/bad/to-canary?twice")),
        "to-metadata": (inside, redirect("http://169.254.169.254/latest/meta-data/?redirected")),
        "to-ssh": (inside, redirect("http://127.0.0.1:22/")),
        "to-file": (scheme, redirect("file:///etc/passwd")),
        "to-script": (scheme, redirect("javascript:alert(1)")),
        "to-data": (scheme, redirect("data:text/html,<title>data</title>")),
        "to-gopher": (scheme, redirect(f"gopher://127.0.0.1:{canary}/_x")),
        "to-backslash": ("backslash_in_url", redirect(f"http://127.0.0.1:{canary}\\@site.test/")),
        "to-credentials": ("credentials_in_url", redirect(f"http://site.test@127.0.0.1:{canary}/")),
        "to-control": ("control_characters", redirect("http://exa\x01mple.test/")),
        "to-no-host": ("invalid_url", redirect("http:///x")),
        "to-bad-port": ("invalid_url", redirect("http://127.0.0.1:99999/")),
        "to-long": ("url_too_long", redirect("/" + "a" * 3000)),
    }
