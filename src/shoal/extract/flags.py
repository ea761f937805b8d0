"""Flags for problems of a page whose facts were read despite these problems."""

from enum import IntFlag
from typing import Final


class PageFlag(IntFlag):
    """Problems of a page. The values are stored: never reuse one."""

    ENCODING_GUESSED = 1  # the encoding is not declared
    ENCODING_UNKNOWN = 2  # the header declares an unknown encoding
    ENCODING_ERRORS = 4  # invalid bytes were replaced by U+FFFD
    PARSE_LIMIT = 8  # only the first part of the page was read
    LINK_LIMIT = 16  # the page has more links than the limit
    NOT_HTML = 32  # the body is not HTML: no facts, no links
    NOT_RENDERED = 64  # the page needs a browser, and was read without one
    STAYED_EMPTY = 128  # the page has no links and hardly any words, even after rendering
    FORMATTING_LIMIT = 256  # the page has too many formatting tags (such as <b>) that stay open: some have no effect


NO_FLAGS: Final = PageFlag(0)


def names_of(flags: int) -> list[str]:
    """Return the names of the flags that are set."""
    return [flag.name.lower() for flag in PageFlag if flags & flag and flag.name]
