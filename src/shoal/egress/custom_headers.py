"""Custom request headers: validation, and which hosts may receive them."""

import re
from collections.abc import Mapping
from typing import Final

from shoal.base.text import HIDDEN, shorten
from shoal.egress.exchange import PUBLIC_HEADERS, HeaderPairs

MOST_HEADERS: Final = 50
LONGEST_HEADER: Final = 4096
LONGEST_NAME: Final = 100

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

_FRAMING: Final = (
    *("connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer"),
    *("transfer-encoding", "upgrade"),
)
_CONDITIONS: Final = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range")

RESERVED: Final = {
    "user-agent": "use user_agent (--user-agent)",
    "host": "name the host in the seed",
    "proxy-authorization": "put it into the proxy URL",
    "range": "pages are always fetched whole",
    **dict.fromkeys(_FRAMING, "Shoal sets it"),
    **dict.fromkeys(_CONDITIONS, "Shoal sends it in recrawls"),
}
"""Headers that callers may not set, and the alternative."""


def check_headers(headers: dict[str, str], reserved: Mapping[str, str] = RESERVED) -> dict[str, str]:
    """Reject headers that would break a request or that Shoal sets; raise `ValueError` with the end of a sentence."""
    if len(headers) > MOST_HEADERS:
        raise ValueError(f"must not be more than {MOST_HEADERS}")
    seen: set[str] = set()
    for name, value in headers.items():
        lowered = name.lower()
        if not _TOKEN.fullmatch(name) or len(name) > LONGEST_NAME:
            raise ValueError(f"have an invalid name: {_quoted(name)}")
        if lowered in reserved:
            raise ValueError(f"must not set {_quoted(name)}: {reserved[lowered]}")
        if lowered in seen:
            raise ValueError(f"name {_quoted(name)} twice")
        if _UNSAFE.search(value):
            raise ValueError(f"have control characters in the value of {_quoted(name)}")
        if len(value) > LONGEST_HEADER:
            raise ValueError(f"have a value of {_quoted(name)} that is longer than {LONGEST_HEADER} characters")
        seen.add(lowered)
    return headers


def _quoted(name: str) -> str:
    return repr(shorten(name))


def split(headers: Mapping[str, str]) -> tuple[HeaderPairs, HeaderPairs]:
    """Split headers into those for every host and those for the origins of the requested URLs only."""
    public = tuple((name, value) for name, value in headers.items() if name.lower() in PUBLIC_HEADERS)
    private = tuple((name, value) for name, value in headers.items() if name.lower() not in PUBLIC_HEADERS)
    return public, private


def hidden_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return custom headers with secret values redacted."""
    return {name: value if name.lower() in PUBLIC_HEADERS else HIDDEN for name, value in headers.items()}
