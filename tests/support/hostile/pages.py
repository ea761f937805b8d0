"""Pages that are right in an unusual way: each must be read, with its title, and the link that only it has."""

import gzip
import zlib
from collections.abc import Callable

import brotli
from backports import zstd

from tests.support.bad_http_server import Script, reply
from tests.support.hostile.answers import CHUNKED, HTML, OK, encoded, raw_deflate, redirect, send, send_and_close

LONGEST_URL = 2_083

Good = dict[str, Script]
"""Name -> what is played at /good/NAME, a page with the title `good NAME` and a link to /from/NAME."""


def page(name: str, extra: str = "", head: str = "") -> str:
    return (
        f"<!doctype html><html lang=en><head>{head}<title>good {name}</title></head>"
        f"<body><h1>{name}</h1>{extra}<a href='/from/{name}'>on</a></body></html>"
    )


def body(name: str, extra: str = "", head: str = "") -> bytes:
    return page(name, extra, head).encode()


def typed(data: bytes, content_type: str | None) -> Script:
    return send(reply(200, data, [] if content_type is None else [("Content-Type", content_type)]))


def chunks(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def transfers() -> Good:
    """Ways to send a body that are odd and allowed."""

    def sized(data: bytes) -> bytes:
        return b"Content-Length: %d\r\n\r\n" % len(data) + data

    made: dict[str, Callable[[bytes], Script]] = {
        "plain": lambda data: typed(data, "text/html; charset=utf-8"),
        "chunked": lambda data: send(CHUNKED + chunks(data, 7) + b"0\r\nX-Trailer: 1\r\nLocation: /bad/chain\r\n\r\n"),
        "crumbs": lambda data: send(CHUNKED + chunks(data + b" " * 60_000, 1) + b"0\r\n\r\n"),
        "until-closed": lambda data: send_and_close(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + data),
        "line-feeds": lambda data: send(OK.replace(b"\r", b"") + sized(data).replace(b"\r", b"")),
        "hints-first": lambda data: send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", OK + sized(data)),
        "folded-header": lambda data: send(OK + b"X-Folded: one\r\n  two\r\n" + sized(data)),
        "spaced-name": lambda data: send(OK + b"X Y: 1\r\n" + sized(data)),
        "length-twice": lambda data: send(OK + b"Content-Length: %d\r\n" % len(data) + sized(data)),
        "both-lengths": lambda data: send_and_close(
            OK + b"Content-Length: 3\r\n" + CHUNKED[len(OK) :] + chunks(data, 99) + b"0\r\n\r\n"
        ),
        "more-than-announced": lambda data: send_and_close(OK + sized(data) + reply(200, b"<title>forged</title>")),
        "ninety-headers": lambda data: send(reply(200, data, [HTML, *((f"X-{n}", "a" * 300) for n in range(90))])),
        "cookies": lambda data: send(
            reply(200, data, [HTML, *(("Set-Cookie", f"c{n}={n}; Domain=.com") for n in range(90))])
        ),
        "disposition": lambda data: send(
            reply(200, data, [HTML, ("Content-Disposition", 'attachment; filename="../../../../tmp/owned"')])
        ),
        "far-future": lambda data: send(
            reply(200, data, [HTML, ("Last-Modified", "Fri, 31 Dec 2099 23:59:59 GMT"), ("ETag", "x" * 30_000)])
        ),
    }
    return {name: make(body(name)) for name, make in made.items()}


def compressed() -> Good:
    def gzipped(data: bytes) -> bytes:
        return gzip.compress(data, mtime=0)

    made: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "gzip": ("gzip", gzipped),
        "x-gzip": ("X-GZIP", gzipped),
        "deflate": ("deflate", zlib.compress),
        "raw-deflate": ("deflate", raw_deflate),
        "brotli": ("br", brotli.compress),
        "zstd": ("zstd", zstd.compress),
        "twice": ("gzip, br", lambda data: brotli.compress(gzipped(data))),
        "gzip-and-more": ("gzip", lambda data: gzipped(data) + b"rubbish"),
        "misused-encoding": ("utf-8", bytes),
    }
    return {name: encoded(make(body(name)), encodings) for name, (encodings, make) in made.items()}


def charsets() -> Good:
    """Labels that lie, are missing, or contradict each other (B36, B37)."""

    def umlauts(name: str, head: str = "") -> str:
        return page(name, "<p>Grüße aus Köln, schöne Äpfel und süße Öfen. Größe, Maß, Übermut, Ärger.</p>", head)

    def japanese(name: str, head: str = "") -> str:
        return page(name, "<p>これは日本語の文章です。文字の符号化を調べています。</p>", head)

    return {
        "utf-16le": typed(b"\xff\xfe" + umlauts("utf-16le").encode("utf-16-le"), "text/html"),
        "utf-16be": typed(b"\xfe\xff" + umlauts("utf-16be").encode("utf-16-be"), "text/html; charset=utf-8"),
        "utf-16-unmarked": typed(umlauts("utf-16-unmarked").encode("utf-16-le"), "text/html"),
        "utf-8-mark": typed(b"\xef\xbb\xbf" + umlauts("utf-8-mark").encode(), "text/html; charset=koi8-r"),
        "latin-1": typed(umlauts("latin-1").encode("latin-1"), "text/html; charset=ISO-8859-1"),
        "latin-1-unsaid": typed(umlauts("latin-1-unsaid").encode("latin-1"), "text/html"),
        "shift-jis": typed(japanese("shift-jis", "<meta charset=shift_jis>").encode("shift_jis"), "text/html"),
        "utf-7-refused": typed(umlauts("utf-7-refused").encode(), "text/html; charset=utf-7"),
        "nonsense-charset": typed(umlauts("nonsense-charset").encode(), "text/html; charset=x-nonsense"),
        "long-charset": typed(umlauts("long-charset").encode(), "text/html; charset=" + "u" * 10_000),
        "broken-utf-8": typed(
            body("broken-utf-8", "<p>\0@").replace(b"@", b"\xff\xc3\xed\xa0\x80"), "text/html; charset=utf-8"
        ),
        "no-type": typed(body("no-type"), None),
        "empty-type": typed(body("empty-type"), ""),
        "shouted-type": typed(body("shouted-type"), "TEXT/HTML;CHARSET=UTF-8"),
        "xhtml": typed(body("xhtml"), "application/xhtml+xml"),
    }


def markup() -> Good:
    """Markup that no parser should die of (B38)."""
    extras = {
        "nested": "<div>" * 100_000,
        "tables": "<table><tr><td>" * 10_000 + "</table>" * 10_000,
        "unclosed": "<b><p><i><a name=x><span title='" * 2_000 + "'>",
        "open-fonts": "".join(f"<p><font id=n{number}>" for number in range(20_000)),
        "attributes": "<p " + " ".join(f"a{number}=1" for number in range(100_000)) + ">",
        "entities": "&notit;&#x110000;&#xd800;&#0;" * 10_000,
        "long-line": "x" * 4_000_000,
        "long-words": "<h2>" + "word " * 500_000 + "</h2>",
        "nuls": "\0" * 10_000,
        "comments": "<!--" * 10_000 + "-->",
        "scripts": "<script>var a = '<a href=/never>'; location = '/never';</script>" * 100,
        "many-links": "".join(f"<a href='/good/plain?utm_source={n}#{n}'>{n}</a>" for n in range(100_000)),
        "odd-links": odd_links(),
    }
    return {name: typed(body(name, extra), "text/html; charset=utf-8") for name, extra in extras.items()} | {
        # The limit on links counts from the top, so the link that is followed comes first.
        "many-links": typed(body("many-links").replace(b"</body>", extras["many-links"].encode()), "text/html"),
    }


def odd_links() -> str:
    """Links that lead nowhere a crawler goes (B11, B12, B17, B21-B25): each is passed over."""
    hrefs = [
        "javascript:alert(1)",
        "data:text/html,<a href=/never>",
        "mailto:me@site.test",
        "tel:+4912345",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "view-source:http://127.0.0.1/",
        "blob:http://127.0.0.1/x",
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1:80\\@site.test/",
        "http://exa&#1;mple.test/",
        "http://exa&#127;mple.test/",
        "http:///x",
        "http://",
        "http://a..b/",
        "http://xn--a.test/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:abc/",
        "http://256.256.256.256/",
        f"http://{'a' * 64}.test/",
        "/" + "a" * 3_000,
        "",
        "#",
        "   ",
    ]
    return "".join(f'<a href="{href}">x</a>' for href in hrefs)


def ways() -> Good:
    """Pages that are reached, or lead on, in another way than by a plain link."""

    def refresh(name: str) -> bytes:
        return f"<title>good {name}</title><meta http-equiv=refresh content=\"0; url='/from/{name}'\">".encode()

    def frames(name: str) -> bytes:
        return f"<title>good {name}</title><frameset><frame src=/from/{name}></frameset>".encode()

    def based(name: str, base: str) -> bytes:
        return f"<title>good {name}</title><base href='{base}'><a href='{name}'>x</a>".encode()

    return {
        "refresh": typed(refresh("refresh"), "text/html"),
        "frames": typed(frames("frames"), "text/html"),
        "base": typed(based("base", "/from/"), "text/html"),
        "bad-base": typed(body("bad-base", head="<base href='javascript:alert(1)'>"), "text/html"),
        "redirected": redirect("/land/redirected"),
        "redirected-relatively": redirect("../land/redirected-relatively", 308),
        "redirected-nine-times": redirect("/hops/9/redirected-nine-times"),
        "redirected-with-a-bomb": redirect("/land/redirected-with-a-bomb", 301, gzip.compress(bytes(40_000_000), 1)),
        "redirected-by-a-large-page": redirect("/land/redirected-by-a-large-page", 302, b"<p>moved" * 100_000),
    }
