"""Extract details that analyses need in addition to the page record: headings, images, resources, structured data,
headers and cookies. `shoal.extract.links` extracts the links. Number and length of the items are limited; URLs are kept
as written; a bad page never raises.

Analyzers interpret the details.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from struct import Struct
from typing import Any, Final, TypeVar

import orjson
from turbohtml import Document, Element, MicrodataItem, RdfaItem

from shoal.extract.fingerprint import fingerprint, sketch, word_pairs
from shoal.extract.links import LONGEST_TEXT, start_of
from shoal.extract.page import seen_body
from shoal.extract.tree import HeaderPairs, Source, parse

T = TypeVar("T")

LARGEST: Final = 50_000_000  # bytes of all details, decompressed: above what the limits below allow
LONGEST_PAGE: Final = 3_000_000  # characters; a longer page is truncated
MOST: Final = 2_000  # items of one kind on one page
LONGEST_URL: Final = 2_048
LONGEST_JSON_LD: Final = 200_000  # characters per page, in total
MOST_ITEMS: Final = 200  # microdata items on one page, and the same number of RDFa items
MOST_REFERRING: Final = 4  # elements with `itemref` on one page
DEEPEST: Final = 12  # nesting of structured data

HEADERS: Final = frozenset({
    "accept-ranges", "access-control-allow-credentials", "access-control-allow-origin", "age", "alt-svc",
    "cache-control", "content-encoding", "content-language", "content-length", "content-security-policy",
    "content-security-policy-report-only", "content-type", "cross-origin-embedder-policy",
    "cross-origin-opener-policy", "cross-origin-resource-policy", "date", "etag", "expires", "last-modified",
    "link", "nel", "permissions-policy", "pragma", "referrer-policy", "refresh", "report-to", "retry-after",
    "server", "server-timing", "strict-transport-security", "timing-allow-origin", "transfer-encoding", "vary",
    "via", "www-authenticate", "x-aspnet-version", "x-cache", "x-content-type-options", "x-frame-options",
    "x-permitted-cross-domain-policies", "x-powered-by", "x-robots-tag", "x-xss-protection",
})  # fmt: skip
"""The response headers that are stored. None of them carries session data."""

_ADDRESS: Final = {"object": "data", "form": "action"}  # for other elements: `src`
_SIZE: Final = Struct("<I")
_LEVEL: Final = 1  # 70 % smaller in 30 µs; higher levels take longer and gain little
_TAGS: Final = [
    "title", "h1", "h2", "h3", "h4", "h5", "h6", "img", "meta", "link", "script", "iframe", "frame", "video",
    "audio", "source", "track", "embed", "object", "form", "base",
]  # fmt: skip
_RESOURCE_LINKS: Final = [
    "stylesheet", "icon", "manifest", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch",
    "apple-touch-icon", "alternate", "next", "prev",
]  # fmt: skip


@dataclass(slots=True)
class Heading:
    level: int
    text: str


@dataclass(slots=True)
class LinkFacts:
    """A link with its text, in details that an earlier version stored."""

    url: str
    text: str
    rel: str = ""


@dataclass(slots=True)
class Alternate:
    """The same page in a different language (`hreflang`)."""

    lang: str
    url: str


@dataclass(slots=True)
class Image:
    """An image. `alt` is None if the attribute is missing, and empty for decorative images."""

    url: str
    alt: str | None
    width: str | None = None
    height: str | None = None
    loading: str | None = None


@dataclass(slots=True)
class Resource:
    """A URL, other than the page, that a browser loads or to which it submits a form; `kind` is the element name, or
    the rel of a `<link>`."""

    kind: str
    url: str
    integrity: bool = False


@dataclass(slots=True)
class SetCookie:
    """The name and attributes of a cookie that the response sets; its value is never stored."""

    name: str
    secure: bool = False
    http_only: bool = False
    same_site: str | None = None
    persistent: bool = False
    domain: str | None = None


@dataclass(slots=True)
class Details:
    """The details of one page. `cut` names the lists that were truncated."""

    http_version: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[SetCookie] = field(default_factory=list)
    doctype: bool = False
    base: str | None = None
    titles: list[str] = field(default_factory=list)
    canonicals: list[str] = field(default_factory=list)
    metas: dict[str, str] = field(default_factory=dict)
    headings: list[Heading] = field(default_factory=list)
    links: list[LinkFacts] = field(default_factory=list)
    hreflang: list[Alternate] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    json_ld: list[Any] = field(default_factory=list)
    json_ld_errors: list[str] = field(default_factory=list)
    microdata: list[dict[str, Any]] = field(default_factory=list)
    rdfa: list[dict[str, Any]] = field(default_factory=list)
    fingerprint: int | None = None
    sketch: str = ""  # of the visible text, in hexadecimal digits: see `fingerprint`
    cut: list[str] = field(default_factory=list)


def read_details(source: Source, *, html: bool = True) -> Details:
    """Return the details of a response; if it is not HTML, only the details of its headers.

    Fingerprint and sketch are computed last, because reading the visible text removes scripts and styles from the tree.
    """
    details = Details(http_version=source.http_version)
    _read_headers(source.headers, details)
    if html:
        document = _tree(source, details)
        _Reader(details).read(document)
        _read_structured(document, details)
        body = seen_body(document)
        pairs = word_pairs("" if body is None else " ".join(body.strings))
        details.fingerprint = fingerprint(pairs)
        details.sketch = sketch(pairs).hex() if pairs else ""
    return details


def _tree(source: Source, details: Details) -> Document:
    if len(source.text) <= LONGEST_PAGE:
        return source.document
    details.cut.append("page")
    return parse(source.text[:LONGEST_PAGE])[0]


def packed(details: Details) -> bytes:
    """Serialize details for storage as two pieces of compressed JSON: everything except the links, and the links.

    Earlier versions stored links here, and expect the second piece. The size of the first piece comes first.
    """
    links, details.links = details.links, []
    rest = zlib.compress(_json(details), _LEVEL)
    details.links = links
    return _SIZE.pack(len(rest)) + rest + zlib.compress(_json(links), _LEVEL)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate somewhere
        plain = [asdict(one) for one in value] if isinstance(value, list) else asdict(value)
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return the two compressed pieces of packed details: everything except the links, and the links."""
    if len(data) < _SIZE.size:
        raise ValueError("it is not a packed details record (it is too short)")
    end = _SIZE.size + _SIZE.unpack_from(data)[0]
    return data[_SIZE.size : end], data[end:]


def unpacked(data: bytes) -> Details:
    """Restore the details from the output of `packed`; raise `ValueError` for any other input."""
    rest, links = split(data)
    try:
        values = orjson.loads(zlib.decompressobj().decompress(rest, LARGEST))
        values["links"] = orjson.loads(zlib.decompressobj().decompress(links, LARGEST))
        for name, kind in _KINDS.items():
            values[name] = [kind(**one) for one in values[name]]
        return Details(**values)
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"it is not a packed details record ({error})") from None


_KINDS: Final[dict[str, Callable[..., Any]]] = {
    "cookies": SetCookie,
    "headings": Heading,
    "links": LinkFacts,
    "hreflang": Alternate,
    "images": Image,
    "resources": Resource,
}


class _Reader:
    """Reads a tree in one pass, with one handler per tag."""

    def __init__(self, details: Details) -> None:
        self._details = details
        self._by_tag: dict[str, Callable[[Element], None]] = {
            "title": self._title,
            "img": self._image,
            "meta": self._meta,
            "link": self._link,
            "base": self._base,
            **{f"h{level}": self._heading for level in range(1, 7)},
            **dict.fromkeys(("script", "iframe", "frame", "video", "audio", "source", "track", "embed"), self._loads),
            **dict.fromkeys(_ADDRESS, self._loads),
        }

    def read(self, document: Document) -> None:
        self._details.doctype = any(type(node).__name__ == "Doctype" for node in document.children)
        by_tag = self._by_tag
        for element in document.iter_elements(_TAGS):
            by_tag[element.tag](element)

    def _keep(self, kept: list[T], name: str, one: T) -> None:
        if len(kept) < MOST:
            kept.append(one)
        elif name not in self._details.cut:
            self._details.cut.append(name)

    def _title(self, element: Element) -> None:
        if element.namespace.value == "html":
            self._keep(self._details.titles, "titles", _line(start_of(element)))

    def _heading(self, element: Element) -> None:
        self._keep(self._details.headings, "headings", Heading(int(element.tag[1]), _line(start_of(element, " "))))

    def _image(self, element: Element) -> None:
        alt = element.attr("alt")
        image = Image(
            _address(element.attr("src") or element.attr("srcset") or element.attr("data-src") or ""),
            None if alt is None else _line(alt),
            _short(element.attr("width")),
            _short(element.attr("height")),
            _short(element.attr("loading")),
        )
        self._keep(self._details.images, "images", image)

    def _meta(self, element: Element) -> None:
        name = element.attr("name") or element.attr("property") or element.attr("http-equiv")
        content = element.attr("content")
        if name and content is not None and len(self._details.metas) < MOST:
            self._details.metas.setdefault(_line(name).lower(), _line(content))

    def _link(self, element: Element) -> None:
        url = element.attr("href")
        if url is None:
            return
        rels, lang = (element.attr("rel") or "").lower().split(), element.attr("hreflang")
        if "canonical" in rels:
            self._keep(self._details.canonicals, "canonicals", _address(url))
        elif "alternate" in rels and lang is not None:
            self._keep(self._details.hreflang, "hreflang", Alternate(_line(lang), _address(url)))
        else:
            kind = next((rel for rel in _RESOURCE_LINKS if rel in rels), None)
            if kind is not None:
                self._load(kind, url, element)

    def _loads(self, element: Element) -> None:
        url = element.attr(_ADDRESS.get(element.tag, "src"))
        if url is not None:
            self._load(element.tag, url, element)

    def _load(self, kind: str, url: str, element: Element) -> None:
        resource = Resource(kind, _address(url), element.attr("integrity") is not None)
        self._keep(self._details.resources, "resources", resource)

    def _base(self, element: Element) -> None:
        if self._details.base is None and element.attr("href") is not None:
            self._details.base = _address(element.attr("href") or "")


def _read_headers(headers: HeaderPairs, details: Details) -> None:
    for name, value in headers[:MOST]:
        name = name.lower()
        if name == "set-cookie":
            if len(details.cookies) < MOST_ITEMS:
                details.cookies.append(_cookie(value))
        elif name in HEADERS:
            before = details.headers.get(name)
            joined = value if before is None else f"{before}, {value}"
            details.headers[name] = joined[:LONGEST_URL]


def _cookie(value: str) -> SetCookie:
    pair, *attributes = value[: 4 * LONGEST_URL].split(";")
    named = {
        name.strip().lower(): value.strip().lower() for name, _, value in (part.partition("=") for part in attributes)
    }
    return SetCookie(
        pair.partition("=")[0].strip()[:LONGEST_TEXT],
        secure="secure" in named,
        http_only="httponly" in named,
        same_site=_short(named.get("samesite")),
        persistent="expires" in named or "max-age" in named,
        domain=(named.get("domain") or "")[:LONGEST_TEXT] or None,
    )


def _read_structured(document: Document, details: Details) -> None:
    left = LONGEST_JSON_LD
    for text in json_ld_texts(document):
        left -= len(text)
        if left < 0 or len(details.json_ld) >= MOST_ITEMS:
            details.cut.append("json_ld")
            break
        value = read_json_ld(text)
        if isinstance(value, BadJsonLd):
            details.json_ld_errors.append(value.problem)
        else:
            details.json_ld.append(value)
    _limit_references(document)
    details.microdata = _items(document.microdata, "microdata", details)
    details.rdfa = _items(document.rdfa, "rdfa", details)


def _limit_references(document: Document) -> None:
    """Remove `itemref` if there are many: nested references take exponential time, and forty would never finish."""
    referring = document.select("[itemref]")
    if len(referring) > MOST_REFERRING:
        for element in referring:
            del element.attrs["itemref"]


def _items(read: Callable[[], Sequence[MicrodataItem | RdfaItem]], name: str, details: Details) -> list[dict[str, Any]]:
    try:
        items = read()
    except RecursionError:  # items are nested hundreds of levels deep
        items = ()
        details.cut.append(name)
    if len(items) > MOST_ITEMS:
        details.cut.append(name)
    return [_item(item) for item in items[:MOST_ITEMS]]


@dataclass(frozen=True, slots=True)
class BadJsonLd:
    """The reason why a block of JSON-LD could not be parsed."""

    problem: str


def json_ld_texts(document: Document) -> Iterator[str]:
    """Yield the text of each JSON-LD block of the page."""
    for script in document.find_all("script"):
        kind = script.attr("type")
        if kind is not None and kind.partition(";")[0].strip().lower() == "application/ld+json":
            yield script.text


def read_json_ld(text: str) -> Any | BadJsonLd:
    """Parse a block of JSON-LD."""
    try:
        value = orjson.loads(text)
        orjson.dumps(value)  # reject values nested too deeply to be serialized
    except (orjson.JSONDecodeError, TypeError) as error:
        return BadJsonLd(_line(str(error)))
    return value


def _item(item: MicrodataItem | RdfaItem, depth: int = 0) -> dict[str, Any]:
    properties: Mapping[str, Sequence[Any]] = item.properties if depth < DEEPEST else {}
    found = {
        _line(name): [
            _line(value) if isinstance(value, str) else _item(value, depth + 1) for value in values[:MOST_ITEMS]
        ]
        for name, values in islice(properties.items(), MOST_ITEMS)
    }
    kinds = item.type if isinstance(item.type, list) else (item.type or "").split()
    return {"type": [_address(kind) for kind in kinds[:MOST_ITEMS]], "properties": found}


def _address(url: str) -> str:
    return url.strip()[:LONGEST_URL]


def _short(text: str | None) -> str | None:
    return None if text is None else text[:20]


def _line(text: str) -> str:
    return " ".join(text[: 4 * LONGEST_TEXT].split())[:LONGEST_TEXT]
