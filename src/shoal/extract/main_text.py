"""Extract the main text of a page, without menus, footers and sidebars, as plain text and Markdown. Done on request
only: it takes several times as long as extracting the facts.

The parser's choice of main content is right for most pages and far off for some, where it picks a single comment or
paragraph. Such cases are detected by comparison with the rest of the page (see docs/decisions/0012).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ada_url import join_url
from turbohtml import Document, Element

from shoal.extract.tree import Source, parse

LONGEST_PAGE: Final = 5_000_000  # characters; a longer page is truncated
LONGEST: Final = 2_000_000  # characters of a text
LONGEST_LINE: Final = 500  # characters of a title or an author
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
_GOOD_LINKS: Final = ("http://", "https://", "mailto:")


@dataclass(frozen=True, slots=True)
class MainText:
    """The main text of a page; `date` is as written."""

    text: str
    markdown: str
    title: str | None = None
    author: str | None = None
    date: str | None = None


def main_text(source: Source) -> MainText:
    """Return the main text of a page; never raises, whatever the page is. The source's tree is not modified."""
    document, _ = parse(source.text[:LONGEST_PAGE])
    document.rewrite_links(_absolute(document.base_url(source.url) or source.url))
    document.strip_tags('a[href=""]')
    article = document.article()
    chosen = article.text
    markdown = "" if article.element is None else article.element.to_markdown()
    better = _better(document, len(chosen))
    if better is not None:
        chosen, markdown = better.to_text(), better.to_markdown()
    return MainText(
        chosen[:LONGEST].strip(),
        markdown[:LONGEST].strip(),
        _line(article.title),
        _line(article.byline),
        _line(article.date),
    )


def _better(document: Document, chosen: int) -> Element | None:
    """Return a better element if the chosen text, of that many characters, is only a scrap of the page."""
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


def _named(document: Document) -> Element | None:
    """Return the longest element marked as article, or else as main."""
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
