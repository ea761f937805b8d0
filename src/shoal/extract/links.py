"""Extract the links of a page and their texts, as written and in document order; pack links for storage, and resolve
them.

The number and length of links are limited, and a bad page never raises.
"""

import zlib
from typing import Final, NamedTuple

import msgspec
from turbohtml import Document, Element, Text

from shoal.base.text import encodable
from shoal.base.url import Canonicalizer, Url, UrlRefusal
from shoal.extract.encoding import with_encoded_queries
from shoal.extract.page import LONGEST_URL, forbids_following, refresh_target
from shoal.extract.text_match import BLOCKS

LARGEST: Final = 100_000_000  # bytes of packed links, decompressed: above what the limits below allow
MOST: Final = 10_000  # links of one page
LONGEST_TEXT: Final = 300
LONGEST_REL: Final = 100

_LEVEL: Final = 1  # level 6 saves a tenth more, in twice the time
_TAGS: Final = [
    *("a", "area", "img", "link", "script", "iframe", "frame", "form", "meta"),
    *("video", "audio", "source", "track", "embed", "object"),
]
_MEDIA: Final = frozenset({"video", "audio", "source", "track", "embed", "object"})
_ADDRESS: Final = {"a": "href", "area": "href", "link": "href", "form": "action", "object": "data"}  # others: `src`
_NO_LINK: Final = ("data:", "javascript:", "mailto:", "tel:", "blob:", "about:")
_APART: Final = BLOCKS | {"br", "hr", "img", "option"}
_NESTED: Final = 8  # elements around a text that are searched for one that stands apart
_MOST_NODES: Final = 1_000  # of a link whose texts are divided
_ENDS_OF_PHRASES: Final = frozenset(".,;:!?%)]}\u2019\u2026")
_NO_DOCUMENT: Final = frozenset({"preconnect", "dns-prefetch"})


class WrittenLink(msgspec.Struct, frozen=True, gc=False):
    """A link as it is written in the page. For an image, `text` is the alternative text; for an hreflang, the
    language."""

    kind: str
    url: str
    text: str = ""
    rel: str = ""


class WrittenLinks(msgspec.Struct, frozen=True):
    """The links of a page, and the `<base href>` to which they are relative. `is_cut`: the page has more links than are
    stored."""

    base: str | None = None
    links: list[WrittenLink] = []
    is_cut: bool = False


class Link(NamedTuple):
    """A link of a page. For an image, `text` is the alternative text; for an hreflang, the language. `kind` is `a`,
    `area`, `canonical`, `hreflang`, `img`, `script`, `style`, `iframe`, `form` and so on. `nofollow` comes from
    the link's `rel` or the page's robots directives."""

    url: Url
    text: str
    rel: str
    nofollow: bool
    kind: str


class _Columns(msgspec.Struct, array_like=True):
    """Links as stored: column by column, which compresses better. Fields may be added at the end."""

    base: str | None
    is_cut: bool
    kinds: list[str]
    urls: list[str]
    texts: list[str]
    rels: list[str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Columns).decode


def read_links(document: Document) -> WrittenLinks:
    """Return the links of a page: links that visitors follow, links that browsers load, and links that machines read
    (canonical, hreflang)."""
    links: list[WrittenLink] = []
    for element in document.iter_elements(_TAGS):
        link = _link(element)
        if link is not None:
            if len(links) == MOST:
                return WrittenLinks(_base(document), links, is_cut=True)
            links.append(link)
    return WrittenLinks(_base(document), links)


def resolve_links(
    written: WrittenLinks,
    page: str,
    urls: Canonicalizer,
    encoding: str | None,
    robots: str | None,
    *,
    refused: bool = False,
) -> list[Link]:
    """Return the links of the page at a URL. Links without a URL that can be crawled are left out; with `refused`, they
    are included with the URL as written. `encoding`: the page's encoding. `robots`: the page's robots directives."""
    final = urls.canonical(page)
    if isinstance(final, UrlRefusal):
        return []
    hrefs = with_encoded_queries([link.url for link in written.links], encoding)
    targets = urls.resolve(urls.base(final, written.base), hrefs)
    closed = bool(robots and forbids_following(robots))
    return [
        Link(
            Url(link.url) if isinstance(target, UrlRefusal) else target,
            link.text,
            link.rel,
            closed or "nofollow" in link.rel.lower().split(),
            link.kind,
        )
        for link, target in zip(written.links, targets, strict=True)
        if refused or not isinstance(target, UrlRefusal)
    ]


def pack_links(found: WrittenLinks) -> bytes:
    """Compress links for storage."""
    links = found.links
    columns = _Columns(
        found.base,
        found.is_cut,
        [link.kind for link in links],
        [link.url for link in links],
        [link.text for link in links],
        [link.rel for link in links],
    )
    try:
        written = _encode(columns)
    except UnicodeEncodeError:  # a lone surrogate somewhere
        written = _encode(encodable(msgspec.to_builtins(columns)))
    return zlib.compress(written, _LEVEL)


def unpack_links(blob: bytes) -> WrittenLinks:
    """Restore links from the output of `pack_links`; raise `ValueError` for any other input."""
    try:
        columns = _decode(zlib.decompressobj().decompress(blob, LARGEST))
        rows = zip(columns.kinds, columns.urls, columns.texts, columns.rels, strict=True)
        return WrittenLinks(columns.base, [WrittenLink(*row) for row in rows], columns.is_cut)
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"these are not packed links ({error})") from None


def _link(element: Element) -> WrittenLink | None:
    tag = element.tag
    if tag == "meta":
        return _refresh(element)
    written = element.attr(_ADDRESS.get(tag, "src"))
    if written is None:
        return None
    url = written.strip()
    if len(url) > LONGEST_URL or url[:11].lower().startswith(_NO_LINK):
        return None
    rel = element.attr("rel")
    rel = "" if rel is None else _line(rel)[:LONGEST_REL]
    match tag:
        case "a":
            text = _line(_text_of(element)) or _line(
                " ".join([image.attr("alt") or "" for image in element.find_all("img")[:10]])
            )
            return WrittenLink("a", url, text, rel)
        case "area" | "img":
            return WrittenLink(tag, url, _line(element.attr("alt") or ""), rel)
        case "link":
            return _linked(url, rel, element)
        case "iframe" | "frame":
            return WrittenLink(tag, url, _line(element.attr("title") or ""), rel)
        case _:
            return WrittenLink("media" if tag in _MEDIA else tag, url, "", rel)


def _linked(url: str, rel: str, element: Element) -> WrittenLink | None:
    rels = rel.lower().split()
    if "canonical" in rels:
        return WrittenLink("canonical", url, "", rel)
    lang = element.attr("hreflang")
    if lang is not None and "alternate" in rels:
        return WrittenLink("hreflang", url, _line(lang), rel)
    if "stylesheet" in rels:
        return WrittenLink("style", url, "", rel)
    return None if _NO_DOCUMENT.intersection(rels) else WrittenLink("link", url, "", rel)


def _refresh(element: Element) -> WrittenLink | None:
    if (element.attr("http-equiv") or "").lower() != "refresh":
        return None
    target = refresh_target(element.attr("content") or "")
    return None if not target or len(target) > LONGEST_URL else WrittenLink("refresh", target)


def _base(document: Document) -> str | None:
    element = document.select_one("base[href]")
    written = "" if element is None else (element.attr("href") or "").strip()
    return written if 0 < len(written) <= LONGEST_URL else None


def start_of(element: Element, glue: str = "") -> str:
    """Return the start of an element's text: hundreds of nested elements may contain the same long text."""
    parts: list[str] = []
    left = 4 * LONGEST_TEXT
    for part in element.strings:
        parts.append(part[:left])
        left -= len(part)
        if left <= 0:
            break
    return glue.join(parts)


def _text_of(link: Element) -> str:
    """Return the start of a link's text, with a space between the texts of adjacent elements (`<b>one</b><i>two</i>`)
    and at the edges of blocks, which browsers show apart. Markup inside a word (`w<b>or</b>d`) does not divide it."""
    parts: list[str] = []
    is_glued = False
    left = 4 * LONGEST_TEXT
    for part in link.strings:
        is_glued |= bool(parts) and not parts[-1][-1:].isspace() and not part[:1].isspace()
        parts.append(part[:left])
        left -= len(part)
        if left <= 0:
            break
    if not is_glued:
        return "".join(parts)
    text, left = "", 4 * LONGEST_TEXT
    for count, node in enumerate(link.descendants):
        if count == _MOST_NODES:  # nested elements may contain the same nodes
            return "".join(parts)
        if isinstance(node, Text):
            text += " " + node.data[:left] if text and _begins_apart(node) else node.data[:left]
            left -= len(node.data)
            if left <= 0:
                break
    return text


def _begins_apart(text: Text) -> bool:
    """Return whether a text of a link begins behind an element that is adjacent to its own, or at the edge of a
    block."""
    if text.data[:1] in _ENDS_OF_PHRASES:
        return False
    before = _before(text)
    if before is not None:
        return isinstance(before, Element) and before.tag in _APART
    own = text.parent
    for _ in range(_NESTED):
        if not isinstance(own, Element) or own.tag == "a":
            return False
        if own.tag in _APART:
            return True
        before = _before(own)
        if before is not None:
            return isinstance(before, Element)
        own = own.parent
    return True


def _before(node: Element | Text) -> Element | Text | None:
    """Return the element or text directly before a node."""
    before = node.previous_sibling
    while before is not None and not isinstance(before, Element | Text):  # a comment
        before = before.previous_sibling
    return before


def _line(text: str) -> str:
    return " ".join(text[: 4 * LONGEST_TEXT].split())[:LONGEST_TEXT].rstrip()
