"""Parse sitemaps: an index of sitemaps, a URL set, a plain text list or a feed, gzipped or not. Pure.

The input is untrusted: a document type, and therefore every entity, is rejected. Size, number, nesting and token length
are limited, and the file is decompressed and parsed in chunks, so that a decompression bomb costs no more than the
limits allow. A broken file yields the entries before the error, and entries without a URL are counted and reported. The
caller decides which URLs belong to a crawl.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple
from xml.parsers import expat

from shoal.base.text import plural

LONGEST_TEXT: Final = 8_192  # characters of a URL or a date
LONGEST_TOKEN: Final = 1 << 20  # a tag with its attributes; old parsers rescan an unfinished tag for each chunk
DEEPEST: Final = 50
MOST_WRAPPINGS: Final = 2  # gzip layers, such as a .gz file that the server compresses again
MOST_MEMBERS: Final = 1_000  # members of one gzip file
MOST_PREAMBLE: Final = 100  # lines of a text before its first URL

_PIECE: Final = 1 << 16
_GZIP: Final = b"\x1f\x8b"
_GZIP_ONLY: Final = 16 + zlib.MAX_WBITS
_ABSOLUTE: Final = re.compile(r"https?://[^\s/]", re.IGNORECASE)
_BLANK: Final = b" \t\r\n\x00"
_MARK: Final = b"\xef\xbb\xbf"


class SitemapKind(StrEnum):
    INDEX = "index"  # lists other sitemaps
    URLS = "urls"
    FEED = "feed"
    TEXT = "text"


class SitemapEntry(NamedTuple):
    """An absolute URL and, if given, the time of its last change, both as written."""

    url: str
    lastmod: str | None = None


@dataclass(slots=True)
class Sitemap:
    """The parsed sitemap. If `kind` is None, the input is not a sitemap. `problem` continues the sentence "The sitemap
    …"."""

    kind: SitemapKind | None = None
    entries: list[SitemapEntry] = field(default_factory=list)
    refused: int = 0  # entries without an absolute URL
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SitemapLimits:
    """Limits per sitemap. The first two limits come from the sitemap protocol."""

    max_bytes: int = 50 * 1024 * 1024  # decompressed
    most_entries: int = 50_000
    most_elements: int = 1_000_000  # elements or lines with any content: about a second of work


DEFAULT_LIMITS: Final = SitemapLimits()

_ROOTS: Final = {
    "urlset": SitemapKind.URLS,
    "sitemapindex": SitemapKind.INDEX,
    "rss": SitemapKind.FEED,
    "feed": SitemapKind.FEED,
    "RDF": SitemapKind.FEED,  # RSS 1.0
}
_URLS: Final = frozenset({
    "/urlset/url/loc", "/sitemapindex/sitemap/loc", "/rss/channel/item/link", "/RDF/item/link",
    "/RDF/channel/item/link",
})  # fmt: skip
_DATES: Final = frozenset({
    "/urlset/url/lastmod", "/sitemapindex/sitemap/lastmod", "/rss/channel/item/pubDate", "/feed/entry/updated",
    "/RDF/item/dc:date",
})  # fmt: skip
_ITEMS: Final = frozenset(
    {"/urlset/url", "/sitemapindex/sitemap", "/rss/channel/item", "/feed/entry", "/RDF/item", "/RDF/channel/item"}
)
_TEXTS: Final = _URLS | _DATES
_WITH_LOC: Final = frozenset({"/urlset/url", "/sitemapindex/sitemap"})  # may contain the URL without a `<loc>`
_GUID: Final = "/rss/channel/item/guid"
_ATOM_LINK: Final = "/feed/entry/link"


class _Stop(Exception):
    """Stops parsing; the message continues the sentence "The sitemap …"."""


def read_sitemap(body: bytes, limits: SitemapLimits = DEFAULT_LIMITS) -> Sitemap:
    """Parse a sitemap; no input bytes make this raise."""
    sitemap = Sitemap()
    try:
        pieces = _without_start(_unpacked(body, limits.max_bytes))
        first = next(pieces, b"")
        if first[:20].lower().startswith((b"<!doctype html", b"<html")):
            raise _Stop("is an HTML page, not a sitemap")
        if first.startswith((b"<", b"\xff\xfe", b"\xfe\xff")):
            _Xml(sitemap, limits).read(first, pieces)
        else:
            _read_text(sitemap, limits, first, pieces)
        if sitemap.refused:
            sitemap.problem = f"has {plural(sitemap.refused, 'entry', 'entries')} without an absolute URL, skipped"
    except _Stop as stop:
        sitemap.problem = str(stop)
    return sitemap


def _unpacked(body: bytes, most: int) -> Iterator[bytes]:
    """Yield the bytes in chunks, decompressed if they are gzip."""
    pieces: Iterator[bytes] = (body[start : start + _PIECE] for start in range(0, len(body), _PIECE))
    for _ in range(MOST_WRAPPINGS):
        first = next(pieces, b"")
        pieces = chain((first,), pieces)
        if first.startswith(_GZIP):
            pieces = _gunzipped(pieces)
    left = most
    for piece in pieces:
        if len(piece) > left:
            yield piece[:left]
            raise _Stop(f"is larger than {most:,} bytes; the rest was not read")
        left -= len(piece)
        yield piece


def _gunzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of every gzip member, lazily: decompression stops when the caller stops iterating."""
    piece = b""
    for _ in range(MOST_MEMBERS):
        member = zlib.decompressobj(_GZIP_ONLY)
        while not member.eof:
            piece = piece or next(pieces, b"")
            if not piece:
                raise _Stop("is a truncated gzip file")
            try:
                part = member.decompress(piece, _PIECE)
            except zlib.error:
                raise _Stop("is a damaged gzip file") from None
            if part:
                yield part
            piece = member.unused_data or member.unconsumed_tail
        while len(piece) < len(_GZIP) and (more := next(pieces, b"")):
            piece += more
        if not piece.startswith(_GZIP):  # padding after the last member
            return
    raise _Stop(f"is a gzip file of more than {MOST_MEMBERS:,} members; the rest was not read")


def _without_start(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Strip the byte-order mark and the blanks that some servers send before the XML declaration."""
    for piece in pieces:
        begun = piece.removeprefix(_MARK).lstrip(_BLANK)
        if begun:
            yield begun
            break
    yield from pieces


def _read_text(sitemap: Sitemap, limits: SitemapLimits, first: bytes, pieces: Iterator[bytes]) -> None:
    """Read one URL per line. A text without a URL near its start is not a sitemap."""
    head = first.replace(b"\r", b"\n").split(b"\n", MOST_PREAMBLE)[:MOST_PREAMBLE]
    if b"\x00" in first[:LONGEST_TEXT] or not any(map(_is_url, head)):
        raise _Stop("is not a sitemap")
    sitemap.kind = SitemapKind.TEXT
    rest, left = b"", limits.most_elements
    for piece in chain((first,), pieces):
        *lines, rest = (rest + piece.replace(b"\r", b"\n")).split(b"\n")
        for line in lines:
            _add(sitemap, limits, line.decode("utf-8", "replace"))
        rest = rest[: LONGEST_TEXT + 1]
        left -= len(lines)
        if left < 0:
            raise _Stop(f"has more than {limits.most_elements:,} lines; the rest was not read")
    _add(sitemap, limits, rest.decode("utf-8", "replace"))


def _is_url(line: bytes) -> bool:
    return _ABSOLUTE.match(line[:LONGEST_TEXT].strip().decode("utf-8", "replace")) is not None


def _add(sitemap: Sitemap, limits: SitemapLimits, written: str, lastmod: str | None = None) -> bool:
    url = written.strip()
    if not url:
        return False
    if len(url) > LONGEST_TEXT or not _ABSOLUTE.match(url):
        _refuse(sitemap, limits)
        return False
    if len(sitemap.entries) >= limits.most_entries:
        raise _Stop(f"lists more than {limits.most_entries:,} URLs; the rest was not read")
    sitemap.entries.append(SitemapEntry(url, lastmod))
    return True


def _refuse(sitemap: Sitemap, limits: SitemapLimits) -> None:
    sitemap.refused += 1
    if sitemap.refused > limits.most_entries:
        raise _Stop("lists too many entries that are not absolute URLs; the rest was not read")


class _Xml:
    """The parser state of one XML file.

    Elements are identified by their path from the root, without the root's namespace prefix, so that elements of other
    vocabularies in an entry, such as images, never match the path of a URL.
    """

    def __init__(self, sitemap: Sitemap, limits: SitemapLimits) -> None:
        self._sitemap = sitemap
        self._limits = limits
        self._elements_left = limits.most_elements
        self._paths = [""]
        self._prefix = ""
        self._text: list[str] | None = None  # text of the current element, if this text is needed
        self._length = 0
        self._date: str | None = None  # date of the entry, if it precedes the URL
        self._listed = 0  # URLs of the current entry
        self._refused = 0  # total at the start of the entry
        self._spare = ""  # fallback URL of the entry
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype
        self._parser = parser

    def read(self, first: bytes, pieces: Iterator[bytes]) -> None:
        fed = 0
        try:
            for piece in chain((first,), pieces):
                self._parser.Parse(piece, False)
                fed += len(piece)
                if fed - self._parser.CurrentByteIndex > LONGEST_TOKEN:
                    raise _Stop(f"has a tag longer than {LONGEST_TOKEN:,} bytes")
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            words = expat.ErrorString(error.code)
            raise _Stop(f"is not valid XML in line {error.lineno} ({words}); the entries before it were read") from None
        except (LookupError, ValueError) as error:  # an encoding that Python does not know or that expat cannot use
            raise _Stop(f"cannot be decoded ({error})") from None
        finally:
            del self._parser  # breaks a reference cycle, which would keep everything in memory until garbage collection

    def _doctype(self, *_: object) -> None:
        raise _Stop("has a document type declaration, which is not allowed; it was not read")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        paths = self._paths
        self._elements_left -= 1
        if self._elements_left < 0:
            raise _Stop(f"has more than {self._limits.most_elements:,} elements; the rest was not read")
        if len(paths) == 1:
            name = self._root(name)
        elif self._prefix:
            name = name.removeprefix(self._prefix) if name.startswith(self._prefix) else f":{name}"
        if len(paths) > DEEPEST:
            raise _Stop(f"is nested more than {DEEPEST} deep")
        path = f"{paths[-1]}/{name[:64]}"
        paths.append(path)
        if self._text is not None and paths[-2] in _WITH_LOC:
            self._spare = self._collected()
        if path in _TEXTS:
            self._listen()
        elif path in _ITEMS:
            self._begin(path, attributes)
        elif path == _GUID and attributes.get("isPermaLink", "true").strip().lower() != "false":
            self._listen()
        elif path == _ATOM_LINK and attributes.get("rel", "alternate") == "alternate":
            self._list(attributes.get("href", ""))

    def _begin(self, item: str, attributes: dict[str, str]) -> None:
        self._date, self._listed, self._refused = None, 0, self._sitemap.refused
        self._spare = attributes.get("rdf:about", "")
        if item in _WITH_LOC:
            self._listen()

    def _finish(self, item: str) -> None:
        """Finish an entry. Without a URL element, use the entry's text, or a feed item's `guid` or `rdf:about`."""
        if self._text is not None:
            self._spare = self._collected()
        if self._listed:
            return
        if self._spare.strip():
            self._list(self._spare)
        elif item in _WITH_LOC and self._refused == self._sitemap.refused:
            _refuse(self._sitemap, self._limits)

    def _root(self, name: str) -> str:
        prefix, colon, local = name.rpartition(":")
        self._prefix = "" if local == "RDF" else prefix + colon  # the items of RDF belong to a different vocabulary
        self._sitemap.kind = _ROOTS.get(local)
        if self._sitemap.kind is None:
            raise _Stop(f"is not a sitemap: it begins with <{name[:64]}>")
        return local

    def _data(self, data: str) -> None:
        if self._text is not None and self._length <= LONGEST_TEXT:
            self._text.append(data)
            self._length += len(data)

    def _listen(self) -> None:
        self._text, self._length = [], 0
        self._parser.CharacterDataHandler = self._data

    def _collected(self) -> str:
        text, self._text = "".join(self._text or ()), None
        self._parser.CharacterDataHandler = None
        return text

    def _end(self, _name: str) -> None:
        path = self._paths.pop()
        if path in _ITEMS:
            self._finish(path)
        elif self._text is None:
            return
        elif path in _URLS:
            self._list(self._collected())
        elif path in _DATES:
            self._dated(self._collected().strip()[:LONGEST_TEXT] or None)
        elif path == _GUID:
            self._spare = self._collected()

    def _list(self, written: str) -> None:
        if self._listed and self._sitemap.kind is SitemapKind.FEED:
            return  # an item is one page, even if it has several links
        self._listed += _add(self._sitemap, self._limits, written, self._date)

    def _dated(self, lastmod: str | None) -> None:
        self._date = lastmod
        entries = self._sitemap.entries
        for place in range(len(entries) - self._listed, len(entries)):
            entries[place] = entries[place]._replace(lastmod=lastmod)
