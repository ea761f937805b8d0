"""Parse a page into a tree, within limits. Other modules read the tree.

The content of `<template>` is removed, because a browser does not show it.
"""

import re
from typing import Final

import turbohtml
from turbohtml import Document, Namespace

MAX_TAGS: Final = 500_000

# The parser merges the attributes of repeated <html> and <body> tags one by one, in quadratic time.
_MERGED_TAG: Final = re.compile(r"<(?=(html|body)[\s/])", re.IGNORECASE)
_HARMLESS_LENGTH: Final = 32_768


def parse(text: str, max_tags: int = MAX_TAGS) -> tuple[Document, bool]:
    """Return the tree, and whether it covers the whole text or only its first part."""
    whole = True
    if len(text) > _HARMLESS_LENGTH:
        text, whole = _within_limits(text, max_tags)
    document = turbohtml.parse(text, allow_declarative_shadow_roots=False)
    for template in document.find_all("template"):
        if template.namespace is Namespace.HTML and template.attr("shadowrootmode") is None:
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
