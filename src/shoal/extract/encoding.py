"""Detect the encoding of a page and decode the page. The encoding comes from the byte-order mark, the header, a
`<meta>` in the first 64 KiB, or a guess. The queries of the page's links are percent-encoded in this encoding, as the
URL standard requires: `?q=café` on a page in windows-1252 becomes `caf%E9`.

Labels follow the WHATWG encoding standard, which excludes UTF-7. `shoal.extract.page` parses the text.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from shoal.extract.flags import NO_FLAGS, PageFlag

MAX_BYTES: Final = 8_000_000
"""The maximum read per page. With the limits for its tags in `tree.py`, a page takes up to 0.4 GB."""

_HTML: Final = ("text/html", "application/xhtml+xml")
_MARKS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16le"), (b"\xfe\xff", "utf-16be"))
_STARTS_OF_UTF_16: Final = {b"<\x00": "utf-16le", b"\x00<": "utf-16be"}
_OTHER_THINGS: Final = (
    b"PK\x03\x04",
    b"\x7fELF",
    b"%PDF-",
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"\x1f\x8b",
    b"MZ",
)
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?([\w.:\-]{1,40})""", re.IGNORECASE | re.ASCII)
_LONGEST_CONTENT_TYPE: Final = 300
_SAYS_UTF_8: Final = re.compile(rb"""charset\s*+=\s*+["']?utf-?8\b""", re.IGNORECASE)
_NOT_SO: Final = {
    "utf-16le": "utf-8",
    "utf-16be": "utf-8",
    "x-user-defined": "windows-1252",
}  # WHATWG: these labels in a `<meta>` mean a different encoding

# A guess from 30 MB takes 5 s; a sample that starts near the first non-ASCII byte gives the same result.
_BEYOND_ASCII: Final = re.compile(rb"[\x80-\xff]")
_PRESCAN: Final = 1024  # bytes that are searched for `<meta>` first
_LATEST: Final = 65_536  # bytes that are searched for a late `<meta>`
_SAMPLE: Final = 262_144
_NEAR: Final = 4_096


def is_html(body: bytes, content_type: str | None) -> bool:
    """Return whether to parse a body: declared HTML, or undeclared and starting with `<`; never a known file type."""
    if body.startswith(_OTHER_THINGS):
        return False
    media_type = _media_type((content_type or "")[:_LONGEST_CONTENT_TYPE])
    if media_type:
        return media_type in _HTML
    return body[:512].lstrip(b"\xef\xbb\xbf \t\r\n\f\x00\xff\xfe").startswith(b"<")


def decode(body: bytes, content_type: str | None) -> tuple[str, str, PageFlag]:
    """Return the text of a page, the WHATWG name of its encoding, and flags for problems."""
    if len(body) > MAX_BYTES:
        text, encoding, flags = decode(_beginning(body, MAX_BYTES), content_type)
        return text, encoding, flags | PageFlag.PARSE_LIMIT
    mark = _byte_order_mark(body)
    if mark is not None:
        return _decoded(body[len(mark[0]) :], mark[1], NO_FLAGS)
    declared, flags = _declared((content_type or "")[:_LONGEST_CONTENT_TYPE])
    if declared is not None:
        return _decoded(body, declared, flags)
    guess = _STARTS_OF_UTF_16.get(body[:2])
    if guess is not None:
        return _decoded(body, guess, flags | PageFlag.ENCODING_GUESSED)
    if body.isascii():
        return _decoded(body, _declared_by_meta(body, "utf-8") or "utf-8", flags)
    from turbohtml.detect import detect

    found = detect(body if len(body) <= _SAMPLE else _sample(body))
    certain = found.confidence == 1
    guess = (found.encoding or "utf-8").lower()
    # `certain`: the encoding was declared in the prescan range, or the body is valid UTF-8, with or without a
    # declaration.
    if not certain or (guess == "utf-8" and not 0 <= _mention(body) < _PRESCAN):
        late = _declared_by_meta(body, guess)
        if late is not None:
            return _decoded(body, late, flags)
    return _decoded(body, guess, flags if certain or found.encoding is None else flags | PageFlag.ENCODING_GUESSED)


def _declared_by_meta(body: bytes, guess: str) -> str | None:
    """Return the encoding that a `<meta>` declares, even beyond the range of a browser's prescan."""
    at = _mention(body)
    if at < 0 or (guess == "utf-8" and _SAYS_UTF_8.match(body, at)):  # no need to parse
        return None
    from shoal.extract.tree import parse  # that module imports this one

    document, _ = parse(_beginning(body, _LATEST).decode("latin-1"))
    for meta in document.find_all("meta"):
        if (meta.attr("http-equiv") or "").strip().lower() == "content-type":
            content = meta.attr("content") or ""
        else:
            content = f"charset={meta.attr('charset') or ''}"
        encoding = _declared(content[:_LONGEST_CONTENT_TYPE])[0]
        if encoding is not None:
            return _NOT_SO.get(encoding, encoding)
    return None


def _mention(body: bytes) -> int:
    """Return the position of the first `charset`; negative if there is none near the start."""
    small = body.find(b"charset", 0, _LATEST)
    capital = body.find(b"CHARSET", 0, _LATEST if small < 0 else small)
    return small if capital < 0 else capital


def _beginning(body: bytes, most: int) -> bytes:
    """Truncate a body without splitting a character and, if possible, without splitting a tag."""
    if len(body) <= most:
        return body
    end = max(body.rfind(mark, most - _NEAR, most) for mark in (b"<", b" ", b"\n"))
    if end < 0:
        end = next(at for at in range(most, most - 4, -1) if body[at] & 0xC0 != 0x80 or at == most - 3)
    return body[:end]


def _sample(body: bytes) -> bytes:
    """Return the head of a body and a part that starts at its first non-ASCII byte."""
    foreign = _BEYOND_ASCII.search(body)
    start = foreign.start() if foreign else 0
    return _beginning(body if start < _PRESCAN else body[:_PRESCAN] + body[start : start + 2 * _SAMPLE], _SAMPLE)


def _decoded(body: bytes, encoding: str, flags: PageFlag) -> tuple[str, str, PageFlag]:
    if encoding == "utf-8":
        try:
            return body.decode(), encoding, flags
        except UnicodeDecodeError:
            return body.decode(errors="replace"), encoding, flags | PageFlag.ENCODING_ERRORS
    text = body.decode(_as_browsers_do(encoding))
    return text, encoding, flags | PageFlag.ENCODING_ERRORS if "\ufffd" in text else flags


def _as_browsers_do(encoding: str) -> str:
    """Return the name of the codec that decodes as browsers do. The parser registers these codecs when it is loaded."""
    import turbohtml.detect  # noqa: F401

    return f"whatwg-{encoding}"


def _byte_order_mark(body: bytes) -> tuple[bytes, str] | None:
    if body[:1] not in (b"\xef", b"\xff", b"\xfe"):
        return None
    return next((mark for mark in _MARKS if body.startswith(mark[0])), None)


@lru_cache(maxsize=512)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


@lru_cache(maxsize=512)
def _declared(content_type: str) -> tuple[str | None, PageFlag]:
    match = _CHARSET.search(content_type)
    if match is None:
        return None, NO_FLAGS
    import turbohtml

    try:
        known = turbohtml.parse(b"", encoding=match[1]).encoding
    except LookupError:
        known = None
    return (known.lower(), NO_FLAGS) if known else (None, PageFlag.ENCODING_UNKNOWN)


_UTF_8: Final = frozenset({"utf-8", "utf-16le", "utf-16be", "replacement"})  # queries are sent as UTF-8
_CODECS: Final = {
    "big5": "big5hkscs",
    "euc-jp": "euc_jp",
    "euc-kr": "cp949",
    "gb18030": "gb18030",
    "gbk": "gbk",
    "iso-2022-jp": "iso2022_jp",
    "shift_jis": "cp932",
}
_MINUS: Final = {0xFF0D: "\u2212"}
_YEN: Final = {0xA5: "\\", 0x203E: "~"}
_INSTEAD: Final = {  # where the standard's tables differ from Python's
    "euc-jp": _MINUS | _YEN,
    "iso-2022-jp": _MINUS,
    "shift_jis": {0x2212: "\uff0d"} | _YEN,
}
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]+")
_ESCAPED: Final = frozenset([*range(0x21), *b"\"#'<>", *range(0x7F, 0x100)])  # bytes to escape in a query
_FIRST_OF_BIG5: Final = 0xA1  # lower lead bytes are decoded, but never used for encoding

_Encoder = Callable[[str], bytes | None]  # None: the encoding lacks one of the characters


def with_encoded_queries(links: Iterable[str], encoding: str | None) -> list[str]:
    """Return the links with their queries escaped in the page's encoding (a WHATWG name, or None if unknown)."""
    if encoding is None or encoding in _UTF_8:
        return list(links)
    return [link if link.isascii() else _with_encoded_query(link, encoding) for link in links]


def _with_encoded_query(link: str, encoding: str) -> str:
    address, hash_sign, fragment = link.partition("#")
    path, mark, query = address.partition("?")
    encoder = _encoder(encoding)
    return f"{path}{mark}{_FOREIGN.sub(lambda run: _escaped(run[0], encoder), query)}{hash_sign}{fragment}"


def _escaped(run: str, encode: _Encoder) -> str:
    whole = encode(run)
    if whole is not None:
        return "".join(f"%{byte:02X}" if byte in _ESCAPED else chr(byte) for byte in whole)
    if len(run) == 1:
        return f"%26%23{ord(run)}%3B"  # the character reference that a form would send: &#NNNN;
    return "".join(_escaped(character, encode) for character in run)


@lru_cache(maxsize=64)
def _encoder(encoding: str) -> _Encoder:
    codec = _CODECS.get(encoding)
    if codec is None:
        return _single_byte_encoder(encoding)
    instead = _INSTEAD.get(encoding, {})

    def encode(text: str) -> bytes | None:
        if encoding == "gbk" and text == "€":
            return b"\x80"
        try:
            encoded = text.translate(instead).encode(codec)
        except UnicodeEncodeError:
            return None
        if encoding == "gb18030" and "\ue5e5" in text:
            return None
        return None if encoding == "big5" and min(encoded[::2]) < _FIRST_OF_BIG5 else encoded

    return encode


def _single_byte_encoder(encoding: str) -> _Encoder:
    high = bytes(range(0x80, 0x100))
    try:
        decoded = high.decode(_as_browsers_do(encoding))
    except (LookupError, UnicodeError):
        return str.encode
    table = {character: byte for character, byte in zip(decoded, high, strict=True) if character != "\ufffd"}

    def encode(text: str) -> bytes | None:
        found = [table.get(character) for character in text]
        return None if None in found else bytes(byte for byte in found if byte is not None)

    return encode
