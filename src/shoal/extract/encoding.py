"""Which characters the bytes of a page mean: byte-order mark, then header, then `<meta>` wherever it is, then a guess.

A label means what the WHATWG encoding standard says it means; UTF-7 is none. What the page says is read by
`shoal.extract.page`.
"""

import re
from functools import lru_cache
from typing import Final

import turbohtml
from turbohtml.detect import detect

from shoal.extract.flags import NO_FLAGS, PageFlag

MAX_BYTES: Final = 8_000_000
"""What is read of one page: its tree takes up to twelve times as much memory."""

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
}  # none could be read as such

# A guess takes 5 s for 30 MB, and is as good after the first part of what is to be guessed.
_BEYOND_ASCII: Final = re.compile(rb"[\x80-\xff]")
_PRESCAN: Final = 1024  # where `<meta>` is looked for first
_LATEST: Final = 65_536  # and where in the end
_SAMPLE: Final = 262_144
_NEAR: Final = 4_096


def is_html(body: bytes, content_type: str | None) -> bool:
    """Whether to parse a body: one called HTML, or called nothing and starting with a tag; no known file."""
    if body.startswith(_OTHER_THINGS):
        return False
    media_type = _media_type((content_type or "")[:_LONGEST_CONTENT_TYPE])
    if media_type:
        return media_type in _HTML
    return body[:512].lstrip(b"\xef\xbb\xbf \t\r\n\f\x00\xff\xfe").startswith(b"<")


def decode(body: bytes, content_type: str | None) -> tuple[str, str, PageFlag]:
    """The text of a page, the WHATWG name of its encoding, and what was wrong with it."""
    if len(body) > MAX_BYTES:
        text, encoding, flags = decode(_beginning(body, MAX_BYTES), content_type)
        return text, encoding, flags | PageFlag.PARSE_LIMIT
    mark = _mark(body)
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
    found = detect(body if len(body) <= _SAMPLE else _sample(body))
    certain = found.confidence == 1
    guess = (found.encoding or "utf-8").lower()
    # A certain answer was declared where one looks first, or is UTF-8 by its bytes, which nobody need have declared.
    if not certain or (guess == "utf-8" and not 0 <= _mention(body) < _PRESCAN):
        late = _declared_by_meta(body, guess)
        if late is not None:
            return _decoded(body, late, flags)
    return _decoded(body, guess, flags if certain or found.encoding is None else flags | PageFlag.ENCODING_GUESSED)


def _declared_by_meta(body: bytes, guess: str) -> str | None:
    """The encoding that a `<meta>` declares, also one further down than a browser looks before it begins."""
    at = _mention(body)
    if at < 0 or (guess == "utf-8" and _SAYS_UTF_8.match(body, at)):  # not worth a parse
        return None
    document = turbohtml.parse(_beginning(body, _LATEST).decode("latin-1"))
    for meta in document.find_all("meta"):
        if (meta.attr("http-equiv") or "").strip().lower() == "content-type":
            said = meta.attr("content") or ""
        else:
            said = f"charset={meta.attr('charset') or ''}"
        encoding = _declared(said[:_LONGEST_CONTENT_TYPE])[0]
        if encoding is not None:
            return _NOT_SO.get(encoding, encoding)
    return None


def _mention(body: bytes) -> int:
    """Where the word `charset` comes first; less than zero if nowhere near the beginning."""
    small = body.find(b"charset", 0, _LATEST)
    capital = body.find(b"CHARSET", 0, _LATEST if small < 0 else small)
    return small if capital < 0 else capital


def _beginning(body: bytes, most: int) -> bytes:
    """The first part of a body, ending where no character and if possible no tag is cut in two."""
    if len(body) <= most:
        return body
    end = max(body.rfind(mark, most - _NEAR, most) for mark in (b"<", b" ", b"\n"))
    if end < 0:
        end = next(at for at in range(most, most - 4, -1) if body[at] & 0xC0 != 0x80 or at == most - 3)
    return body[:end]


def _sample(body: bytes) -> bytes:
    """The head of a body and what follows its first byte beyond ASCII."""
    foreign = _BEYOND_ASCII.search(body)
    start = foreign.start() if foreign else 0
    return _beginning(body if start < _PRESCAN else body[:_PRESCAN] + body[start : start + 2 * _SAMPLE], _SAMPLE)


def _decoded(body: bytes, encoding: str, flags: PageFlag) -> tuple[str, str, PageFlag]:
    if encoding == "utf-8":
        try:
            return body.decode(), encoding, flags
        except UnicodeDecodeError:
            return body.decode(errors="replace"), encoding, flags | PageFlag.ENCODING_ERRORS
    text = body.decode(f"whatwg-{encoding}")
    return text, encoding, flags | PageFlag.ENCODING_ERRORS if "\ufffd" in text else flags


def _mark(body: bytes) -> tuple[bytes, str] | None:
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
    try:
        known = turbohtml.parse(b"", encoding=match[1]).encoding
    except LookupError:
        known = None
    return (known.lower(), NO_FLAGS) if known else (None, PageFlag.ENCODING_UNKNOWN)
