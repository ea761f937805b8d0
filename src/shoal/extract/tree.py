"""Parse a page into a tree, within limits. Also the form of a response that readers get: bytes, text and tree, each
created once, on first use.

The content of `<template>` is removed, because a browser does not show it.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from shoal.extract.encoding import decode
from shoal.extract.flags import NO_FLAGS, PageFlag

if TYPE_CHECKING:
    from turbohtml import Document

MAX_TAGS: Final = 500_000


MAX_REPEATED: Final = 500_000  # elements that the parser repeats, because the page does not close them

# The parser merges the attributes of repeated <html> and <body> tags one by one, in quadratic time.
_MERGED_TAG: Final = re.compile(r"<(?=[bh])(?=(html|body)[\s/])", re.IGNORECASE)
HARMLESS_LENGTH: Final = 32_768

# After each <p>, the parser repeats all formatting elements that were opened in the <p> before it and are not closed,
# as the HTML standard requires. The standard keeps no more than three equal elements ("Noah's Ark clause") and a single
# <a>, but any number with different attributes. This pattern finds formatting tags that may stay open. Only tags with
# regular attributes, which are closed after text and inline elements, are certain to be closed: the parser ignores many
# other closing tags, such as those in attributes, comments and tables.
_SPACE: Final = r"[ \t\n\f\r]"
_VALUE: Final = r"""(?:"[^"<>]*+"|'[^'<>]*+'|[^ \t\n\f\r"'<>=`]++)"""
_REST_OF_TAG: Final = rf"""(?:{_SPACE}++[^ \t\n\f\r"'<>/=]++(?:{_SPACE}*+={_SPACE}*+{_VALUE})?+)*+{_SPACE}*+/?+>"""
_INLINE: Final = "(?:a|abbr|br|cite|img|kbd|mark|q|samp|span|sub|sup|time|var|wbr)"
_FORMATTING: Final = re.compile(
    rf"<(?=[bcefinstu])(b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)(?=[ \t\n\f\r/>])({_REST_OF_TAG})?+"
    rf"(?(2)(?!(?:[^<]|<{_INLINE}{_REST_OF_TAG}|</{_INLINE}>)*+</\1>))",
    re.IGNORECASE,
)
_EQUAL: Final = 3
_MIN_OPEN: Final = 3
_FEW_TAGS: Final = 1_000  # cannot make the parser repeat more than 250,000 elements
_SHORT: Final = 8_192  # characters that have room for at most as many
# Counting all tags would take a tenth of the time of a usual page. The sample starts at a random place, so that a page
# cannot hide its tags from it.
_STRIDE: Final = 13
_START: Final = random.randrange(_STRIDE)
_FEW_IN_SAMPLE: Final = 60


def parse(text: str, max_tags: int = MAX_TAGS) -> tuple["Document", PageFlag]:
    """Return the tree, and flags for limits that the page exceeds."""
    import turbohtml  # this import takes longer than all our own modules, so wait until there is a page

    flags = NO_FLAGS
    if len(text) > _SHORT and (len(text) > HARMLESS_LENGTH or text[_START::_STRIDE].count("<") > _FEW_IN_SAMPLE):
        text, flags = _within_limits(text, max_tags)
    document = turbohtml.parse(text, allow_declarative_shadow_roots=False)
    for template in document.find_all("template"):
        if template.namespace is turbohtml.Namespace.HTML and template.attr("shadowrootmode") is None:
            template.decompose()
    return document, flags


def _within_limits(text: str, max_tags: int) -> tuple[str, PageFlag]:
    end, flags = len(text), NO_FLAGS
    while (tags := text.count("<", 0, end)) > max_tags:
        end, flags = end // 2, PageFlag.PARSE_LIMIT
    seen: set[str] = set()

    def rename_repeated(tag: re.Match[str]) -> str:
        name = tag[1].lower()
        if name not in seen:
            seen.add(name)
            return "<"
        return "<x-"

    text = _MERGED_TAG.sub(rename_repeated, text[:end])
    if tags <= _FEW_TAGS:
        return text, flags
    left, equal = max(MAX_REPEATED // tags, _MIN_OPEN), Counter[str]()

    def rename_open(tag: re.Match[str]) -> str:
        nonlocal left, flags
        written = tag[0]
        if tag[2] is not None:
            if equal[written] == _EQUAL:
                return written
            equal[written] += left > 0
        if left > 0:
            left -= 1
            return written
        flags |= PageFlag.FORMATTING_LIMIT
        return f"<x-{written[1:]}"

    return _FORMATTING.sub(rename_open, text), flags


HeaderPairs = Sequence[tuple[str, str]]


class Source:
    """The response of a page. The tree is shared: a change to it is visible to all later readers."""

    def __init__(
        self,
        url: str,
        body: bytes,
        content_type: str | None = None,
        *,
        status: int = 200,
        headers: HeaderPairs = (),
        http_version: str = "",
        is_rendered: bool = False,
    ) -> None:
        self.url = url  # the final URL, after redirects
        self.body = body
        self.content_type = content_type
        self.status = status
        self.headers = headers
        self.http_version = http_version
        self.is_rendered = is_rendered  # True if the body is the document after its scripts have run
        self.data: dict[str, Any] = {}  # the data that was extracted so far

    @property
    def text(self) -> str:
        """Return the decoded body."""
        return self._decoded[0]

    @property
    def encoding(self) -> str:
        """Return the WHATWG name of the body's encoding."""
        return self._decoded[1]

    @property
    def is_cut(self) -> bool:
        """Return whether text or tree cover only the first part of the body."""
        return PageFlag.PARSE_LIMIT in self._decoded[2] or self.text.count("<") > MAX_TAGS

    @cached_property
    def _decoded(self) -> tuple[str, str, PageFlag]:
        return decode(self.body, self.content_type)

    @cached_property
    def document(self) -> "Document":
        """Return the parsed body, without the content of `<template>`."""
        return parse(self.text)[0]
