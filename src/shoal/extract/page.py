"""Extract the facts of a page record in one parse: links, title, description and so on.

Links are as written; `shoal.base.url` resolves them. Other modules read rule sets, structured data and main text.

Links are `href` of `<a>` and `<area>`, `src` of `<frame>` (a frameset has no other links), `<link>` with rel next or
prev, and the target of a `<meta>` refresh; `header_links` adds those of headers. Comments, scripts and `<template>` are
ignored, and so is `<iframe>`, which usually embeds another site. `<noscript>` is read, because we run no scripts.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct, field
from turbohtml import Document, Element, Namespace
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from shoal.extract.encoding import decode, is_html
from shoal.extract.flags import NO_FLAGS, PageFlag
from shoal.extract.response_headers import LONGEST_URL, refresh_target
from shoal.extract.tree import MAX_TAGS, parse


class ExtractOptions(Struct, frozen=True):
    """Limits and options for reading one page."""

    max_links: int = 10_000
    max_tags: int = MAX_TAGS
    max_text: int = 2_000  # characters of a title, a description, …
    agent: str = "robots"  # our product token, which `<meta name>` may address besides `robots`


class PageFacts(Struct):
    """The facts of one page. None means that the page does not state it."""

    content_hash: str  # hash of the body's bytes
    flags: PageFlag = NO_FLAGS
    encoding: str | None = None
    title: str | None = None
    description: str | None = None
    canonical: str | None = None  # as written
    robots: str | None = None
    lang: str | None = None
    h1: str | None = None
    word_count: int | None = None
    text_hash: int | None = None  # hash of the visible text, signed 64 bits: equal if pages differ only in markup
    base: str | None = None  # `<base href>` as written
    links: list[str] = field(default_factory=list)  # as written, in document order for each kind of element
    nofollow: list[str] = field(default_factory=list)  # the same for links with rel=nofollow


DEFAULT_OPTIONS: Final = ExtractOptions()

_SIGN: Final = 1 << 63
_INVISIBLE: Final = ("script", "style", "iframe", "noembed", "noframes")

# Maps each byte to 1 (in a word) or 0 (between words). ASCII punctuation is deleted, so that "don't" is one word
# and " - " is not a word; non-ASCII bytes count as letters.
_WORD_BYTES: Final = bytes(byte > 32 for byte in range(256))
_PUNCTUATION: Final = bytes(byte for byte in range(33, 128) if not chr(byte).isalnum())


def extract(body: bytes, content_type: str | None, options: ExtractOptions = DEFAULT_OPTIONS) -> PageFacts:
    """Return the facts of a page; never raises, whatever the bytes are."""
    facts = PageFacts(xxh3_128_hexdigest(body))
    if not is_html(body, content_type):
        facts.flags = PageFlag.NOT_HTML
        return facts
    text, facts.encoding, facts.flags = decode(body, content_type)
    document, whole = parse(text, options.max_tags)
    if not whole:
        facts.flags |= PageFlag.PARSE_LIMIT
    _read_head(document, facts, options.max_text, options.agent)
    _read_links(document, facts, options.max_links)
    _read_text(document, facts)
    return facts


def count_words(text: bytes) -> int:
    """Count the words of a UTF-8 text: runs between white space that are not all ASCII punctuation."""
    # In one large integer with a byte per character, each word has two edges; split() takes four times as long.
    runs = int.from_bytes(text.translate(_WORD_BYTES, _PUNCTUATION), "little")
    return (runs ^ runs << 8).bit_count() // 2


def _read_head(document: Document, facts: PageFacts, longest: int, agent: str) -> None:
    for title in document.find_all("title"):
        if title.namespace is Namespace.HTML:
            facts.title = _line((title.text,), longest)
            break
    root = document.root
    if root is not None:
        facts.lang = _line((root.attr("lang") or "",), longest)
    description = document.select_one('meta[name="description" i]')
    if description is not None:
        facts.description = _line((description.attr("content") or "",), longest)
    robots = document.select(_robots_selector(agent))
    if robots:
        facts.robots = _line((", ".join(_attributes(robots, "content")),), longest)
    heading = document.find("h1")
    if heading is not None:
        facts.h1 = _line(heading.strings, longest)
    facts.canonical = _address(document.select_one('link[rel~="canonical" i][href]'))
    facts.base = _address(document.select_one("base[href]"))


@lru_cache(maxsize=64)
def _robots_selector(agent: str) -> str:
    return f'meta:is([name="robots" i], [name="{agent}" i])[content]'


def _read_links(document: Document, facts: PageFacts, most: int) -> None:
    select = document.select
    followed = select('a[href]:not([rel~="nofollow" i])') + select('area[href]:not([rel~="nofollow" i])')
    ignored = select('a[href][rel~="nofollow" i]') + select('area[href][rel~="nofollow" i]')
    if len(followed) + len(ignored) > most:
        facts.flags |= PageFlag.LINK_LIMIT
        followed = followed[:most]
        ignored = ignored[: most - len(followed)]
    facts.links = _attributes(followed, "href")
    facts.nofollow = _attributes(ignored, "href")
    facts.links += _attributes(select("frame[src]")[:most], "src")
    facts.links += _attributes(select('link[href]:is([rel~="next" i], [rel~="prev" i])')[:most], "href")
    for refresh in select('meta[http-equiv="refresh" i][content]')[:1]:
        target = refresh_target(refresh.attr("content") or "")
        if target:
            facts.links.append(target)


def _read_text(document: Document, facts: PageFacts) -> None:
    body = seen_body(document)
    # Joined by a space, because "<li>one<li>two" is two words; a word with markup inside counts as two. Surrounding
    # white space is stripped, so that re-indenting a page does not change its hash.
    visible = "" if body is None else " ".join(body.stripped_strings)
    text = visible.replace("\N{NO-BREAK SPACE}", " ").encode(errors="replace")
    facts.word_count = count_words(text)
    facts.text_hash = xxh3_64_intdigest(text) - _SIGN


def seen_body(document: Document) -> Element | None:
    """Remove invisible elements from the tree and return the body."""
    body = document.find("body")
    for invisible in [element for tag in _INVISIBLE for element in document.find_all(tag)]:
        invisible.decompose()
    return body


def _attributes(elements: Iterable[Element], name: str) -> list[str]:
    return [element.attr(name) or "" for element in elements]


def _address(element: Element | None) -> str | None:
    if element is None:
        return None
    written = (element.attr("href") or "").strip()
    return written if 0 < len(written) <= LONGEST_URL else None


def _line(parts: Iterable[str], longest: int) -> str | None:
    """Collapse white space to one line of limited length; None if there is no text."""
    return " ".join(" ".join(parts)[: 8 * longest].split())[:longest].rstrip() or None
