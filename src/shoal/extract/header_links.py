"""Parse URLs in response headers: `Link: <…>; rel="canonical"` and `Refresh: 0; url=…`. Pure.

Both are relative to the page itself and not to its `<base>`, so they are returned as absolute URLs.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urljoin

LONGEST_URL: Final = 4_096

_REL: Final = re.compile(r""";\s*+rel\s*+=\s*+(?:"([^"]*)"|([^\s;,"]++))""", re.IGNORECASE)
_REFRESH: Final = re.compile(r"""\s*+[\d.]++\s*+[;,]?\s*+(?:url\s*+=\s*+)?["']?([^"']+)""", re.IGNORECASE)


def refresh_target(content: str) -> str | None:
    """Return the target of a refresh, as written; None if it reloads the page itself."""
    found = _REFRESH.match(content)
    return found[1].strip() if found else None


def canonical_of(values: Sequence[str], page: str) -> str | None:
    """Return the first canonical URL in the `Link` fields of a page, as an absolute URL."""
    for value in values:
        for part in value.split("<")[1:]:
            target, _, parameters = part.partition(">")
            rel = _REL.search(parameters)
            if rel and "canonical" in (rel[1] or rel[2] or "").lower().split():
                return _absolute(page, target)
    return None


def refresh_of(value: str, page: str) -> str | None:
    """Return the target of a `Refresh` field as an absolute URL."""
    target = refresh_target(value)
    return None if target is None else _absolute(page, target)


def _absolute(page: str, written: str) -> str | None:
    target = _as_sent(written).strip()
    try:
        url = urljoin(page, target) if target else ""
    except ValueError:
        return None
    return url if 0 < len(url) <= LONGEST_URL else None


def _as_sent(value: str) -> str:
    """Decode as UTF-8 a field that was read as Latin-1: many servers send UTF-8 in headers."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
