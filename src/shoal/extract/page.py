"""Extracts the facts of a page: title, links, canonical URL and text, and facts from the response headers."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from msgspec import Struct, field
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from shoal.extract.encoding import decode, is_html
from shoal.extract.flags import NO_FLAGS, PageFlag
from shoal.extract.tree import HARMLESS_LENGTH, MAX_TAGS, parse

if TYPE_CHECKING:
    from turbohtml import Document, Element

_WITH_VALUE: Final = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_NOT_FOLLOWED: Final = frozenset({"nofollow", "none"})
_LONGEST: Final = 2_000  # characters of all directives


def of_headers(values: Sequence[str], token: str) -> str:
    """Return the directives of `X-Robots-Tag` fields that apply to every agent or to this product token."""
    ours = token.lower()
    return ", ".join(part for value in values for agent, part in _parts(value) if agent in ("", ours))[:_LONGEST]


def combined(meta: str | None, header: str) -> str:
    """Join the directives of meta and header, in that order and without duplicates."""
    known = {part.strip().lower() for part in (meta or "").split(",")}
    new = [part.strip() for part in header.split(",") if part.strip().lower() not in known]
    return ", ".join([*([meta] if meta else []), *new])[:_LONGEST]


def forbids_following(robots: str) -> bool:
    """Return whether the page's links must not be followed; the strictest directive wins."""
    parts = robots.lower().split(",")
    return any(":" not in part and not _NOT_FOLLOWED.isdisjoint(part.split()) for part in parts)


def _parts(value: str) -> Iterator[tuple[str, str]]:
    """Yield each directive of a field with its agent. An agent applies to all following directives in the field."""
    agent = ""
    for part in value.split(","):
        name, colon, rest = part.partition(":")
        if colon and name.strip().lower() not in _WITH_VALUE and len(name.split()) == 1:
            agent, part = name.strip().lower(), rest
        if part.strip():
            yield agent, part.strip()


LONGEST_URL: Final = 4_096

_REL: Final = re.compile(r""";\s*+rel\s*+=\s*+(?:"([^"]*)"|([^\s;,"]++))""", re.IGNORECASE)
_REFRESH: Final = re.compile(r"""\s*+[\d.]++\s*+[;,]?\s*+(?:url\s*+=\s*+)?["']?([^"']+)""", re.IGNORECASE)


def refresh_target(content: str) -> str | None:
    """Return the target of a refresh, as written; None if it reloads the page itself."""
    found = _REFRESH.match(content)
    return found[1].strip() if found else None


def canonical_of(values: Sequence[str], page: str) -> str | None:
    """Return the first canonical URL in the `Link` fields of a page, as an absolute URL."""
    for value in values:
        for part in value.split("<")[1:]:
            target, _, parameters = part.partition(">")
            rel = _REL.search(parameters)
            if rel and "canonical" in (rel[1] or rel[2] or "").lower().split():
                return _absolute(page, target)
    return None


def refresh_of(value: str, page: str) -> str | None:
    """Return the target of a `Refresh` field as an absolute URL."""
    target = refresh_target(value)
    return None if target is None else _absolute(page, target)


def _absolute(page: str, written: str) -> str | None:
    target = as_sent(written).strip()
    try:
        url = urljoin(page, target) if target else ""
    except ValueError:
        return None
    return url if 0 < len(url) <= LONGEST_URL else None


def as_sent(value: str) -> str:
    """Decode as UTF-8 a field that was read as Latin-1: many servers send UTF-8 in headers."""
    try:
        return value if value.isascii() else value.encode("latin-1").decode()
    except UnicodeError:
        return value


class ExtractOptions(Struct, frozen=True):
    """Limits and options for reading one page."""

    max_links: int = 10_000
    max_tags: int = MAX_TAGS
    max_text: int = 2_000  # characters of a title, a description, …
    agent: str = "robots"  # our product token: `<meta name>` may address it, too, besides `robots`


class PageFacts(Struct):
    """The facts of one page. None means that the page does not state the fact."""

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
    text: bytes = b""  # the visible text
    images_hash: int = 0  # hash of the addresses of the page's images, as written; 0 if there are no images
    base: str | None = None  # `<base href>` as written
    links: list[str] = field(default_factory=list)  # as written, in document order for each kind of element
    nofollow: list[str] = field(default_factory=list)  # links with rel=nofollow, in the same form

    def skeleton(self) -> int:
        """Return a hash of title and visible text without their digits: equal if pages differ only in numbers."""
        title = (self.title or "").encode(errors="replace")
        return xxh3_64_intdigest(title.translate(None, _NUMBERS) + b"\0" + self.text.translate(None, _NUMBERS))


DEFAULT_OPTIONS: Final = ExtractOptions()

_SIGN: Final = 1 << 63
_MOST_REPEATS: Final = 4  # characters of all links per character of the page
_INVISIBLE: Final = ("script", "style", "iframe", "noembed", "noframes")

# Maps each byte to 1 (in a word) or 0 (between words). ASCII punctuation is deleted, so that "don't" is one word
# and " - " is not a word; non-ASCII bytes count as letters.
_WORD_BYTES: Final = bytes(byte > 32 for byte in range(256))
_PUNCTUATION: Final = bytes(byte for byte in range(33, 128) if not chr(byte).isalnum())
_NUMBERS: Final = b"0123456789 "  # digits and spaces, so that the number of numbers does not matter either


def extract(body: bytes, content_type: str | None, options: ExtractOptions = DEFAULT_OPTIONS) -> PageFacts:
    """Return the facts of a page; no input bytes make this raise."""
    facts = PageFacts(xxh3_128_hexdigest(body))
    if not is_html(body, content_type):
        facts.flags = PageFlag.NOT_HTML
        return facts
    text, facts.encoding, facts.flags = decode(body, content_type)
    document, exceeded = parse(text, options.max_tags)
    facts.flags |= exceeded
    _read_head(document, facts, options.max_text, options.agent)
    _read_links(document, facts, options.max_links, len(text))
    _read_text(document, facts)
    return facts


def count_words(text: bytes) -> int:
    """Count the words of a UTF-8 text: runs between white space that are not all ASCII punctuation."""
    # Words are counted in one large integer with a byte per character, where each word has two edges; split() takes
    # four times as long.
    runs = int.from_bytes(text.translate(_WORD_BYTES, _PUNCTUATION), "little")
    return (runs ^ runs << 8).bit_count() // 2


def _read_head(document: "Document", facts: PageFacts, longest: int, agent: str) -> None:
    from turbohtml import Namespace

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


def _read_links(document: "Document", facts: PageFacts, most: int, length: int) -> None:
    select = document.select
    followed = select('a[href]:not([rel~="nofollow" i])') + select('area[href]:not([rel~="nofollow" i])')
    ignored = select('a[href][rel~="nofollow" i]') + select('area[href][rel~="nofollow" i]')
    found = len(followed) + len(ignored)
    followed = followed[:most]
    ignored = ignored[: most - len(followed)]
    if length <= HARMLESS_LENGTH:
        facts.links, facts.nofollow = _attributes(followed, "href"), _attributes(ignored, "href")
    else:
        facts.links = _addresses(followed, _MOST_REPEATS * length)
        facts.nofollow = _addresses(ignored, _MOST_REPEATS * length)
    if len(facts.links) + len(facts.nofollow) < found:
        facts.flags |= PageFlag.LINK_LIMIT
    facts.links += _attributes(select("frame[src]")[:most], "src")
    facts.links += _attributes(select('link[href]:is([rel~="next" i], [rel~="prev" i])')[:most], "href")
    for refresh in select('meta[http-equiv="refresh" i][content]')[:1]:
        target = refresh_target(refresh.attr("content") or "")
        if target:
            facts.links.append(target)


def _read_text(document: "Document", facts: PageFacts) -> None:
    body = seen_body(document)
    # Joined by a space, because "<li>one<li>two" is two words; a word with markup inside counts as two. Surrounding
    # white space is stripped, so that re-indenting a page does not change its hash.
    visible = "" if body is None else " ".join(body.stripped_strings)
    text = visible.replace("\N{NO-BREAK SPACE}", " ").encode(errors="replace")
    facts.word_count = count_words(text)
    facts.text_hash = xxh3_64_intdigest(text) - _SIGN
    facts.text = text
    if images := document.find_all("img"):
        facts.images_hash = xxh3_64_intdigest("\n".join(_attributes(images, "src")).encode(errors="replace"))


def seen_body(document: "Document") -> "Element | None":
    """Remove invisible elements from the tree and return the body."""
    body = document.find("body")
    for invisible in [element for tag in _INVISIBLE for element in document.find_all(tag)]:
        invisible.decompose()
    return body


def _addresses(links: "Iterable[Element]", most: int) -> list[str]:
    """Return the addresses of the first links that have at most this number of characters together: the parser repeats
    a link that is not closed in every paragraph, however long its address is."""
    found = []
    for link in links:
        address = link.attr("href") or ""
        most -= len(address)
        if most < 0:
            break
        found.append(address)
    return found


def _attributes(elements: "Iterable[Element]", name: str) -> list[str]:
    return [element.attr(name) or "" for element in elements]


def _address(element: "Element | None") -> str | None:
    if element is None:
        return None
    written = (element.attr("href") or "").strip()
    return written if 0 < len(written) <= LONGEST_URL else None


def _line(parts: Iterable[str], longest: int) -> str | None:
    """Collapse white space to one line of limited length; None if there is no text."""
    return " ".join(" ".join(parts)[: 8 * longest].split())[:longest].rstrip() or None
