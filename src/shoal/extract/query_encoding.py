"""Percent-encode the queries of links in the encoding of their page, as the URL standard requires: `?q=café` on a page
in windows-1252 becomes `caf%E9`, because its server expects that. The rest of a URL is always UTF-8.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

import turbohtml  # noqa: F401 - registers the codecs of the WHATWG standard

_UTF_8: Final = frozenset({"utf-8", "utf-16le", "utf-16be", "replacement"})  # their queries are sent as UTF-8
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
_FIRST_OF_BIG5: Final = 0xA1  # lower lead bytes are decoded, but never encoded

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
        decoded = high.decode(f"whatwg-{encoding}")
    except (LookupError, UnicodeError):
        return str.encode
    table = {character: byte for character, byte in zip(decoded, high, strict=True) if character != "\ufffd"}

    def encode(text: str) -> bytes | None:
        found = [table.get(character) for character in text]
        return None if None in found else bytes(byte for byte in found if byte is not None)

    return encode
