"""What was not as it should be on a page whose facts were read all the same."""

from enum import IntFlag
from typing import Final


class PageFlag(IntFlag):
    """Numbers are stored: never reuse one."""

    ENCODING_GUESSED = 1  # nobody declared the encoding
    ENCODING_UNKNOWN = 2  # the header declares one that does not exist
    ENCODING_ERRORS = 4  # bytes without a meaning became U+FFFD
    PARSE_LIMIT = 8  # only the first part of the page was read
    LINK_LIMIT = 16  # there were more links than are taken from one page
    NOT_HTML = 32  # the body is something else: no facts, no links


NO_FLAGS: Final = PageFlag(0)


def names_of(flags: int) -> list[str]:
    """The flags that are set, by their names."""
    return [flag.name.lower() for flag in PageFlag if flags & flag and flag.name]
