"""The text that a page is about, without menus, footers and side columns; as plain text and as Markdown. Only read when
somebody asks for it: it costs several times what the facts of a page do.

The parser's own choice of the main content is right for most pages and far off for some: it takes one comment, or one
paragraph, for the whole. Those are noticed by what else stands on the page (see docs/decisions/0012).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ada_url import join_url
from turbohtml import Document, Element

from shoal.extract.page_source import Source
from shoal.extract.tree import parse

LONGEST_PAGE: Final = 5_000_000  # characters; of more, the beginning is read
LONGEST: Final = 2_000_000  # characters of a text
LONGEST_LINE: Final = 500  # of a title, an author
MOST_CANDIDATES: Final = 20

AROUND: Final = (
    "nav, footer, aside, header, form, script, style, noscript, iframe, button, select, dialog, svg, "
    "[role=navigation], "
    "[role=banner], [role=contentinfo], [role=complementary], [role=search], [aria-hidden=true], [hidden]"
)
_CALLED_MAIN: Final = ("article", "main, [role=main]")
_MOSTLY_LINKS: Final = 0.5  # of a text's characters
_FAR_SHORTER: Final = 0.6  # than what the page itself calls its article
_A_SCRAP: Final = 0.15  # of all that is not around the content
_A_PART: Final = 0.25  # likewise
_GOOD_LINKS: Final = ("http://", "https://", "mailto:")


@dataclass(frozen=True, slots=True)
class MainText:
    """What a page is about; `date` as the page says it."""

    text: str
    markdown: str
    title: str | None = None
    author: str | None = None
    date: str | None = None


def main_text(source: Source) -> MainText:
    """The main text of a page; never raises, whatever the page is. The source's own tree is left as it is."""
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
    """What to take instead of a text with that many characters, if it is only a scrap of the page."""
    for element in document.select(AROUND):
        element.decompose()
    body = document.find("body")
    if body is None:
        return None
    named, whole = _named(document), len(body.to_text())
    length = 0 if named is None else len(named.to_text())
    if chosen >= _FAR_SHORTER * length and chosen > _A_SCRAP * whole:
        return None
    if length > _A_PART * whole:
        return named
    return body if chosen < _A_SCRAP * whole else None


def _named(document: Document) -> Element | None:
    """The longest element that the page itself calls its article, or its main part."""
    for selector in _CALLED_MAIN:
        lengths = [(len(one.text), one) for one in document.select(selector)[:MOST_CANDIDATES]]
        texts = [(length, one) for length, one in lengths if _linked(one) <= _MOSTLY_LINKS * length]
        if texts:
            return max(texts, key=lambda pair: pair[0])[1]
    return None


def _linked(element: Element) -> int:
    return sum(len(link.text) for link in element.find_all("a"))


def _absolute(base: str) -> Callable[[str], str]:
    """Links seen from the page; those that a reader of the text should not follow lead nowhere."""

    def resolve(url: str) -> str:
        try:
            found = join_url(base, url.strip())
        except ValueError:
            return ""
        return found if found.startswith(_GOOD_LINKS) else ""

    return resolve


def _line(text: str | None) -> str | None:
    return " ".join((text or "")[: 4 * LONGEST_LINE].split())[:LONGEST_LINE] or None
