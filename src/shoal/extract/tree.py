"""Parse a page into a tree, within limits. Also the form of a response that readers get: bytes, text and tree, each
created once, on first use.

The content of `<template>` is removed, because a browser does not show it.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from shoal.extract.encoding import decode
from shoal.extract.flags import PageFlag

if TYPE_CHECKING:
    from turbohtml import Document

MAX_TAGS: Final = 500_000

# The parser merges the attributes of repeated <html> and <body> tags one by one, in quadratic time.
_MERGED_TAG: Final = re.compile(r"<(?=(html|body)[\s/])", re.IGNORECASE)
_HARMLESS_LENGTH: Final = 32_768


def parse(text: str, max_tags: int = MAX_TAGS) -> tuple["Document", bool]:
    """Return the tree, and whether it covers the whole text or only its first part."""
    import turbohtml  # this import takes longer than all our own modules, so wait until there is a page

    whole = True
    if len(text) > _HARMLESS_LENGTH:
        text, whole = _within_limits(text, max_tags)
    document = turbohtml.parse(text, allow_declarative_shadow_roots=False)
    for template in document.find_all("template"):
        if template.namespace is turbohtml.Namespace.HTML and template.attr("shadowrootmode") is None:
            template.decompose()
    return document, whole


def _within_limits(text: str, max_tags: int) -> tuple[str, bool]:
    end = len(text)
    while text.count("<", 0, end) > max_tags:
        end //= 2
    seen: set[str] = set()

    def rename_repeated(tag: re.Match[str]) -> str:
        name = tag[1].lower()
        if name not in seen:
            seen.add(name)
            return "<"
        return "<x-"

    return _MERGED_TAG.sub(rename_repeated, text[:end]), end == len(text)


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
