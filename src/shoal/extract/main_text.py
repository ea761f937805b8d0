"""Extract the main text of a page, without menus, footers and sidebars, as plain text and Markdown. This is done only
on request, because it takes many times as long as extracting the facts.

If trafilatura is installed (the extra `content`), trafilatura decides what belongs to the text, and everything else is
removed from our tree. Otherwise the parser's choice is used. It is right for most pages, but on some pages it is only a
single comment or paragraph; such cases are detected by comparison with the rest of the page. See docs/decisions/0012
and 0060.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from ada_url import join_url
from turbohtml import Document, Element, Markdown, Node, Text

from shoal.base.extras import is_installed
from shoal.extract.text_match import reduced
from shoal.extract.tidy import tidy
from shoal.extract.tree import Source, parse

LONGEST_PAGE: Final = 5_000_000  # characters; a longer page is truncated
LONGEST: Final = 2_000_000  # characters of a text
LONGEST_LINE: Final = 500  # characters of a title or an author
MOST_TAGS: Final = 30_000  # tags of a page for trafilatura, which needs some seconds for this number
MOST_CHARACTERS: Final = 1_000_000  # characters of a page for trafilatura; larger pages need hundreds of megabytes
SHORTEST_FOUND: Final = 200  # characters that trafilatura must find: a shorter text is often only a scrap of the page
MOST_CANDIDATES: Final = 20

AROUND: Final = (
    "nav, footer, aside, header, form, script, style, noscript, iframe, button, select, dialog, svg, "
    "[role=navigation], "
    "[role=banner], [role=contentinfo], [role=complementary], [role=search], [aria-hidden=true], [hidden]"
)
_CALLED_MAIN: Final = ("article", "main, [role=main]")
_MOSTLY_LINKS: Final = 0.5  # share of a text's characters that are in links
_FAR_SHORTER: Final = 0.6  # share of the length of the element marked as article or main
_MIN_TEXT: Final = 0.15  # share of the page's text, not counting `AROUND`
_A_PART: Final = 0.25  # share of the page's text, not counting `AROUND`
_MAY_BE_MENU: Final = frozenset({"aside", "div", "dl", "form", "ol", "p", "section", "table", "ul"})
_LARGEST_MENU, _ALL_MENUS = 0.6, 0.8  # shares of the text
_MENU_LINKS: Final = 0.6  # share of a menu's characters that are in links
_MENU_NAMES: Final = re.compile(
    r"(?:^|[\s_-])(?:advert\w*|ads?|author|bio|breadcrumbs?|byline|comments?|cookies?|disqus|footer|menu|nav|newsletter|"
    r"outbrain|pager|pagination|popular|promo\w*|recommend\w*|related|share|sharing|sidebar|signup|social|sponsor\w*|"
    r"subscribe|taboola|tags|toolbar|trending)(?:$|[\s_-])",
    re.IGNORECASE,
)
_GOOD_LINKS: Final = ("http://", "https://", "mailto:")
_MARKDOWN: Final = Markdown(
    converters={
        "sup": lambda element, text: f"<sup>{text}</sup>" if text else "",
        "sub": lambda element, text: f"<sub>{text}</sub>" if text else "",
    }
)


@dataclass(frozen=True, slots=True)
class MainText:
    """The main text of a page; `date` is as written. `is_cut`: the page or its text is longer than the limits."""

    text: str
    markdown: str
    title: str | None = None
    author: str | None = None
    date: str | None = None
    is_cut: bool = False


def main_text(source: Source, *, fast: bool = False) -> MainText:
    """Return the main text of a page; a bad page never raises. The source's tree is not modified. `fast`: do not
    use trafilatura, even if it is installed."""
    document, _ = parse(source.text[:LONGEST_PAGE])
    tidy(document)
    document.rewrite_links(_absolute(document.base_url(source.url) or source.url))
    document.strip_tags('a[href=""]')
    article = document.article()
    found = "" if fast else _found_by_trafilatura(document.html)
    element = reduced(document, found) if len(found) >= SHORTEST_FOUND else None
    if element is None:
        element = _better(document, len(article.text)) or article.element
        if element is not None:
            _remove_menus(element)
    text = "" if element is None else element.to_text()
    markdown = "" if element is None else element.to_markdown(_MARKDOWN)
    return MainText(
        text[:LONGEST].strip(),
        markdown[:LONGEST].strip(),
        _line(article.title),
        _line(article.byline),
        _line(article.date),
        is_cut=len(source.text) > LONGEST_PAGE or max(len(text), len(markdown)) > LONGEST,
    )


def _found_by_trafilatura(html: str) -> str:
    """Return the text that trafilatura finds; empty if it is not installed, finds nothing, or fails on the page."""
    library = _trafilatura()
    if library is None or len(html) > MOST_CHARACTERS or html.count("<") > MOST_TAGS:
        return ""
    try:
        return library.extract(html, include_comments=False, fast=True) or ""
    except Exception:  # the library may fail on odd pages with any error; the parser's choice is used then
        return ""


@cache
def _trafilatura() -> Any:
    return import_module("trafilatura") if is_installed("content") else None


def _better(document: Document, chosen: int) -> Element | None:
    """Return a better element if the chosen text, which has `chosen` characters, is only a scrap of the page."""
    for element in document.select(AROUND):
        element.decompose()
    body = document.find("body")
    if body is None:
        return None
    named, whole = _named(document), len(body.to_text())
    length = 0 if named is None else len(named.to_text())
    if chosen >= _FAR_SHORTER * length and chosen > _MIN_TEXT * whole:
        return None
    if length > _A_PART * whole:
        return named
    return body if chosen < _MIN_TEXT * whole else None


def _remove_menus(element: Element) -> None:
    """Remove lists of links, and blocks that are named like a menu. If they are nearly all of the text, the page is an
    index, and they are kept. Each node is visited only once, at any depth."""
    nodes = list(element.descendants)
    length: dict[Node, int] = {}
    linked: dict[Node, int] = {}
    links: dict[Node, int] = {}
    for node in reversed(nodes):  # children come before their parents
        parent = node.parent
        size = length[node] = len(node.data) if isinstance(node, Text) else length.get(node, 0)
        is_link = isinstance(node, Element) and node.tag == "a"
        if parent is not None and size:
            length[parent] = length.get(parent, 0) + size
            linked[parent] = linked.get(parent, 0) + (size if is_link else linked.get(node, 0))
            links[parent] = links.get(parent, 0) + (1 if is_link else links.get(node, 0))
    whole = length.get(element, 0)
    menus: list[Element] = []
    inside: set[Node] = set()
    for node in nodes:
        if node.parent in inside:
            inside.add(node)
        elif isinstance(node, Element) and node.tag in _MAY_BE_MENU and length[node] <= _LARGEST_MENU * whole:
            is_list = links.get(node, 0) > 1 and linked[node] > _MENU_LINKS * length[node]
            if is_list or _MENU_NAMES.search(f"{node.attr('class') or ''} {node.attr('id') or ''}"):
                menus.append(node)
                inside.add(node)
    if sum(length[menu] for menu in menus) <= _ALL_MENUS * whole:
        for menu in menus:
            menu.decompose()


def _named(document: Document) -> Element | None:
    """Return the longest element that is marked as article; if there is none, the longest that is marked as main."""
    for selector in _CALLED_MAIN:
        lengths = [(len(one.text), one) for one in document.select(selector)[:MOST_CANDIDATES]]
        texts = [
            (length, one)
            for length, one in lengths
            if sum(len(link.text) for link in one.find_all("a")) <= _MOSTLY_LINKS * length
        ]
        if texts:
            return max(texts, key=lambda pair: pair[0])[1]
    return None


def _absolute(base: str) -> Callable[[str], str]:
    """Return a function that makes a link absolute; it returns an empty text for schemes other than http, https and
    mailto."""

    def resolve(url: str) -> str:
        try:
            found = join_url(base, url.strip())
        except ValueError:
            return ""
        return found if found.startswith(_GOOD_LINKS) else ""

    return resolve


def _line(text: str | None) -> str | None:
    return " ".join((text or "")[: 4 * LONGEST_LINE].split())[:LONGEST_LINE] or None
