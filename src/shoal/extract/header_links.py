"""Addresses that a page's headers give: `Link: <…>; rel="canonical"` and `Refresh: 0; url=…`. Pure.

Both are relative to the page itself, whatever its `<base>` says, so they are given as absolute URLs.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urljoin

LONGEST_URL: Final = 4_096

_REL: Final = re.compile(r""";\s*+rel\s*+=\s*+(?:"([^"]*)"|([^\s;,"]++))""", re.IGNORECASE)
_REFRESH: Final = re.compile(r"""\s*+[\d.]++\s*+[;,]?\s*+(?:url\s*+=\s*+)?["']?([^"']+)""", re.IGNORECASE)


def refresh_target(content: str) -> str | None:
    """Where a refresh leads, as written; None if it reloads the page itself."""
    found = _REFRESH.match(content)
    return found[1].strip() if found else None


def canonical_of(values: Sequence[str], page: str) -> str | None:
    """The canonical URL that `Link` fields give to the page of this URL; the first of several."""
    for value in values:
        for part in value.split("<")[1:]:
            target, _, parameters = part.partition(">")
            rel = _REL.search(parameters)
            if rel and "canonical" in (rel[1] or rel[2] or "").lower().split():
                return _absolute(page, target)
    return None


def refresh_of(value: str, page: str) -> str | None:
    """Where a `Refresh` field leads from the page of this URL."""
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
    """Servers write UTF-8 into a field that is read as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
