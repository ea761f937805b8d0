"""The content of a page in the forms that people use: HTML, readable text, Markdown, links, JSON. The library, the
command line and HTTP share this definition. Each form is made on first use."""

import re
from codecs import BOM_UTF8
from collections.abc import Container, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson

from shoal.base.errors import InvalidInput
from shoal.base.text import shorten
from shoal.base.url import DEFAULT_RULES, Canonicalizer, UrlRules
from shoal.extract.converter import ContentFormat
from shoal.extract.encoding import is_html
from shoal.extract.links import Link, WrittenLinks, read_links, resolve_links
from shoal.extract.main_text import MainText, main_text
from shoal.extract.selectors import search_css, search_xpath
from shoal.extract.tree import Source

if TYPE_CHECKING:
    from turbohtml import Element

_TEXT_TYPE: Final = re.compile(r"\s*(?:text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|javascript|x-ndjson)\b)", re.I)


class Content:
    """The content of one response. For a rendered page, this is the content of the document after its scripts have run.

    `robots`: the robots directives of the page, which may make its links nofollow. `rules`: how URLs are normalized.
    """

    def __init__(self, source: Source, robots: str | None = None, rules: UrlRules = DEFAULT_RULES) -> None:
        self.source = source
        self._robots = robots
        self._rules = rules

    @property
    def html(self) -> str:
        """The document as text; for a response that is not HTML, the decoded body."""
        return self.source.text

    @property
    def text(self) -> str:
        """The readable text, without menus, headers and footers. Text that is not HTML is returned unchanged; a
        response that is not text gives an empty text."""
        return self._main_text.text if self._is_html else self._plain_text

    @property
    def markdown(self) -> str:
        """The readable text as Markdown. Text that is not HTML is handled as in `text`."""
        return self._main_text.markdown if self._is_html else self._plain_text

    @property
    def is_cut(self) -> bool:
        """True if the page is longer than the part that is read, so that the content is incomplete."""
        return self.lacks_rest(("markdown", "links"))

    def lacks_rest(self, formats: Container[str]) -> bool:
        """Return whether one of these formats lacks the end of the page, because only the first part of the page is
        read for it."""
        if self.source.is_cut or not self._is_html:
            return self.source.is_cut
        needs_text = "markdown" in formats or "text" in formats
        return (needs_text and self._main_text.is_cut) or ("links" in formats and self._written_links.is_cut)

    @cached_property
    def links(self) -> list[Link]:
        """The links of the page, with absolute URLs, in document order."""
        if not self._is_html:
            return []
        urls = Canonicalizer(self._rules)
        return resolve_links(self._written_links, self.source.url, urls, self.source.encoding, self._robots)

    def css(self, selector: str) -> "list[Element]":
        """Return the elements that a CSS selector matches; raise `InvalidInput` if it is invalid."""
        try:
            return search_css(self.source.document, selector)
        except ValueError as error:
            raise _refusal("selector", selector, error) from None

    def xpath(self, expression: str) -> Any:
        """Return what an XPath expression selects: a list of elements or strings, or a string, number or boolean; raise
        `InvalidInput` if it is invalid."""
        try:
            return search_xpath(self.source.document, expression)
        except ValueError as error:
            raise _refusal("expression", expression, error) from None

    def json(self) -> Any:
        """Return the value of a JSON response; raise `InvalidInput` if the response is not JSON."""
        try:
            return orjson.loads(self.source.body.removeprefix(BOM_UTF8))  # JSON is UTF-8, whatever its header says
        except ValueError as error:
            kind = self.source.content_type or "no type"
            problem = f"{self.source.url} is not JSON ({shorten(error)}; its content type is {shorten(kind)})"
            raise InvalidInput("page", problem, "read its html or text") from None

    @cached_property
    def _is_html(self) -> bool:
        return is_html(self.source.body, self.source.content_type)

    @cached_property
    def _written_links(self) -> WrittenLinks:
        return read_links(self.source.document)

    @cached_property
    def _main_text(self) -> MainText:
        return main_text(self.source)

    @property
    def _plain_text(self) -> str:
        return self.source.text if _TEXT_TYPE.match(self.source.content_type or "text/plain") else ""


def content_as(form: ContentFormat, content: Content, record: Mapping[str, Any]) -> Any:
    """Return the content in a format, as a string or as plain JSON values; the format `json` is the page record."""
    match form:
        case "markdown" | "html" | "text":
            return getattr(content, form)
        case "links":
            return [link._asdict() for link in content.links]
        case "json":
            return record


def _refusal(field: str, written: str, error: ValueError) -> InvalidInput:
    problem, _, fix = str(error).partition("; ")
    return InvalidInput(field, f"is {shorten(written)!r}, which {problem}", fix or "correct it")
